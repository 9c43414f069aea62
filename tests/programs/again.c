/* Executes itself repeatedly under one pid. Each execution uses the GPU as soon as it can.
 *
 *   again alloc ROUNDS BYTES          two threads call cuInit, the second 20 ms after the first, and each allocates BYTES:
 *                                     prints "alloc INIT ALLOC INIT ALLOC", the results of both calls in each thread
 *   again launch ROUNDS MICROSECONDS  a thread launches kernels of 100 us in a loop; MICROSECONDS after its first
 *                                     attempt another thread executes the next program
 *
 * The last program prints "end".
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spin.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct ctx *CUcontext;
typedef struct mod *CUmodule;
typedef struct func *CUfunction;
typedef struct stream *CUstream;

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

enum { THREADS = 2 };
struct thread { useconds_t pause; CUresult init, alloc; };

static size_t bytes;

static CUresult use(void)
{
    CUdevice device;
    CUcontext context;
    CUresult status = cuDeviceGet(&device, 0);
    if (!status)
        status = cuDevicePrimaryCtxRetain(&context, device);
    if (!status)
        status = cuCtxSetCurrent(context);
    return status;
}

static void *allocate(void *argument)
{
    struct thread *thread = argument;
    CUdeviceptr pointer;
    usleep(thread->pause);
    thread->init = cuInit(0);
    thread->alloc = use();
    if (!thread->alloc)
        thread->alloc = cuMemAlloc_v2(&pointer, bytes);
    return NULL;
}

static void allocate_by_all(void)
{
    pthread_t ids[THREADS];
    struct thread threads[THREADS] = { { 0, -1, -1 }, { 20000, -1, -1 } };
    for (int i = 0; i < THREADS; i++)
        pthread_create(&ids[i], NULL, allocate, &threads[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    printf("alloc %d %d %d %d\n", threads[0].init, threads[0].alloc, threads[1].init, threads[1].alloc);
}

static sem_t is_ready;

static void *launch(void *unused)
{
    unsigned long long microseconds = 100;
    void *parameters[] = { &microseconds };
    CUmodule module;
    CUfunction spin;
    (void)unused;
    if (cuInit(0) || use() || cuModuleLoadData(&module, ptx) || cuModuleGetFunction(&spin, module, "gcgroup_spin"))
        _exit(1);
    sem_post(&is_ready);
    while (!cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL))
        ;
    return NULL;
}

int main(int argc, char **argv)
{
    char left[16];
    if (argc != 4)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(argv[1], "alloc")) {
        bytes = strtoull(argv[3], NULL, 10);
        allocate_by_all();
    } else {
        pthread_t thread;
        sem_init(&is_ready, 0, 0);
        pthread_create(&thread, NULL, launch, NULL);
        sem_wait(&is_ready);
        usleep((useconds_t)atoi(argv[3]));
    }
    int rounds = atoi(argv[2]) - 1;
    if (rounds <= 0) {
        printf("end\n");
        _exit(0);
    }
    snprintf(left, sizeof left, "%d", rounds);
    execl("/proc/self/exe", argv[0], argv[1], left, argv[3], (char *)NULL);
    return 1;
}
