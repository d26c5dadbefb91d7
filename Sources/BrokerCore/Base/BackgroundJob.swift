package import Waiting

/// A job that a broker does by itself, for as long as it runs. `CredentialsBroker.start` has all of them.
package protocol BackgroundJob: Sendable {
    var time: any Time { get }
    /// Ends a pause before it is over, by the key 0; nil where nothing does.
    var wakeUps: KeyedSignal<Int>? { get }
    /// How long before the first time; nil for none.
    var firstPause: Duration? { get }
    /// Does what is due, and says when to do so again. A signal that comes from its beginning on is not missed.
    func work() async -> NextTime
    /// Waits for what the job has begun in tasks of its own. Called once its task is cancelled.
    func end() async
}

/// When a job does its work again.
package enum NextTime: Sendable, Equatable {
    case after(Duration)
    /// When it is woken, and not before.
    case woken
    case never
}

extension BackgroundJob {
    package var wakeUps: KeyedSignal<Int>? { nil }

    package var firstPause: Duration? { nil }

    package func end() async {}

    /// Works until its task is cancelled, or nothing is left to do. To be called once at most.
    package func run() async {
        if let firstPause { await pause(.after(firstPause)) }
        while !Task.isCancelled {
            let ticket = wakeUps?.ticket(0)
            let next = await work()
            if next == .never { break }
            if let wakeUps, let ticket {
                await wakeUps.wait(for: 0, since: ticket) { await self.pause(next) }
            } else {
                await pause(next)
            }
        }
        await end()
    }

    /// Ends sooner where the task is cancelled.
    private func pause(_ next: NextTime) async {
        if case .after(let pause) = next {
            try? await time.sleep(for: pause)
        } else {
            // Nothing is ever sent.
            let (stream, continuation) = AsyncStream.makeStream(of: Never.self)
            for await _ in stream {}
            continuation.finish()
        }
    }
}

/// After how long each job looks again by itself, in a store that other processes write to. Many are also woken.
enum JobInterval {
    /// `ExpiryJob`: tokens that expire soon. Other replicas write marks, too.
    static let expiry: Duration = .seconds(5)
    /// `RevocationJob`: sessions that are to be ended at their providers.
    static let revocation: Duration = .seconds(30)
    /// `SessionEndings`: sessions of apps that have expired or lost their login.
    static let sessionEndings: Duration = .seconds(30)
    /// `WaveJob`: sessions that are held, and waves of which no notice has arrived.
    static let waves: Duration = .seconds(30)
    /// `DeviceFlow`: device logins that no replica polls for any more.
    static let deviceLogins: Duration = .seconds(5)
    /// `LeaseRecovery`: renewals whose process has died.
    static let leases: Duration = .milliseconds(500)
    /// `StoreRecovery`: commits that the store has lost.
    static let lineage: Duration = .seconds(1)
    /// `CacheRevalidation`: one of the parts of a round over all entries in use.
    static let revalidation: Duration = .milliseconds(250)
    /// `DeferralReports`: tokens of apps that this replica could not answer.
    static let deferralReports: Duration = .seconds(2)
    /// `Outages`: a search at the start, while the store is away.
    static let outages: Duration = .seconds(5)
    /// `Housekeeping`: what has expired.
    static let housekeeping: Duration = .seconds(60)
    // `AuditTrail` signs the log at `AuditTrail.Settings.signatureInterval`.
}
