// Counts a program's heap allocations, in a file that others can look at while it runs:
//
//     ALLOCATIONS_FILE=/tmp/count LD_PRELOAD=./allocations.so program
//
// The file then holds two 64-bit numbers: how many allocations there were, and how many bytes they asked for. A
// reallocation counts as one. The GNU C library's own functions do the work.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

struct counters {
    _Atomic uint64_t allocations, bytes;
};

// Counts the allocations before the file exists; they are not reported.
static struct counters early;
static struct counters *counters = &early;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ALLOCATIONS_FILE");
    if (path == NULL) return;
    int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return;
    if (ftruncate(descriptor, sizeof *counters) == 0) {
        void *memory = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (memory != MAP_FAILED) counters = memory;
    }
    close(descriptor);
}

static void count(size_t bytes) {
    atomic_fetch_add_explicit(&counters->allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters->bytes, bytes, memory_order_relaxed);
}

void *malloc(size_t size) {
    count(size);
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size) {
    count(number * size);
    return __libc_calloc(number, size);
}

void *realloc(void *old, size_t size) {
    count(size);
    return __libc_realloc(old, size);
}

void *reallocarray(void *old, size_t number, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(number, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(old, bytes);
}

void *memalign(size_t alignment, size_t size) {
    count(size);
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **result, size_t alignment, size_t size) {
    void *memory = memalign(alignment, size);
    if (memory == NULL) return ENOMEM;
    *result = memory;
    return 0;
}
