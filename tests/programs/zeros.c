/* Calls each driver function whose name it reads with all arguments zero, each in a separate process, and
 * prints the results: "NAME CODE", "NAME absent" or "NAME signal N".
 *
 *   zeros before | after | context | destroyed | canceled
 *                                                 before cuInit; after it, without a context; with one; with a
 *                                                 destroyed one; with one, in a cancelled thread, which ends where
 *                                                 the call may wait
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*any)(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long);

enum { NO_DRIVER = 240, ABSENT };

static int (*find(void *library, const char *name))()
{
    return (int (*)())dlsym(library, name);
}

/* Exits with a distinct code if the driver cannot be brought into the requested state. */
static void go_to(void *cuda, const char *when)
{
    void *context = NULL;
    if (!strcmp(when, "before"))
        return;
    if (((int (*)(unsigned))find(cuda, "cuInit"))(0))
        _exit(NO_DRIVER);
    if (!strcmp(when, "after"))
        return;
    if (((int (*)(void **, unsigned, int))find(cuda, "cuCtxCreate_v2"))(&context, 0, 0))
        _exit(NO_DRIVER);
    if (!strcmp(when, "destroyed") && ((int (*)(void *))find(cuda, "cuCtxDestroy_v2"))(context))
        _exit(NO_DRIVER);
}

static void child(const char *name, const char *when, int answer)
{
    /* SIGALRM ends a call that hangs. */
    alarm(60);
    int is_nvml = !strncmp(name, "nvml", 4);
    void *library = dlopen(is_nvml ? "libnvidia-ml.so.1" : "libcuda.so.1", RTLD_NOW);
    if (!library)
        _exit(NO_DRIVER);
    if (!is_nvml)
        go_to(library, when);
    else if (strcmp(when, "before") && ((int (*)(void))find(library, "nvmlInit_v2"))())
        _exit(NO_DRIVER);
    any call = (any)find(library, name);
    if (!call)
        _exit(ABSENT);
    int is_canceled = !strcmp(when, "canceled");
    if (is_canceled)
        pthread_cancel(pthread_self());
    /* Structures passed by value are on the stack: zeros too. */
    int code = call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    if (is_canceled)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    if (write(answer, &code, sizeof code) != sizeof code)
        _exit(NO_DRIVER);
    _exit(0);
}

int main(int count, char **words)
{
    char name[128];
    struct rlimit no_core = { 0, 0 };
    setvbuf(stdout, NULL, _IOLBF, 0);
    setrlimit(RLIMIT_CORE, &no_core);
    if (count != 2)
        return 2;
    while (scanf("%127s", name) == 1) {
        int answer[2], status, code;
        if (pipe(answer))
            return 3;
        pid_t pid = fork();
        if (!pid)
            child(name, words[1], answer[1]);
        waitpid(pid, &status, 0);
        close(answer[1]);
        if (WIFSIGNALED(status))
            printf("%s signal %d\n", name, WTERMSIG(status));
        else if (WEXITSTATUS(status) == ABSENT)
            printf("%s absent\n", name);
        else if (WEXITSTATUS(status) || read(answer[0], &code, sizeof code) != sizeof code)
            printf("%s ended with %d\n", name, WEXITSTATUS(status));
        else
            printf("%s %d\n", name, code);
        close(answer[0]);
    }
    return 0;
}
