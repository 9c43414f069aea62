/*
 * Keeps a cache of blocks on the GPU and frees blocks when it is given notice.
 *
 *     cc shrink_cache.c -lcuda && gcgroupfs run --swap ./a.out /gcgroup 64 16777216
 */
#include <fcntl.h>
#include <stdlib.h>

#include "gcgroup_notice.h"

/* As cuda.h declares them. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: %s MOUNT BLOCKS BYTES\n", arguments[0]);
        return 2;
    }
    size_t nr_blocks = strtoull(arguments[2], NULL, 10), size = strtoull(arguments[3], NULL, 10), used = 0;
    unsigned long long *blocks = calloc(nr_blocks, sizeof *blocks);
    void *context;
    if (blocks == NULL || cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0)
        return 1;
    while (used < nr_blocks && cuMemAlloc_v2(&blocks[used], size) == 0)
        used++;

    char path[4096];
    snprintf(path, sizeof path, "%s/%d/memory.notice", arguments[1], getpid());
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct gcgroup_notice notice;
    while (file >= 0 && gcgroup_notice_wait(file, -1, &notice) == 1) {
        size_t wanted = notice.is_eviction ? (notice.bytes + size - 1) / size : 0;
        while (wanted-- > 0 && used > 0)
            cuMemFree_v2(blocks[--used]);
        printf("%s, %zu blocks\n", notice.is_eviction ? "evict" : "available", used);
        fflush(stdout);
    }
    perror(path);
    return 1;
}
