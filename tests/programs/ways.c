/* Launches a kernel through a driver function obtained in one of the ways that programs use.
 *
 *   ways [fork|exec] WAY N
 *
 *   linked            calls the driver's symbols; only if linked with -lcuda and -DLINKED
 *   dlsym             dlopen("libcuda.so.1"), dlsym on the handle
 *   dlsym:PATH        dlopen(PATH), dlsym on the handle
 *   libc              dlopen("libcuda.so.1"), and the dlsym that dlsym finds in the C library
 *   dlmopen           dlmopen("libcuda.so.1") in a new namespace, dlsym on the handle
 *   proc1, proc2      cuGetProcAddress with four arguments, with five; both found by dlsym
 *   ptsz              the one with five arguments, for the functions of the per-thread default stream
 *   ex                as dlsym, but launches with cuLaunchKernelEx
 *   next              dlsym(RTLD_NEXT, ...), if linked with -lcuda
 *   default           dlsym(RTLD_DEFAULT, ...), if linked with -lcuda
 *   local:PATH:WAY    runs WAY in this program built as a library at PATH (-shared -fPIC -DLIBRARY), opened with RTLD_LOCAL
 *   deepbind:PATH:WAY as local, but opened with RTLD_DEEPBIND
 *   other:PATH:WAY    as local, but opened in a new namespace
 *   lookup:PATH       opens the driver at PATH and looks symbols up, but calls nothing
 *
 * "fork" runs it in a child, which alone uses the driver; "exec" runs it, then executes "ways WAY N".
 * Prints "pid PID", then "launched N" when the device has completed all N launches, or "FUNCTION: CODE" and exits
 * with 1. Then waits for a line on stdin, so that counts can be read while it is alive; prints "done" and exits.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct config {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned nr_attributes;
};

/* The driver's functions, by the names to which a header's macros expand. */
#define FUNCTIONS(_) \
    _(init, "cuInit", 2000, (unsigned)) \
    _(device, "cuDeviceGet", 2000, (int *, int)) \
    _(retain, "cuDevicePrimaryCtxRetain", 7000, (void **, int)) \
    _(current, "cuCtxSetCurrent", 4000, (void *)) \
    _(load, "cuModuleLoadData", 2000, (void **, const void *)) \
    _(function, "cuModuleGetFunction", 2000, (void **, void *, const char *)) \
    _(launch, "cuLaunchKernel", 4000, \
        (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    _(launch_ex, "cuLaunchKernelEx", 11060, (const struct config *, void *, void **, void **)) \
    _(synchronize, "cuCtxSynchronize", 2000, (void))

#define MEMBER(field, name, version, arguments) int (*field) arguments;
struct driver { FUNCTIONS(MEMBER) };

#ifdef LINKED
#define DECLARE(symbol, arguments) int symbol arguments;
DECLARE(cuInit, (unsigned))
DECLARE(cuDeviceGet, (int *, int))
DECLARE(cuDevicePrimaryCtxRetain, (void **, int))
DECLARE(cuCtxSetCurrent, (void *))
DECLARE(cuModuleLoadData, (void **, const void *))
DECLARE(cuModuleGetFunction, (void **, void *, const char *))
DECLARE(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))
DECLARE(cuLaunchKernelEx, (const struct config *, void *, void **, void **))
DECLARE(cuCtxSynchronize, (void))

static const struct driver linked = {
    cuInit, cuDeviceGet, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuModuleLoadData, cuModuleGetFunction,
    cuLaunchKernel, cuLaunchKernelEx, cuCtxSynchronize,
};
#endif

static const char ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry gcgroup_spin(.param .u64 microseconds)\n"
    "{\n"
    ".reg .pred %over;\n.reg .u64 %start, %now, %length;\n"
    "ld.param.u64 %length, [microseconds];\nmul.lo.u64 %length, %length, 1000;\n"
    "mov.u64 %start, %globaltimer;\n"
    "again:\nmov.u64 %now, %globaltimer;\nsub.u64 %now, %now, %start;\n"
    "setp.ge.u64 %over, %now, %length;\n@!%over bra again;\nret;\n"
    "}\n";

static void fail(const char *what, int code) {
    printf("%s: %d\n", what, code);
    exit(1);
}

static void *opened(const char *file) {
    void *handle = dlopen(file, RTLD_NOW);
    if (!handle)
        fail(dlerror(), 0);
    return handle;
}

/* The dlsym that the C library has, where a program asks for that one. */
static void *(*other_dlsym)(void *, const char *);

static void *looked_up(void *handle, const char *name) {
    void *found = other_dlsym ? other_dlsym(handle, name) : dlsym(handle, name);
    if (!found)
        fail(dlerror(), 0);
    const char *error = dlerror();
    if (error)
        fail(error, 1);
    return found;
}

#define FROM_HANDLE(field, name, version, arguments) driver.field = (int (*) arguments)looked_up(handle, name);
static struct driver by_name(void *handle) {
    struct driver driver;
    FUNCTIONS(FROM_HANDLE)
    return driver;
}

/* A lookup that must be in this object, since RTLD_NEXT and RTLD_DEFAULT depend on the caller. */
static struct driver by_version(int arguments, uint64_t flags) {
    void *handle = opened("libcuda.so.1");
    int (*four)(const char *, void **, int, uint64_t) =
        (int (*)(const char *, void **, int, uint64_t))looked_up(handle, "cuGetProcAddress");
    int (*five)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))looked_up(handle, "cuGetProcAddress_v2");
    struct driver driver;
    int status = 0, code;
#define FROM_DRIVER(field, name, version, types) \
    { \
        void *found = NULL; \
        int since = flags & 2 && version < 7000 ? 7000 : version; /* per-thread variants exist since CUDA 7.0 */ \
        code = arguments == 4 ? four(name, &found, since, flags) : five(name, &found, since, flags, &status); \
        if (code || status || !found) \
            fail(name, code); \
        driver.field = (int (*) types)found; \
    }
    FUNCTIONS(FROM_DRIVER)
    return driver;
}

#define CHECK(call) \
    { \
        int code = driver.call; \
        if (code) \
            fail(#call, code); \
    }

int launches(const char *way, int n);

int launches(const char *way, int n) {
    struct driver driver;
    if (!strcmp(way, "dlsym") || !strcmp(way, "ex"))
        driver = by_name(opened("libcuda.so.1"));
    else if (!strcmp(way, "libc")) {
        other_dlsym = (void *(*)(void *, const char *))dlsym(opened("libc.so.6"), "dlsym");
        driver = by_name(opened("libcuda.so.1"));
    } else if (!strcmp(way, "dlmopen")) {
        void *handle = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
        if (!handle)
            fail(dlerror(), 0);
        driver = by_name(handle);
    } else if (!strncmp(way, "dlsym:", 6))
        driver = by_name(opened(way + 6));
    else if (!strcmp(way, "proc1"))
        driver = by_version(4, 0);
    else if (!strcmp(way, "proc2"))
        driver = by_version(5, 0);
    else if (!strcmp(way, "ptsz"))
        driver = by_version(5, 2);
    else if (!strcmp(way, "next"))
        driver = by_name(RTLD_NEXT);
    else if (!strcmp(way, "default"))
        driver = by_name(RTLD_DEFAULT);
#ifdef LINKED
    else if (!strcmp(way, "linked"))
        driver = linked;
#endif
    else if (!strncmp(way, "local:", 6) || !strncmp(way, "deepbind:", 9) || !strncmp(way, "other:", 6)) {
        char *path = strdup(strchr(way, ':') + 1), *rest = strchr(path, ':');
        if (!rest)
            fail(way, 2);
        *rest++ = 0;
        void *library = *way == 'o' ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW)
                                    : dlopen(path, RTLD_NOW | (*way == 'd' ? RTLD_DEEPBIND : RTLD_LOCAL));
        if (!library)
            fail(dlerror(), 0);
        return ((int (*)(const char *, int))looked_up(library, "launches"))(rest, n);
    } else if (!strncmp(way, "lookup:", 7)) {
        driver = by_name(opened(way + 7));
        return driver.launch != NULL;
    } else
        fail(way, 2);

    int device;
    void *context, *module, *function;
    CHECK(init(0));
    CHECK(device(&device, 0));
    CHECK(retain(&context, device));
    CHECK(current(context));
    CHECK(load(&module, ptx));
    CHECK(function(&function, module, "gcgroup_spin"));
    uint64_t microseconds = 1;
    void *parameters[] = {&microseconds};
    struct config one = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    for (int i = 0; i < n; i++) {
        if (!strcmp(way, "ex"))
            CHECK(launch_ex(&one, function, parameters, NULL))
        else
            CHECK(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL))
    }
    CHECK(synchronize());
    return 0;
}

#ifndef LIBRARY
static void wait_for_a_line(void) {
    char line[64];
    if (!fgets(line, sizeof line, stdin))
        return;
}

/* The launches counted by a second preloaded library (interposer.c), if there is one. */
static void report_interposer(void) {
    int *seen = dlsym(RTLD_DEFAULT, "interposer_seen");
    if (seen)
        printf("interposer saw %d\n", *seen);
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    char **rest = words + 1;
    int is_fork = count > 3 && !strcmp(*rest, "fork"), is_exec = count > 3 && !strcmp(*rest, "exec");
    rest += is_fork || is_exec;
    if (words + count - rest != 2) {
        fprintf(stderr, "usage: %s [fork|exec] WAY N\n", words[0]);
        return 2;
    }
    if (is_fork) {
        pid_t child = fork();
        if (child) {
            int status;
            waitpid(child, &status, 0);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
        }
    }
    printf("pid %d\n", getpid());
    int n = atoi(rest[1]);
    launches(rest[0], n);
    printf("launched %d\n", n);
    report_interposer();
    wait_for_a_line();
    if (is_exec) {
        char *again[] = {words[0], rest[0], rest[1], NULL};
        execv("/proc/self/exe", again);
        fail("execv", 0);
    }
    printf("done\n");
    return 0;
}
#endif
