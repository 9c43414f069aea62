/* Frees a block in the order of a stream, waits for the stream, and allocates a block of the same size: ROUNDS
 * times for each way to free and to wait. Prints "ready PID", waits for a line (a limit of one block is set
 * meanwhile), and prints "done", or the first allocation that is refused. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK = 32 << 20, NOT_READY = 600, RELEASE_THRESHOLD = 4 };

static void must(int code, const char *call)
{
    if (code) {
        fprintf(stderr, "%s: %d\n", call, code);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    void *context, *pool, *stream, *block, *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int rounds = argc == 2 ? atoi(argv[1]) : 0;
    unsigned long long all = ~0ull;
    if (!cuda || rounds < 1)
        return 2;
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(cuda, "cuMemAlloc_v2");
    int (*allocate_on)(void **, size_t, void *) = (int (*)(void **, size_t, void *))dlsym(cuda, "cuMemAllocAsync");
    int (*free_on)(void *, void *) = (int (*)(void *, void *))dlsym(cuda, "cuMemFreeAsync");
    int (*wait_for)(void *) = (int (*)(void *))dlsym(cuda, "cuStreamSynchronize");
    int (*query)(void *) = (int (*)(void *))dlsym(cuda, "cuStreamQuery");
    must(((int (*)(unsigned))dlsym(cuda, "cuInit"))(0), "cuInit");
    must(((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0), "cuDevicePrimaryCtxRetain");
    must(((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
    must(((int (*)(void **, unsigned))dlsym(cuda, "cuStreamCreate"))(&stream, 1), "cuStreamCreate");
    must(((int (*)(void **, int))dlsym(cuda, "cuDeviceGetDefaultMemPool"))(&pool, 0), "cuDeviceGetDefaultMemPool");
    must(((int (*)(void *, unsigned, void *))dlsym(cuda, "cuMemPoolSetAttribute"))(pool, RELEASE_THRESHOLD, &all),
         "cuMemPoolSetAttribute");
    printf("ready %d\n", getpid());
    fflush(stdout);
    if (getchar() == EOF)
        return 0;
    for (int round = 0; round < 4 * rounds; round++) {
        int is_pools = round & 1, is_queried = round & 2;
        const char *how[] = {"linear", "pool", "linear, queried", "pool, queried"};
        int code = is_pools ? allocate_on(&block, BLOCK, stream) : allocate(&block, BLOCK);
        if (code) {
            printf("refused in round %d (%s): %d\n", round, how[(round + 3) % 4], code);
            return 1;
        }
        must(free_on(block, stream), "cuMemFreeAsync");
        if (is_queried)
            while ((code = query(stream)) == NOT_READY)
                continue;
        else
            code = wait_for(stream);
        must(code, "wait");
    }
    puts("done");
    return 0;
}
