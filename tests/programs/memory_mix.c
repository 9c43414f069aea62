/* Allocates every kind of device memory and frees it, until refused and beyond: THREADS threads, each with a
 * stream of its own, ROUNDS calls each, of up to MOST KiB, of no kind in the set of bits WITHOUT. Prints "ready PID", waits for a line, and prints
 * "done GRANTED REFUSED" after the last call; frees nothing more until its input ends. For a refused call prints
 * "crowded BYTES KIND BEGUN", where BEGUN is the time of CLOCK_MONOTONIC at which it began, in nanoseconds. Then
 * the call is repeated while no other thread is in a call and all streams are idle. If it is refused again, prints
 * "refused BYTES KIND" and waits for a line before any other call. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 24, OUT_OF_MEMORY = 2, PAGE = 2 << 20 };
enum kind { NONE, LINEAR, PITCHED, MANAGED, ASYNC, PHYSICAL, ARRAY, CONTEXT, GRAPH, MODULE, SHARED, EXPORTED, KINDS };

typedef uint64_t word;
struct slot { enum kind kind; word handle; };

static word context;
static int rounds;
static unsigned without;
static size_t most;
static _Atomic long granted, refused;
/* Held for reading in each call, for writing where no other thread may be in one. */
static pthread_rwlock_t calls = PTHREAD_RWLOCK_INITIALIZER;
static void *cuda;

/* Calls a driver function with up to six arguments. */
static int call(const char *name, word a, word b, word c, word d, word e, word f)
{
    int code = ((int (*)(word, word, word, word, word, word))dlsym(cuda, name))(a, b, c, d, e, f);
    if (code && code != OUT_OF_MEMORY) {
        fprintf(stderr, "%s: %d\n", name, code);
        exit(1);
    }
    return code;
}
#define AT(variable) (word)(uintptr_t)&(variable)

static int graph(word *made, size_t bytes, word stream)
{
    word block, recorded;
    call("cuStreamBeginCapture_v2", stream, 1, 0, 0, 0, 0);
    call("cuMemAllocAsync", AT(block), bytes, stream, 0, 0, 0);
    call("cuMemFreeAsync", block, stream, 0, 0, 0, 0);
    call("cuStreamEndCapture", stream, AT(recorded), 0, 0, 0, 0);
    call("cuGraphInstantiateWithFlags", (word)(uintptr_t)made, recorded, 0, 0, 0, 0);
    call("cuGraphDestroy", recorded, 0, 0, 0, 0, 0);
    int code = call("cuGraphLaunch", *made, stream, 0, 0, 0, 0);
    if (code)
        call("cuGraphExecDestroy", *made, 0, 0, 0, 0, 0);
    return code;
}

/* Loads a module with a variable. */
static int module(word made, size_t bytes)
{
    char text[128];
    snprintf(text, sizeof text, ".version 7.8\n.target sm_75\n.visible .global .align 4 .b8 table[%zu];\n", bytes);
    return call("cuModuleLoadData", made, (word)(uintptr_t)text, 0, 0, 0, 0);
}

/* Makes memory that other processes may open. */
static int shared(word *made, size_t bytes)
{
    char handle[64];
    int code = call("cuMemAlloc_v2", (word)(uintptr_t)made, bytes, 0, 0, 0, 0);
    if (!code)
        call("cuIpcGetMemHandle", (word)(uintptr_t)handle, *made, 0, 0, 0, 0);
    return code;
}

/* Makes memory that other processes may import; only the imported handle is kept. */
static int exported(word *made, size_t bytes)
{
    int properties[16] = { 1, 1, 1 }, descriptor = -1;
    word created;
    int code = call("cuMemCreate", AT(created), bytes, (word)(uintptr_t)properties, 0, 0, 0);
    if (code)
        return code;
    call("cuMemExportToShareableHandle", AT(descriptor), created, 1, 0, 0, 0);
    call("cuMemImportFromShareableHandle", (word)(uintptr_t)made, descriptor, 1, 0, 0, 0);
    call("cuMemRelease", created, 0, 0, 0, 0, 0);
    close(descriptor);
    return 0;
}

static int make(struct slot *slot, enum kind kind, size_t bytes, word stream)
{
    word made = (word)(uintptr_t)&slot->handle, pitch, popped;
    int properties[16] = { 1, 0, 1 };
    struct { size_t width, height; int format; unsigned channels; } array = { 1000, bytes / 4000 + 1, 32, 1 };
    size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    int code;
    switch (kind) {
    case LINEAR: return call("cuMemAlloc_v2", made, bytes, 0, 0, 0, 0);
    case PITCHED: return call("cuMemAllocPitch_v2", made, AT(pitch), 1000, bytes / 1024 + 1, 4, 0);
    case MANAGED: return call("cuMemAllocManaged", made, bytes, 1, 0, 0, 0);
    case ASYNC: return call("cuMemAllocAsync", made, bytes, stream, 0, 0, 0);
    case PHYSICAL: return call("cuMemCreate", made, pages, (word)(uintptr_t)properties, 0, 0, 0);
    case MODULE: return module(made, bytes);
    case SHARED: return shared(&slot->handle, bytes);
    case EXPORTED: return exported(&slot->handle, pages);
    case ARRAY: return call("cuArrayCreate_v2", made, AT(array), 0, 0, 0, 0);
    case CONTEXT:
        code = call("cuCtxCreate_v2", made, 0, 0, 0, 0, 0);
        if (!code)
            call("cuCtxPopCurrent_v2", AT(popped), 0, 0, 0, 0, 0);
        return code;
    default: return graph(&slot->handle, bytes, stream);
    }
}

static void release(const struct slot *slot, word stream)
{
    static const char *const names[KINDS] = { NULL, "cuMemFree_v2", "cuMemFree_v2", "cuMemFree_v2", "cuMemFreeAsync",
                                              "cuMemRelease", "cuArrayDestroy", "cuCtxDestroy_v2", "cuGraphExecDestroy",
                                              "cuModuleUnload", "cuMemFree_v2", "cuMemRelease" };
    call(names[slot->kind], slot->handle, stream, 0, 0, 0, 0);
}

/* Makes the call while other threads may be in one. */
static int make_in_crowd(struct slot *slot, enum kind kind, size_t bytes, word stream)
{
    struct timespec begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    int code = make(slot, kind, bytes, stream);
    if (code) {
        printf("crowded %zu %d %lld\n", bytes, kind, begun.tv_sec * 1000000000LL + begun.tv_nsec);
        fflush(stdout);
    }
    return code;
}

/* Repeats a refused call alone. */
static int make_alone(struct slot *slot, enum kind kind, size_t bytes, word stream)
{
    char line[64];
    pthread_rwlock_wrlock(&calls);
    call("cuCtxSynchronize", 0, 0, 0, 0, 0, 0);
    int code = make(slot, kind, bytes, stream);
    if (code) {
        printf("refused %zu %d\n", bytes, kind);
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin))
            exit(4);
    }
    pthread_rwlock_unlock(&calls);
    return code;
}

static void *mix(void *number)
{
    unsigned seed = 1 + (unsigned)(size_t)number;
    struct slot slots[SLOTS] = { 0 };
    word stream;
    call("cuCtxSetCurrent", context, 0, 0, 0, 0, 0);
    call("cuStreamCreate", AT(stream), 1, 0, 0, 0, 0);
    for (int round = 0; round < rounds; round++) {
        struct slot *slot = &slots[rand_r(&seed) % SLOTS];
        enum kind kind;
        do
            kind = LINEAR + rand_r(&seed) % (KINDS - 1);
        while (without >> kind & 1);
        size_t bytes = 1 + (size_t)rand_r(&seed) % (most << 10);
        int code = 0;
        pthread_rwlock_rdlock(&calls);
        if (slot->kind)
            release(slot, stream);
        else
            code = make_in_crowd(slot, kind, bytes, stream);
        pthread_rwlock_unlock(&calls);
        if (slot->kind) {
            slot->kind = NONE;
        } else if (code && make_alone(slot, kind, bytes, stream)) {
            refused++;
        } else {
            slot->kind = kind;
            granted++;
        }
        if (rand_r(&seed) % 4 == 0)
            call("cuStreamSynchronize", stream, 0, 0, 0, 0, 0);
    }
    call("cuStreamSynchronize", stream, 0, 0, 0, 0, 0);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    int count = argc == 5 ? atoi(argv[1]) : 0;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || count < 1 || count > 64)
        return 2;
    rounds = atoi(argv[2]);
    most = strtoul(argv[3], NULL, 0);
    without = strtoul(argv[4], NULL, 0);
    call("cuInit", 0, 0, 0, 0, 0, 0);
    call("cuDevicePrimaryCtxRetain", AT(context), 0, 0, 0, 0, 0);
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[64];
    if (!fgets(line, sizeof line, stdin))
        return 0;
    for (size_t number = 0; number < (size_t)count; number++)
        if (pthread_create(&threads[number], NULL, mix, (void *)number))
            return 3;
    for (int number = 0; number < count; number++)
        pthread_join(threads[number], NULL);
    printf("done %ld %ld\n", granted, refused);
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return 0;
}
