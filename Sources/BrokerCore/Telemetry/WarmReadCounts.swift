internal import OAuth
internal import Synchronization

/// What one event loop has answered from memory. The loop's thread alone counts, so that no count waits for another
/// processor; anybody reads.
package final class WarmReadCounts: Sendable {
    /// The reads of one provider's credentials.
    final class Provider: Sendable {
        let name: String
        fileprivate let fresh = Atomic<Int>(0)
        fileprivate let notModified = Atomic<Int>(0)

        fileprivate init(_ name: String) { self.name = name }

        var freshCount: Int { fresh.load(ordering: .relaxed) }
        var notModifiedCount: Int { notModified.load(ordering: .relaxed) }
    }

    /// In the order of the presets.
    let providers = ProviderPreset.all.map { Provider($0.name) }
    /// By the first of the metrics' bounds: what an answer from memory needs when the process is not kept from running.
    private let upToHundredMicroseconds = Atomic<Int>(0)
    private let upToMillisecond = Atomic<Int>(0)
    private let nanoseconds = Atomic<Int>(0)
    private let slow = Mutex(Metrics.Histogram())

    init() {}

    /// Adds reads of the credentials of one provider, by its place among the presets.
    package func add(_ count: Int, isNotModified: Bool, provider index: Int) {
        let provider = providers[index]
        if isNotModified {
            Self.increment(provider.notModified, by: count)
        } else {
            Self.increment(provider.fresh, by: count)
        }
    }

    /// So many were answered, each within that time of when it was read.
    package func answered(_ count: Int, nanoseconds: Int64) {
        if nanoseconds <= 100_000 {
            Self.increment(upToHundredMicroseconds, by: count)
        } else if nanoseconds <= 1_000_000 {
            Self.increment(upToMillisecond, by: count)
        } else {
            return slow.withLock { $0.add(count, seconds: Double(nanoseconds) / 1e9) }
        }
        Self.increment(self.nanoseconds, by: count * Int(nanoseconds))
    }

    var durations: Metrics.Histogram {
        var histogram = slow.withLock { $0 }
        histogram.counts[0] += upToHundredMicroseconds.load(ordering: .relaxed)
        histogram.counts[1] += upToMillisecond.load(ordering: .relaxed)
        histogram.sum += Double(nanoseconds.load(ordering: .relaxed)) / 1e9
        return histogram
    }

    /// Only one thread writes, so that no other can come between the load and the store.
    @inline(__always)
    private static func increment(_ counter: borrowing Atomic<Int>, by count: Int) {
        counter.store(counter.load(ordering: .relaxed) &+ count, ordering: .relaxed)
    }
}
