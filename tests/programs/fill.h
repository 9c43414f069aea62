/* Exhausts the program's descriptors. */
#pragma once

#include <fcntl.h>
#include <unistd.h>

static int filled[4096], nr_filled;

static void unfill(int count)
{
    while (count-- > 0 && nr_filled)
        close(filled[--nr_filled]);
}

/* Opens files until only so many more can be opened; returns the number opened. */
static int fill(int left)
{
    int fd;
    while (nr_filled < 4096 && (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        filled[nr_filled++] = fd;
    unfill(left);
    return nr_filled;
}
