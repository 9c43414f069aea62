/* Calls the driver at unusual times, controlled by lines on stdin; each is answered by one line on stdout.
 *
 *   launch N                N launches of a microsecond's kernel          -> CODE
 *   alloc BYTES             kept                                           -> CODE
 *   free                    what was allocated last                        -> CODE
 *   sync                                                                   -> CODE
 *   thread                  starts a thread that launches once, immediately -> started
 *   once                    as thread, and waits until it has ended        -> CODE
 *   jump                    launches; SIGUSR1 meanwhile jumps out of it    -> jumped | CODE
 *   wait USEC               a kernel of USEC; SIGUSR1 jumps out of the
 *                           wait for it                                    -> waits, then jumped | CODE
 *   cancel                  cancels that thread                            -> sent
 *   join                    joins it                                       -> canceled | CODE
 *   condemned BYTES         a thread that is canceled already allocates    -> canceled CODE
 *   ended WHAT              a thread that is canceled already calls WHAT:
 *                           alloc | free | launch | sync                   -> canceled CODE, -1 if it did not return
 *   doomed N                another calls all of these N times, among
 *                           other threads                                  -> canceled CODE
 *   handler BYTES           a signal handler allocates, frees, launches    -> CODE CODE CODE
 *   callback BYTES          a host function on a stream allocates, queries -> CODE CODE
 *   vfork PROGRAM WAY N     a vfork child executes PROGRAM                  -> STATUS
 *   spawn PROGRAM WAY N     posix_spawn                                    -> STATUS
 *   child                   a forked child makes all calls and exits       -> CODE CODE CODE CODE
 *   destroy                 the context, while it is current               -> CODE
 *   leave HOW               exit | return | _exit | quick | abort | exec: while threads submit
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spin.h"

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct ctx *CUcontext;
typedef struct mod *CUmodule;
typedef struct func *CUfunction;
typedef struct stream *CUstream;

CUresult cuInit(unsigned);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, int);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

extern char **environ;

static CUcontext context;
static CUfunction spin;
static CUdeviceptr blocks[64];
static int nr_blocks;
static pthread_t thread;
static atomic_int thread_runs;

static CUresult launch_for(uint64_t microseconds)
{
    void *parameters[] = { &microseconds };
    return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

static CUresult launch(void)
{
    return launch_for(1);
}

static CUresult alloc(size_t bytes)
{
    CUresult status = cuMemAlloc_v2(&blocks[nr_blocks], bytes);
    nr_blocks += !status;
    return status;
}

static void *launches(void *unused)
{
    (void)unused;
    cuCtxSetCurrent(context);
    thread_runs = 1;
    CUresult status = launch();
    pthread_testcancel();
    return (void *)(intptr_t)status;
}

static void start(void *(*run)(void *), void *argument)
{
    thread_runs = 0;
    pthread_create(&thread, NULL, run, argument);
    while (!thread_runs)
        sched_yield();
}

static void join(void)
{
    void *answered;
    pthread_join(thread, &answered);
    if (answered == PTHREAD_CANCELED)
        printf("canceled\n");
    else
        printf("%d\n", (int)(intptr_t)answered);
}

static sigjmp_buf out;

static void jump_out(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

/* A program that waits this long for a launch, and then continues with something else. */
static void jump(void)
{
    struct sigaction action = { .sa_handler = jump_out };
    sigaction(SIGUSR1, &action, NULL);
    if (sigsetjmp(out, 1))
        printf("jumped\n");
    else
        printf("%d\n", launch());
}

/* A program that waits this long for a kernel, and then continues with something else. */
static void wait_for_kernel(unsigned long long microseconds)
{
    struct sigaction action = { .sa_handler = jump_out };
    CUresult status = launch_for(microseconds);
    if (sigsetjmp(out, 1)) {
        printf("jumped\n");
        return;
    }
    sigaction(SIGUSR1, &action, NULL);
    printf("waits\n");
    if (!status)
        status = cuCtxSynchronize();
    signal(SIGUSR1, SIG_IGN);
    printf("%d\n", status);
}

static CUresult condemned_answer;

static void *condemned(void *bytes)
{
    CUdeviceptr pointer;
    cuCtxSetCurrent(context);
    thread_runs = 1;
    pthread_cancel(pthread_self());
    condemned_answer = cuMemAlloc_v2(&pointer, (size_t)bytes);
    pthread_testcancel();
    return NULL;
}

static CUresult ended_answer;

static void *ended_in_a_call(void *what)
{
    CUdeviceptr pointer = 0;
    cuCtxSetCurrent(context);
    if (!strcmp(what, "free"))
        cuMemAlloc_v2(&pointer, 4096);
    thread_runs = 1;
    pthread_cancel(pthread_self());
    if (!strcmp(what, "alloc"))
        ended_answer = cuMemAlloc_v2(&pointer, 4096);
    else if (!strcmp(what, "free"))
        ended_answer = cuMemFree_v2(pointer);
    else if (!strcmp(what, "launch"))
        ended_answer = launch();
    else
        ended_answer = cuCtxSynchronize();
    pthread_testcancel();
    return NULL;
}

static atomic_int crowd_leaves;

static void *crowd(void *unused)
{
    (void)unused;
    cuCtxSetCurrent(context);
    thread_runs = 1;
    while (!crowd_leaves) {
        CUdeviceptr pointer;
        if (!cuMemAlloc_v2(&pointer, 4096))
            cuMemFree_v2(pointer);
        launch();
    }
    return NULL;
}

static CUresult doomed_answer;

static void *doomed(void *rounds)
{
    CUresult status = cuCtxSetCurrent(context);
    thread_runs = 1;
    pthread_cancel(pthread_self());
    for (uintptr_t left = (uintptr_t)rounds; left && !status; left--) {
        CUdeviceptr pointer;
        status = cuMemAlloc_v2(&pointer, 4096);
        if (!status)
            status = launch();
        if (!status)
            status = cuMemFree_v2(pointer);
    }
    doomed_answer = status;
    pthread_testcancel();
    return NULL;
}

static size_t handler_bytes;
static CUresult handled[3];

static void handler(int signal)
{
    CUdeviceptr pointer = 0;
    (void)signal;
    handled[0] = cuMemAlloc_v2(&pointer, handler_bytes);
    handled[1] = launch();
    handled[2] = cuMemFree_v2(pointer);
}

static CUresult called[2];

static void callback(void *bytes)
{
    CUdeviceptr pointer = 0;
    size_t available, total;
    called[0] = cuMemAlloc_v2(&pointer, (size_t)bytes);
    called[1] = cuMemGetInfo_v2(&available, &total);
}

static int ended(pid_t pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static atomic_int leaving;

static void *submits(void *unused)
{
    (void)unused;
    cuCtxSetCurrent(context);
    thread_runs++;
    for (;;) {
        CUdeviceptr pointer;
        if (launch() | cuMemAlloc_v2(&pointer, 4096) | cuMemFree_v2(pointer))
            while (leaving)
                pause();
    }
    return NULL;
}

static void at_the_end(void)
{
    /* The result is not checked: the driver may be unloaded already. The call must only return. */
    size_t available, total;
    CUdeviceptr pointer = 0;
    launch();
    cuMemAlloc_v2(&pointer, 4096);
    cuMemGetInfo_v2(&available, &total);
    cuMemFree_v2(pointer);
    cuCtxSynchronize();
    cuCtxDestroy_v2(context);
    static const char words[] = "left\n";
    if (write(1, words, sizeof words - 1) < 0)
        return;
}

__attribute__((destructor)) static void at_the_very_end(void)
{
    if (leaving)
        at_the_end();
}

static int leave(const char *how, char **words)
{
    for (int i = 0; i < 4; i++)
        start(submits, NULL);
    leaving = 1;
    if (!strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "_exit"))
        _exit(0);
    if (!strcmp(how, "quick"))
        quick_exit(0);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "exec")) {
        leaving = 0;
        execv("/proc/self/exe", words);
    }
    return 0;
}

static void from_a_child(void)
{
    size_t available, total;
    CUdeviceptr pointer = 0;
    CUresult code[] = { cuInit(0), cuMemAlloc_v2(&pointer, 4096), launch(), cuMemGetInfo_v2(&available, &total) };
    printf("%d %d %d %d\n", code[0], code[1], code[2], code[3]);
    fflush(stdout);
    _exit(0);
}

int main(int count, char **words)
{
    char line[512], a[256], b[64], c[64];
    unsigned long long n;
    struct sigaction action = { .sa_handler = handler };
    (void)count;
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* Registered before the driver's own handlers, so it runs after them. */
    atexit(at_the_end);
    at_quick_exit(at_the_end);
    CUmodule module;
    CUresult status = cuInit(0);
    if (!status)
        status = cuCtxCreate_v2(&context, 0, 0);
    if (!status)
        status = cuModuleLoadData(&module, ptx);
    if (!status)
        status = cuModuleGetFunction(&spin, module, "gcgroup_spin");
    atexit(at_the_end);
    printf("ready %d %d\n", (int)getpid(), status);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "launch %llu", &n) == 1) {
            for (status = 0; n && !status; n--)
                status = launch();
            printf("%d\n", status);
        } else if (sscanf(line, "alloc %llu", &n) == 1) {
            printf("%d\n", alloc(n));
        } else if (!strcmp(line, "free\n")) {
            printf("%d\n", nr_blocks ? cuMemFree_v2(blocks[--nr_blocks]) : -1);
        } else if (!strcmp(line, "sync\n")) {
            printf("%d\n", cuCtxSynchronize());
        } else if (!strcmp(line, "thread\n")) {
            start(launches, NULL);
            printf("started\n");
        } else if (!strcmp(line, "once\n")) {
            start(launches, NULL);
            join();
        } else if (!strcmp(line, "jump\n")) {
            jump();
        } else if (!strcmp(line, "cancel\n")) {
            pthread_cancel(thread);
            printf("sent\n");
        } else if (!strcmp(line, "join\n")) {
            join();
        } else if (sscanf(line, "condemned %llu", &n) == 1) {
            void *answered;
            start(condemned, (void *)(uintptr_t)n);
            pthread_join(thread, &answered);
            printf("%s %d\n", answered == PTHREAD_CANCELED ? "canceled" : "went on", condemned_answer);
        } else if (sscanf(line, "wait %llu", &n) == 1) {
            wait_for_kernel(n);
        } else if (sscanf(line, "ended %255s", a) == 1) {
            void *answered;
            ended_answer = -1;
            start(ended_in_a_call, a);
            pthread_join(thread, &answered);
            printf("%s %d\n", answered == PTHREAD_CANCELED ? "canceled" : "went on", ended_answer);
        } else if (sscanf(line, "doomed %llu", &n) == 1) {
            pthread_t others[3];
            void *answered;
            crowd_leaves = 0;
            for (int i = 0; i < 3; i++) {
                start(crowd, NULL);
                others[i] = thread;
            }
            doomed_answer = -1;
            start(doomed, (void *)(uintptr_t)n);
            pthread_join(thread, &answered);
            crowd_leaves = 1;
            for (int i = 0; i < 3; i++)
                pthread_join(others[i], NULL);
            printf("%s %d\n", answered == PTHREAD_CANCELED ? "canceled" : "went on", doomed_answer);
        } else if (sscanf(line, "handler %llu", &n) == 1) {
            handler_bytes = n;
            sigaction(SIGUSR2, &action, NULL);
            raise(SIGUSR2);
            printf("%d %d %d\n", handled[0], handled[1], handled[2]);
        } else if (sscanf(line, "callback %llu", &n) == 1) {
            called[0] = called[1] = -1;
            status = cuLaunchHostFunc(NULL, callback, (void *)(uintptr_t)n);
            if (!status)
                status = cuCtxSynchronize();
            printf("%d %d %d\n", status, called[0], called[1]);
        } else if (sscanf(line, "vfork %255s %63s %63s", a, b, c) == 3) {
            char *arguments[] = { a, b, c, NULL };
            pid_t pid = vfork();
            if (!pid) {
                int nothing = open("/dev/null", O_RDWR);
                dup2(nothing, 0);
                dup2(nothing, 1);
                execv(a, arguments);
                _exit(127);
            }
            printf("%d\n", ended(pid));
        } else if (sscanf(line, "spawn %255s %63s %63s", a, b, c) == 3) {
            char *arguments[] = { a, b, c, NULL };
            pid_t pid = 0;
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
            posix_spawn_file_actions_adddup2(&actions, 0, 1);
            if (posix_spawn(&pid, a, &actions, NULL, arguments, environ))
                printf("127\n");
            else
                printf("%d\n", ended(pid));
        } else if (!strcmp(line, "child\n")) {
            pid_t pid = fork();
            if (!pid)
                from_a_child();
            ended(pid);
        } else if (!strcmp(line, "destroy\n")) {
            printf("%d\n", cuCtxDestroy_v2(context));
        } else if (sscanf(line, "leave %255s", a) == 1) {
            return leave(a, words);
        } else {
            printf("unknown command %s", line);
        }
    }
    return 0;
}
