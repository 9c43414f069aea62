/* A program without CUDA: prints what a preloaded library must not change. Can be linked with any C library,
 * also statically.
 *
 * Prints "descriptors N", "threads N", "hook mapped" or "no hook", then for each argument whether a lookup
 * finds that name: "NAME found" or "NAME absent: WHY".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef OPTIONS
/* Options of AddressSanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return OPTIONS;
}
#endif

static int entries(const char *path) {
    int n = -1; /* opendir's own descriptor is not counted */
    DIR *directory = opendir(path);
    if (!directory)
        return -1;
    for (struct dirent *entry; (entry = readdir(directory));)
        n += entry->d_name[0] != '.';
    closedir(directory);
    return n;
}

int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *found = dlsym(RTLD_DEFAULT, names[i]);
        const char *why = dlerror();
        if (found)
            printf("%s found%s%s\n", names[i], why ? ", but " : "", why ? why : "");
        else
            printf("%s absent: %s\n", names[i], why ? "error" : "no error");
    }
    printf("descriptors %d\n", entries("/proc/self/fd"));
    printf("threads %d\n", entries("/proc/self/task") + 1);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int is_mapped = 0;
    while (maps && fgets(line, sizeof line, maps))
        is_mapped |= strstr(line, "libgcgroup_hook") != NULL;
    puts(is_mapped ? "hook mapped" : "no hook");
    return 0;
}
