internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor
internal import Renewal

/// Stores what a renewal brought: new credentials, or the end of the session.
struct RenewalWriter {
    typealias Renewed = CredentialsRenewer.Renewed

    let renewer: CredentialsRenewer
    let request: RenewalRequest
    let basis: RenewalBasis
    /// The holder of the lease under which the result came to be.
    let holder: String
    let report: RenewalReport

    var id: CredentialsID { request.id }
    var tenant: Tenant { request.tenant }

    init(
        _ renewer: CredentialsRenewer, _ request: RenewalRequest, _ basis: RenewalBasis, holder: String,
        _ report: RenewalReport
    ) {
        self.renewer = renewer
        self.request = request
        self.basis = basis
        self.holder = holder
        self.report = report
    }

    // MARK: What was granted

    /// Stores what was granted.
    /// - Parameters:
    ///   - attempt: carried on from `step`.
    ///   - beginning: when the attempt began.
    /// - Returns: the result, and whether work in the background goes on that holds the lease.
    func publish(
        _ calls: RenewalCalls, _ attempt: inout RenewalAttempt, _ step: RenewalAttempt.Step,
        since beginning: MonotonicInstant
    ) async -> (Result<Renewed, BrokerError>, isHandedOver: Bool) {
        let (record, origin, refusal): (CredentialRecord, BrokerEvent.Origin, BrokerError?)
        if let kept = keptRecord(calls, delay: attempt.successorDelay) {
            (record, origin, refusal) = (kept, basis.grant == .upgrade ? .upgrade : .refresh, report.reason(basis))
        } else {
            guard let (granted, cause) = grantedRecord(calls, delay: attempt.successorDelay) else {
                return (.success(.overtaken), false)
            }
            switch await judge(granted, cause, calls) {
            case .stored(let judged, let reason): (record, origin, refusal) = (judged, cause, reason)
            case .otherUser:
                let ending = Ending.otherUser(newest: calls.newestRefreshToken)
                return (await publishEnd(ending, isDoubtful: false) ?? .success(.overtaken), false)
            case nil: return (.success(.overtaken), false)
            }
        }
        let rest = renewer.time.now.duration(to: record.granted?.expires ?? renewer.time.now)
        // Counted from when it was asked for: the answer may have been late, or this process held up.
        let life = calls.granted?.response.lifetime ?? rest
        var publication = Publication(
            id: id, record: record, base: basis.snapshot.version, origin: origin,
            events: events(record, origin, refusal, isUsable: calls.successor == nil))
        publication.tenantVersion = tenant.version
        publication.holder = basis.snapshot.version > 0 ? holder : nil
        publication.spent = basis.spendsRefreshToken ? basis.held?.refreshTokenDigest : nil
        publication.ends = HeldCredentials.login(of: basis.held, endedBy: record.held).map { ($0, .expired) }
        let (renewer, id) = (renewer, id)
        let published = await renewer.publisher.publish(&publication, &attempt, step, since: beginning) {
            renewer.answerCallers(id, .failure(.grantNotStored))
        }
        switch published {
        case .stored(let snapshot) where renewer.records.newestKnown(id) > snapshot.version:
            // The store has answered so late that callers have got what came after this.
            return (.success(.overtaken), false)
        case .stored where publication.isBehindLogin:
            // The login's set has the new refresh token, and is what callers get.
            renewer.log.info("refresh_token_kept", request.logFields)
            await report.announceOvertaken(basis)
            return (.success(.overtaken), false)
        case .stored where publication.waitingLogin != nil:
            // Beneath a login's set, which is to be verified and not this one.
            if record.waiting != nil { await report.announceOvertaken(basis) }
            return (.success(.overtaken), false)
        case .stored(let snapshot):
            // A token that lives no longer than the lead time would be due again at once, and at every read.
            if basis.grant == .refreshToken, rest <= tenant.terms.leadTime {
                renewer.failures.noteEarly(id, version: snapshot.version, for: rest / 2)
            }
            // The session lives although the upgrade was refused. Callers get that refusal for a while, without another call.
            if basis.grant == .upgrade, calls.granted?.grant == .refreshToken {
                report.remember(report.reason(basis), over: snapshot.version, basis)
            }
            if let refusal {
                pauseAfter(refusal, of: snapshot, isUsable: calls.successor == nil)
                return (.failure(refusal), false)
            }
            return (.success(.new(snapshot, life: life)), false)
        case .overtaken:
            await report.announceOvertaken(basis)
            return (.success(.overtaken), false)
        case .journaled(let snapshot?):
            return (refusal.map { .failure($0) } ?? .success(.new(snapshot, life: life)), true)
        case .journaled(nil): return (.success(.overtaken), true)
        case .failed: return (.failure(.grantNotStored), false)
        }
    }

    /// Has an upgrade or an early renewal wait that has brought a refresh token and nothing to serve. The record has a new version,
    /// to which no earlier pause applies.
    private func pauseAfter(_ refusal: BrokerError, of snapshot: CredentialsSnapshot, isUsable: Bool) {
        if !isUsable, report.pausesFurtherTries(basis) { report.remember(refusal, over: snapshot.version, basis) }
        if basis.decision == .refresh(isEarly: true) {
            renewer.failures.noteEarly(id, version: snapshot.version, for: RecentFailures.earlyPause)
        }
    }

    /// The record after an answer of which nothing is usable but the refresh token: the credentials of before, with that one.
    /// - Parameter delay: for how long it is not to be presented.
    /// - Returns: nil where there was no such answer.
    func keptRecord(_ calls: RenewalCalls, delay: Duration) -> CredentialRecord? {
        guard let successor = calls.successor, let held = basis.held else { return nil }
        let now = renewer.time.now
        renewer.log.warning("refresh_token_kept", request.logFields)
        let from = delay > .zero ? now.advanced(by: delay) : nil
        var record = CredentialRecord(
            held: held.renewing(refreshToken: successor, usableFrom: from), renewed: basis.snapshot.record.renewed)
        record.heldSince = basis.snapshot.heldVersion
        return record
    }

    /// The record that the grant makes, and the cause that its event names.
    /// - Parameter delay: for how long the new refresh token is not to be presented.
    func grantedRecord(
        _ calls: RenewalCalls, delay: Duration
    ) -> (record: CredentialRecord, origin: BrokerEvent.Origin)? {
        guard let granted = calls.granted, let server = calls.server else { return nil }
        let (client, held, now) = (basis.client(of: tenant), basis.held, renewer.time.now)
        // When it was asked for: what has passed since then is no part of the life that the provider gives its tokens.
        let response = granted.response
        let asked = response.expires.flatMap { end in response.lifetime.map { end.advanced(by: .zero - $0) } } ?? now
        if granted.grant == .clientCredentials {
            let obtained = HeldCredentials(
                granted: granted.response, level: .client, to: client, by: server,
                requested: server.preset.scopesClientCredentials ? client.scopes.withoutOpenID : .empty, now: now)
            let (ended, session) = (basis.snapshot.record.ended, basis.snapshot.record.session)
            return (
                CredentialRecord(held: obtained, ended: ended, session: session, renewed: asked),
                basis.decision.isUpgrade ? .upgrade : .client
            )
        }
        var renewed = HeldCredentials(
            granted: granted.response, level: .user, to: client, by: server, replacing: held, now: now)
        if granted.grant == .accountCreation {
            return (CredentialRecord(held: renewed.loggedIn(after: held, at: now)), .login)
        }
        let isDelayed = delay > .zero && granted.response.refreshToken.map { $0 != held?.refreshToken } ?? false
        renewed.refreshableFrom = isDelayed ? now.advanced(by: delay) : nil
        if granted.grant == .upgrade {
            // It was asked for with the scopes of the present registration.
            renewed.asked = AskedGrant(resources: held?.asked?.resources ?? [], audience: held?.asked?.audience)
            return (CredentialRecord(held: renewed, renewed: asked), .upgrade)
        }
        // After a refused upgrade, the refresh was made with the earlier registration.
        renewed.obtainedWith =
            basis.grant == .upgrade
            ? held?.obtainedWith ?? client.fingerprint
            : held?.obtainedWith.refreshed(by: client.fingerprint) ?? client.fingerprint
        return (CredentialRecord(held: renewed, renewed: asked), .refresh)
    }

    // MARK: Verification

    /// What becomes of a grant.
    private enum Judged {
        /// A record is stored in its place: one that is served, one that waits for the provider's keys, or, with the reason why
        /// the grant is refused, one with the credentials of before.
        case stored(CredentialRecord, refusal: BrokerError?)
        /// It is another user's.
        case otherUser
    }

    /// Verifies a grant with the keys that are known. Nothing is waited for, so that the grant is stored at once.
    private func judge(
        _ record: CredentialRecord, _ origin: BrokerEvent.Origin, _ calls: RenewalCalls
    ) async -> Judged? {
        guard let held = record.granted, let server = calls.server, let response = calls.granted?.response else {
            return nil
        }
        let waiting = WaitingVerification(
            origin: WaitingVerification.Origin(origin), replacing: basis.held, idToken: response.idToken,
            granted: renewer.time.now)
        let grant = GrantVerifier.Grant.refresh(held, idToken: response.idToken)
        switch await renewer.providers.verifier.verdict(on: grant, of: tenant.configuration, at: server, waits: false) {
        case .unavailable: return .stored(record.waiting(for: waiting, since: basis.snapshot.heldVersion), refusal: nil)
        case .refused(let error):
            renewer.log.error("tokens_refused", request.logFields + LogField.reason(of: error))
            return .stored(
                GrantVerification.record(refusing: record.waiting(for: waiting, since: basis.snapshot.heldVersion)),
                refusal: error)
        case .verified(let verified, let told):
            if held.level == .user, let earlier = basis.held {
                if earlier.isOfOtherUser(than: told) {
                    renewer.log.error("subject_changed", request.logFields + [.provider(server.preset)])
                    renewer.metrics.subjectChanged(provider: server.preset.name)
                    return .otherUser
                }
                if earlier.learnsSubject(from: verified) {
                    renewer.log.info("subject_adopted", request.logFields + [.provider(server.preset)])
                }
            }
            return .stored(record.settled(to: verified), refusal: nil)
        }
    }

    /// The events of a grant that is stored: all of them where it is verified, otherwise those of what was done so far.
    /// - Parameter isUsable: false where the provider has granted nothing but a refresh token.
    private func events(
        _ record: CredentialRecord, _ origin: BrokerEvent.Origin, _ refusal: BrokerError?, isUsable: Bool
    ) -> CredentialsRecords.Events {
        let (id, refreshID, context, now) = (
            id, request.refreshID, basis.grant.map(request.eventContext), renewer.time.now
        )
        let verifies = tenant.configuration.effectiveTokenVerification?.verifiesTokens == true
        let verifying = BrokerEvent.Kind.verifying(by: tenant.configuration)
        return { version in
            let isVerified = record.waiting == nil
            let served = isVerified && refusal == nil ? record.held : nil
            let updated = served.map {
                BrokerEvent.updated(id, to: $0, version: version, by: origin, refreshID, at: now)
            }
            guard let context, context.grant.spendsRefreshToken else { return updated.map { [$0] } ?? [] }
            if !isUsable { return refusal.map { [.refreshFailed(context, $0, at: now)] } ?? [] }
            var kinds: [BrokerEvent.Kind] = [.refreshRefreshedAccessToken]
            if verifies || !isVerified { kinds.append(.refreshFetchingKeys) }
            if verifies, isVerified { kinds += [.refreshFetchedKeys] + verifying }
            if let updated { return BrokerEvent.steps(kinds, storing: updated, of: context, at: now) }
            return BrokerEvent.steps(kinds, of: context, at: now)
                + (refusal.map { [.refreshFailed(context, $0, at: now)] } ?? [])
        }
    }

    // MARK: What has ended

    /// Why a session is over.
    enum Ending {
        /// The provider says so.
        case refused(TokenErrorResponse)
        /// The refresh brought another user's token.
        /// - Parameter newest: the refresh token that came with it; nil for none. If the provider was wrong about the user, it is the
        ///   one that works.
        case otherUser(newest: SecretBytes?)
    }

    /// What is left of a session that the provider has ended: its access token, where that lives, no API has refused it, and
    /// the provider does not end it with the session. Nil for nothing.
    private func rest(of held: HeldCredentials, after ending: Ending) -> HeldCredentials? {
        guard case .refused = ending, held.level == .user, held.expires > renewer.time.now, !request.query.refusedByAPI,
            !tenant.configuration.preset.endsTokenWithSession
        else { return nil }
        var rest = held
        (rest.refreshToken, rest.refreshableFrom) = (nil, nil)
        // A login to which no session, code or key of an app belongs: those have ended with the session.
        rest.loggedInSince = held.loggedInSince.advanced(by: .milliseconds(1))
        return rest
    }

    /// Stores that the provider ended a session, and quarantines its credentials. A conflict means that the
    /// session goes on: another replica has refreshed meanwhile, or the user has logged in again.
    /// - Parameters:
    ///   - isDoubtful: whether the refusal need not be the provider's or the user's will.
    ///   - counting: the changes of `Waves.Verdict.ends`.
    /// - Returns: nil where `counting` may be outdated, so that another verdict is needed.
    func publishEnd(
        _ ending: Ending?, isDoubtful: Bool, counting: [VaultChange] = []
    ) async -> Result<Renewed, BrokerError>? {
        guard let held = basis.held, let ending else { return .success(.overtaken) }
        let (id, refreshID, now) = (id, request.refreshID, renewer.time.now)
        let endReason: BrokerEvent.EndReason? = isDoubtful ? .outcomeUnknown : nil
        let context = request.eventContext(basis.grant ?? .refreshToken)
        let reason: BrokerError =
            switch ending {
            case .refused(let answer): .sessionEnded(by: answer, at: tenant.configuration.preset)
            case .otherUser: .subjectChanged
            }
        var record = CredentialRecord(
            held: rest(of: held, after: ending), ended: held.refreshTokenDigest,
            session: EndedSession(.revoked, at: now, for: reason), renewed: basis.snapshot.record.renewed)
        // Callers know the token under that version.
        record.heldSince = record.held == nil ? nil : basis.snapshot.heldVersion
        if record.held == nil { record.renewed = nil }
        var publication = Publication(id: id, record: record, base: basis.snapshot.version) { version in
            let ended: [BrokerEvent] =
                switch ending {
                case .refused:
                    [
                        .deauthorized(
                            id, from: held, version: version, by: .revoked, because: endReason, refreshID, at: now)
                    ]
                case .otherUser: BrokerEvent.subjectChanged(id, from: held, version: version, refreshID, at: now)
                }
            return ended + [.refreshFailed(context, reason, at: now)]
        }
        publication.holder = holder
        var quarantined = held
        if case .otherUser(let newest?) = ending, newest != held.refreshToken {
            quarantined = held.renewing(refreshToken: newest, usableFrom: nil)
        }
        publication.quarantine = .keep(
            quarantined, for: renewer.quarantine, after: EndedSession(.revoked, at: now, for: reason))
        publication.ends = HeldCredentials.login(of: held, endedBy: nil).map { ($0, .revoked) }
        publication.counting = counting
        guard let result = await storeEnd(&publication, endsRenewal: true) else { return nil }
        if reason.endsSession, case .success(.new) = result { return .failure(reason) }
        return result
    }

    /// Removes credentials that have expired and cannot be renewed. A user's token that has not expired but was refused by an API,
    /// which may have been a mistake, is quarantined.
    func retire() async -> Result<Renewed, BrokerError> {
        guard let held = basis.held else { return .success(.overtaken) }
        do throws(BrokerError) {
            // With another client or provider, a user's credentials would be kept.
            if held.level == .user, try await !renewer.isCurrent(tenant) { return .success(.overtaken) }
        } catch {
            return .failure(error)
        }
        let (id, now) = (id, renewer.time.now)
        if basis.snapshot.record.isOver {
            // Listeners know of the session's end, and its credentials are quarantined.
            var record = basis.snapshot.record
            (record.granted, record.heldSince, record.renewed) = (nil, nil, nil)
            var publication = Publication(id: id, record: record, base: basis.snapshot.version) { _ in [] }
            return await storeEnd(&publication, endsRenewal: false) ?? .success(.overtaken)
        }
        let session = held.level == .user ? EndedSession(.expired, at: now) : basis.snapshot.record.session
        var publication = Publication(
            id: id, record: CredentialRecord(held: nil, ended: basis.snapshot.record.ended, session: session),
            base: basis.snapshot.version
        ) { version in [.deauthorized(id, from: held, version: version, by: .expired, nil, at: now)] }
        publication.ends = HeldCredentials.login(of: held, endedBy: nil).map { ($0, .expired) }
        if request.query.refusedByAPI && held.isLoggedIn(at: now) {
            publication.quarantine = .keep(held, for: renewer.quarantine, after: EndedSession(.expired, at: now))
        }
        return await storeEnd(&publication, endsRenewal: false) ?? .success(.overtaken)
    }

    /// Stores that a session is over. A store that does not answer is asked again until it does. If only the quarantined
    /// credentials were replaced meanwhile, they are replaced again.
    /// - Returns: nil where the session goes on as it was, and `Publication.counting` may be outdated.
    private func storeEnd(
        _ publication: inout Publication, endsRenewal: Bool
    ) async -> Result<Renewed, BrokerError>? {
        var awaySince: MonotonicInstant?
        while true {
            let readUpTo = publication.readUpTo
            switch await renewer.publisher.advance(&publication, heedsLease: true) {
            case .stored(let snapshot): return .success(.new(snapshot, life: nil))
            case .conflict(.spent(let version, lease: nil)) where version == basis.snapshot.version:
                // Where the record was only read, since the store lacks a version that is known, no commit has met the count.
                if !publication.counting.isEmpty, publication.readUpTo == readUpTo { return nil }
            case .conflict:
                if endsRenewal { await report.announceOvertaken(basis) }
                return .success(.overtaken)
            case .storeAway(let error):
                guard error.code == .storageUnavailable else { return .failure(error) }
                let now = renewer.time.monotonic
                let since = awaySince ?? now
                awaySince = since
                if since.duration(to: now) >= CredentialsRecords.callersPatience {
                    renewer.answerCallers(id, .failure(error))
                }
                do throws(BrokerError) {
                    try await renewer.records.waitForStore(beforeTry: publication.tries, id)
                } catch {
                    return .failure(error)
                }
            }
        }
    }
}

extension EndedSession {
    /// The end of a session that a renewal has found.
    /// - Parameter reason: what the callers of the renewal got.
    init(_ cause: Cause, at time: Timestamp, for reason: BrokerError) {
        self.init(cause, at: time, code: reason.code.rawValue, errorCode: reason.errorCode)
    }
}

extension BrokerError {
    /// Whether the error says that the session has ended, so that no caller may be served from it any more.
    var endsSession: Bool {
        code == .invalidTokenRequest || code == .unknownAccount || self == .subjectChanged
    }

    /// The error of a refresh that the provider refused because the session has ended.
    fileprivate static func sessionEnded(by answer: TokenErrorResponse, at preset: ProviderPreset) -> BrokerError {
        named(by: answer, at: preset)
            ?? BrokerError(
                .unexpectedError, "The provider ended the session.", errorCode: preset.shownCode(of: answer))
    }

    /// What callers get after a refresh that brought another user's token.
    static let subjectChanged = BrokerError(
        .tokenResponseError,
        "The provider answered the refresh with the token of another user than the one who logged in. The broker does not "
            + "hand out that token; it has put the session aside, and the session can be restored.")
}
