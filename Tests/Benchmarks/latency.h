// Latencies in buckets whose width is a 64th of what they hold: quantiles that are right to within two per cent, in
// constant memory, whatever the range.

#include <stdint.h>

enum { LATENCY_PARTS = 64, LATENCY_BUCKETS = 64 * LATENCY_PARTS };

struct latency {
    uint64_t count, most;
    uint64_t buckets[LATENCY_BUCKETS];
};

static inline unsigned latency_bucket(uint64_t nanoseconds) {
    if (nanoseconds < LATENCY_PARTS) return (unsigned)nanoseconds;
    unsigned shift = 57 - (unsigned)__builtin_clzll(nanoseconds);
    return (shift + 1) * LATENCY_PARTS + (unsigned)(nanoseconds >> shift) - LATENCY_PARTS;
}

static inline void latency_add(struct latency *latency, uint64_t nanoseconds) {
    latency->count++;
    if (nanoseconds > latency->most) latency->most = nanoseconds;
    latency->buckets[latency_bucket(nanoseconds)]++;
}

// The quantile in microseconds; 0 of nothing.
static inline double latency_at(const struct latency *latency, double quantile) {
    uint64_t rank = (uint64_t)(quantile * (double)latency->count), below = 0;
    if (latency->count == 0) return 0;
    if (rank >= latency->count) return (double)latency->most / 1e3;
    for (unsigned bucket = 0; bucket < LATENCY_BUCKETS; bucket++) {
        below += latency->buckets[bucket];
        if (below <= rank) continue;
        if (bucket < LATENCY_PARTS) return bucket / 1e3;
        unsigned shift = bucket / LATENCY_PARTS - 1;
        uint64_t low = (uint64_t)(bucket % LATENCY_PARTS + LATENCY_PARTS) << shift;
        return ((double)low + (double)(UINT64_C(1) << shift) / 2) / 1e3;
    }
    return (double)latency->most / 1e3;
}
