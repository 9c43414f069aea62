/* A child with another user id that writes to the address of its parent's usage block and to every file that
 * may be the block. */
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct vandal {
    /* Whether the child failed to write at the address, the files it found, and the result of its first
     * driver call (0 if it made none). */
    int faults, files, status;
};

static sigjmp_buf vandal_fault;

static void vandal_faults(int signal)
{
    (void)signal;
    siglongjmp(vandal_fault, 1);
}

/* Fills the words with a value that is no mapped address and larger than any count. */
static void vandal_fill(volatile uint64_t *words, size_t size)
{
    for (size_t word = 0; word < size / sizeof *words; word++)
        words[word] = (1ull << 40) + 8;
}

/* Finds the mapping of the usage block; returns its size, or zero. */
static size_t vandal_block(unsigned long *address)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long end = 0;
    *address = 0;
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:gcgroup-usage") && sscanf(line, "%lx-%lx", address, &end) == 2)
            break;
    if (maps)
        fclose(maps);
    return end - *address;
}

static void vandal_child(int report, unsigned long address, size_t size, int with_files, int (*launch)(void))
{
    struct vandal said = {0, 0, 0};
    struct sigaction action = {.sa_handler = vandal_faults, .sa_flags = SA_NODEFER};
    /* A direct system call: the C library's function would wait for the parent's threads. */
    if (syscall(SYS_setgroups, 0, NULL) || syscall(SYS_setresgid, 65534, 65534, 65534) ||
        syscall(SYS_setresuid, 65534, 65534, 65534))
        _exit(3);
    if (launch)
        said.status = launch();
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    if (sigsetjmp(vandal_fault, 1))
        said.faults = 1;
    else
        vandal_fill((volatile uint64_t *)address, size);
    for (int file = 3; with_files && file < 4096; file++) {
        struct stat stat;
        if (fcntl(file, F_GET_SEALS) <= 0 || fstat(file, &stat) || (size_t)stat.st_size != size)
            continue;
        void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        said.files++;
        if (mapped != MAP_FAILED)
            vandal_fill(mapped, size);
    }
    _exit(write(report, &said, sizeof said) != sizeof said);
}

/* Runs all this in a child made by fork(3) or by clone(2) alone, with or without the files; returns whether
 * the child completed. A child made by clone(2) does not call the driver: the parent's other threads may have
 * held locks of the C library or the driver. */
static int vandal(int is_forked, int with_files, int (*launch)(void), struct vandal *said)
{
    unsigned long address;
    size_t size = vandal_block(&address);
    int ends[2], how;
    if (pipe(ends))
        return 0;
    pid_t child = is_forked ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child)
        vandal_child(ends[1], address, size, with_files, is_forked ? launch : NULL);
    close(ends[1]);
    int is_whole = read(ends[0], said, sizeof *said) == sizeof *said;
    close(ends[0]);
    return waitpid(child, &how, 0) == child && is_whole && !how;
}
