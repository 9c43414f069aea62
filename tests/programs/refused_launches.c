/* refused_launches SEED THREADS ROUNDS: each thread makes ROUNDS submissions at random, some of which the driver
 * refuses: launches of 1 us or of 0 blocks, sets of memory or of none that exists, launches of a graph or of 0;
 * and captures that become no graph. Prints "ready", and at the end "LAUNCHES GRAPHS COPIES", the submissions
 * that were not refused; then waits for the end of its input. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "spin.h"

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuStreamSynchronize(void *);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuStreamCreate(void **, unsigned);
int cuStreamBeginCapture_v2(void *, unsigned);
int cuStreamEndCapture(void *, void **);
int cuGraphCreate(void **, unsigned);
int cuGraphDestroy(void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemsetD8Async(unsigned long long, unsigned char, size_t, void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

enum { KINDS = 3 };
struct thread { pthread_t id; uint64_t random; long rounds; long made[KINDS]; };

static void *context, *spin;

static void must(int status)
{
    if (status)
        _exit(1);
}

static long below(struct thread *thread, long end)
{
    thread->random ^= thread->random << 13;
    thread->random ^= thread->random >> 7;
    thread->random ^= thread->random << 17;
    return (long)((thread->random >> 16) % (uint64_t)end);
}

static int launch(unsigned blocks, void *stream)
{
    uint64_t usec = 1;
    void *parameters[] = { &usec };
    return cuLaunchKernel(spin, blocks, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void *run(void *argument)
{
    struct thread *thread = argument;
    void *stream, *exec, *graph, *captured;
    unsigned long long block;
    must(cuCtxSetCurrent(context));
    must(cuStreamCreate(&stream, 1));
    must(cuMemAlloc_v2(&block, 4096));
    must(cuGraphCreate(&graph, 0));
    must(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (long round = 0; round < thread->rounds; round++) {
        long good = below(thread, 2), kind = below(thread, KINDS);
        int status = 0;
        switch (kind) {
        case 0:
            status = launch((unsigned)good, stream);
            break;
        case 1:
            status = cuGraphLaunch(good ? exec : NULL, stream);
            break;
        default:
            status = cuMemsetD8Async(good ? block : 64, 7, 4096, stream);
        }
        if ((status == 0) != good)
            _exit(2);
        thread->made[kind] += good;
        if (below(thread, 50) == 0)
            must(cuStreamSynchronize(stream));
        if (below(thread, 200) == 0) {
            must(cuStreamBeginCapture_v2(stream, 1));
            must(launch(1, stream));
            if (!launch(0, stream))
                _exit(2);
            /* What is refused may invalidate the capture. */
            if (!cuStreamEndCapture(stream, &captured))
                must(cuGraphDestroy(captured));
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    void *module;
    int count = atoi(argv[2]);
    struct thread *threads = calloc((size_t)count, sizeof *threads);
    long made[KINDS] = { 0 };
    must(argc != 4 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
         cuModuleLoadData(&module, ptx) || cuModuleGetFunction(&spin, module, "gcgroup_spin"));
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < count; i++) {
        threads[i].random = (uint64_t)(atoi(argv[1]) * 1000 + i + 1) * 0x9e3779b97f4a7c15;
        threads[i].rounds = atol(argv[3]);
        must(pthread_create(&threads[i].id, NULL, run, &threads[i]));
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i].id, NULL);
        for (int kind = 0; kind < KINDS; kind++)
            made[kind] += threads[i].made[kind];
    }
    must(cuCtxSynchronize());
    printf("%ld %ld %ld\n", made[0], made[1], made[2]);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
