// Prints "ready" and waits for the end of its input.
#include <stdio.h>

int main(void) {
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
