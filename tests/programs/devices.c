/* Calls the driver API on several devices from one thread: a command per line, answered by a line with the
 * result of the last call and its output. Contexts, streams, pools and memory are named by the numbers that
 * they were given, from 0.
 *
 *   init | count | uuid DEVICE | total DEVICE
 *   gpu DEVICE              the UUID of the GPU that it is or is an instance of
 *   create DEVICE           a context, current from then on          -> RESULT CONTEXT
 *   retain DEVICE           the primary context; not made current    -> RESULT CONTEXT
 *   reset DEVICE            resets the primary context
 *   current CONTEXT|none | push CONTEXT | pop | destroy CONTEXT | sync
 *   stream FLAGS            in the current context                   -> RESULT STREAM
 *   query STREAM
 *   pool DEVICE             a memory pool                            -> RESULT POOL
 *   alloc BYTES             in the current context                   -> RESULT MEMORY
 *   managed BYTES | array BYTES                                      -> RESULT MEMORY
 *   async BYTES STREAM      STREAM may be null                       -> RESULT MEMORY
 *   from POOL BYTES STREAM                                           -> RESULT MEMORY
 *   vmm DEVICE BYTES        no context needed                        -> RESULT MEMORY
 *   free MEMORY
 *   meminfo                                                          -> RESULT FREE TOTAL
 *   attribute POOL NUMBER                                            -> RESULT VALUE
 *   graphmem DEVICE NUMBER                                           -> RESULT VALUE
 *   can DEVICE PEER         -> RESULT 0|1
 *   enable CONTEXT | disable CONTEXT    access from the current context
 *   fill MEMORY VALUE | word MEMORY                                  -> RESULT VALUE
 *   copy TO FROM BYTES STREAM
 *   copy2d TO FROM BYTES                by a CUDA_MEMCPY2D of one row, on the default stream
 *   toarray ARRAY FROM BYTES            by cuMemcpyDtoA
 *   fromarray TO ARRAY BYTES            by a CUDA_MEMCPY2D of one row
 *   batch STREAM BYTES TO FROM TO FROM  by cuMemcpyBatchAsync
 *   batch3d STREAM BYTES TO ARRAY       by cuMemcpy3DBatchAsync, of one row
 *   one3d STREAM BYTES TO ARRAY         by cuMemcpy3DWithAttributesAsync, of one row
 *   prefetch HOW STREAM BYTES MEMORY DEVICE     HOW is device or location, or a batch: batch; both, discarded before
 *   discard STREAM BYTES MEMORY
 *   copy3d TO CONTEXT FROM CONTEXT BYTES        by a CUDA_MEMCPY3D_PEER of one row
 *   nulls DEVICE            the results of cuMemGetInfo with a null pointer for the free bytes, the total, both; and
 *                           of cuDeviceTotalMem
 *   peer TO CONTEXT FROM CONTEXT BYTES STREAM|sync
 *   spin MICROSECONDS STREAM            a kernel in the current context
 *   graph HOW WHICH [STREAM MICROSECONDS]    with a node in each of the contexts WHICH, as in 01 -> RESULT GRAPH
 *                           HOW is kernel, that spins; named, a library's kernel in a named context; library, a library's
 *                           function; captured, from STREAM and a stream of the last context; fill, of the memory WHICH;
 *                           copy, from one to the other; child-HOW and if-HOW, within a child or a conditional node
 *   launch GRAPH STREAM
 *   together MICROSECONDS STREAM STREAM    by cuLaunchCooperativeKernelMultiDevice
 *   race BYTES              a thread for each context: each allocates until refused -> BLOCKS of each
 *   churn TO FROM STREAM    a thread in the current context that copies words until the program ends
 *   progress                the number of copies that these threads have made
 *   thread COMMAND          runs COMMAND in a separate thread, which ends before the answer
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spin.h"

enum { MOST = 256, MOST_MEMORY = 8192 };
enum kind { LINEAR, ASYNC, VMM, ARRAY };

static void *contexts[MOST], *streams[MOST], *pools[MOST];
static struct { enum kind kind; unsigned long long what; } memory[MOST_MEMORY];
static int nr_contexts, nr_streams, nr_pools, nr_memory;
static void *library;

struct array { size_t width, height; int format; unsigned channels; };
struct allocation { int type, handles, where, id; void *win32; unsigned char flags[8]; };
struct pool { int type, handles, where, id; void *win32; size_t max; unsigned short usage; unsigned char reserved[54]; };

struct copy2d {
    size_t src_x, src_y, src_type;
    const void *src_host;
    unsigned long long src, src_array;
    size_t src_pitch, dst_x, dst_y, dst_type;
    void *dst_host;
    unsigned long long dst, dst_array;
    size_t dst_pitch, width, height;
};
struct copy3d {
    size_t src_x, src_y, src_z, src_lod, src_type;
    const void *src_host;
    unsigned long long src, src_array;
    void *src_context;
    size_t src_pitch, src_height, dst_x, dst_y, dst_z, dst_lod, dst_type;
    void *dst_host;
    unsigned long long dst, dst_array;
    void *dst_context;
    size_t dst_pitch, dst_height, width, height, depth;
};
enum { DEVICE = 2, OF_ARRAY = 3 };
struct attributes { int order, hints[4]; unsigned flags; };
struct operand { int type; union { struct { unsigned long long address; size_t row, height; int hint[2]; } pointer;
    struct { unsigned long long array; size_t x, y, z; } array; } what; };
struct op3d { struct operand src, dst; size_t extent[3]; int order; unsigned flags; };

static void *function(const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        fprintf(stderr, "devices: no %s\n", name);
        exit(2);
    }
    return found;
}

#define CALL(name, ...) ((int (*)())function(name))(__VA_ARGS__)

static int spin(unsigned long long microseconds, void *stream)
{
    static void *kernels[MOST];
    void *current, *module, *arguments[] = {&microseconds};
    int result = CALL("cuCtxGetCurrent", &current), at = 0;

    while (at < nr_contexts && contexts[at] != current)
        at++;
    if (!result && !kernels[at]) {
        result = CALL("cuModuleLoadData", &module, ptx);
        result = result ? result : CALL("cuModuleGetFunction", &kernels[at], module, "gcgroup_spin");
    }
    return result ? result : CALL("cuLaunchKernel", kernels[at], 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static void *graphs[MOST];
static int nr_graphs;

struct node { void *function; unsigned grid[3], block[3], shared; void **params, **extra, *kernel, *context; };
struct fill { unsigned long long to; size_t pitch; unsigned value, size; size_t width, height; };
struct conditional { int type, reserved[3]; unsigned long long handle; int kind; unsigned size; void **graphs, *context;
    unsigned char rest[208]; };
struct together { void *function; unsigned grid[3], block[3], shared; void *stream; void **params; };

/* A spin kernel, as a function of the current context. */
static int spinner(void **kernel)
{
    void *module;
    int result = CALL("cuModuleLoadData", &module, ptx);

    return result ? result : CALL("cuModuleGetFunction", kernel, module, "gcgroup_spin");
}

static int add_kernels(const char *how, void *graph, const char *devices, unsigned long long microseconds)
{
    static void *code, *kernel;
    void *arguments[] = {&microseconds}, *node, *none;
    int result = code ? 0 : CALL("cuLibraryLoadData", &code, ptx, NULL, NULL, 0, NULL, NULL, 0);

    result = result ? result : CALL("cuLibraryGetKernel", &kernel, code, "gcgroup_spin");
    for (; !result && *devices; devices++) {
        struct node new = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .params = arguments};
        CALL("cuCtxPushCurrent_v2", contexts[*devices - '0']);
        if (!strcmp(how, "named")) {
            new.kernel = kernel;
            new.context = contexts[*devices - '0'];
        } else if (!strcmp(how, "library")) {
            result = CALL("cuKernelGetFunction", &new.function, kernel);
        } else {
            result = spinner(&new.function);
        }
        CALL("cuCtxPopCurrent_v2", &none);
        result = result ? result : CALL("cuGraphAddKernelNode_v2", &node, graph, NULL, (size_t)0, &new);
    }
    return result;
}

static int add_copy(void *graph, const char *numbers)
{
    struct copy3d copy = {
        .src_type = DEVICE, .src = memory[numbers[0] - '0'].what, .src_pitch = 64, .src_height = 1,
        .dst_type = DEVICE, .dst = memory[numbers[1] - '0'].what, .dst_pitch = 64, .dst_height = 1,
        .width = 64, .height = 1, .depth = 1,
    };
    void *node, *context;

    CALL("cuCtxGetCurrent", &context);
    return CALL("cuGraphAddMemcpyNode", &node, graph, NULL, (size_t)0, &copy, context);
}

static int add_fills(void *graph, const char *numbers)
{
    int result = 0;
    void *node, *context;

    CALL("cuCtxGetCurrent", &context);
    for (; !result && *numbers; numbers++) {
        struct fill fill = {memory[*numbers - '0'].what, 0, 7, 4, 16, 1};
        result = CALL("cuGraphAddMemsetNode", &node, graph, NULL, (size_t)0, &fill, context);
    }
    return result;
}

/* Captures from a stream of the first context, with streams of the others that wait for it and for which it
 * waits. */
static int capture(void **graph, const char *devices, void *origin)
{
    unsigned long long microseconds = 0;
    void *arguments[] = {&microseconds}, *none, *kernel, *own, *event = NULL;
    int result = CALL("cuStreamBeginCapture_v2", origin, 2);

    for (; !result && *devices; devices++) {
        CALL("cuCtxPushCurrent_v2", contexts[*devices - '0']);
        result = spinner(&kernel);
        own = origin;
        if (!result && devices[1] == '\0') {
            result = CALL("cuStreamCreate", &own, 1);
            result = result ? result : CALL("cuEventCreate", &event, 2);
            result = result ? result : CALL("cuEventRecord", event, origin);
            result = result ? result : CALL("cuStreamWaitEvent", own, event, 0);
        }
        result = result ? result : CALL("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, own, arguments, NULL);
        if (!result && own != origin) {
            result = CALL("cuEventRecord", event, own);
            result = result ? result : CALL("cuStreamWaitEvent", origin, event, 0);
        }
        CALL("cuCtxPopCurrent_v2", &none);
    }
    return result ? result : CALL("cuStreamEndCapture", origin, graph);
}

static int make_graph(const char *how, const char *which, void *origin, unsigned long long microseconds)
{
    void *outer, *graph, *node, *context;
    int is_child = !strncmp(how, "child-", 6), is_if = !strncmp(how, "if-", 3), result;
    struct conditional condition = {.type = 13, .kind = 0, .size = 1};

    if (!strcmp(how, "captured")) {
        result = capture(&outer, which, origin);
        return result ? result : CALL("cuGraphInstantiateWithFlags", &graphs[nr_graphs], outer, 0ull);
    }
    how += is_child ? 6 : is_if ? 3 : 0;
    result = CALL("cuGraphCreate", &outer, 0);
    graph = outer;
    if (is_child)
        result = result ? result : CALL("cuGraphCreate", &graph, 0);
    if (is_if && !result) {
        CALL("cuCtxGetCurrent", &context);
        condition.context = context;
        result = CALL("cuGraphConditionalHandleCreate", &condition.handle, outer, context, 1, 1);
        result = result ? result : CALL("cuGraphAddNode", &node, outer, NULL, (size_t)0, &condition);
        graph = result ? NULL : condition.graphs[0];
    }
    if (result)
        return result;
    result = !strcmp(how, "fill") ? add_fills(graph, which) : !strcmp(how, "copy") ? add_copy(graph, which)
        : add_kernels(how, graph, which, microseconds);
    if (is_child)
        result = result ? result : CALL("cuGraphAddChildGraphNode", &node, outer, NULL, (size_t)0, graph);
    return result ? result : CALL("cuGraphInstantiateWithFlags", &graphs[nr_graphs], outer, 0ull);
}

static int together(unsigned long long microseconds, const char *first, const char *second)
{
    void *arguments[] = {&microseconds}, *none;
    const char *names[] = {first, second};
    struct together list[2];
    int result = 0;

    for (int i = 0; i < 2 && !result; i++) {
        void *context;
        list[i] = (struct together){.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = streams[atoi(names[i])],
            .params = arguments};
        result = CALL("cuStreamGetCtx", list[i].stream, &context);
        CALL("cuCtxPushCurrent_v2", context);
        result = result ? result : spinner(&list[i].function);
        CALL("cuCtxPopCurrent_v2", &none);
    }
    return result ? result : CALL("cuLaunchCooperativeKernelMultiDevice", list, 2, 0);
}

static pthread_barrier_t start;
static size_t each;

static void *racer(void *context)
{
    unsigned long long pointer;
    size_t got = 0;

    CALL("cuCtxSetCurrent", context);
    pthread_barrier_wait(&start);
    while (!CALL("cuMemAlloc_v2", &pointer, each))
        got++;
    return (void *)got;
}

static void race(void)
{
    pthread_t threads[MOST];
    void *got;

    pthread_barrier_init(&start, NULL, (unsigned)nr_contexts);
    for (int i = 0; i < nr_contexts; i++)
        pthread_create(&threads[i], NULL, racer, contexts[i]);
    for (int i = 0; i < nr_contexts; i++) {
        pthread_join(threads[i], &got);
        printf("%s%zu", i ? " " : "", (size_t)got);
    }
    printf("\n");
}

struct churning { unsigned long long to, from; void *stream, *context; unsigned long made; };
static struct churning churning[MOST];
static int nr_churning;

static void *churner(void *argument)
{
    struct churning *own = argument;

    CALL("cuCtxSetCurrent", own->context);
    while (!CALL("cuMemcpyDtoDAsync_v2", own->to, own->from, (size_t)4, own->stream)) {
        __atomic_fetch_add(&own->made, 1, __ATOMIC_SEQ_CST);
        if (own->made % 64 == 0 && CALL("cuStreamSynchronize", own->stream))
            break;
    }
    return NULL;
}

static unsigned long progress(void)
{
    unsigned long made = 0;

    for (int i = 0; i < nr_churning; i++)
        made += __atomic_load_n(&churning[i].made, __ATOMIC_SEQ_CST);
    return made;
}

/* Parses `null`, or a number. */
static void *stream(const char *name)
{
    return strcmp(name, "null") ? streams[atoi(name)] : NULL;
}

static void number(int result, unsigned long long value)
{
    printf("%d %llu\n", result, value);
}

static void keep(int result, enum kind kind, unsigned long long what)
{
    if (nr_memory == MOST_MEMORY) {
        fprintf(stderr, "devices: no room for more\n");
        exit(2);
    }
    memory[nr_memory].kind = kind;
    memory[nr_memory].what = what;
    number(result, (unsigned long long)nr_memory);
    nr_memory += !result;
}

static int release(int at)
{
    unsigned long long what = memory[at].what;

    switch (memory[at].kind) {
    case LINEAR: return CALL("cuMemFree_v2", what);
    case ASYNC: return CALL("cuMemFreeAsync", what, NULL);
    case VMM: return CALL("cuMemRelease", what);
    default: return CALL("cuArrayDestroy", what);
    }
}

static int churn(unsigned long long to, unsigned long long from, const char *stream)
{
    struct churning *new = &churning[nr_churning];
    pthread_t thread;
    int result = CALL("cuCtxGetCurrent", &new->context);

    new->to = to;
    new->from = from;
    new->stream = streams[atoi(stream)];
    result = result ? result : pthread_create(&thread, NULL, churner, new);
    nr_churning += !result;
    return result;
}

static void one(const char *line);

static void *beside(void *line)
{
    one(line);
    return NULL;
}

static void one(const char *line)
{
    char verb[32], a[32] = "", b[32] = "", c[32] = "", d[32] = "", e[32] = "", f[32] = "";
    unsigned long long what = 0;
    size_t bytes, total = 0, left = 0;
    void *made = NULL;
    int result, x, y;

    sscanf(line, "%31s %31s %31s %31s %31s %31s %31s", verb, a, b, c, d, e, f);
    x = atoi(a);
    y = atoi(b);
#define IS(name) (!strcmp(verb, name))
    if (IS("init")) {
        result = CALL("cuInit", 0);
        printf("%d\n", result);
    } else if (IS("count")) {
        result = CALL("cuDeviceGetCount", &x);
        number(result, (unsigned long long)x);
    } else if (IS("uuid")) {
        unsigned char uuid[16];
        result = CALL("cuDeviceGetUuid_v2", uuid, x);
        printf("%d ", result);
        for (int i = 0; i < 16; i++)
            printf("%02x", uuid[i]);
        printf("\n");
    } else if (IS("gpu")) {
        unsigned char uuid[16];
        result = CALL("cuDeviceGetUuid", uuid, x);
        printf("%d ", result);
        for (int i = 0; i < 16; i++)
            printf("%02x", uuid[i]);
        printf("\n");
    } else if (IS("total")) {
        result = CALL("cuDeviceTotalMem_v2", &total, x);
        number(result, total);
    } else if (IS("create")) {
        result = CALL("cuCtxCreate_v2", &contexts[nr_contexts], 0, x);
        number(result, (unsigned long long)nr_contexts++);
    } else if (IS("retain")) {
        result = CALL("cuDevicePrimaryCtxRetain", &contexts[nr_contexts], x);
        number(result, (unsigned long long)nr_contexts++);
    } else if (IS("reset")) {
        printf("%d\n", CALL("cuDevicePrimaryCtxReset_v2", x));
    } else if (IS("current")) {
        printf("%d\n", CALL("cuCtxSetCurrent", strcmp(a, "none") ? contexts[x] : NULL));
    } else if (IS("push")) {
        printf("%d\n", CALL("cuCtxPushCurrent_v2", contexts[x]));
    } else if (IS("pop")) {
        printf("%d\n", CALL("cuCtxPopCurrent_v2", &made));
    } else if (IS("destroy")) {
        printf("%d\n", CALL("cuCtxDestroy_v2", contexts[x]));
    } else if (IS("sync")) {
        printf("%d\n", CALL("cuCtxSynchronize"));
    } else if (IS("stream")) {
        result = CALL("cuStreamCreate", &streams[nr_streams], x);
        number(result, (unsigned long long)nr_streams++);
    } else if (IS("query")) {
        printf("%d\n", CALL("cuStreamQuery", stream(a)));
    } else if (IS("pool")) {
        struct pool wanted = {1, 0, 1, x, NULL, 0, 0, {0}};
        result = CALL("cuMemPoolCreate", &pools[nr_pools], &wanted);
        number(result, (unsigned long long)nr_pools++);
    } else if (IS("alloc")) {
        result = CALL("cuMemAlloc_v2", &what, (size_t)strtoull(a, NULL, 10));
        keep(result, LINEAR, what);
    } else if (IS("managed")) {
        result = CALL("cuMemAllocManaged", &what, (size_t)strtoull(a, NULL, 10), 1);
        keep(result, LINEAR, what);
    } else if (IS("array")) {
        struct array wanted = {strtoull(a, NULL, 10), 0, 1, 1};
        result = CALL("cuArrayCreate_v2", &what, &wanted);
        keep(result, ARRAY, what);
    } else if (IS("async")) {
        result = CALL("cuMemAllocAsync", &what, (size_t)strtoull(a, NULL, 10), stream(b));
        keep(result, ASYNC, what);
    } else if (IS("from")) {
        result = CALL("cuMemAllocFromPoolAsync", &what, (size_t)strtoull(b, NULL, 10), pools[x], stream(c));
        keep(result, ASYNC, what);
    } else if (IS("vmm")) {
        struct allocation wanted = {1, 0, 1, x, NULL, {0}};
        result = CALL("cuMemCreate", &what, (size_t)strtoull(b, NULL, 10), &wanted, 0ull);
        keep(result, VMM, what);
    } else if (IS("free")) {
        printf("%d\n", release(x));
    } else if (IS("meminfo")) {
        result = CALL("cuMemGetInfo_v2", &left, &total);
        printf("%d %zu %zu\n", result, left, total);
    } else if (IS("attribute")) {
        result = CALL("cuMemPoolGetAttribute", pools[x], y, &what);
        number(result, what);
    } else if (IS("graphmem")) {
        result = CALL("cuDeviceGetGraphMemAttribute", x, y, &what);
        number(result, what);
    } else if (IS("can")) {
        result = CALL("cuDeviceCanAccessPeer", &x, x, y);
        number(result, (unsigned long long)x);
    } else if (IS("enable")) {
        printf("%d\n", CALL("cuCtxEnablePeerAccess", contexts[x], 0));
    } else if (IS("disable")) {
        printf("%d\n", CALL("cuCtxDisablePeerAccess", contexts[x]));
    } else if (IS("fill")) {
        printf("%d\n", CALL("cuMemsetD32_v2", memory[x].what, y, (size_t)1024));
    } else if (IS("word")) {
        unsigned word = 0;
        result = CALL("cuMemcpyDtoH_v2", &word, memory[x].what, sizeof(word));
        number(result, word);
    } else if (IS("copy")) {
        bytes = strtoull(c, NULL, 10);
        printf("%d\n", CALL("cuMemcpyDtoDAsync_v2", memory[x].what, memory[y].what, bytes, stream(d)));
    } else if (IS("copy2d")) {
        bytes = strtoull(c, NULL, 10);
        struct copy2d copy = {
            .src_type = DEVICE, .src = memory[y].what, .src_pitch = bytes,
            .dst_type = DEVICE, .dst = memory[x].what, .dst_pitch = bytes,
            .width = bytes, .height = 1,
        };
        printf("%d\n", CALL("cuMemcpy2D_v2", &copy));
    } else if (IS("toarray")) {
        printf("%d\n", CALL("cuMemcpyDtoA_v2", memory[x].what, (size_t)0, memory[y].what, (size_t)strtoull(c, NULL, 10)));
    } else if (IS("fromarray")) {
        bytes = strtoull(c, NULL, 10);
        struct copy2d copy = {
            .src_type = OF_ARRAY, .src_array = memory[y].what,
            .dst_type = DEVICE, .dst = memory[x].what, .dst_pitch = bytes,
            .width = bytes, .height = 1,
        };
        printf("%d\n", CALL("cuMemcpy2D_v2", &copy));
    } else if (IS("batch")) {
        size_t sizes[2] = {strtoull(b, NULL, 10), strtoull(b, NULL, 10)}, first = 0;
        unsigned long long to[2] = {memory[atoi(c)].what, memory[atoi(e)].what};
        unsigned long long from[2] = {memory[atoi(d)].what, memory[atoi(f)].what};
        struct attributes how = {1, {0}, 0};
        printf("%d\n", CALL("cuMemcpyBatchAsync_v2", to, from, sizes, (size_t)2, &how, &first, (size_t)1, stream(a)));
    } else if (IS("batch3d") || IS("one3d")) {
        struct op3d op = {
            .src = {2, {.array = {memory[atoi(d)].what, 0, 0, 0}}},
            .dst = {1, {.pointer = {memory[atoi(c)].what, 0, 0, {0}}}},
            .extent = {strtoull(b, NULL, 10), 1, 1}, .order = 1,
        };
        if (IS("one3d"))
            printf("%d\n", CALL("cuMemcpy3DWithAttributesAsync", &op, 0ull, stream(a)));
        else
            printf("%d\n", CALL("cuMemcpy3DBatchAsync_v2", (size_t)1, &op, 0ull, stream(a)));
    } else if (IS("prefetch")) {
        unsigned long long at = memory[atoi(d)].what;
        size_t size = strtoull(c, NULL, 10), first = 0;
        struct place { int sort, id; } to = {1, atoi(e)};
        if (!strcmp(a, "device"))
            printf("%d\n", CALL("cuMemPrefetchAsync", at, size, to.id, stream(b)));
        else if (!strcmp(a, "location"))
            printf("%d\n", CALL("cuMemPrefetchAsync_v2", at, size, to, 0, stream(b)));
        else
            printf("%d\n", CALL(strcmp(a, "both") ? "cuMemPrefetchBatchAsync" : "cuMemDiscardAndPrefetchBatchAsync",
                                &at, &size, (size_t)1, &to, &first, (size_t)1, 0ull, stream(b)));
    } else if (IS("discard")) {
        unsigned long long at = memory[atoi(c)].what;
        size_t size = strtoull(b, NULL, 10);
        printf("%d\n", CALL("cuMemDiscardBatchAsync", &at, &size, (size_t)1, 0ull, stream(a)));
    } else if (IS("copy3d")) {
        bytes = strtoull(e, NULL, 10);
        struct copy3d copy = {
            .src_type = DEVICE, .src = memory[atoi(c)].what, .src_context = contexts[atoi(d)],
            .src_pitch = bytes, .src_height = 1,
            .dst_type = DEVICE, .dst = memory[x].what, .dst_context = contexts[y],
            .dst_pitch = bytes, .dst_height = 1,
            .width = bytes, .height = 1, .depth = 1,
        };
        printf("%d\n", CALL("cuMemcpy3DPeer", &copy));
    } else if (IS("nulls")) {
        printf("%d", CALL("cuMemGetInfo_v2", NULL, &total));
        printf(" %d", CALL("cuMemGetInfo_v2", &left, NULL));
        printf(" %d", CALL("cuMemGetInfo_v2", NULL, NULL));
        printf(" %d\n", CALL("cuDeviceTotalMem_v2", NULL, x));
    } else if (IS("peer")) {
        bytes = strtoull(e, NULL, 10);
        y = atoi(c);
        if (strcmp(f, "sync"))
            result = CALL("cuMemcpyPeerAsync", memory[x].what, contexts[atoi(b)], memory[y].what, contexts[atoi(d)], bytes,
                          stream(f));
        else
            result = CALL("cuMemcpyPeer", memory[x].what, contexts[atoi(b)], memory[y].what, contexts[atoi(d)], bytes);
        printf("%d\n", result);
    } else if (IS("spin")) {
        printf("%d\n", spin(strtoull(a, NULL, 10), stream(b)));
    } else if (IS("graph")) {
        result = make_graph(a, b, strcmp(c, "") ? stream(c) : NULL, strtoull(d, NULL, 10));
        number(result, (unsigned long long)nr_graphs);
        nr_graphs += !result;
    } else if (IS("launch")) {
        printf("%d\n", CALL("cuGraphLaunch", graphs[x], stream(b)));
    } else if (IS("together")) {
        printf("%d\n", together(strtoull(a, NULL, 10), b, c));
    } else if (IS("race")) {
        each = strtoull(a, NULL, 10);
        race();
    } else if (IS("churn")) {
        printf("%d\n", churn(memory[x].what, memory[y].what, c));
    } else if (IS("progress")) {
        printf("%lu\n", progress());
    } else if (IS("thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, beside, (void *)(strstr(line, "thread") + sizeof("thread")));
        pthread_join(thread, NULL);
    } else {
        printf("unknown command\n");
    }
}

int main(void)
{
    char line[256];

    setvbuf(stdout, NULL, _IOLBF, 0);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "devices: %s\n", dlerror());
        return 2;
    }
    printf("ready\n");
    while (fgets(line, sizeof(line), stdin))
        one(line);
    return 0;
}
