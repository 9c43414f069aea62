/* Allocates from the current pool and frees to it until refused and beyond: THREADS threads, each with a stream
 * of its own, ROUNDS rounds of ten random allocations of LEAST to MOST KiB each. THRESHOLD is the pool's release
 * threshold, bytes. Each round frees seven random blocks and waits for its stream. Prints
 * "ready PID", waits for a line, and prints "done GRANTED REFUSED" after the last round; frees nothing until its
 * input ends. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCKS = 4096, OUT_OF_MEMORY = 2, RELEASE_THRESHOLD = 4 };

static void *context;
static int rounds;
static size_t least, most;
static _Atomic long granted, refused;

static int (*allocate)(void **, size_t, void *);
static int (*free_on)(void *, void *);
static int (*synchronize)(void *);
static int (*make)(void **, unsigned);
static int (*use)(void *);

static void must(int code, const char *call)
{
    if (code) {
        fprintf(stderr, "%s: %d\n", call, code);
        exit(1);
    }
}

static void *churn(void *number)
{
    unsigned seed = 1 + (unsigned)(size_t)number;
    void *stream, **blocks = calloc(BLOCKS, sizeof *blocks);
    int held = 0;
    must(use(context), "cuCtxSetCurrent");
    must(make(&stream, 1), "cuStreamCreate");
    for (int round = 0; round < rounds; round++) {
        for (int one = 0; one < 10 && held < BLOCKS; one++) {
            size_t bytes = least + (size_t)(rand_r(&seed) % 1024) * (most - least) / 1023;
            int code = allocate(&blocks[held], bytes << 10, stream);
            if (code == OUT_OF_MEMORY) {
                refused++;
                break;
            }
            must(code, "cuMemAllocAsync");
            granted++;
            held++;
        }
        for (int left = held < 7 ? held : 7; left > 0; left--) {
            int at = rand_r(&seed) % held;
            must(free_on(blocks[at], stream), "cuMemFreeAsync");
            blocks[at] = blocks[--held];
        }
        must(synchronize(stream), "cuStreamSynchronize");
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    void *pool, *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int count = argc == 6 ? atoi(argv[1]) : 0;
    if (!cuda || count < 1 || count > 64)
        return 2;
    rounds = atoi(argv[2]);
    least = strtoul(argv[3], NULL, 0);
    most = strtoul(argv[4], NULL, 0);
    unsigned long long threshold = strtoull(argv[5], NULL, 0);
    allocate = (int (*)(void **, size_t, void *))dlsym(cuda, "cuMemAllocAsync");
    free_on = (int (*)(void *, void *))dlsym(cuda, "cuMemFreeAsync");
    synchronize = (int (*)(void *))dlsym(cuda, "cuStreamSynchronize");
    make = (int (*)(void **, unsigned))dlsym(cuda, "cuStreamCreate");
    use = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    must(((int (*)(unsigned))dlsym(cuda, "cuInit"))(0), "cuInit");
    must(((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0), "cuDevicePrimaryCtxRetain");
    must(use(context), "cuCtxSetCurrent");
    must(((int (*)(void **, int))dlsym(cuda, "cuDeviceGetDefaultMemPool"))(&pool, 0), "cuDeviceGetDefaultMemPool");
    must(((int (*)(void *, unsigned, void *))dlsym(cuda, "cuMemPoolSetAttribute"))(pool, RELEASE_THRESHOLD, &threshold),
         "cuMemPoolSetAttribute");
    printf("ready %d\n", getpid());
    fflush(stdout);
    if (getchar() == EOF)
        return 0;
    for (size_t number = 0; number < (size_t)count; number++)
        must(pthread_create(&threads[number], NULL, churn, (void *)number), "pthread_create");
    for (int number = 0; number < count; number++)
        pthread_join(threads[number], NULL);
    printf("done %ld %ld\n", granted, refused);
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return 0;
}
