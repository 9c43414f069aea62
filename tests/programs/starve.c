/* Preloaded into a supervisor: while the file named by STARVE exists, each daemon that it starts gets too
 * little memory. The content of the file selects how: "cgroup FILE" (a memory cgroup's cgroup.procs) or "as
 * BYTES" (RLIMIT_AS). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int is_daemon(void)
{
    char line[4096];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = read(fd, line, sizeof line - 1);
    close(fd);
    if (length < 0)
        return 0;
    line[length] = '\0';
    int is_mount = 0;
    for (char *word = line; word < line + length; word += strlen(word) + 1) {
        if (!strcmp(word, "--supervise"))
            return 0;
        is_mount |= !strcmp(word, "mount");
    }
    return is_mount;
}

__attribute__((constructor)) static void starve(void)
{
    char path[3072];
    unsigned long bytes;
    const char *how = getenv("STARVE");
    FILE *file = how && is_daemon() ? fopen(how, "re") : NULL;
    if (!file)
        return;
    if (fscanf(file, "as %lu", &bytes) == 1) {
        struct rlimit limit = { bytes, bytes };
        setrlimit(RLIMIT_AS, &limit);
    } else if (rewind(file), fscanf(file, "cgroup %3071s", path) == 1) {
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        dprintf(fd, "%d", (int)getpid());
        close(fd);
    }
    fclose(file);
}
