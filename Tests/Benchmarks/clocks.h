// The clocks of a load generator: the time, and the CPU time of the servers that it measures.

#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { SERVERS = 16 };
static const uint64_t second = 1000000000;
static clockid_t server_clocks[SERVERS];
static size_t server_count;

static uint64_t nanoseconds(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) != 0) return 0;
    return (uint64_t)time.tv_sec * second + (uint64_t)time.tv_nsec;
}
static uint64_t now(void) { return nanoseconds(CLOCK_MONOTONIC); }

static uint64_t server_cpu(void) {
    uint64_t sum = 0;
    for (size_t index = 0; index < server_count; index++) sum += nanoseconds(server_clocks[index]);
    return sum;
}
