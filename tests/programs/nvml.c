/*
 * Asks NVML what it is told to, a command a line, and answers each with a line that begins with NVML's result:
 *
 *   init | shutdown | count
 *   uuid DEVICE ROOM                     the UUID, with so many bytes for it
 *   memory DEVICE 1|2                    total free used
 *   processes DEVICE KIND VERSION ROOM   how many there are, then pid:bytes of each written
 *   details DEVICE ROOM                  the same by nvmlDeviceGetRunningProcessDetailList
 *   rates DEVICE                         percent of the time that the device worked
 *   samples DEVICE ROOM                  how many there are, then pid:percent of each written
 *
 * KIND is a part of the function's name: Compute, Graphics, MPSCompute. What is not written is "-".
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64

struct process_v1 {
    unsigned pid;
    unsigned long long used;
};

struct process_v2 {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct detail {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
    unsigned long long used_protected;
};

struct details {
    unsigned version, mode, count;
    struct detail *list;
};

struct sample {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
};

static void *library;

/* Not the address of anything: a function that is missing ends the program, as it would end a client. */
static void *function(const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        fprintf(stderr, "nvml: no %s\n", name);
        exit(2);
    }
    return found;
}

#define CALL(name, ...) ((unsigned (*)())function(name))(__VA_ARGS__)

static void *device(unsigned index)
{
    void *handle = NULL;

    CALL("nvmlDeviceGetHandleByIndex_v2", index, &handle);
    return handle;
}

static void processes(unsigned index, const char *kind, unsigned version, unsigned room)
{
    static struct process_v1 v1[MOST];
    static struct process_v2 v2[MOST];
    unsigned count = room, result;
    char name[128];

    if (version > 1)
        snprintf(name, sizeof(name), "nvmlDeviceGet%sRunningProcesses_v%u", kind, version);
    else
        snprintf(name, sizeof(name), "nvmlDeviceGet%sRunningProcesses", kind);
    memset(v1, 0, sizeof(v1));
    memset(v2, 0, sizeof(v2));
    result = CALL(name, device(index), &count, room ? (version > 1 ? (void *)v2 : (void *)v1) : NULL);
    printf("%u %u", result, count);
    for (unsigned i = 0; i < room && i < MOST; i++) {
        if (version > 1 && v2[i].pid)
            printf(" %u:%llu", v2[i].pid, v2[i].used);
        else if (version == 1 && v1[i].pid)
            printf(" %u:%llu", v1[i].pid, v1[i].used);
    }
    printf("\n");
}

static void details(unsigned index, unsigned room)
{
    static struct detail list[MOST];
    struct details asked = {sizeof(asked) | 1u << 24, 0, room, room ? list : NULL};
    unsigned result;

    memset(list, 0, sizeof(list));
    result = CALL("nvmlDeviceGetRunningProcessDetailList", device(index), &asked);
    printf("%u %u", result, asked.count);
    for (unsigned i = 0; i < room && i < MOST && list[i].pid; i++)
        printf(" %u:%llu", list[i].pid, list[i].used);
    printf("\n");
}

static void samples(unsigned index, unsigned room)
{
    static struct sample list[MOST];
    unsigned count = room, result;

    memset(list, 0, sizeof(list));
    result = CALL("nvmlDeviceGetProcessUtilization", device(index), room ? list : NULL, &count, 0ull);
    printf("%u %u", result, count);
    for (unsigned i = 0; i < room && i < MOST && list[i].pid; i++)
        printf(" %u:%u", list[i].pid, list[i].sm);
    printf("\n");
}

static void memory(unsigned index, unsigned version)
{
    struct {
        unsigned long long total, free, used;
    } v1 = {0};
    struct {
        unsigned version;
        unsigned long long total, reserved, free, used;
    } v2 = {sizeof(v2) | 2u << 24, 0, 0, 0, 0};

    if (version == 1) {
        unsigned result = CALL("nvmlDeviceGetMemoryInfo", device(index), &v1);
        printf("%u %llu %llu %llu\n", result, v1.total, v1.free, v1.used);
    } else {
        unsigned result = CALL("nvmlDeviceGetMemoryInfo_v2", device(index), &v2);
        printf("%u %llu %llu %llu\n", result, v2.total, v2.free, v2.used);
    }
}

int main(void)
{
    char line[256], kind[64];
    unsigned index, room, number;

    setvbuf(stdout, NULL, _IOLBF, 0);
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "nvml: %s\n", dlerror());
        return 2;
    }
    while (fgets(line, sizeof(line), stdin)) {
        if (!strcmp(line, "init\n")) {
            printf("%u\n", CALL("nvmlInit_v2"));
        } else if (!strcmp(line, "shutdown\n")) {
            printf("%u\n", CALL("nvmlShutdown"));
        } else if (!strcmp(line, "count\n")) {
            unsigned count = 0, result = CALL("nvmlDeviceGetCount_v2", &count);
            printf("%u %u\n", result, count);
        } else if (sscanf(line, "uuid %u %u", &index, &room) == 2) {
            char uuid[128] = "-";
            unsigned result = CALL("nvmlDeviceGetUUID", device(index), uuid, room);
            printf("%u %s\n", result, uuid);
        } else if (sscanf(line, "memory %u %u", &index, &number) == 2) {
            memory(index, number);
        } else if (sscanf(line, "processes %u %63s %u %u", &index, kind, &number, &room) == 4) {
            processes(index, kind, number, room);
        } else if (sscanf(line, "details %u %u", &index, &room) == 2) {
            details(index, room);
        } else if (sscanf(line, "samples %u %u", &index, &room) == 2) {
            samples(index, room);
        } else if (sscanf(line, "rates %u", &index) == 1) {
            unsigned rates[2] = {0, 0}, result = CALL("nvmlDeviceGetUtilizationRates", device(index), rates);
            printf("%u %u\n", result, rates[0]);
        } else {
            fprintf(stderr, "nvml: what is %s", line);
            return 2;
        }
    }
    return 0;
}
