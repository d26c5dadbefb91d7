internal import Containers
internal import OAuth
internal import Reactor
internal import Synchronization

/// Refresh tokens whose requests were told to come again, because the store or the provider did not answer. Such a request may
/// have been carried out, and the one that repeats it counts as one that came when the first of them came.
///
/// Kept in memory only, for a minute after the last of them. Safe to use from any task.
final class DeferredTokens: Sendable {
    private static let validity: Duration = .seconds(60)

    private let time: any Time
    private let tokens = Mutex(BoundedTable<[UInt8], (first: Timestamp, end: MonotonicInstant)>(capacity: 16_384))

    init(time: any Time) {
        self.time = time
    }

    /// - Parameters:
    ///   - digest: of the token's secret.
    ///   - arrival: when the request came.
    func note(_ digest: [UInt8], arrival: Timestamp) {
        let now = time.monotonic
        tokens.withLock { tokens in
            let known = tokens[digest].flatMap { $0.end > now ? $0.first : nil }
            _ = tokens.setNewest((known ?? arrival, now.advanced(by: Self.validity)), forKey: digest)
        }
    }

    /// When the first of the requests came; nil where none was told to come again.
    func firstPresentation(of digest: [UInt8]) -> Timestamp? {
        let now = time.monotonic
        return tokens.withLock { tokens in
            guard let (first, end) = tokens[digest] else { return nil }
            return end > now ? first : nil
        }
    }

    func forget(_ digest: [UInt8]) { tokens.withLock { _ = $0.removeValue(forKey: digest) } }
}
