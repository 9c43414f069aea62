/* A second preloaded library that interposes the driver, as profilers and tracers do: counts launches and
 * passes them to the next library. Built with -shared -fPIC. With -DHANDLE it finds the driver's function
 * with dlsym on the driver's handle; with -DWRAP_DLSYM it interposes dlsym too and returns its own launch
 * function there. */
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
