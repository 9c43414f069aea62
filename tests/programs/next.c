/* Lookups with dlsym, each made twice. Three parts of one program: two libraries that both define cuPlain,
 * which is in no driver, the first of which passes the call on to the next; and, with neither -DFIRST nor
 * -DSECOND, the program:
 *
 *   cuPlain 1 2 2                 libraries reached: the first, and through it twice the second
 *   HOW found found same CODE     cuMemAlloc_v2 looked up twice, and its result with all arguments zero
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int cuPlain(int *reached);

#if defined SECOND

int cuPlain(int *reached)
{
    *reached = 2;
    return 0;
}

#elif defined FIRST

int cuPlain(int *reached)
{
    static int depth;
    *reached = 1;
    if (depth++)
        return 0;
    for (int i = 1; i <= 2; i++) {
        int (*next)(int *) = (int (*)(int *))dlsym(RTLD_NEXT, "cuPlain");
        if (next)
            next(&reached[i]);
    }
    return 0;
}

#else

typedef int (*alloc)(unsigned long long *, size_t);

int cuInit(unsigned);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

static void tell(const char *how, void *once, void *again)
{
    unsigned long long pointer;
    printf("%s %s %s %s ", how, once ? "found" : "null", again ? "found" : "null", once == again ? "same" : "other");
    /* With zero arguments the driver refuses the call; a call that recurses into itself never returns. */
    int status = once ? ((alloc)once)(&pointer, 0) : -1;
    printf("%d\n", status == 1 || status == 201 ? 0 : status);
}

int main(void)
{
    int reached[3] = { 0 }, status;
    void *once, *again;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cuInit(0))
        return 1;
    cuPlain(reached);
    printf("cuPlain %d %d %d\n", reached[0], reached[1], reached[2]);
    once = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    again = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    tell("default", once, again);
    once = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    again = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    tell("next", once, again);
    once = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    again = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    tell("handle", once, again);
    once = again = NULL;
    cuGetProcAddress_v2("cuMemAlloc", &once, 12000, 0, &status);
    cuGetProcAddress_v2("cuMemAlloc", &again, 12000, 0, &status);
    tell("getproc", once, again);
    return 0;
}

#endif
