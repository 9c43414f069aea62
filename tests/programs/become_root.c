/* Set-user-ID program: belongs to root from then on, prints "root" and waits. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    if (setresuid(0, 0, 0))
        return 1;
    puts("root");
    fflush(stdout);
    pause();
    return 0;
}
