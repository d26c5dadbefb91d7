import Glibc

/// The machine's time of day (CLOCK_REALTIME), for log lines and the `Date` field of responses. It may be wrong, and an
/// administrator may change it.
package enum WallClock {
    /// Whole milliseconds since 1970-01-01T00:00:00Z.
    package static var milliseconds: Int64 {
        var time = timespec()
        _ = unsafe clock_gettime(CLOCK_REALTIME, &time)
        return Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000
    }
}
