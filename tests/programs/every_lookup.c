/* Looks up each name on stdin in libcuda.so.1 in every way, and prints a line for each that does not depend on
 * addresses: dlsym, dlvsym, and cuGetProcAddress (with four and with five arguments) for each version and each flag, as
 * runs of equal answers. Then prints the result of cuInit, which runs again after it. Calls nothing else.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*four)(const char *, void **, int, uint64_t);
typedef int (*five)(const char *, void **, int, uint64_t, unsigned *);

static const int VERSIONS[] = {
    0, 1, 2000, 2010, 3000, 3010, 3020, 4000, 4010, 5000, 6000, 6050, 7000, 8000, 9000, 9020, 10000, 10010, 10020, 11000,
    11010, 11020, 11030, 11040, 11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080, 12090,
    12100, 13000, 13010, 13020, 13030, 13040, 13050, 14000, 1000000, -1};

static void runs(const char *name, four old, five fresh) {
    for (uint64_t flags = 0; flags < 4; flags++) {
        char last[64] = "";
        for (size_t n = 0; n < sizeof VERSIONS / sizeof *VERSIONS; n++) {
            char now[64];
            void *one = &one, *two = &two;
            unsigned state = 77;
            int a = old ? old(name, &one, VERSIONS[n], flags) : -1;
            int b = fresh ? fresh(name, &two, VERSIONS[n], flags, &state) : -1;
            snprintf(now, sizeof now, "%d%c %d%c%u", a, one == &one ? '-' : one ? '+' : '0', b,
                     two == &two ? '-' : two ? '+' : '0', state);
            if (strcmp(now, last)) printf("; flags %d from %d: %s", (int)flags, VERSIONS[n], now);
            strcpy(last, now);
        }
    }
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    char name[256];
    if (!driver) return fprintf(stderr, "%s\n", dlerror()), 2;
    four old = (four)dlsym(driver, "cuGetProcAddress");
    five fresh = (five)dlsym(driver, "cuGetProcAddress_v2");
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        printf("%s: dlsym %d dlvsym %d", name, dlsym(driver, name) != NULL, dlvsym(driver, name, "libcuda.so.1") != NULL);
        runs(name, old, fresh);
        putchar('\n');
    }
    printf("cuInit %d\n", init(0));
    printf("cuInit %d\n", init(0));
    return 0;
}
