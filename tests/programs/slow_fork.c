/* Delays the return of fork() in the parent by 300 ms, for programs to which a signal comes meanwhile. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

pid_t fork(void)
{
    pid_t child = ((pid_t(*)(void))dlsym(RTLD_NEXT, "fork"))();
    struct timespec left = {.tv_nsec = 300000000};
    while (child > 0 && nanosleep(&left, &left))
        continue;
    return child;
}
