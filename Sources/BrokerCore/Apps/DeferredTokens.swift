import OAuth
import Reactor
import Synchronization

/// Refresh tokens whose requests are being answered, were told to come again or were answered late, because the store or the
/// provider did not answer. Such a request may have been carried out, and the one that repeats it counts as one that came when the
/// first of them came. `DeferralReports` tells the other replicas.
///
/// Kept in memory only, for a minute after the last of them. Safe to use from any task.
final class DeferredTokens: Sendable {
    static let validity: Duration = .seconds(60)

    /// What became of a request.
    enum Outcome: Sendable {
        /// The app has its answer.
        case answered
        /// The app was told to come again, or may have given up waiting.
        case deferred
        /// The app was refused, which changes nothing.
        case refused
    }

    /// Requests that present a token and are being answered.
    private struct Presented {
        /// When the first of them came.
        let arrival: Timestamp
        var requests = 1
    }

    private let arrivals: ExpiringTable<[UInt8], Deferral>
    private let presented = Mutex<[[UInt8]: Presented]>([:])
    private let time: any Time

    init(time: any Time) {
        self.time = time
        arrivals = ExpiringTable(validity: Self.validity, capacity: 16_384, time: time)
    }

    /// A request that presents the token has come. To be followed by `end`.
    /// - Parameters:
    ///   - digest: of the token's secret.
    ///   - arrival: when it came; nil for now.
    /// - Returns: when it came. `all` has each request that came before it was called.
    func begin(_ digest: [UInt8], arrival: Timestamp? = nil) -> Timestamp {
        presented.withLock { presented in
            let arrival = arrival ?? time.now
            if let others = presented[digest] {
                presented[digest] = Presented(arrival: min(others.arrival, arrival), requests: others.requests + 1)
            } else {
                presented[digest] = Presented(arrival: arrival)
            }
            return arrival
        }
    }

    /// The request has come to its end.
    func end(_ digest: [UInt8], arrival: Timestamp, _ outcome: Outcome) {
        switch outcome {
        case .answered: arrivals.remove(digest)
        case .deferred: arrivals.set(digest) { $0 ?? Deferral(digest: digest, arrival: arrival) }
        case .refused: break
        }
        presented.withLock { presented in
            guard let requests = presented[digest]?.requests, requests > 1 else {
                presented[digest] = nil
                return
            }
            presented[digest]?.requests -= 1
        }
    }

    /// When the first of the requests came that were not answered in time, or are being answered; nil for none.
    func firstPresentation(of digest: [UInt8]) -> Timestamp? {
        let arrivals = [arrivals[digest]?.arrival, presented.withLock { $0[digest]?.arrival }]
        return arrivals.compactMap(\.self).min()
    }

    /// All of them, with those that are being answered now: the ones that came last are at the end.
    var all: [Deferral] {
        let now = presented.withLock { $0 }.map { Deferral(digest: $0.key, arrival: $0.value.arrival) }
        return arrivals.values + now
    }
}

/// That a refresh token was presented, and may not have been answered in time.
struct Deferral: Equatable, Sendable {
    /// Of the token's secret.
    let digest: [UInt8]
    /// When it was first presented.
    let arrival: Timestamp
}
