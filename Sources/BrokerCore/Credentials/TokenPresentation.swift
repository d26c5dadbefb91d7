import CredentialStore
import Cryptography
import OAuth
import Reactor
import Renewal

/// The presentation of a refresh token to the provider that is part of no user's record: that of a line of an import, or of
/// quarantined credentials. `ImportPresentation` and `CredentialsRestorer` store what is granted; here it only goes to the journal.
///
/// The calls are those of a renewal (`CredentialsRenewer.ask`, and `RenewalAttempt` decides which come next), without the lease of a
/// user's record. No other process makes them: the one that has a line of an import is alone with it, and quarantined credentials have a
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

    private let renewer: CredentialsRenewer
    private var renewal: Renewal
    /// Called before each call to the provider; throws where the token must not be presented any more.
    private let claim: () async throws(BrokerError) -> Void
    private var attempt: RenewalAttempt
    /// What of the grant is in the journal; nil for nothing.
    private var journaled: Publication?
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
        self.renewer = renewer
        self.again = again
        self.claim = claim
        renewal = Renewal(
            id: id, tenant: tenant, query: CredentialsQuery(), urgency: .background, trigger: .ahead,
            isPresentation: true, snapshot: CredentialsSnapshot(CredentialRecord(held: held), of: id, version: 0),
            decision: .refresh(isEarly: false), grant: .refreshToken)
        attempt = RenewalAttempt(rules: Self.rules(of: tenant, by: renewer), waits: true)
        beginning = renewer.time.monotonic
    }

    /// The rules of the attempt.
    static func rules(of tenant: Tenant, by renewer: CredentialsRenewer) -> RenewalRules {
        var rules = renewer.rules(for: .refreshToken, of: tenant)
        rules.handsOver = false
        return rules
    }

    private var id: CredentialsID { renewal.id }
    private var tenant: Tenant { renewal.tenant }
    private var elapsed: Duration { beginning.duration(to: renewer.time.monotonic) }

    /// Whether a call whose answer was lost may have spent the refresh token.
    var mayBeSpent: Bool { attempt.isUncertain && tenant.configuration.effectiveRotation != .never }

    /// Asks the provider.
    /// - Throws: `invalid_token_request` where it does not accept the refresh token; `illegal_configuration` where the tenant has
    ///   another provider; the errors of a renewal.
    func run() async throws(BrokerError) -> Granted {
        guard let server = try await renewer.findServer(&renewal) else {
            throw BrokerError(
                .illegalConfiguration,
                "The refresh token belongs to another provider than the tenant's. Configure that one, and \(again).")
        }
        let end = try await present(at: server)
        await renewer.liftFault(renewal)
        switch (end, renewal.answer) {
        case (.granted, _): return try granted()
        case (.sessionEnded, .sessionEnded(let answer)):
            throw BrokerError(
                .invalidTokenRequest, "The provider does not accept this refresh token.",
                errorCode: answer.errorCode)
        case (.sessionEnded, _), (.failed, _):
            let error = renewer.reason(renewal)
            throw mayBeSpent ? unknownOutcome(of: error) : error
        }
    }

    /// Verifies what was granted, as far as that is possible now.
    func verdict(on held: HeldCredentials, _ idToken: SecretBytes?) async -> GrantVerifier.Verdict {
        guard let server = renewal.server else { return .unavailable(renewer.reason(renewal)) }
        return await renewer.providers.verifier.verdict(
            on: .refresh(held, idToken: idToken), of: tenant.configuration, at: server, waits: false)
    }

    private func granted() throws(BrokerError) -> Granted {
        if let kept = renewer.keptRecord(renewal, delay: attempt.successorDelay)?.granted {
            return .refreshToken(kept.unserved(at: renewer.time.now))
        }
        guard let held = renewer.grantedRecord(renewal, delay: attempt.successorDelay)?.record.granted else {
            throw renewer.reason(renewal)
        }
        return .tokens(held, idToken: renewal.response?.tokens.idToken)
    }

    // MARK: On its way to the store

    /// Writes what is stored of the grant to the journal, if there is one, so that it survives the process: the store has not taken it.
    /// - Parameter base: the version that the record replaces.
    func writeJournal(_ record: CredentialRecord, over base: Int64, by origin: BrokerEvent.Origin) async {
        var publication = Publication(id: id, record: record, base: base, origin: origin) { _ in [] }
        publication.spent = renewal.held?.refreshTokenDigest
        if await renewer.publisher.writeJournal(publication, grace: attempt.rules.grace) { journaled = publication }
    }

    /// Removes what `writeJournal` has written, if anything.
    /// - Parameter isStored: whether the grant is in the store now.
    func leaveJournal(isStored: Bool) async {
        if let journaled { await renewer.publisher.leaveJournal(journaled, isStored: isStored) }
        journaled = nil
    }

    // MARK: Calls

    /// How the calls have ended.
    private enum End { case granted, sessionEnded, failed }

    /// Takes a place at the provider, and asks until there is something to store or to give up.
    private func present(at server: AuthorizationServer) async throws(BrokerError) -> End {
        let (endpoint, client) = (renewer.providers.endpoint, tenant.configuration.client)
        // No caller waits, so the presentation waits for a pause that the provider has asked for.
        let user = ProviderClient.User(id, of: ProviderClient(client, at: server))
        try await endpoint.waitBeforeRetry(CallWaits(server.schedule, heeding: user))
        return try await endpoint.budget.withPlace(for: client, at: server, of: tenant.name, .background, by: id) {
            () async throws(BrokerError) in
            if let error = renewer.enterCircuit(&renewal) { throw error }
            defer { renewer.leaveCircuit(&renewal) }
            var outcome = RenewalAttempt.Outcome.begun
            while true {
                switch next(outcome) {
                case .read:
                    // What was put aside may be too fresh to be presented.
                    let delay = renewal.held?.refreshableFrom.map { renewer.time.now.duration(to: $0) } ?? .zero
                    outcome = .stands(RenewalAttempt.Standing(version: 0, isDue: true, lease: nil, delay: delay))
                case .wait(let duration):
                    do {
                        try await renewer.time.sleep(for: duration)
                    } catch {
                        throw BrokerError.shuttingDown
                    }
                    outcome = .waited
                case .claim:
                    try await self.claim()
                    outcome = .claimed
                case .ask(let latest, _) where self.elapsed > latest:
                    // The claim may have run out meanwhile.
                    self.renewal.failure = BrokerError(StoreError.unavailable)
                    outcome = .tooLate
                case .ask(_, let limit):
                    let isPressing = self.mayBeSpent && self.attempt.isWithinGrace(at: self.elapsed)
                    outcome = await renewer.ask(
                        &self.renewal, by: self.attempt, limit: limit, mayBeHeldBack: !isPressing, extending: nil)
                case .pause(let duration):
                    outcome = await renewer.pause(
                        &self.renewal, for: duration, by: self.attempt, extending: nil)
                case .publish: return .granted
                case .publishEnd: return .sessionEnded
                // There is no record, and no other process to hand over to: what is stored of a grant is the caller's to decide.
                case .release, .handOver, .writeJournal, .finish: return .failed
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
