/* Preloaded into the daemon: makes its clock jump, and memory run short, when a test requests it. The file
 * named by TROUBLE has two words of eight bytes, which take effect when written: seconds by which
 * CLOCK_REALTIME is ahead, and, unless zero, the errno of every memfd_create(2) and shared mmap(2).
 * (CLOCK_MONOTONIC does not jump.) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *words;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TROUBLE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : (void *)syscall(SYS_mmap, 0, 16, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    if (mapped != MAP_FAILED)
        words = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (syscall(SYS_clock_gettime, clock, now))
        return -1;
    if (words && clock == CLOCK_REALTIME)
        now->tv_sec += words[0];
    return 0;
}

int memfd_create(const char *name, unsigned flags)
{
    if (words && words[1]) {
        errno = (int)words[1];
        return -1;
    }
    return (int)syscall(SYS_memfd_create, name, flags);
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
    if (words && words[1] && (flags & MAP_TYPE) == MAP_SHARED) {
        errno = (int)words[1];
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int file, off_t offset)
    __attribute__((alias("mmap")));
