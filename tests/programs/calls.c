#define _GNU_SOURCE
/* Calls any driver function by name: one command per line on stdin, one line of answer on stdout.
 *
 *   call NAME ARGUMENT...      the driver's function                        -> ok | error CODE | absent
 *   apart NAME ARGUMENT...     the same on a separate thread without a context
 *   beside NAME ARGUMENT...    the same on a separate thread with the caller's context
 *   put VARIABLE OFFSET SIZE VALUE   stores into a variable                 -> ok
 *   get VARIABLE OFFSET SIZE   a part of a variable as a number             -> NUMBER
 *   bytes VARIABLE HEX         sets a whole variable, for example to another process's -> ok
 *   show VARIABLE SIZE         a variable's first bytes                     -> HEX
 *   take PID DESCRIPTOR        duplicates another process's descriptor      -> NUMBER
 *   churn SECONDS THREADS BYTES MOST   threads allocate and free blocks of at most BYTES, at most MOST each at a time
 *                                                                           -> calls N refused M
 *   carry SECONDS THREADS BYTES   threads allocate, fill, copy, check and free blocks of BYTES -> carried N wrong M
 *   quit                       exits without freeing anything
 *
 * An argument is a number, $VARIABLE (its first eight bytes), &VARIABLE (its address), @VARIABLE+N (an address within
 * it) or *VARIABLE: 64 bytes passed by value, which is last, after the six arguments passed in registers.
 * A variable has 512 bytes, initially zero.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { VARIABLES = 512, SIZE = 512, ARGUMENTS = 20 };
typedef uint64_t word;
typedef int function(word, word, word, word, word, word, word, word, word, word, word, word, word, word, word, word,
                     word, word, word, word);

static struct { char name[32]; _Alignas(64) unsigned char bytes[SIZE]; } variables[VARIABLES];
static void *driver;

static unsigned char *variable(const char *name)
{
    for (int i = 0; i < VARIABLES; i++) {
        if (!variables[i].name[0])
            strncpy(variables[i].name, name, sizeof variables[i].name - 1);
        if (!strcmp(variables[i].name, name))
            return variables[i].bytes;
    }
    abort();
}

static word load(const unsigned char *from, size_t size)
{
    word value = 0;
    memcpy(&value, from, size);
    return value;
}

enum thread { HERE, APART, BESIDE };
struct call { function *function; word arguments[ARGUMENTS], context; int result; };

static void *run(void *argument)
{
    struct call *call = argument;
    word *a = call->arguments;
    if (call->context)
        ((int (*)(word))dlsym(driver, "cuCtxSetCurrent"))(call->context);
    call->result = call->function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
                                  a[14], a[15], a[16], a[17], a[18], a[19]);
    return NULL;
}

static void call(char *text, enum thread on)
{
    struct call call = { 0 };
    char *name = strtok(text, " \n");
    int count = 0;
    for (char *word_; (word_ = strtok(NULL, " \n")) && count < ARGUMENTS;) {
        if (*word_ == '$') {
            call.arguments[count++] = load(variable(word_ + 1), 8);
        } else if (*word_ == '&') {
            call.arguments[count++] = (word)(uintptr_t)variable(word_ + 1);
        } else if (*word_ == '@') {
            char *offset = strchr(word_, '+');
            *offset = 0;
            call.arguments[count++] = (word)(uintptr_t)(variable(word_ + 1) + strtoul(offset + 1, NULL, 0));
        } else if (*word_ == '*') {
            memcpy(call.arguments + 6, variable(word_ + 1), 64);
            count = 14;
        } else {
            call.arguments[count++] = strtoull(word_, NULL, 0);
        }
    }
    call.function = (function *)dlsym(driver, name);
    if (!call.function) {
        printf("absent\n");
        return;
    }
    if (on == BESIDE)
        ((int (*)(word *))dlsym(driver, "cuCtxGetCurrent"))(&call.context);
    if (on != HERE) {
        pthread_t thread;
        pthread_create(&thread, NULL, run, &call);
        pthread_join(thread, NULL);
    } else {
        run(&call);
    }
    if (call.result)
        printf("error %d\n", call.result);
    else
        printf("ok\n");
}

struct churn { pthread_t thread; word context; size_t bytes; int most; double until; long calls, refused; unsigned seed; };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *churner(void *argument)
{
    struct churn *churn = argument;
    int (*alloc)(word *, size_t) = (int (*)(word *, size_t))dlsym(driver, "cuMemAlloc_v2");
    int (*release)(word) = (int (*)(word))dlsym(driver, "cuMemFree_v2");
    int (*use)(word) = (int (*)(word))dlsym(driver, "cuCtxSetCurrent");
    word blocks[64] = { 0 };
    use(churn->context);
    while (now() < churn->until) {
        word *block = &blocks[rand_r(&churn->seed) % churn->most];
        churn->calls++;
        if (*block) {
            release(*block);
            *block = 0;
        } else if (alloc(block, 1 + (size_t)rand_r(&churn->seed) % churn->bytes)) {
            churn->refused++;
        }
    }
    for (int i = 0; i < 64; i++)
        if (blocks[i])
            release(blocks[i]);
    return NULL;
}

static void churn(void *(*body)(void *), const char *answer, double seconds, int threads, size_t bytes, int most)
{
    static struct churn all[64];
    long calls = 0, refused = 0;
    for (int i = 0; i < threads && i < 64; i++) {
        all[i] = (struct churn){ .context = load(variable("context"), 8), .bytes = bytes, .most = most,
                                 .until = now() + seconds, .seed = (unsigned)i + 1 };
        pthread_create(&all[i].thread, NULL, body, &all[i]);
    }
    for (int i = 0; i < threads && i < 64; i++) {
        pthread_join(all[i].thread, NULL);
        calls += all[i].calls;
        refused += all[i].refused;
    }
    printf(answer, calls, refused);
}

static void *carrier(void *argument)
{
    struct churn *churn = argument;
    int (*alloc)(word *, size_t) = (int (*)(word *, size_t))dlsym(driver, "cuMemAlloc_v2");
    int (*release)(word) = (int (*)(word))dlsym(driver, "cuMemFree_v2");
    int (*use)(word) = (int (*)(word))dlsym(driver, "cuCtxSetCurrent");
    int (*up)(word, const void *, size_t) = (int (*)(word, const void *, size_t))dlsym(driver, "cuMemcpyHtoD_v2");
    int (*down)(void *, word, size_t) = (int (*)(void *, word, size_t))dlsym(driver, "cuMemcpyDtoH_v2");
    int (*across)(word, word, size_t) = (int (*)(word, word, size_t))dlsym(driver, "cuMemcpyDtoD_v2");
    unsigned char *sent = malloc(churn->bytes), *got = malloc(churn->bytes);
    use(churn->context);
    while (now() < churn->until) {
        word blocks[2];
        if (alloc(&blocks[0], churn->bytes))
            continue;
        if (alloc(&blocks[1], churn->bytes)) {
            release(blocks[0]);
            continue;
        }
        for (int i = 0; i < 4; i++) {
            memset(sent, rand_r(&churn->seed), churn->bytes);
            memset(got, 0, churn->bytes);
            int failed = up(blocks[0], sent, churn->bytes) || across(blocks[1], blocks[0], churn->bytes) ||
                         down(got, blocks[1], churn->bytes);
            churn->calls++;
            churn->refused += failed || memcmp(sent, got, churn->bytes) != 0;
        }
        churn->refused += release(blocks[0]) != 0;
        churn->refused += release(blocks[1]) != 0;
    }
    free(sent);
    free(got);
    return NULL;
}

int main(void)
{
    static char line[4096], name[64], hex[2 * SIZE + 1];
    unsigned long offset, size, threads, most;
    unsigned long long value;
    double seconds;
    setvbuf(stdout, NULL, _IOLBF, 0);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    printf("ready %d %d\n", (int)getpid(), driver ? 0 : -1);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "call ", 5)) {
            call(line + 5, HERE);
        } else if (!strncmp(line, "apart ", 6)) {
            call(line + 6, APART);
        } else if (!strncmp(line, "beside ", 7)) {
            call(line + 7, BESIDE);
        } else if (sscanf(line, "put %63s %lu %lu %lli", name, &offset, &size, &value) == 4) {
            memcpy(variable(name) + offset, &value, size);
            printf("ok\n");
        } else if (sscanf(line, "get %63s %lu %lu", name, &offset, &size) == 3) {
            printf("%llu\n", (unsigned long long)load(variable(name) + offset, size));
        } else if (sscanf(line, "bytes %63s %1024s", name, hex) == 2) {
            for (size_t i = 0; hex[2 * i]; i++) {
                unsigned byte;
                sscanf(hex + 2 * i, "%2x", &byte);
                variable(name)[i] = (unsigned char)byte;
            }
            printf("ok\n");
        } else if (sscanf(line, "show %63s %lu", name, &size) == 2) {
            for (size_t i = 0; i < size; i++)
                printf("%02x", variable(name)[i]);
            printf("\n");
        } else if (sscanf(line, "take %lu %lu", &offset, &size) == 2) {
            int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)offset, 0);
            printf("%ld\n", syscall(SYS_pidfd_getfd, pidfd, (int)size, 0));
            close(pidfd);
        } else if (sscanf(line, "churn %lf %lu %lu %lu", &seconds, &threads, &size, &most) == 4) {
            churn(churner, "calls %ld refused %ld\n", seconds, (int)threads, size, (int)most);
        } else if (sscanf(line, "carry %lf %lu %lu", &seconds, &threads, &size) == 3) {
            churn(carrier, "carried %ld wrong %ld\n", seconds, (int)threads, size, 0);
        } else if (!strncmp(line, "quit", 4)) {
            return 0;
        } else {
            printf("unknown command\n");
        }
    }
    return 0;
}
