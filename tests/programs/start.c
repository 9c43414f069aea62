/* Times the start of the driver: cuInit, a context and an allocation, in a program with THREADS threads.
 *
 *   start THREADS      prints the microseconds
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void *idle(void *nothing) {
    pause();
    return nothing;
}

int main(int count, char **words) {
    pthread_t thread;
    for (int left = count > 1 ? atoi(words[1]) : 1; left > 1; left--)
        if (pthread_create(&thread, NULL, idle, NULL))
            return 2;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        return 2;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    int (*alloc)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2");
    void *context;
    unsigned long long memory;
    double began = now();
    int failed = init(0) || retain(&context, 0) || current(context) || alloc(&memory, 1 << 20);
    printf("%.1f\n", now() - began);
    fflush(stdout);
    _exit(failed);
}
