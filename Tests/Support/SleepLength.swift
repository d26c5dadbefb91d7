/// How long a sleep is that a test waits for.
package struct SleepLength: Sendable, CustomStringConvertible {
    private let range: ClosedRange<Duration>

    package static func seconds(_ seconds: Int) -> SleepLength { exactly(.seconds(seconds)) }

    package static func milliseconds(_ milliseconds: Int) -> SleepLength { exactly(.milliseconds(milliseconds)) }

    package static func exactly(_ duration: Duration) -> SleepLength { SleepLength(range: duration...duration) }

    /// For a length with a random part.
    package static func between(_ shortest: Duration, _ longest: Duration) -> SleepLength {
        SleepLength(range: shortest...longest)
    }

    package var description: String {
        range.lowerBound == range.upperBound ? "\(range.lowerBound)" : "\(range.lowerBound) to \(range.upperBound)"
    }

    /// Whether for each of `wanted` there is a sleep of its own.
    package static func areAll(_ wanted: [SleepLength], among sleeps: [Duration]) -> Bool {
        if sleeps.count < wanted.count { return false }
        var left = sleeps
        // The exact ones first: a range could take their place.
        for length in wanted.sorted(by: { $0.span < $1.span }) {
            guard let index = left.firstIndex(where: { length.range.contains($0) }) else { return false }
            left.remove(at: index)
        }
        return true
    }

    private var span: Duration { range.upperBound - range.lowerBound }

    // MARK: What a broker does by itself

    package static let housekeeping = SleepLength.seconds(60)
    package static let expiryNotices = SleepLength.seconds(5)
    /// Of a broker that shares its store with others, whose records it believes for five seconds.
    package static let beliefRenewal = SleepLength.milliseconds(250)
    package static let leaseSearch = SleepLength.between(.milliseconds(500), .milliseconds(625))
    package static let loginSearch = SleepLength.seconds(5)
    /// Of a broker that has its store alone.
    package static let leaseSearchAlone = SleepLength.between(.seconds(10), .milliseconds(12_500))
    /// Before another broker's device login is polled, or ended when its time is over: the interval of its polls and more.
    package static let loginTakeover = SleepLength.between(.seconds(10), .seconds(360))
    package static let revocationSearch = SleepLength.seconds(30)
    package static let sessionEndings = SleepLength.seconds(30)
    package static let deferralReports = SleepLength.seconds(2)
    package static let waveSearch = SleepLength.seconds(30)

    package static let waveSearchWithoutStore = SleepLength.seconds(5)

    /// All work of a broker that shares its store, each begun once.
    package static let jobsOfReplica = mostJobs + [waveSearch]
    /// The same while the store is away.
    package static let jobsOfReplicaWithoutStore = mostJobs + [waveSearchWithoutStore]
    private static let mostJobs = [
        housekeeping, expiryNotices, beliefRenewal, leaseSearch, loginSearch, revocationSearch, sessionEndings,
        deferralReports,
    ]
}
