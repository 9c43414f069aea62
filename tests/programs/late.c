/* Opens the driver long after the start of the program: prints "loaded", waits for a line, initializes the
 * driver, prints the result of cuInit, and waits for another line. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    char line[16];
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("loaded\n");
    if (!fgets(line, sizeof line, stdin))
        return 1;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    printf("%d\n", init ? init(0) : -1);
    return !fgets(line, sizeof line, stdin);
}
