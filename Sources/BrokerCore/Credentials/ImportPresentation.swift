internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor
internal import Renewal

/// The presentation of one imported refresh token to the provider, and what is stored then.
///
/// The calls are those of a renewal (`RenewalCalls`, and `RenewalAttempt` decides which come next), of a set that is stored nowhere:
/// there is no lease, and no other process has the token. So a token whose answer was lost is presented again here, as often as the
/// tenant's schedule says and within the provider's grace.
final class ImportPresentation {
    private let line: ImportLine
    /// What was stored under the storage key before the presentation.
    private let current: CredentialsSnapshot
    private let tenant: Tenant
    private let renewer: CredentialsRenewer
    private let writer: CredentialsWriter
    private let request: RenewalRequest
    private let basis: RenewalBasis
    private let calls: RenewalCalls
    private let report: RenewalReport
    /// Is never taken: there is no record for it.
    private let lease: RenewalLease
    private var attempt: RenewalAttempt
    /// The origin of the attempt's times.
    private let beginning: MonotonicInstant
    private var stepBegan: Duration = .zero

    init(
        _ line: ImportLine, over current: CredentialsSnapshot, of tenant: Tenant, by renewer: CredentialsRenewer,
        _ writer: CredentialsWriter
    ) {
        self.line = line
        self.current = current
        self.tenant = tenant
        self.renewer = renewer
        self.writer = writer
        request = RenewalRequest(
            id: line.id, tenant: tenant, query: CredentialsQuery(), urgency: .background, trigger: .ahead,
            isImport: true)
        basis = RenewalBasis(
            snapshot: CredentialsSnapshot(CredentialRecord(held: line.held), of: line.id, version: 0),
            decision: .refresh(isEarly: false), grant: .refreshToken)
        report = RenewalReport(renewer, request)
        calls = RenewalCalls(renewer, request, report)
        lease = RenewalLease(renewer, request)
        var rules = renewer.rules(for: .refreshToken, of: tenant)
        rules.handsOver = false
        attempt = RenewalAttempt(rules: rules, waits: true)
        beginning = renewer.time.monotonic
    }

    private var elapsed: Duration { beginning.duration(to: renewer.time.monotonic) }

    /// - Throws: see `CredentialsImporter.take`.
    func run() async throws(BrokerError) -> ImportLine.Outcome {
        defer { lease.end() }
        guard let server = try await calls.findServer(basis) else { throw Self.otherProvider }
        let step = try await present(at: server)
        await calls.liftFault()
        switch step {
        case .publish: return try await store(at: calls.server ?? server)
        case .publishEnd:
            throw BrokerError(
                .invalidTokenRequest, "The provider does not accept this refresh token.",
                errorCode: calls.ending?.errorCode)
        default:
            let error = report.reason(basis)
            throw mayBeSpent ? error.asUnknownOutcome : error
        }
    }

    // MARK: Calls

    /// Whether a call whose answer was lost may have spent the refresh token.
    private var mayBeSpent: Bool {
        attempt.isUncertain && tenant.configuration.effectiveRotation != .never
    }

    /// Takes a place at the provider, and asks until there is something to store or to give up.
    private func present(at server: AuthorizationServer) async throws(BrokerError) -> RenewalAttempt.Step {
        let (endpoint, client) = (renewer.providers.endpoint, tenant.configuration.client)
        // No caller waits, so a line waits for a pause that the provider has asked for.
        let user = ProviderPauses.User(line.id, of: ProviderPauses.Key(client, at: server))
        try await endpoint.waitBeforeRetry(CallWaits(server.schedule, heeding: user))
        return try await endpoint.budget.withPlace(
            for: client, at: server, of: tenant.name, .background, by: line.id
        ) { () async throws(BrokerError) in
            if let error = calls.enterCircuit(basis) { throw error }
            defer { calls.leaveCircuit() }
            var step = next(.begun)
            while true {
                switch step {
                case .read:
                    // What was put aside may be too fresh to be presented.
                    let delay = line.held.refreshableFrom.map { renewer.time.now.duration(to: $0) } ?? .zero
                    step = next(
                        .stands(RenewalAttempt.Standing(version: 0, isDue: true, lease: nil, delay: delay)))
                case .wait(let duration):
                    do {
                        try await renewer.time.sleep(for: duration)
                    } catch {
                        throw BrokerError.shuttingDown
                    }
                    step = next(.waited)
                case .claim: step = next(.claimed)
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

    // MARK: What was granted

    private func store(at server: AuthorizationServer) async throws(BrokerError) -> ImportLine.Outcome {
        let renewal = RenewalWriter(renewer, request, basis, holder: lease.holder, report)
        if let kept = renewal.keptRecord(calls, delay: attempt.successorDelay)?.granted {
            return try await settle(kept.unserved(at: renewer.time.now))
        }
        guard let held = renewal.grantedRecord(calls, delay: attempt.successorDelay)?.record.granted else {
            throw report.reason(basis)
        }
        let idToken = calls.granted?.response.idToken
        let grant = GrantVerifier.Grant.refresh(held, idToken: idToken)
        let verifier = renewer.providers.verifier
        switch await verifier.verdict(on: grant, of: tenant.configuration, at: server, waits: false) {
        case .verified(let verified, let told) where !line.held.isOfOtherUser(than: told):
            return try await settle(verified)
        case .verified, .refused, .unavailable: return try await verifyStored(held, idToken)
        }
    }

    /// Stores what is served, or what has nothing that is.
    private func settle(_ held: HeldCredentials) async throws(BrokerError) -> ImportLine.Outcome {
        var line = line
        line.held = held
        return try await told(settle(line, waiting: nil).outcome, of: held)
    }

    /// Stores the line's set. One that the store does not take goes to the journal, if there is one, so that it survives the process.
    private func settle(
        _ line: ImportLine, waiting: ((_ earlier: HeldCredentials?) -> WaitingVerification)?
    ) async throws(BrokerError) -> (outcome: ImportLine.Outcome, snapshot: CredentialsSnapshot?) {
        let now = renewer.time.now
        var record = CredentialRecord(held: line.held.loggedIn(after: current.record.held, at: now), renewed: now)
        if let waiting {
            let earlier = GrantVerification.record(refusing: current.record).held
            record = record.waiting(for: waiting(earlier), since: current.heldVersion)
        }
        var publication = Publication(id: line.id, record: record, base: current.version, origin: .set) { _ in [] }
        publication.spent = self.line.held.refreshTokenDigest
        var isJournaled = false
        let settled = try await writer.settle(line, renewed: now, waiting: waiting) {
            isJournaled = await renewer.publisher.writeJournal(publication, grace: attempt.rules.grace)
        }
        if isJournaled {
            await renewer.publisher.leaveJournal(publication, isStored: settled.outcome == .imported)
        }
        return settled
    }

    /// Stores a set that is not known to be the user's, or whose tokens are not known to be good, and then has it judged: whatever
    /// comes of that, its refresh token is not lost.
    private func verifyStored(
        _ granted: HeldCredentials, _ idToken: SecretBytes?
    ) async throws(BrokerError) -> ImportLine.Outcome {
        var line = line
        let (userID, now) = (line.held.userID, renewer.time.now)
        line.held = granted
        line.held.userID = userID ?? granted.userID
        let (outcome, stored) = try await settle(line) { earlier in
            WaitingVerification(origin: .imported, replacing: earlier, idToken: idToken, granted: now)
        }
        guard outcome == .imported, let stored, let waiting = stored.record.waiting else {
            return try await told(outcome, of: line.held.unserved(at: now))
        }
        guard case .failure(let error) = await renewer.verification.verify(line.id, of: tenant, stored),
            error.code == .tokenResponseError
        else { return outcome }
        if error == .importOfOtherUser { throw error }
        throw BrokerError(
            error.code,
            error.detail.followed(
                by: waiting.hasSessionBefore
                    ? "The refresh token that came with it is put aside: import the line again then."
                    : "The refresh token that came with it is kept: the next request for the credentials presents it."),
            errorCode: error.errorCode)
    }

    /// The outcome of storing a set. Where other credentials have come first and stay, the set is put aside.
    private func told(
        _ outcome: ImportLine.Outcome, of held: HeldCredentials
    ) async throws(BrokerError) -> ImportLine.Outcome {
        if case .conflict = outcome { try await writer.putAside(held, line.id, for: renewer.quarantine) }
        return outcome
    }

    private static let otherProvider = BrokerError(
        .illegalConfiguration,
        "The tenant's provider was changed while the line was read. Import the line again.")
}

extension BrokerError {
    /// What a line gets whose refresh token may be spent, while no answer has brought its successor.
    fileprivate var asUnknownOutcome: BrokerError {
        BrokerError(
            code,
            detail.followed(
                by: "The provider may have exchanged the refresh token all the same: import the line again soon, while "
                    + "the provider still accepts it."),
            errorCode: errorCode, retryAfter: retryAfter)
    }
}
