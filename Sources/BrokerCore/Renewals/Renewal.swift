import CredentialStore
import Cryptography
import OAuth
import Reactor
import Renewal
import Waiting

/// One renewal: what it is about, what it starts from, and what has come of it so far. The functions that make it, which read, ask,
/// store and report, are those of `CredentialsRenewer`; `RenewalRun` calls them in the order that `RenewalAttempt` decides on.
struct Renewal {
    let id: CredentialsID
    /// The tenant as it was when the renewal began.
    let tenant: Tenant
    let query: CredentialsQuery
    let urgency: ProviderBudget.Urgency
    /// Why the renewal begins.
    let trigger: BrokerEvent.Trigger
    /// Whether a refresh token is presented that no user's record has (`TokenPresentation`), so that no other process makes the calls
    /// that are left.
    var isPresentation = false
    /// Names the renewal in events and in the log.
    let refreshID = RefreshID()

    // MARK: What it starts from

    /// The credentials as they were read last, and the decision about them.
    var snapshot = CredentialsSnapshot.nothing
    var decision = CredentialsDecision.missing
    /// What the provider is asked for; nil if it is not asked.
    var grant: TokenRequest.Grant?
    /// The lease that the record had when it was read; nil for none.
    var lease: Lease?
    /// The holder of a lease that has ended and only reports a failure to other replicas; nil for none.
    var failedHolder: String?
    /// Whether `snapshot` is a cache entry that was not compared with the store. Until a claim shows that the store has the
    /// same version, no event and no line of the log tells of the renewal.
    var isAssumed = false
    /// The cache entry to start from; nil once it was used, and if a change of it may have been missed.
    var assumed: CredentialsSnapshot?
    /// Taken before each read, so that a change after it ends the wait that follows; nil before the first read.
    var ticket: KeyedSignal<CredentialsID>.Ticket?
    /// When the renewal began to wait for another attempt; nil if it has not.
    var waitingSince: MonotonicInstant?
    /// For how long this process had reached the store without a failure when it last read the lease of an attempt whose
    /// holder may live.
    var storeReachableFor: Duration = .seconds(1 << 32)

    // MARK: What it asks

    /// Where the calls go; nil before `findServer`.
    var server: AuthorizationServer?
    /// The call that is made, and made again; nil before the first one.
    var prepared: TokenEndpoint.Call?
    /// The last client that was admitted, which the provider may not have accepted before.
    var admitted: ClientUse?
    /// The last client that the provider has accepted.
    var accepted: ClientUse?
    /// The circuit of which the next call is the trial; nil if it is none.
    var trial: ProviderClient.OfTenant?
    /// Whether the provider's token endpoint was looked for anew, which one renewal does once.
    var hasFollowed = false
    /// How often the provider was asked.
    var asked = 0
    /// For how long the renewal has waited between the calls.
    var waited: Duration = .zero
    /// A presentation waits once, since no caller does.
    lazy var limits = RateLimitWaits(tenant.configuration.schedule, atLeast: isPresentation ? 1 : 0)

    // MARK: What was answered

    /// What the provider's last answer means for the renewal.
    enum Answer {
        /// Nothing that the next step needs.
        case nothing
        /// The provider granted this, by that kind of request.
        case granted(TokenResponse, by: TokenRequest.Grant)
        /// Nothing in the answer is usable but its refresh token.
        case rotated(SecretBytes)
        /// The provider says in this way that the session is over.
        case sessionEnded(TokenErrorResponse)
        /// The provider refused an upgrade because the session has ended.
        case endedUpgrade
        /// The provider asked for the wait that follows.
        case wait
    }

    var answer = Answer.nothing

    /// What the provider's last answer says about the cause of a failure.
    enum Cause {
        /// The provider refused the refresh token with that status and named no cause.
        /// - Parameter isCompared: whether the answer was compared with those to made-up grants, so that `failure` says what it means.
        case unexplained(status: Int, isCompared: Bool)
        case other
    }

    /// Nil if the provider has given no answer.
    var cause: Cause?

    /// What the last call, or the store, failed with.
    var failure: BrokerError?

    /// Why a failure says nothing about the user's credentials.
    enum Excuse {
        /// A newer configuration of the tenant, or a newer state of the store, is to decide.
        case superseded
        /// The provider was not called because it has left the last calls without an answer.
        case sparing
    }

    /// Nil if the failure counts.
    var excuse: Excuse?

    /// What callers get of a grant once it is stored.
    struct ForCallers {
        /// Why callers get nothing of it; nil if they get the record.
        let refusal: BrokerError?
        /// The lifetime of the credentials when they were granted.
        let life: Duration
        /// How long they lived when they were about to be stored.
        let rest: Duration
    }

    /// Nil before there is something to store.
    var forCallers: ForCallers?

    var held: HeldCredentials? { snapshot.record.held }
    var spendsRefreshToken: Bool { grant?.spendsRefreshToken == true }
    var isEarly: Bool { decision == .refresh(isEarly: true) }

    /// Whether the renewal carries credentials over to the client that is configured now, at a provider that has a grant for
    /// that: no failure of it is final. Elsewhere, client credentials for a new client are asked for like the first ones.
    var isUpgrade: Bool { decision.isUpgrade && tenant.terms.canUpgrade }

    /// The client that asks the provider.
    var client: ClientConfiguration {
        grant == .refreshToken ? tenant.configuration.client(of: held) : tenant.configuration.client
    }

    /// The refresh token of an answer that has nothing else that is usable; nil if there was no such answer.
    var successor: SecretBytes? {
        if case .rotated(let refreshToken) = answer { refreshToken } else { nil }
    }

    /// What the provider granted, and by which kind of request; nil if it granted nothing.
    var response: (tokens: TokenResponse, by: TokenRequest.Grant)? {
        if case .granted(let response, let grant) = answer { (response, grant) } else { nil }
    }

    /// How long the rest of its waits may take.
    var patience: Duration { BackoffSchedule.longestWait - waited }

    /// What the events of the renewal have in common.
    func eventContext(_ grant: TokenRequest.Grant) -> BrokerEvent.Refresh {
        BrokerEvent.Refresh(id: id, refreshID: refreshID, grant: grant, trigger: trigger)
    }

    var logFields: [LogField] { LogField.credentials(id) + [.refresh(refreshID)] }
}

extension CredentialsDecision {
    /// Whether it carries credentials over to the client that is configured now.
    var isUpgrade: Bool {
        switch self {
        case .upgrade, .obtainClientCredentials(isUpgrade: true): true
        default: false
        }
    }
}
