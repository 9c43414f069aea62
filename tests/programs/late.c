/* Opens the driver long after it was started: says "loaded", waits for a line, initialises the driver, says what cuInit
 * answered, and waits for another line. */
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
