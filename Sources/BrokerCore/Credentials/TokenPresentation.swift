internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor
internal import Renewal

/// The presentation of a refresh token to the provider that is part of no user's record: that of a line of an import, or of
/// quarantined credentials. Nothing is stored here.
///
/// The calls are those of a renewal (`RenewalCalls`, and `RenewalAttempt` decides which come next), without the lease of a user's
/// record. No other process makes them: the one that has a line of an import is alone with it, and quarantined credentials have a
/// lease of their own, which `claim` takes again before each call. So a token whose answer was lost is presented again here, as often
/// as the tenant's schedule says and within the provider's grace.
final class TokenPresentation {
    /// What the provider has granted.
    enum Granted {
        /// Nothing that can be served, only a refresh token: the credentials of before with that one, whose access token is not to be
        /// served.
        case refreshToken(HeldCredentials)
        /// New credentials, which are not verified yet, and the ID token that came with them.
        case tokens(HeldCredentials, idToken: SecretBytes?)
    }

    private let held: HeldCredentials
    private let id: CredentialsID
    private let tenant: Tenant
    private let renewer: CredentialsRenewer
    private let request: RenewalRequest
    private let basis: RenewalBasis
    private let calls: RenewalCalls
    private let report: RenewalReport
    /// Called before each call to the provider; throws where the token must not be presented any more.
    private let claim: () async throws(BrokerError) -> Void
    /// Is never taken: there is no record for it.
    private let lease: RenewalLease
    private var attempt: RenewalAttempt
    /// What is to be done after a failure, in words.
    private let again: String
    /// The origin of the attempt's times.
    private let beginning: MonotonicInstant
    private var stepBegan: Duration = .zero

    /// - Parameters:
    ///   - again: what is to be done where an answer was lost or the provider changes, such as "import the line again".
    ///   - claim: called before each call to the provider; throws where the token must not be presented any more.
    init(
        of held: HeldCredentials, _ id: CredentialsID, of tenant: Tenant, by renewer: CredentialsRenewer, again: String,
        claim: @escaping () async throws(BrokerError) -> Void = {}
    ) {
        self.held = held
        self.id = id
        self.tenant = tenant
        self.renewer = renewer
        self.again = again
        self.claim = claim
        request = RenewalRequest(
            id: id, tenant: tenant, query: CredentialsQuery(), urgency: .background, trigger: .ahead,
            isPresentation: true)
        basis = RenewalBasis(
            snapshot: CredentialsSnapshot(CredentialRecord(held: held), of: id, version: 0),
            decision: .refresh(isEarly: false), grant: .refreshToken)
        report = RenewalReport(renewer, request)
        calls = RenewalCalls(renewer, request, report)
        lease = RenewalLease(renewer, request)
        attempt = RenewalAttempt(rules: Self.rules(of: tenant, by: renewer), waits: true)
        beginning = renewer.time.monotonic
    }

    /// The rules of the attempt.
    static func rules(of tenant: Tenant, by renewer: CredentialsRenewer) -> RenewalRules {
        var rules = renewer.rules(for: .refreshToken, of: tenant)
        rules.handsOver = false
        return rules
    }

    private var elapsed: Duration { beginning.duration(to: renewer.time.monotonic) }

    /// For how long the provider accepts a refresh token again that it has exchanged.
    var grace: Duration { attempt.rules.grace }

    /// Whether a call whose answer was lost may have spent the refresh token.
    var mayBeSpent: Bool { attempt.isUncertain && tenant.configuration.effectiveRotation != .never }

    /// Asks the provider.
    /// - Throws: `invalid_token_request` where it does not accept the refresh token; `illegal_configuration` where the tenant has
    ///   another provider; the errors of a renewal.
    func run() async throws(BrokerError) -> Granted {
        defer { lease.end() }
        guard let server = try await calls.findServer(basis) else {
            throw BrokerError(
                .illegalConfiguration,
                "The refresh token belongs to another provider than the tenant's. Configure that one, and \(again).")
        }
        let step = try await present(at: server)
        await calls.liftFault()
        switch step {
        case .publish: return try granted()
        case .publishEnd:
            throw BrokerError(
                .invalidTokenRequest, "The provider does not accept this refresh token.",
                errorCode: calls.ending?.errorCode)
        default:
            let error = report.reason(basis)
            throw mayBeSpent ? unknownOutcome(of: error) : error
        }
    }

    /// Verifies what was granted, as far as that is possible now.
    func verdict(on held: HeldCredentials, _ idToken: SecretBytes?) async -> GrantVerifier.Verdict {
        guard let server = calls.server else { return .unavailable(report.reason(basis)) }
        return await renewer.providers.verifier.verdict(
            on: .refresh(held, idToken: idToken), of: tenant.configuration, at: server, waits: false)
    }

    private func granted() throws(BrokerError) -> Granted {
        let renewal = RenewalWriter(renewer, request, basis, holder: lease.holder, report)
        if let kept = renewal.keptRecord(calls, delay: attempt.successorDelay)?.granted {
            return .refreshToken(kept.unserved(at: renewer.time.now))
        }
        guard let held = renewal.grantedRecord(calls, delay: attempt.successorDelay)?.record.granted else {
            throw report.reason(basis)
        }
        return .tokens(held, idToken: calls.granted?.response.idToken)
    }

    // MARK: Calls

    /// Takes a place at the provider, and asks until there is something to store or to give up.
    private func present(at server: AuthorizationServer) async throws(BrokerError) -> RenewalAttempt.Step {
        let (endpoint, client) = (renewer.providers.endpoint, tenant.configuration.client)
        // No caller waits, so the presentation waits for a pause that the provider has asked for.
        let user = ProviderClient.User(id, of: ProviderClient(client, at: server))
        try await endpoint.waitBeforeRetry(CallWaits(server.schedule, heeding: user))
        return try await endpoint.budget.withPlace(for: client, at: server, of: tenant.name, .background, by: id) {
            () async throws(BrokerError) in
            if let error = calls.enterCircuit(basis) { throw error }
            defer { calls.leaveCircuit() }
            var step = next(.begun)
            while true {
                switch step {
                case .read:
                    // What was put aside may be too fresh to be presented.
                    let delay = held.refreshableFrom.map { renewer.time.now.duration(to: $0) } ?? .zero
                    step = next(
                        .stands(RenewalAttempt.Standing(version: 0, isDue: true, lease: nil, delay: delay)))
                case .wait(let duration):
                    do {
                        try await renewer.time.sleep(for: duration)
                    } catch {
                        throw BrokerError.shuttingDown
                    }
                    step = next(.waited)
                case .claim:
                    try await self.claim()
                    step = next(.claimed)
                case .ask(let latest, _) where self.elapsed > latest:
                    // The claim may have run out meanwhile.
                    self.report.failure = BrokerError(StoreError.unavailable)
                    step = next(.tooLate)
                case .ask(_, let limit):
                    let isPressing = self.mayBeSpent && self.attempt.isWithinGrace(at: self.elapsed)
                    let outcome = try await self.calls.ask(
                        limit: limit, self.basis, self.attempt, mayBeHeldBack: !isPressing, extending: self.lease)
                    step = self.next(outcome)
                case .pause(let duration):
                    let outcome = await self.calls.pause(
                        duration, self.basis, self.attempt, extending: self.lease)
                    step = self.next(outcome)
                default: return step
                }
            }
        }
    }

    private func next(_ outcome: RenewalAttempt.Outcome) -> RenewalAttempt.Step {
        let now = elapsed
        defer { stepBegan = now }
        return attempt.next(
            outcome, now: now, asked: stepBegan, storeReachableFor: .zero, storeHasGoneBack: false)
    }

    /// The error where the refresh token may be spent, while no answer has brought its successor.
    private func unknownOutcome(of error: BrokerError) -> BrokerError {
        BrokerError(
            error.code,
            error.detail.followed(
                by: "The provider may have exchanged the refresh token all the same: \(again) soon, while the provider "
                    + "still accepts it."),
            errorCode: error.errorCode, retryAfter: error.retryAfter)
    }
}
