/* hog KIND PATH MOST: opens PATH (KIND "file": and reads from it; "listing"), creates directories PATH-N
 * ("directory") or connects to the socket PATH ("connection"), until this fails or MOST is reached. Prints
 * their number and the errno of the failure, zero without one, and keeps them open until standard input ends.
 * */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int take(const char *kind, const char *path, long number)
{
    char text[4096];
    if (!strcmp(kind, "directory")) {
        snprintf(text, sizeof text, "%s-%ld", path, number);
        return mkdir(text, 0777);
    }
    if (!strcmp(kind, "connection")) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        strncpy(address.sun_path, path, sizeof address.sun_path - 1);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        return fd < 0 ? fd : connect(fd, (struct sockaddr *)&address, sizeof address);
    }
    int fd = open(path, O_RDONLY);
    return fd < 0 || strcmp(kind, "file") ? fd : (int)read(fd, text, sizeof text);
}

int main(int argc, char **argv)
{
    struct rlimit limit;
    long number = 0, most = argc > 3 ? atol(argv[3]) : 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    errno = 0;
    while (number < most && take(argv[1], argv[2], number) >= 0)
        number++;
    printf("%ld %d\n", number, number < most ? errno : 0);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
