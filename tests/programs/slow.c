/* Preloaded into a daemon: if the file named by SLOW exists, the next accepted connection removes it and is
 * served 6 s later, longer than a client waits for a daemon that hangs. The daemon runs now and then
 * meanwhile, as on a machine that is too busy. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int accept4(int listener, struct sockaddr *address, socklen_t *length, int flags)
{
    static int (*real)(int, struct sockaddr *, socklen_t *, int);
    if (!real)
        real = (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    int connection = real(listener, address, length, flags);
    const char *path = getenv("SLOW");
    if (connection >= 0 && path && !unlink(path))
        for (int at = 0; at < 600; at++)
            usleep(10000);
    return connection;
}
