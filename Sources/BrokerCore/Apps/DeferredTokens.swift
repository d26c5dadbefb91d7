internal import OAuth
internal import Reactor

/// Refresh tokens whose requests were told to come again or were answered late, because the store or the provider did not answer.
/// Such a request may have been carried out, and the one that repeats it counts as one that came when the first of them came.
///
/// Kept in memory only, for a minute after the last of them. Safe to use from any task.
final class DeferredTokens: Sendable {
    static let validity: Duration = .seconds(60)

    private let arrivals: ExpiringTable<[UInt8], Timestamp>

    init(time: any Time) {
        arrivals = ExpiringTable(validity: Self.validity, capacity: 16_384, time: time)
    }

    /// - Parameters:
    ///   - digest: of the token's secret.
    ///   - arrival: when the request came.
    func note(_ digest: [UInt8], arrival: Timestamp) { arrivals.set(digest) { $0 ?? arrival } }

    /// When the first of the requests came; nil where each was answered in time.
    func firstPresentation(of digest: [UInt8]) -> Timestamp? { arrivals[digest] }

    func forget(_ digest: [UInt8]) { arrivals.remove(digest) }
}
