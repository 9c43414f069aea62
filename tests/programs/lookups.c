/*
 * Looks up driver functions by name, as clients do when they start, and prints the results.
 *
 *   lookups SYMBOLS [4] < LOOKUPS
 *
 * LOOKUPS has lines "name<TAB>version<TAB>flags"; for each, one line is printed:
 *
 *   name<TAB>version<TAB>flags<TAB>result<TAB>status<TAB>symbol<TAB>object
 *
 * The symbol is the name for which dlsym returns the same address: all such names in the file SYMBOLS (one per line),
 * separated by "|"; "none" for a null pointer, "untouched" if nothing was written, "strange" for an address that dlsym
 * returns for none of them. The object is the file name of the library that contains the address. With "4" the older
 * function with four arguments is called, which has no status ("-").
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 2048
#define LINE 256

struct symbol {
    char name[LINE];
    void *address;
};

static struct symbol symbols[MOST];
static size_t nr_symbols;

static void die(const char *what)
{
    fprintf(stderr, "lookups: %s\n", what);
    exit(2);
}

/* Reads a line without its newline; returns 0 at the end of the file. */
static int line(FILE *from, char *into)
{
    if (!fgets(into, LINE, from))
        return 0;
    into[strcspn(into, "\n")] = 0;
    return 1;
}

/* A value that is neither null nor a function: a result overwrites it. */
static char unwritten;

static void print_answer(void *address)
{
    const char *before = "", *slash;
    Dl_info info;

    if (!address || address == &unwritten) {
        printf("%s\tnone\n", address ? "untouched" : "none");
        return;
    }
    for (size_t i = 0; i < nr_symbols; i++) {
        if (symbols[i].address == address) {
            printf("%s%s", before, symbols[i].name);
            before = "|";
        }
    }
    if (!*before)
        printf("strange");
    if (!dladdr(address, &info))
        die("an answer lies in no library");
    slash = strrchr(info.dli_fname, '/');
    printf("\t%s\n", slash ? slash + 1 : info.dli_fname);
}

int main(int argc, char **argv)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    char text[LINE];
    int older;

    if (argc < 2)
        die("which symbols?");
    if (!driver)
        die(dlerror());
    older = argc > 2 && !strcmp(argv[2], "4");

    FILE *list = fopen(argv[1], "r");
    if (!list)
        die(argv[1]);
    while (nr_symbols < MOST && line(list, symbols[nr_symbols].name)) {
        symbols[nr_symbols].address = dlsym(driver, symbols[nr_symbols].name);
        nr_symbols++;
    }
    fclose(list);

    int (*newer_ask)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    int (*older_ask)(const char *, void **, int, uint64_t) =
        (int (*)(const char *, void **, int, uint64_t))dlsym(driver, "cuGetProcAddress");
    if (!newer_ask || !older_ask)
        die("the driver has no cuGetProcAddress");

    while (line(stdin, text)) {
        char *version = strchr(text, '\t');
        char *flags = version ? strchr(version + 1, '\t') : NULL;
        if (*text == '#')
            continue;
        if (!flags)
            die("a look-up is a name, a version and flags");
        *version++ = *flags++ = 0;

        int number = atoi(version), status = -1, result;
        uint64_t bits = strtoull(flags, NULL, 10);
        void *found = &unwritten;
        if (older)
            result = older_ask(text, &found, number, bits);
        else
            result = newer_ask(text, &found, number, bits, &status);
        printf("%s\t%d\t%s\t%d\t", text, number, flags, result);
        if (older)
            printf("-\t");
        else
            printf("%d\t", status);
        print_answer(found);
    }
    return fflush(stdout) ? 1 : 0;
}
