// A wall clock that is off by as much as a file says, for a program that loads this library before all others
// (LD_PRELOAD). The file, named by CHAOS_CLOCK_FILE, holds nanoseconds as a 64-bit number in the machine's byte order and
// is mapped into memory: a step shows at the next look at the clock. All other clocks and all timers stay right.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const _Atomic long long *offset;
static int (*read_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void load(void) {
    *(void **)&read_clock = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CHAOS_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED || !read_clock) {
        perror("CHAOS_CLOCK_FILE");
        abort();
    }
    close(file);
    offset = map;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    // Other libraries' constructors may come first.
    if (!read_clock) load();
    int status = read_clock(clock, time);
    if (status || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return status;
    const long long billion = 1000000000;
    long long now = time->tv_sec * billion + time->tv_nsec + *offset;
    time->tv_sec = now / billion;
    time->tv_nsec = now % billion;
    return 0;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    value->tv_sec = now.tv_sec;
    value->tv_usec = now.tv_nsec / 1000;
    return status;
}

time_t time(time_t *result) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
