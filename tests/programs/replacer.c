/* A library that replaces functions of the C library, as sanitizers, fakeroot and libfaketime do, and as an
 * overlay replaces dlsym. Built with -shared -fPIC.
 *
 *   -DWALK, -DVERSION, -DHANDLE   defines dlsym, which calls the C library's: found in the loader's list of
 *                                 objects, by dlvsym(RTLD_NEXT, ...), or by dlsym's version in an opened libc
 *   -DLOADER                      defines functions about the loader that call dlsym or must not be called
 *   -DCLOCK                       defines clock_gettime, which always tells the same time
 *   -DFAILS=NAME -DRESULT=N       defines NAME, which returns N to libgcgroup_hook.so and else calls the next
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(WALK) || defined(VERSION) || defined(HANDLE)
typedef void *(*look_up)(void *, const char *);

static void marker(void) {}

#ifdef WALK
static int is_dlsym(const ElfW(Sym) *symbol, const char *strings) {
    return symbol->st_shndx && !strcmp(strings + symbol->st_name, "dlsym");
}

/* The symbol table ends where the string table begins, as all linkers lay them out. */
static look_up of_c_library(void) {
    for (struct link_map *map = _r_debug.r_map; map; map = map->l_next) {
        const ElfW(Sym) *symbols = NULL;
        const char *strings = NULL;
        if (!strstr(map->l_name, "/libc.so.6"))
            continue;
        for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag; entry++) {
            if (entry->d_tag == DT_SYMTAB)
                symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRTAB)
                strings = (const char *)entry->d_un.d_ptr;
        }
        for (const ElfW(Sym) *symbol = symbols; symbol && (const char *)symbol < strings; symbol++)
            if (is_dlsym(symbol, strings))
                return (look_up)(map->l_addr + symbol->st_value);
    }
    abort();
}
#elif defined(VERSION)
static look_up of_c_library(void) {
    return (look_up)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
}
#else
static look_up of_c_library(void) {
    return (look_up)dlvsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "dlsym", "GLIBC_2.2.5");
}
#endif

void *dlsym(void *handle, const char *name) {
    static look_up next;
    if (!next)
        next = of_c_library();
    return strcmp(name, "glXSwapBuffers") ? next(handle, name) : (void *)marker;
}
#endif

#ifdef LOADER
/* Recurses for ever if dlsym calls it. */
int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data) {
    int (*next)(int (*)(struct dl_phdr_info *, size_t, void *), void *) =
        (int (*)(int (*)(struct dl_phdr_info *, size_t, void *), void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return next(visit, data);
}

int dlinfo(void *handle, int request, void *result) {
    (void)handle, (void)request, (void)result;
    abort();
}

char *secure_getenv(const char *name) {
    (void)name;
    abort();
}
#endif

#ifdef CLOCK
int clock_gettime(clockid_t clock, struct timespec *time) {
    (void)clock;
    time->tv_sec = 1000;
    time->tv_nsec = 0;
    return 0;
}
#endif

#ifdef FAILS
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
long replaced(long, long, long, long, long, long) __asm__(TEXT(FAILS));
long replaced(long a, long b, long c, long d, long e, long f) {
    static long (*next)(long, long, long, long, long, long);
    static int (*locate)(const void *, Dl_info *);
    Dl_info caller;
    if (!next) {
        next = (long (*)(long, long, long, long, long, long))dlsym(RTLD_NEXT, TEXT(FAILS));
        locate = (int (*)(const void *, Dl_info *))dlsym(RTLD_NEXT, "dladdr");
    }
    int is_hook = locate(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libgcgroup_hook.so");
    return is_hook ? RESULT : next(a, b, c, d, e, f);
}
#endif
