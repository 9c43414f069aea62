/* Calls driver functions in threads with small stacks, each function in a separate process, and prints the
 * stack use. Reads the functions' names from stdin and prints a line for each: "NAME CODE BYTES",
 * "NAME absent" or "NAME signal N".
 *
 *   small_stack WHEN SIZE
 *
 *   WHEN   first     the thread's lookup and call are the process's first use of the driver; all arguments are zero
 *          linked    as first, but without a lookup by the program, for the functions of the list below
 *          context   the process has a context, which the thread makes current; all arguments are zero
 *          work      the process has a context; the thread allocates, copies, launches and frees, whatever the name is
 *   SIZE   size of the stack in bytes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spin.h"

typedef int (*any)(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long);

enum { NO_DRIVER = 240, ABSENT, NO_THREAD, PAGE = 4096, PAINT = 0xa5, LARGE = 32 << 20 };

struct answer {
    int code;
    unsigned used;
};

static const char *name, *when;
static void *cuda, *library, *context;
static int result = -1;

int cuInit(unsigned) __attribute__((weak));
int cuDriverGetVersion(int *) __attribute__((weak));
int cuMemAlloc_v2(uint64_t *, size_t) __attribute__((weak));
int cuCtxGetCurrent(void **) __attribute__((weak));

static int (*find(const char *wanted))()
{
    return (int (*)())dlsym(cuda, wanted);
}

static int linked(void)
{
    int version;
    uint64_t address;
    void *current;
    if (!strcmp(name, "cuInit"))
        return cuInit(0);
    if (!strcmp(name, "cuDriverGetVersion"))
        return cuDriverGetVersion(&version);
    if (!strcmp(name, "cuMemAlloc_v2"))
        return cuMemAlloc_v2(&address, 4096);
    if (!strcmp(name, "cuCtxGetCurrent"))
        return cuCtxGetCurrent(&current);
    _exit(ABSENT);
}

/* Runs the steps; returns the result of the first that fails, or 0. */
static int work(void)
{
    uint64_t address = 0, other = 0, large[2] = { 0, 0 }, microseconds = 100, bytes = 4096, total;
    void *stream = NULL, *module, *function;
    void *parameters[] = { &microseconds };
    int code;
#define STEP(NAME, ...) \
    if ((code = find(NAME)(__VA_ARGS__))) { \
        fprintf(stderr, "%s: %d\n", NAME, code); \
        return code; \
    }
    STEP("cuCtxSetCurrent", context)
    STEP("cuStreamCreate", &stream, 0)
    STEP("cuMemAlloc_v2", &address, bytes)
    STEP("cuMemAllocAsync", &other, bytes, stream)
    STEP("cuMemsetD8Async", address, 1, bytes, stream)
    STEP("cuMemcpyDtoDAsync_v2", other, address, bytes, stream)
    STEP("cuModuleLoadData", &module, ptx)
    STEP("cuModuleGetFunction", &function, module, "gcgroup_spin")
    for (int i = 0; i < 50; i++)
        STEP("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL)
    /* The second may be refused, or move the first to the host. */
    STEP("cuMemAlloc_v2", &large[0], LARGE)
    STEP("cuMemsetD8_v2", large[0], 1, LARGE)
    find("cuMemAlloc_v2")(&large[1], LARGE);
    STEP("cuMemsetD8_v2", large[0], 2, LARGE)
    if (large[1])
        STEP("cuMemFree_v2", large[1])
    STEP("cuMemFree_v2", large[0])
    STEP("cuMemGetInfo_v2", &bytes, &total)
    STEP("cuMemFreeAsync", other, stream)
    STEP("cuStreamSynchronize", stream)
    STEP("cuMemFree_v2", address)
    STEP("cuStreamDestroy_v2", stream)
    STEP("cuCtxSynchronize")
#undef STEP
    return 0;
}

static void *in_thread(void *unused)
{
    (void)unused;
    if (!strcmp(name, "none"))
        result = 0;
    else if (!strcmp(when, "linked"))
        result = linked();
    else if (!strcmp(when, "work"))
        result = work();
    else {
        if (!strcmp(when, "context") && find("cuCtxSetCurrent")(context))
            _exit(NO_DRIVER);
        any call = (any)dlsym(library, name);
        if (!call)
            _exit(ABSENT);
        result = call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    }
    return NULL;
}

static void child(size_t size, int answer)
{
    /* SIGALRM ends a call that hangs. */
    alarm(60);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    library = strncmp(name, "nvml", 4) ? cuda : dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!cuda || !library)
        _exit(NO_DRIVER);
    int has_context = !strcmp(when, "context") || !strcmp(when, "work");
    if (has_context
        && (find("cuInit")(0) || find("cuCtxCreate_v2")(&context, 0, 0)))
        _exit(NO_DRIVER);
    /* A page without access below the stack. */
    unsigned char *stack = mmap(NULL, PAGE + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, PAGE, PROT_NONE))
        _exit(NO_THREAD);
    stack += PAGE;
    memset(stack, PAINT, size);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, size) || pthread_create(&thread, &attributes, in_thread, NULL)
        || pthread_join(thread, NULL))
        _exit(NO_THREAD);
    size_t untouched = 0;
    while (untouched < size && stack[untouched] == PAINT)
        untouched++;
    struct answer it = { result, (unsigned)(size - untouched) };
    if (write(answer, &it, sizeof it) != sizeof it)
        _exit(NO_DRIVER);
    _exit(0);
}

int main(int count, char **words)
{
    static char read_name[128];
    struct rlimit no_core = { 0, 0 };
    setvbuf(stdout, NULL, _IOLBF, 0);
    setrlimit(RLIMIT_CORE, &no_core);
    if (count != 3)
        return 2;
    when = words[1];
    name = read_name;
    while (scanf("%127s", read_name) == 1) {
        int answer[2], status;
        struct answer it;
        if (pipe(answer))
            return 3;
        pid_t pid = fork();
        if (!pid)
            child(strtoul(words[2], NULL, 0), answer[1]);
        waitpid(pid, &status, 0);
        close(answer[1]);
        if (WIFSIGNALED(status))
            printf("%s signal %d\n", name, WTERMSIG(status));
        else if (WEXITSTATUS(status) == ABSENT)
            printf("%s absent\n", name);
        else if (WEXITSTATUS(status) || read(answer[0], &it, sizeof it) != sizeof it)
            printf("%s ended with %d\n", name, WEXITSTATUS(status));
        else
            printf("%s %d %u\n", name, it.code, it.used);
        close(answer[0]);
    }
    return 0;
}
