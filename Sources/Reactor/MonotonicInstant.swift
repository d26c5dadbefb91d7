import Glibc

/// A point in time on a clock that never runs backwards. It serves for deadlines, for ages, and for extending a known
/// time of day.
///
/// The clock is CLOCK_BOOTTIME: unlike CLOCK_MONOTONIC it runs on while the machine is suspended, and tokens and cache
/// entries age during that time too.
@usableFromInline package struct MonotonicInstant: Comparable, Hashable, Sendable {
    @usableFromInline package var nanoseconds: Int64

    @inlinable package init(nanoseconds: Int64) {
        self.nanoseconds = nanoseconds
    }

    package static var now: MonotonicInstant {
        var time = timespec()
        _ = unsafe clock_gettime(CLOCK_BOOTTIME, &time)
        return MonotonicInstant(nanoseconds: Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec))
    }

    /// Later than every real deadline.
    package static let distantFuture = MonotonicInstant(nanoseconds: .max)

    package static func after(_ duration: Duration) -> MonotonicInstant { now.advanced(by: duration) }

    package func advanced(by duration: Duration) -> MonotonicInstant {
        advanced(byNanoseconds: duration.nanoseconds)
    }

    /// Like `advanced(by:)` without the 128-bit division that `Duration` needs.
    @inlinable package func advanced(byNanoseconds change: Int64) -> MonotonicInstant {
        let (sum, overflow) = nanoseconds.addingReportingOverflow(change)
        return MonotonicInstant(nanoseconds: overflow ? (change > 0 ? .max : .min) : sum)
    }

    package func duration(to other: MonotonicInstant) -> Duration {
        let (difference, overflow) = other.nanoseconds.subtractingReportingOverflow(nanoseconds)
        return .nanoseconds(overflow ? (other > self ? .max : .min) : difference)
    }

    @inlinable package static func < (left: MonotonicInstant, right: MonotonicInstant) -> Bool {
        left.nanoseconds < right.nanoseconds
    }
}

extension Duration {
    /// The whole duration in nanoseconds, saturated at the ends of `Int64` (292 years).
    package var nanoseconds: Int64 {
        let (seconds, attoseconds) = components
        let (product, overflow) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
        if overflow { return seconds > 0 ? .max : .min }
        let (sum, carried) = product.addingReportingOverflow(attoseconds / 1_000_000_000)
        return carried ? (seconds > 0 ? .max : .min) : sum
    }

    package var milliseconds: Int64 { nanoseconds / 1_000_000 }
}
