#define _GNU_SOURCE
#include "CSimulation.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// --- Jobs -------------------------------------------------------------------------------------------------------------

// Swift's runtime asks these before it gives a job to a thread of its own (ConcurrencyHooks.def in its source).
#define SWIFT_CALL __attribute__((swiftcall))
typedef SWIFT_CALL void (*enqueue_global)(void *job, void *original);
typedef SWIFT_CALL void (*enqueue_delayed)(unsigned long long delay, void *job, void *original);
typedef SWIFT_CALL void (*enqueue_deadline)(
    long long seconds, long long nanoseconds, long long tolerance, long long fraction, int clock, void *job, void *original);

extern enqueue_global swift_task_enqueueGlobal_hook;
extern enqueue_global swift_task_enqueueMainExecutor_hook;
extern enqueue_delayed swift_task_enqueueGlobalWithDelay_hook;
extern enqueue_deadline swift_task_enqueueGlobalWithDeadline_hook;

/// The executor of a job that has none is two null pointers.
extern SWIFT_CALL void swift_job_run(void *job, void *executor, void *witnesses);

static void (*take)(void *job);

static SWIFT_CALL void taken(void *job, void *original) {
    (void)original;
    take(job);
}

static void refuse(const char *what) {
    fprintf(stderr, "simulation: code of the broker used %s, which a simulated world does not have\n", what);
    abort();
}

static SWIFT_CALL void delayed(unsigned long long delay, void *job, void *original) {
    (void)delay, (void)job, (void)original;
    refuse("the system's clock");
}

static SWIFT_CALL void timed(
    long long seconds, long long nanoseconds, long long tolerance, long long fraction, int clock, void *job, void *original) {
    (void)seconds, (void)nanoseconds, (void)tolerance, (void)fraction, (void)clock, (void)job, (void)original;
    refuse("the system's clock");
}

static SWIFT_CALL void of_main(void *job, void *original) {
    (void)job, (void)original;
    refuse("the main actor");
}

void csimulation_take_jobs(void (*enqueue)(void *job)) {
    take = enqueue;
    swift_task_enqueueGlobal_hook = taken;
    swift_task_enqueueMainExecutor_hook = of_main;
    swift_task_enqueueGlobalWithDelay_hook = delayed;
    swift_task_enqueueGlobalWithDeadline_hook = timed;
}

void csimulation_run(void *job) { swift_job_run(job, NULL, NULL); }

// --- Random numbers ---------------------------------------------------------------------------------------------------

// Swift's generator asks the kernel through syscall(2) for each number. This definition takes the place of glibc's for
// the program and the libraries that it loads.

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(void) {
    uint64_t mixed = (state += 0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
}

void csimulation_seed(uint64_t seed) { state = seed; }

long syscall(long number, ...) {
    static long (*original)(long, ...);
    va_list list;
    va_start(list, number);
    long values[6];
    for (int index = 0; index < 6; index++) values[index] = va_arg(list, long);
    va_end(list);
    if (number == SYS_getrandom) {
        unsigned char *bytes = (unsigned char *)values[0];
        size_t count = (size_t)values[1];
        for (size_t done = 0; done < count;) {
            uint64_t number = next();
            size_t part = count - done < sizeof number ? count - done : sizeof number;
            memcpy(bytes + done, &number, part);
            done += part;
        }
        return (long)count;
    }
    if (original == NULL) original = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return original(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

// --- Dictionaries -----------------------------------------------------------------------------------------------------

void csimulation_order_dictionaries(char *const arguments[]) {
    static const char name[] = "SWIFT_DETERMINISTIC_HASHING";
    if (getenv(name) != NULL) return;
    setenv(name, "1", 1);
    execv("/proc/self/exe", arguments);
    perror("simulation: cannot start itself");
    exit(2);
}

// --- Processes --------------------------------------------------------------------------------------------------------

int csimulation_fork(void) {
    fflush(NULL);
    return fork();
}
