/* Calls each driver function whose name it reads with all arguments zero, on a separate thread in the primary
 * context of device 0: prints "called NAME" when the call begins and "NAME CODE" when it returns. Prints
 * "ready" first. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*any)(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long);

static void *cuda, *context;

static int (*find(const char *name))()
{
    return (int (*)())dlsym(cuda, name);
}

static void *thread(void *name)
{
    any call = (any)find(name);
    if (!call || ((int (*)(void *))find("cuCtxSetCurrent"))(context))
        exit(1);
    printf("called %s\n", (char *)name);
    /* Structures passed by value are on the stack: zeros too. */
    int code = call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    printf("%s %d\n", (char *)name, code);
    return NULL;
}

int main(void)
{
    char name[128];
    pthread_t other;
    setvbuf(stdout, NULL, _IOLBF, 0);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || ((int (*)(unsigned))find("cuInit"))(0) ||
        ((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, 0))
        return 1;
    puts("ready");
    while (scanf("%127s", name) == 1)
        if (pthread_create(&other, NULL, thread, strdup(name)))
            return 2;
    return 0;
}
