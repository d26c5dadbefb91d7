import CredentialStore
import Cryptography
import OAuth
import Reactor
import Renewal

/// Stores what a renewal brought: new credentials, or the end of the session.
extension CredentialsRenewer {
    // MARK: What was granted

    /// What is to be stored after the provider has granted something.
    enum Storable {
        case publication(Publication)
        /// Nothing, or it is stored already.
        case ended(Result<Renewed, BrokerError>)
    }

    /// Judges what was granted, and makes the record that is to be stored.
    func publication(
        of renewal: inout Renewal, by attempt: RenewalAttempt, under lease: OwnLease
    ) async -> Storable {
        let (record, origin, refusal): (CredentialRecord, BrokerEvent.Origin, BrokerError?)
        if let kept = keptRecord(renewal, delay: attempt.successorDelay) {
            (record, origin, refusal) = (kept, renewal.grant == .upgrade ? .upgrade : .refresh, reason(renewal))
        } else {
            guard let (granted, cause) = grantedRecord(renewal, delay: attempt.successorDelay) else {
                return .ended(.success(.overtaken))
            }
            switch await judge(granted, cause, renewal) {
            case .stored(let judged, let reason): (record, origin, refusal) = (judged, cause, reason)
            case .otherUser:
                let ending = Ending.otherUser(newest: renewal.response?.tokens.refreshToken)
                return .ended(
                    await publishEnd(renewal, ending, isDoubtful: false, under: lease) ?? .success(.overtaken))
            case nil: return .ended(.success(.overtaken))
            }
        }
        let rest = time.now.duration(to: record.granted?.expires ?? time.now)
        // Counted from when it was asked for: the answer may have been late, or this process held up.
        let life = renewal.response?.tokens.lifetime ?? rest
        renewal.forCallers = Renewal.ForCallers(refusal: refusal, life: life, rest: rest)
        var publication = Publication(
            id: renewal.id, record: record, base: renewal.snapshot.version, origin: origin,
            events: events(record, origin, refusal, renewal))
        publication.tenantVersion = renewal.tenant.version
        publication.holder = renewal.snapshot.version > 0 ? lease.holder : nil
        publication.spent = renewal.spendsRefreshToken ? renewal.held?.refreshTokenDigest : nil
        publication.ends = HeldCredentials.login(of: renewal.held, endedBy: record.held).map { ($0, .expired) }
        return .publication(publication)
    }

    /// What callers get of a grant that the store has taken, or for which another change has come first.
    func published(
        _ publication: Publication, of renewal: Renewal, under lease: OwnLease
    ) async -> Result<Renewed, BrokerError> {
        guard let snapshot = publication.stored, let answer = renewal.forCallers else {
            await announceOvertaken(renewal, by: lease)
            return .success(.overtaken)
        }
        let id = renewal.id
        // The store has answered so late that callers have got what came after this.
        if records.newestKnown(id) > snapshot.version { return .success(.overtaken) }
        if publication.isBehindLogin {
            // The login's set has the new refresh token, and is what callers get.
            log.info("refresh_token_kept", renewal.logFields)
            await announceOvertaken(renewal, by: lease)
            return .success(.overtaken)
        }
        if publication.waitingLogin != nil {
            // A login's set waits for its verification, and callers get that one. The grant is stored beneath it.
            if publication.record.waiting != nil { await announceOvertaken(renewal, by: lease) }
            return .success(.overtaken)
        }
        // A token that lives no longer than the lead time would be due again at once, and at every read.
        if renewal.grant == .refreshToken, answer.rest <= renewal.tenant.terms.leadTime {
            failures.noteEarly(id, version: snapshot.version, for: answer.rest / 2)
        }
        // The session lives although the upgrade was refused. Callers get that refusal for a while, without another call.
        if renewal.grant == .upgrade, renewal.response?.by == .refreshToken {
            remember(reason(renewal), over: snapshot.version, renewal)
        }
        if let refusal = answer.refusal {
            pauseAfter(refusal, of: snapshot, renewal)
            return .failure(refusal)
        }
        return .success(.new(snapshot, life: answer.life))
    }

    /// Has an upgrade or an early renewal wait that has brought a refresh token and nothing to serve. The record has a new version,
    /// to which no earlier pause applies.
    private func pauseAfter(_ refusal: BrokerError, of snapshot: CredentialsSnapshot, _ renewal: Renewal) {
        if renewal.successor != nil, pausesFurtherTries(renewal) {
            remember(refusal, over: snapshot.version, renewal)
        }
        if renewal.isEarly {
            failures.noteEarly(renewal.id, version: snapshot.version, for: RecentFailures.earlyPause)
        }
    }

    /// The record after an answer of which nothing is usable but the refresh token: the credentials of before, with that one.
    /// - Parameter delay: for how long it is not to be presented.
    /// - Returns: nil if there was no such answer.
    func keptRecord(_ renewal: Renewal, delay: Duration) -> CredentialRecord? {
        guard let successor = renewal.successor, let held = renewal.held else { return nil }
        let now = time.now
        log.warning("refresh_token_kept", renewal.logFields)
        let from = delay > .zero ? now.advanced(by: delay) : nil
        var record = CredentialRecord(
            held: held.renewing(refreshToken: successor, usableFrom: from), renewed: renewal.snapshot.record.renewed)
        record.heldSince = renewal.snapshot.heldVersion
        return record
    }

    /// The record that the grant makes, and the cause that its event names.
    /// - Parameter delay: for how long the new refresh token is not to be presented.
    /// - Returns: nil if nothing was granted.
    func grantedRecord(
        _ renewal: Renewal, delay: Duration
    ) -> (record: CredentialRecord, origin: BrokerEvent.Origin)? {
        guard let (response, grant) = renewal.response, let server = renewal.server else { return nil }
        let (client, held, now) = (renewal.client, renewal.held, time.now)
        // When it was asked for: what has passed since then is no part of the life that the provider gives its tokens.
        let asked = response.expires.flatMap { end in response.lifetime.map { end.advanced(by: .zero - $0) } } ?? now
        if grant == .clientCredentials {
            let obtained = HeldCredentials(
                granted: response, level: .client, to: client, by: server,
                requested: server.preset.scopesClientCredentials ? client.scopes.withoutOpenID : .empty, now: now)
            let earlier = renewal.snapshot.record
            return (
                CredentialRecord(held: obtained, ended: earlier.ended, session: earlier.session, renewed: asked),
                renewal.decision.isUpgrade ? .upgrade : .client
            )
        }
        var renewed = HeldCredentials(
            granted: response, level: .user, to: client, by: server, replacing: held, now: now)
        if grant == .accountCreation {
            return (CredentialRecord(held: renewed.loggedIn(after: held, at: now)), .login)
        }
        let isDelayed = delay > .zero && response.refreshToken.map { $0 != held?.refreshToken } ?? false
        renewed.refreshableFrom = isDelayed ? now.advanced(by: delay) : nil
        if grant == .upgrade {
            // It was asked for with the scopes of the present registration.
            renewed.asked = AskedGrant(resources: held?.asked?.resources ?? [], audience: held?.asked?.audience)
            return (CredentialRecord(held: renewed, renewed: asked), .upgrade)
        }
        // After a refused upgrade, the refresh was made with the earlier registration.
        renewed.obtainedWith =
            renewal.grant == .upgrade
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
        _ record: CredentialRecord, _ origin: BrokerEvent.Origin, _ renewal: Renewal
    ) async -> Judged? {
        guard let held = record.granted, let server = renewal.server, let response = renewal.response?.tokens else {
            return nil
        }
        let waiting = WaitingVerification(
            origin: WaitingVerification.Origin(origin), replacing: renewal.held, idToken: response.idToken,
            granted: time.now)
        let grant = GrantVerifier.Grant.refresh(held, idToken: response.idToken)
        let configuration = renewal.tenant.configuration
        switch await providers.verifier.verdict(on: grant, of: configuration, at: server, waits: false) {
        case .unavailable:
            return .stored(record.waiting(for: waiting, since: renewal.snapshot.heldVersion), refusal: nil)
        case .refused(let error):
            log.error("tokens_refused", renewal.logFields + LogField.reason(of: error))
            return .stored(
                GrantVerification.record(refusing: record.waiting(for: waiting, since: renewal.snapshot.heldVersion)),
                refusal: error)
        case .verified(let verified, let told):
            if held.level == .user, let earlier = renewal.held {
                if earlier.isOfOtherUser(than: told) {
                    log.error("subject_changed", renewal.logFields + [.provider(server.preset)])
                    metrics.subjectChanged(provider: server.preset.name)
                    return .otherUser
                }
                if earlier.learnsSubject(from: verified) {
                    log.info("subject_adopted", renewal.logFields + [.provider(server.preset)])
                }
            }
            return .stored(record.settled(to: verified), refusal: nil)
        }
    }

    /// The events of a grant that is stored: all of them if it is verified, otherwise those of what was done so far.
    private func events(
        _ record: CredentialRecord, _ origin: BrokerEvent.Origin, _ refusal: BrokerError?, _ renewal: Renewal
    ) -> CredentialsRecords.Events {
        let (id, refreshID, context, now) = (
            renewal.id, renewal.refreshID, renewal.grant.map { renewal.eventContext($0) }, time.now
        )
        let isUsable = renewal.successor == nil
        let configuration = renewal.tenant.configuration
        let verifies = configuration.effectiveTokenVerification?.verifiesTokens == true
        let verifying = BrokerEvent.Kind.verifying(by: configuration)
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

    /// What is left of a session that the provider has ended: its access token, if that lives, no API has refused it, and
    /// the provider does not end it with the session. Nil for nothing.
    private func rest(
        of held: HeldCredentials, after ending: Ending, _ renewal: Renewal
    ) -> HeldCredentials? {
        guard case .refused = ending, held.level == .user, held.expires > time.now, !renewal.query.refusedByAPI,
            !renewal.tenant.configuration.preset.endsTokenWithSession
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
    /// - Returns: nil if `counting` may be outdated, so that another verdict is needed.
    func publishEnd(
        _ renewal: Renewal, _ ending: Ending, isDoubtful: Bool, counting: [VaultChange] = [], under lease: OwnLease
    ) async -> Result<Renewed, BrokerError>? {
        guard let held = renewal.held else { return .success(.overtaken) }
        let (id, refreshID, snapshot, now) = (renewal.id, renewal.refreshID, renewal.snapshot, time.now)
        let endReason: BrokerEvent.EndReason? = isDoubtful ? .outcomeUnknown : nil
        let context = renewal.eventContext(renewal.grant ?? .refreshToken)
        let reason: BrokerError =
            switch ending {
            case .refused(let answer): .sessionEnded(by: answer, at: renewal.tenant.configuration.preset)
            case .otherUser: .subjectChanged
            }
        var record = CredentialRecord(
            held: rest(of: held, after: ending, renewal), ended: held.refreshTokenDigest,
            session: EndedSession(.revoked, at: now, for: reason), renewed: snapshot.record.renewed)
        // Callers know the token under that version.
        record.heldSince = record.held == nil ? nil : snapshot.heldVersion
        if record.held == nil { record.renewed = nil }
        var publication = Publication(id: id, record: record, base: snapshot.version) { version in
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
        publication.holder = lease.holder
        var quarantined = held
        if case .otherUser(let newest?) = ending, newest != held.refreshToken {
            quarantined = held.renewing(refreshToken: newest, usableFrom: nil)
        }
        publication.quarantine = .keep(
            quarantined, for: quarantine, after: EndedSession(.revoked, at: now, for: reason))
        publication.ends = HeldCredentials.login(of: held, endedBy: nil).map { ($0, .revoked) }
        publication.counting = counting
        switch await storeEnd(&publication, over: snapshot) {
        case .outdated: return nil
        case .overtaken:
            await announceOvertaken(renewal, by: lease)
            return .success(.overtaken)
        case .ended(let result):
            if reason.endsSession, case .success = result { return .failure(reason) }
            return result
        }
    }

    /// Removes credentials that have expired and cannot be renewed. A user's token that has not expired but was refused by an API,
    /// which may have been a mistake, is quarantined.
    func retire(_ renewal: Renewal) async -> Result<Renewed, BrokerError> {
        guard let held = renewal.held else { return .success(.overtaken) }
        do throws(BrokerError) {
            // With another client or provider, a user's credentials would be kept.
            if held.level == .user, try await !isCurrent(renewal.tenant) { return .success(.overtaken) }
        } catch {
            return .failure(error)
        }
        let (id, snapshot, now) = (renewal.id, renewal.snapshot, time.now)
        var publication: Publication
        if snapshot.record.isOver {
            // Listeners know of the session's end, and its credentials are quarantined.
            var record = snapshot.record
            (record.granted, record.heldSince, record.renewed) = (nil, nil, nil)
            publication = Publication(id: id, record: record, base: snapshot.version) { _ in [] }
        } else {
            let session = held.level == .user ? EndedSession(.expired, at: now) : snapshot.record.session
            publication = Publication(
                id: id, record: CredentialRecord(held: nil, ended: snapshot.record.ended, session: session),
                base: snapshot.version
            ) { version in [.deauthorized(id, from: held, version: version, by: .expired, nil, at: now)] }
            publication.ends = HeldCredentials.login(of: held, endedBy: nil).map { ($0, .expired) }
            if renewal.query.refusedByAPI && held.isLoggedIn(at: now) {
                publication.quarantine = .keep(held, for: quarantine, after: EndedSession(.expired, at: now))
            }
        }
        return switch await storeEnd(&publication, over: snapshot) {
        case .outdated, .overtaken: .success(.overtaken)
        case .ended(let result): result
        }
    }

    private enum End {
        /// The end is stored, or it cannot be.
        case ended(Result<Renewed, BrokerError>)
        /// Another change came first.
        case overtaken
        /// The session goes on as it was, and `Publication.counting` may be outdated.
        case outdated
    }

    /// Stores that a session is over. A store that does not answer is asked again until it does. If only the quarantined
    /// credentials were replaced meanwhile, they are replaced again.
    private func storeEnd(_ publication: inout Publication, over snapshot: CredentialsSnapshot) async -> End {
        while true {
            let readUpTo = publication.readUpTo
            switch await publisher.advance(&publication, heedsLease: true) {
            case .stored(let stored): return .ended(.success(.new(stored, life: nil)))
            case .conflict(.spent(let version, lease: nil)) where version == snapshot.version:
                // If the record was only read, since the store lacks a version that is known, no commit has met the count.
                if !publication.counting.isEmpty, publication.readUpTo == readUpTo { return .outdated }
            case .conflict: return .overtaken
            case .storeAway(let error):
                guard error.code == .storageUnavailable else { return .ended(.failure(error)) }
                answerCallers(publication.id, .failure(error), awaySince: publication.awaySince)
                do throws(BrokerError) {
                    try await records.waitForStore(beforeTry: publication.tries, publication.id)
                } catch {
                    return .ended(.failure(error))
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
