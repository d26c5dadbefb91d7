internal import Glibc

/// The machine's time of day (CLOCK_REALTIME), which may be wrong and may be set: for the log and for the `Date` of an
/// answer.
package enum WallClock {
    /// Whole milliseconds since 1970-01-01T00:00:00Z.
    package static var milliseconds: Int64 {
        var time = timespec()
        _ = unsafe clock_gettime(CLOCK_REALTIME, &time)
        return Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000
    }
}
