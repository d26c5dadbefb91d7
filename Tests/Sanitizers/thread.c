// Tells ThreadSanitizer what a contended Mutex of Swift's Synchronization orders.
//
// The Mutex takes and gives an uncontended lock by atomics in our own code, which the sanitizer sees. What is
// contended goes through libswiftSynchronization, which is not built for it, and through the kernel, which hands the lock
// on by itself (futex(2), FUTEX_LOCK_PI): without this, whatever two threads touch one after the other under such a lock
// would be reported. Linked into a program, these stand in the places of that library's functions and call them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void __tsan_acquire(void *);
void __tsan_release(void *);

#define SWIFT __attribute__((swiftcall))
#define SELF __attribute__((swift_context)) void *
#define LOCK_SLOW "$s15Synchronization12_MutexHandleV9_lockSlowyys6UInt32VF"
#define UNLOCK_SLOW "$s15Synchronization12_MutexHandleV11_unlockSlowyyF"

static SWIFT void (*lock_slow)(uint32_t, SELF);
static SWIFT void (*unlock_slow)(SELF);

static void *original(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function == NULL) {
        fprintf(stderr, "thread.c: libswiftSynchronization.so has no %s\n", name);
        abort();
    }
    return function;
}

__attribute__((constructor)) static void find_originals(void) {
    lock_slow = original(LOCK_SLOW);
    unlock_slow = original(UNLOCK_SLOW);
}

// _MutexHandle._lockSlow(_: UInt32)
SWIFT void lock(uint32_t thread, SELF handle) __asm__(LOCK_SLOW);
SWIFT void lock(uint32_t thread, SELF handle) {
    lock_slow(thread, handle);
    __tsan_acquire(handle);
}

// _MutexHandle._unlockSlow()
SWIFT void unlock(SELF handle) __asm__(UNLOCK_SLOW);
SWIFT void unlock(SELF handle) {
    __tsan_release(handle);
    unlock_slow(handle);
}
