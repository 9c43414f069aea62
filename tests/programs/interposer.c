/* A second preloaded library that stands before the driver, as profilers and tracers do: counts launches and passes them
 * on to whatever comes next. Built with -shared -fPIC.
 *
 * With -DHANDLE it finds the driver's function by dlsym on the driver itself, with -DWRAP_DLSYM it stands before dlsym as
 * well and gives its own launch to whoever asks there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int interposer_seen;

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra);

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    static launch next;
    if (!next)
#ifdef HANDLE
        next = (launch)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
#else
        next = (launch)dlsym(RTLD_NEXT, "cuLaunchKernel");
#endif
    __atomic_add_fetch(&interposer_seen, 1, __ATOMIC_RELAXED);
    return next ? next(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra) : 3;
}

#ifdef WRAP_DLSYM
void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    if (!next)
        next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = next(handle, name);
    return found && handle != RTLD_NEXT && !strcmp(name, "cuLaunchKernel") ? (void *)cuLaunchKernel : found;
}
#endif
