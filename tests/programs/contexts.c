/* Makes contexts and allocates at once: its argument is a list of steps.
 *
 *   p DEVICE   retains the primary context, which becomes current
 *   c DEVICE   creates a context, which becomes current
 *   f BYTES    allocates blocks of BYTES in the current context until one is refused
 *
 * Prints "done CONTEXTS BLOCKS FREE": the number of contexts and blocks that it was given, and what
 * cuMemGetInfo said was free when the first context was made. Then waits for a line or the end of stdin. */
#include <stdio.h>
#include <stdlib.h>

typedef struct ctx *CUcontext;
int cuInit(unsigned);
int cuCtxCreate_v2(CUcontext *, unsigned, int);
int cuCtxSetCurrent(CUcontext);
int cuDevicePrimaryCtxRetain(CUcontext *, int);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemGetInfo_v2(size_t *, size_t *);

enum { OUT_OF_MEMORY = 2 };

static void check(int result, const char *call)
{
    if (result) {
        fprintf(stderr, "%s: error %d\n", call, result);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    unsigned nr_contexts = 0, nr_blocks = 0;
    size_t free = 0, total;
    check(cuInit(0), "cuInit");
    for (int at = 1; at + 1 < argc; at += 2) {
        size_t number = strtoull(argv[at + 1], NULL, 10);
        unsigned long long block;
        CUcontext context;
        int result;
        switch (argv[at][0]) {
        case 'f':
            while (!(result = cuMemAlloc_v2(&block, number)))
                nr_blocks++;
            break;
        case 'c':
            result = cuCtxCreate_v2(&context, 0, number);
            break;
        default:
            result = cuDevicePrimaryCtxRetain(&context, number);
            if (!result)
                check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        }
        if (argv[at][0] != 'f' && !result && !nr_contexts++)
            check(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
        if (result != OUT_OF_MEMORY)
            check(result, argv[at]);
        if (!nr_contexts)
            break;
    }
    printf("done %u %u %zu\n", nr_contexts, nr_blocks, free);
    fflush(stdout);
    getchar();
    return 0;
}
