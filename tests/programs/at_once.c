/* Calls each driver function that it reads the name of with nothing but zeros, on a thread of its own in the primary
 * context of device 0: "called NAME" when that has begun, "NAME CODE" when it has returned. First "ready".
 */
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
    /* Structures that are passed by value are on the stack: zeros, too. */
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
