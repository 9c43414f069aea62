/* Notices before memory moves off the GPU: one function, for C and C++. See memory.notice in gcgroupfs(5). */
#pragma once

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

struct gcgroup_notice {
    /* 1: memory moves out unless bytes are freed in time. 0: so many bytes may be allocated. */
    int is_eviction;
    unsigned long long bytes;
    /* Microseconds until the move; 0 unless is_eviction. */
    long long deadline_usec;
};

/*
 * Waits until a notice begins or ends, at most timeout_ms milliseconds (-1: without limit), and describes the
 * present state. file: descriptor of the open memory.notice of a process; a process finds its own below the mount
 * once it has called cuInit. The first call returns at once. While the file is polled, a process is given notice.
 * Returns 1; 0 after the timeout; -1 with errno set: EINTR, or ENODEV when the process has ended or the daemon was
 * restarted, after which the file is opened again.
 */
static inline int gcgroup_notice_wait(int file, int timeout_ms, struct gcgroup_notice *notice)
{
    char text[128];
    struct pollfd polled;
    ssize_t length;
    int nr_ready;

    polled.fd = file;
    polled.events = POLLPRI;
    nr_ready = poll(&polled, 1, timeout_ms);
    if (nr_ready <= 0)
        return nr_ready;
    length = pread(file, text, sizeof text - 1, 0);
    if (length < 0)
        return -1;
    text[length] = 0;
    notice->is_eviction = sscanf(text, "evict target=%llu deadline_usec=%lld", &notice->bytes,
                                 &notice->deadline_usec) == 2;
    if (notice->is_eviction)
        return 1;
    notice->deadline_usec = 0;
    if (sscanf(text, "available %llu", &notice->bytes) == 1)
        return 1;
    errno = EBADMSG;
    return -1;
}
