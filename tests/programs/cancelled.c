/* Cancels a thread asynchronously while it initialises the driver, makes a context, and loads modules and
 * allocates again and again.
 *
 *   cancelled MICROSECONDS
 *
 * Exits with 0 when the thread has had 20 ms to end: it may end within the driver, which keeps its locks. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "spin.h"

int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuModuleLoadData(void **, const void *);
int cuModuleUnload(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemFree_v2(unsigned long long);

static pthread_barrier_t both;

static void *calls(void *nothing) {
    void *context, *module;
    unsigned long long memory;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    pthread_barrier_wait(&both);
    cuInit(0);
    cuCtxCreate_v2(&context, 0, 0);
    for (;;) {
        if (!cuModuleLoadData(&module, ptx))
            cuModuleUnload(module);
        if (!cuMemAlloc_v2(&memory, 4096))
            cuMemFree_v2(memory);
    }
    return nothing;
}

int main(int count, char **words) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    if (count != 2 || pthread_create(&thread, NULL, calls, NULL))
        return 2;
    pthread_barrier_wait(&both);
    usleep((useconds_t)atoi(words[1]));
    pthread_cancel(thread);
    usleep(20000);
    _exit(0);
}
