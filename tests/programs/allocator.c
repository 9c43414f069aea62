/* A replacement of the C library's allocator, like jemalloc and tcmalloc: preloaded, or linked into the
 * program. It initializes at the first call, keeps a header before each block, fills blocks on allocation and
 * on free, and aborts the program if a block is not its own, was freed before, or if a thread reenters it. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIVE = 0x600dbeef, FREED = 0xdeadbeef, CLASSES = 48, SMALLEST = 6, CHUNK = 1 << 20, HUGE_CLASS = 20 };

struct header {
    uint32_t state, class;
    size_t size;       /* the requested size */
    void *base;        /* the start of the block's memory */
    struct header *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct header *free_blocks[CLASSES];
static char *chunk, *chunk_end;
static int fill = -1;
static __thread int inside __attribute__((tls_model("initial-exec")));

static void fail(const char *why)
{
    if (write(2, why, strlen(why)) < 0)
        _exit(99);
    abort();
}

static void enter(void)
{
    if (inside++)
        fail("allocator: entered again\n");
    pthread_mutex_lock(&lock);
    if (fill < 0)
        fill = getenv("ALLOCATOR_FILL") ? atoi(getenv("ALLOCATOR_FILL")) : 0xa5;
}

static void leave(void)
{
    pthread_mutex_unlock(&lock);
    inside--;
}

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static unsigned class_of(size_t bytes)
{
    unsigned class = SMALLEST;
    while (((size_t)1 << class) < bytes)
        class++;
    return class;
}

/* Returns uninitialized memory of a size class. */
static char *memory_of(unsigned class)
{
    size_t bytes = (size_t)1 << class;
    if (class >= HUGE_CLASS)
        return map(bytes);
    if ((size_t)(chunk_end - chunk) < bytes) {
        chunk = map(CHUNK);
        chunk_end = chunk ? chunk + CHUNK : NULL;
    }
    char *memory = chunk;
    if (chunk)
        chunk += bytes;
    return memory;
}

static void *allocate(size_t alignment, size_t size)
{
    if (size > (size_t)1 << 40) {
        errno = ENOMEM;
        return NULL;
    }
    unsigned class = class_of(size + alignment + sizeof(struct header));
    enter();
    char *base = (char *)free_blocks[class];
    if (base)
        free_blocks[class] = ((struct header *)base)->next;
    else
        base = memory_of(class);
    leave();
    if (!base) {
        errno = ENOMEM;
        return NULL;
    }
    uintptr_t at = ((uintptr_t)base + sizeof(struct header) + alignment - 1) & ~(alignment - 1);
    struct header *header = (struct header *)at - 1;
    *header = (struct header){ ALIVE, class, size, base, NULL };
    memset((void *)at, fill, size);
    return (void *)at;
}

static struct header *header_of(void *pointer)
{
    struct header *header = (struct header *)pointer - 1;
    if (header->state != ALIVE)
        fail(header->state == FREED ? "allocator: freed before\n" : "allocator: not a block\n");
    return header;
}

void *malloc(size_t size)
{
    return allocate(16, size);
}

void free(void *pointer)
{
    if (!pointer)
        return;
    int before = errno;
    struct header freed = *header_of(pointer);
    ((struct header *)pointer - 1)->state = FREED;
    if (freed.class >= HUGE_CLASS) {
        munmap(freed.base, (size_t)1 << freed.class);
    } else {
        memset(pointer, 0xdb, freed.size);
        struct header *block = freed.base;
        enter();
        block->next = free_blocks[freed.class];
        free_blocks[freed.class] = block;
        leave();
    }
    errno = before;
}

void *calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    void *pointer = malloc(bytes);
    return pointer ? memset(pointer, 0, bytes) : NULL;
}

void *realloc(void *old, size_t size)
{
    if (!old)
        return malloc(size);
    size_t before = header_of(old)->size;
    void *pointer = malloc(size);
    if (pointer) {
        memcpy(pointer, old, before < size ? before : size);
        free(old);
    }
    return pointer;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return allocate(alignment < 16 ? 16 : alignment, size);
}

void *memalign(size_t alignment, size_t size)
{
    return aligned_alloc(alignment, size);
}

int posix_memalign(void **pointer, size_t alignment, size_t size)
{
    int before = errno;
    void *block = aligned_alloc(alignment, size);
    errno = before;
    if (!block)
        return ENOMEM;
    *pointer = block;
    return 0;
}

size_t malloc_usable_size(void *pointer)
{
    return pointer ? header_of(pointer)->size : 0;
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void prepare_for_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}
