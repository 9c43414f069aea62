/* erratic SEED THREADS MICROSECONDS: launches kernels whose lengths do not tell the length of the next one, on
 * several streams, with pauses, from threads that end while their kernels run. Each thread stops when its
 * kernels amount to its share of MICROSECONDS. Ends without waiting for what runs then. Prints "ready" first. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "spin.h"

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

enum { STREAMS = 3 };

/* One line of work, which successive threads continue. */
struct line { uint64_t random; long left; void *streams[STREAMS]; };

static void *context, *spin;

static void must(int status)
{
    if (status)
        _exit(1);
}

static long below(struct line *line, long end)
{
    line->random ^= line->random << 13;
    line->random ^= line->random >> 7;
    line->random ^= line->random << 17;
    return (long)((line->random >> 16) % (uint64_t)end);
}

static void launch(struct line *line, uint64_t usec)
{
    void *parameters[] = { &usec };
    unsigned width = below(line, 8) ? 1 : 2;
    must(cuLaunchKernel(spin, 1, 1, 1, width, 1, 1, 0, line->streams[below(line, STREAMS)], parameters, NULL));
    line->left -= (long)usec;
}

static void wait_for_all(struct line *line)
{
    for (int i = 0; i < STREAMS; i++)
        must(cuStreamSynchronize(line->streams[i]));
}

static void pause_for(long usec)
{
    struct timespec time = { 0, usec * 1000 };
    nanosleep(&time, NULL);
}

static uint64_t length(struct line *line, int kind, int at, int number)
{
    switch (kind) {
    case 0: /* short */
        return 5 + (uint64_t)below(line, 60);
    case 1: /* 5 us to 20 ms */
        return (5 + (uint64_t)below(line, 5)) << below(line, 12);
    case 2: /* longer each time */
        return 10ULL << at;
    default: /* short, and one far longer */
        return at + 1 < number ? 10 : 50000 + (uint64_t)below(line, 250000);
    }
}

static void phase(struct line *line)
{
    static const int numbers[] = { 100, 20, 14, 80 };
    int kind = (int)below(line, 4), number = numbers[kind];
    long waits = below(line, 3), rests = below(line, 3), rest = below(line, 3000);
    for (int at = 0; at < number && line->left > 0; at++) {
        launch(line, length(line, kind, at, number));
        if (waits == 0 || (waits == 1 && below(line, 4) == 0))
            wait_for_all(line);
        if (rests == 0 && below(line, 4) == 0)
            pause_for(rest);
    }
}

static void *run(void *argument)
{
    struct line *line = argument;
    must(cuCtxSetCurrent(context));
    while (line->left > 0) {
        phase(line);
        long next = below(line, 8);
        if (next < 6)
            wait_for_all(line);
        if (next == 5)
            pause_for(20000);
        if (next == 6)
            break;
    }
    return NULL;
}

/* Has threads continue a line until it is complete. */
static void *continue_line(void *argument)
{
    struct line *line = argument;
    while (line->left > 0) {
        pthread_t thread;
        must(pthread_create(&thread, NULL, run, line));
        pthread_join(thread, NULL);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    void *module;
    if (argc != 4)
        return 2;
    int threads = atoi(argv[2]);
    pthread_t ids[threads];
    struct line lines[threads];
    must(cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context));
    must(cuModuleLoadData(&module, ptx) || cuModuleGetFunction(&spin, module, "gcgroup_spin"));
    for (int i = 0; i < threads; i++) {
        lines[i].random = (strtoull(argv[1], NULL, 10) * 64 + (uint64_t)i + 1) * 0x9e3779b97f4a7c15;
        lines[i].left = atol(argv[3]) / threads;
        for (int at = 0; at < STREAMS; at++)
            must(cuStreamCreate(&lines[i].streams[at], 0));
    }
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < threads; i++)
        must(pthread_create(&ids[i], NULL, continue_line, &lines[i]));
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    _exit(0);
}
