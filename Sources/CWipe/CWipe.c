// Tokens and keys pass through buffers of Swift's runtime, OpenSSL, libpq and glibc, and each of these frees its
// buffers without overwriting them: a token stays readable in the process's memory for as long as no later allocation
// happens to take the same place. The one place that all of them share is free(3). The definitions below take the place
// of glibc's, for the program and for every library that it loads, overwrite what the block held, and leave the rest to
// glibc: blocks still come from glibc's malloc and go back to it, so its other functions need no replacement.
//
// The cost is one memset of the block's size for each free. A warm read of credentials frees nothing.
#define _GNU_SOURCE
#include "CWipe.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

// A sanitizer brings an allocator of its own, which must be told of every free.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define KEEPS_THE_ALLOCATOR 1
#endif
#endif

#if defined(__GLIBC__) && !defined(KEEPS_THE_ALLOCATOR)

extern void __libc_free(void *block);
extern void *__libc_realloc(void *block, size_t size);

void free(void *block) {
    if (block == NULL) return;
    // explicit_bzero, because a compiler may drop a memset of memory that is about to be freed.
    explicit_bzero(block, malloc_usable_size(block));
    __libc_free(block);
}

// glibc's realloc moves a block without overwriting the place that it leaves. This one overwrites what the caller gives
// back, whether it is the end of a block that shrinks or the whole of a block that moves.
void *realloc(void *block, size_t size) {
    if (block == NULL) return malloc(size);
    size_t held = malloc_usable_size(block);
    if (size == 0) {
        free(block);
        return NULL;
    }
    if (size <= held) {
        explicit_bzero((char *)block + size, held - size);
        // A block that is much too large is worth moving: glibc gives back the part behind `size`.
        return held - size < 1024 && size >= held / 2 ? block : __libc_realloc(block, size);
    }
    void *larger = malloc(size);
    // As realloc(3) says, the old block stays as it is where there is no memory for the new one.
    if (larger == NULL) return NULL;
    memcpy(larger, block, held);
    free(block);
    return larger;
}

#endif
