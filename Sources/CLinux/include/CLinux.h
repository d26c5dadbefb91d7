// The Linux calls that Swift's Glibc module leaves out. _GNU_SOURCE is defined in CLinux.c only: here
// it would clash with the Glibc module that Swift has already built.
#ifndef TOKEN_BROKER_CLINUX_H
#define TOKEN_BROKER_CLINUX_H

#include <stdint.h>
#include <sys/types.h>

/// One readiness event: which descriptor's 64-bit tag, and what it is ready for (EPOLL* bits).
struct clinux_event {
    uint64_t tag;
    uint32_t events;
};

extern const uint32_t CLINUX_IN, CLINUX_OUT, CLINUX_RDHUP, CLINUX_HUP, CLINUX_ERR, CLINUX_ET, CLINUX_ONESHOT;

/// pipe2(2) with O_CLOEXEC: the end for reading, then the end for writing.
int clinux_pipe(int ends[2]);
int clinux_epoll_create(void);
/// Adds the descriptor, or changes its registration where it is registered already.
int clinux_epoll_set(int epoll, int descriptor, uint32_t events, uint64_t tag);
int clinux_epoll_remove(int epoll, int descriptor);
/// dup3(2) with O_CLOEXEC: `other` becomes a second number of what `descriptor` is, in one step.
int clinux_replace_descriptor(int descriptor, int other);
/// Waits for at most `timeout_ms` (-1: for ever). Returns the number of events, or -1 with errno.
int clinux_epoll_wait(int epoll, struct clinux_event *events, int capacity, int timeout_ms);

/// A non-blocking, close-on-exec event counter.
int clinux_eventfd(void);
/// accept(2) that makes the new descriptor non-blocking and close-on-exec in the same call.
int clinux_accept(int listener, void *address, unsigned int *length);
/// recv(2) and send(2) without SIGPIPE, by the system call itself: glibc's functions are points of cancellation, which costs
/// a program with threads two calls more, and no thread here is ever cancelled so.
long clinux_receive(int descriptor, void *buffer, long capacity);
long clinux_send(int descriptor, const void *bytes, long count);
/// The environment, as `NAME=value`, up to a null pointer; null if there is none.
char **clinux_environment(void);
/// Unmaps the pages of the program and its libraries that no code can have written, until they are used again. The files'
/// content stays in the kernel's cache, so that the next use costs a minor fault. Returns the number of segments.
int clinux_drop_unwritten_pages(void);
/// Reserves disk space for the file's first `count` octets, and does not change the file's size. 0, or -1 with errno.
int clinux_reserve_room(int descriptor, long count);
/// Makes everything durable that was written to the file system of the descriptor. 0, or -1 with errno.
int clinux_synchronize_file_system(int descriptor);
/// Makes the processor fetch the cache lines of `count` bytes from `start` on, without waiting.
static inline void clinux_prefetch(const void *start, long count) {
    for (long offset = 0; offset < count; offset += 64) __builtin_prefetch((const char *)start + offset);
}
/// Names a thread (15 bytes at most).
int clinux_set_thread_name(unsigned long thread, const char *name);
/// Waits for a semaphore (sem_t), at most this many nanoseconds by the monotonic clock; sem_timedwait uses the wall clock.
/// 0, or -1 with errno.
int clinux_wait_for_semaphore(void *semaphore, int64_t nanoseconds);
/// getaddrinfo's "the name exists but has no address".
extern const int CLINUX_EAI_NODATA;
/// Raises the soft limit on open descriptors to the hard one; returns it, or -1 with errno.
long clinux_raise_descriptor_limit(void);
/// Has the kernel make its table of the process's descriptors so large at once, within the limit.
void clinux_reserve_descriptors(int count);
/// Makes the process undumpable and forbids core files, and has a crash end it at once without a report of Swift's runtime, so
/// that a crash leaves no secret behind.
int clinux_forbid_core_dumps(void);
/// Has no page of the process be swapped out, now and later. 0, or -1 with errno: EPERM where only a part could be locked.
int clinux_lock_memory(void);

#endif
