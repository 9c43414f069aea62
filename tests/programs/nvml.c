/*
 * Calls NVML: one command per line, answered by a line that begins with NVML's result:
 *
 *   init | shutdown | count
 *   uuid DEVICE ROOM                     the UUID, with a buffer of ROOM bytes
 *   memory DEVICE 1|2                    total free used
 *   processes DEVICE KIND VERSION ROOM   number of processes, then pid:bytes of each one written
 *   details DEVICE ROOM                  as processes, by nvmlDeviceGetRunningProcessDetailList
 *   rates DEVICE                         percentage of time in which the device worked
 *   samples DEVICE ROOM [null]           number of samples, then pid:percent of each one written; null: null pointer
 *   nulls DEVICE                         the results of processes and details with room but a null pointer, and of
 *                                        processes without a count
 *   cuda                                 initializes CUDA; answers with cuInit's result
 *   alloc DEVICE BYTES                   allocates on the device
 *   work                                 runs a kernel of one millisecond to its end, on the device of the last allocation
 *
 *   name DEVICE                          the name
 *   mode DEVICE                          the current and the pending MIG mode, by nvmlDeviceGetMigMode
 *   most DEVICE                          the maximum number of instances
 *   instance DEVICE                      1 for an instance, else 0
 *   ids DEVICE                           the GPU instance and the compute instance
 *   parent DEVICE                        the index of an instance's parent GPU, and the instance's own
 *   by UUID                              the index of the device or instance with that UUID
 *   nearest DEVICE LEVEL ROOM [null]     number of GPUs, then the UUID of each one written, by
 *                                        nvmlDeviceGetTopologyNearestGpus; null: null pointer
 *   cpu NUMBER ROOM [null]               as nearest, by nvmlSystemGetTopologyGpuSet
 *
 * DEVICE is NVML's index of a GPU, or 1000 * (1 + that index) + N for the Nth MIG instance of it.
 *
 * KIND is a part of the function's name: Compute, Graphics, MPSCompute. A value that was not written is printed as "-".
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spin.h"

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

struct info {
    unsigned long long time;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};

static void *library, *cuda;

/* An invalid address: a call of a missing function ends the program, as it would end a client. */
static void *function(const char *name)
{
    void *found = dlsym(strncmp(name, "cu", 2) ? library : cuda, name);

    if (!found) {
        fprintf(stderr, "nvml: no %s\n", name);
        exit(2);
    }
    return found;
}

#define CALL(name, ...) ((unsigned (*)())function(name))(__VA_ARGS__)

static void topology(unsigned result, unsigned count, void **found)
{
    printf("%u %u", result, count);
    for (unsigned at = 0; at < MOST && found[at]; at++) {
        char uuid[128] = "-";

        CALL("nvmlDeviceGetUUID", found[at], uuid, sizeof(uuid));
        printf(" %s", uuid);
    }
    printf("\n");
}

static void *device(unsigned index)
{
    void *handle = NULL;

    if (index < 1000) {
        CALL("nvmlDeviceGetHandleByIndex_v2", index, &handle);
    } else {
        void *gpu = NULL;

        CALL("nvmlDeviceGetHandleByIndex_v2", index / 1000 - 1, &gpu);
        CALL("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index % 1000, &handle);
    }
    return handle;
}

static void mig(const char *what, unsigned index)
{
    unsigned answer = 0, other = 0, result;
    void *parent = NULL;

    if (!strcmp(what, "mode")) {
        result = CALL("nvmlDeviceGetMigMode", device(index), &answer, &other);
        printf("%u %u %u\n", result, answer, other);
    } else if (!strcmp(what, "most")) {
        result = CALL("nvmlDeviceGetMaxMigDeviceCount", device(index), &answer);
        printf("%u %u\n", result, answer);
    } else if (!strcmp(what, "instance")) {
        result = CALL("nvmlDeviceIsMigDeviceHandle", device(index), &answer);
        printf("%u %u\n", result, answer);
    } else if (!strcmp(what, "ids")) {
        result = CALL("nvmlDeviceGetGpuInstanceId", device(index), &answer);
        result = result ? result : CALL("nvmlDeviceGetComputeInstanceId", device(index), &other);
        printf("%u %u %u\n", result, answer, other);
    } else {
        result = CALL("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device(index), &parent);
        result = result ? result : CALL("nvmlDeviceGetIndex", parent, &answer);
        result = result ? result : CALL("nvmlDeviceGetIndex", device(index), &other);
        printf("%u %u %u\n", result, answer, other);
    }
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

static void samples(unsigned index, unsigned room, int is_null)
{
    static struct sample list[MOST];
    unsigned count = room, result;

    memset(list, 0, sizeof(list));
    result = CALL("nvmlDeviceGetProcessUtilization", device(index), room && !is_null ? list : NULL, &count, 0ull);
    printf("%u %u", result, count);
    for (unsigned i = 0; i < room && i < MOST && list[i].pid; i++)
        printf(" %u:%u", list[i].pid, list[i].sm);
    printf("\n");
}

static void nulls(unsigned index)
{
    struct details asked = {sizeof(asked) | 1u << 24, 0, MOST, NULL};
    unsigned count = MOST;

    printf("%u", CALL("nvmlDeviceGetComputeRunningProcesses_v3", device(index), &count, NULL));
    printf(" %u", CALL("nvmlDeviceGetRunningProcessDetailList", device(index), &asked));
    printf(" %u\n", CALL("nvmlDeviceGetComputeRunningProcesses_v3", device(index), NULL, NULL));
}

static unsigned begin(void)
{
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "nvml: %s\n", dlerror());
        exit(2);
    }
    return CALL("cuInit", 0);
}

static unsigned alloc(unsigned index, unsigned long long bytes)
{
    void *context;
    unsigned long long pointer;
    unsigned result = CALL("cuDevicePrimaryCtxRetain", &context, index);

    result = result ? result : CALL("cuCtxSetCurrent", context);
    return result ? result : CALL("cuMemAlloc_v2", &pointer, bytes);
}

static unsigned work(void)
{
    static void *module, *kernel;
    unsigned long long microseconds = 1000;
    void *arguments[] = {&microseconds};
    unsigned result = module ? 0 : CALL("cuModuleLoadData", &module, ptx);

    result = result ? result : CALL("cuModuleGetFunction", &kernel, module, "gcgroup_spin");
    result = result ? result : CALL("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
    return result ? result : CALL("cuCtxSynchronize");
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
    unsigned long long bytes;

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
        } else if (sscanf(line, "nearest %u %u %u", &index, &number, &room) == 3) {
            void *found[MOST] = {NULL}, **into = strstr(line, "null") ? NULL : found;
            unsigned count = room;
            unsigned result = CALL("nvmlDeviceGetTopologyNearestGpus", device(index), number, &count, into);
            topology(result, count, found);
        } else if (sscanf(line, "cpu %u %u", &number, &room) == 2) {
            void *found[MOST] = {NULL}, **into = strstr(line, "null") ? NULL : found;
            unsigned count = room, result = CALL("nvmlSystemGetTopologyGpuSet", number, &count, into);
            topology(result, count, found);
        } else if (sscanf(line, "uuid %u %u", &index, &room) == 2) {
            char uuid[128] = "-";
            unsigned result = CALL("nvmlDeviceGetUUID", device(index), uuid, room);
            printf("%u %s\n", result, uuid);
        } else if (sscanf(line, "name %u", &index) == 1) {
            char name[128] = "-";
            unsigned result = CALL("nvmlDeviceGetName", device(index), name, sizeof(name));
            printf("%u %s\n", result, name);
        } else if (sscanf(line, "by %63s", kind) == 1) {
            void *found = NULL;
            unsigned result = CALL("nvmlDeviceGetHandleByUUID", kind, &found), at = 0;
            result = result ? result : CALL("nvmlDeviceGetIndex", found, &at);
            printf("%u %u\n", result, at);
        } else if (sscanf(line, "%63s %u", kind, &index) == 2 && strstr("mode most instance ids parent", kind)) {
            mig(kind, index);
        } else if (sscanf(line, "memory %u %u", &index, &number) == 2) {
            memory(index, number);
        } else if (sscanf(line, "processes %u %63s %u %u", &index, kind, &number, &room) == 4) {
            processes(index, kind, number, room);
        } else if (sscanf(line, "details %u %u", &index, &room) == 2) {
            details(index, room);
        } else if (sscanf(line, "samples %u %u", &index, &room) == 2) {
            samples(index, room, strstr(line, "null") != NULL);
        } else if (sscanf(line, "nulls %u", &index) == 1) {
            nulls(index);
        } else if (!strcmp(line, "cuda\n")) {
            printf("%u\n", begin());
        } else if (!strcmp(line, "work\n")) {
            printf("%u\n", work());
        } else if (sscanf(line, "alloc %u %llu", &index, &bytes) == 2) {
            printf("%u\n", alloc(index, bytes));
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
