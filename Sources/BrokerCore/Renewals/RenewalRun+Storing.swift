internal import CredentialStore
internal import Cryptography
internal import HTTPCodec
internal import OAuth
internal import Reactor
internal import Renewal

/// What a run asks the provider with, and what it stores.
extension RenewalRun {
    // MARK: The request

    /// The next call. After the calls of an upgrade that the provider has refused because the session has ended comes one
    /// ordinary refresh, with the registration that the session was obtained with: where that is refused, too, the session
    /// has ended.
    /// - Returns: nil where there is nothing to ask any more.
    func call(at server: AuthorizationServer) throws(BrokerError) -> TokenEndpoint.Call? {
        let client = tenant.configuration.client
        if grant == .upgrade, attempt.calls > BackoffSchedule.retries + 1 {
            guard isUpgradeDead, let held = current.record.held, let refreshToken = held.refreshToken,
                let earlier = client.asRegistered(by: held.obtainedWith)
            else { return nil }
            return try renewer.providers.endpoint.prepare(
                .refresh(refreshToken), for: earlier, of: tenant.name, at: server, as: refreshID)
        }
        if let request { return request }
        let request = try renewer.providers.endpoint.prepare(
            try tokenRequest(), for: client, of: tenant.name, at: server, as: refreshID)
        self.request = request
        return request
    }

    private func tokenRequest() throws(BrokerError) -> TokenRequest {
        let refreshToken = current.record.held?.refreshToken
        switch (grant, refreshToken, tenant.configuration.preset.upgradeGrant) {
        case (.refreshToken, let refreshToken?, _): return .refresh(refreshToken)
        case (.upgrade, let refreshToken?, let grantType?): return .upgrade(refreshToken, grantType: grantType)
        case (.clientCredentials, _, _): return .clientCredentials
        default: throw BrokerError(.internalError, "A renewal was decided that no request stands for.")
        }
    }

    // MARK: What was granted

    /// The record that the grant makes, and what it is told as.
    private func grantedRecord() -> (record: CredentialRecord, origin: BrokerEvent.Origin)? {
        guard let granted, let server else { return nil }
        let (client, held, now) = (tenant.configuration.client, current.record.held, renewer.time.now)
        switch granted.grant {
        case .clientCredentials:
            let obtained = HeldCredentials(
                granted: granted.response, level: .client, to: client, by: server,
                requested: server.preset.scopesClientCredentials ? client.scopes : .empty, now: now)
            return (
                CredentialRecord(
                    held: obtained, ended: current.record.ended, session: current.record.session, renewed: now),
                decision.isUpgrade ? .upgrade : .client
            )
        case .upgrade:
            var upgraded = HeldCredentials(
                granted: granted.response, level: .user, to: client, by: server, replacing: held, now: now)
            upgraded.refreshableFrom = refreshableFrom
            return (CredentialRecord(held: upgraded, renewed: now), .upgrade)
        default:
            var renewed = HeldCredentials(
                granted: granted.response, level: .user, to: client, by: server, replacing: held, now: now)
            renewed.refreshableFrom = refreshableFrom
            // After a refused upgrade it was the earlier registration that refreshed.
            renewed.obtainedWith =
                grant == .upgrade
                ? held?.obtainedWith ?? client.fingerprint
                : held?.obtainedWith.refreshed(by: client.fingerprint) ?? client.fingerprint
            return (CredentialRecord(held: renewed, renewed: now), .refresh)
        }
    }

    private var refreshableFrom: Timestamp? {
        let rest = attempt.successorRest
        guard rest > .zero, let successor = granted?.response.refreshToken,
            successor != current.record.held?.refreshToken
        else { return nil }
        return renewer.time.now.advanced(by: rest)
    }

    private func events(
        _ held: HeldCredentials, _ origin: BrokerEvent.Origin
    ) -> CredentialsRecords.Events {
        let (id, refreshID, grant, now) = (id, refreshID, grant, renewer.time.now)
        return { version in
            let updated = BrokerEvent.updated(id, to: held, version: version, by: origin, refreshID, at: now)
            guard let grant, grant.spendsRefreshToken else { return [updated] }
            var events = BrokerEvent.steps(
                [.refreshRefreshedAccessToken, .refreshSavingTokens, .refreshSucceeded], id, grant, refreshID, at: now)
            events.insert(updated, at: events.endIndex - 1)
            return events
        }
    }

    /// Stores what was granted.
    /// - Returns: also whether work in the background goes on that has this run's name.
    func publish(_ step: RenewalAttempt.Step) async -> (Result<Renewed, BrokerError>, isHandedOver: Bool) {
        guard let (record, origin) = grantedRecord(), let held = record.held else {
            return (.success(.overtaken), false)
        }
        let life = renewer.time.now.duration(to: held.expires)
        var publication = Publication(
            id: id, tenantVersion: tenant.version, holder: current.version > 0 ? holder : nil, record: record,
            spent: grant?.spendsRefreshToken == true ? current.record.held?.refreshTokenDigest : nil,
            events: events(held, origin), base: current.version)
        switch await renewer.publisher.publish(&publication, &attempt, step, since: beginning) {
        case .stored(let snapshot) where renewer.records.newestKnown(id) > snapshot.version:
            // The store's word has taken so long that callers were served what came after it.
            return (.success(.overtaken), false)
        case .stored(let snapshot):
            // A token that lives no longer than the lead time would be due again at once, and at every read.
            if grant == .refreshToken, life <= tenant.terms.leadTime {
                renewer.decider.pauseEarlyRenewal(id, of: snapshot.version, for: life / 2)
            }
            // The session lives, and the upgrade was refused all the same: callers are told for a while without asking.
            if grant == .upgrade, granted?.grant == .refreshToken {
                remember(reason(), over: snapshot.version)
            }
            return (.success(.new(snapshot, life: life)), false)
        case .overtaken:
            await tell(Self.overtaken)
            return (.success(.overtaken), false)
        case .kept(let snapshot?): return (.success(.new(snapshot, life: life)), true)
        case .kept(nil): return (.success(.overtaken), true)
        case .cutShort(let error): return (.failure(error), false)
        }
    }

    // MARK: What has ended

    /// Whether the provider's answer ends the session. Where the refresh token may have been spent by a call whose answer
    /// was lost, the refusal need not be the provider's or the user's will, and the events and the metrics tell it apart.
    func endsSession(_ answer: TokenErrorResponse) async -> Bool {
        guard let held = current.record.held, await !isOutdated(refusedWith: answer.errorCode) else { return false }
        // A refusal of another client than the one that logged the user in says nothing about the session.
        let client = grant == .upgrade ? held.obtainedWith : tenant.terms.client
        guard held.isEnded(by: answer, refreshedBy: client) else {
            failure = BrokerError(
                .unexpectedError,
                "The provider refused to refresh credentials that were obtained with an earlier client_secret. "
                    + "Configure that again, or have the user log in anew.", errorCode: answer.errorCode)
            return false
        }
        ending = .refused(answer)
        return true
    }

    /// Whether a refusal is to be kept from having an effect, because the tenant was configured anew meanwhile: it may have
    /// been the old secret that was refused.
    func isOutdated(refusedWith errorCode: String?) async -> Bool {
        do throws(BrokerError) {
            if try await renewer.isCurrent(tenant) { return false }
            isSuperseded = true
            failure = BrokerError(.conflict, "The configuration was replaced meanwhile.", errorCode: errorCode)
        } catch {
            failure = error
        }
        return true
    }

    /// Leaves a tombstone for a session that the provider ended, and keeps its credentials aside. Conflicts are news, not
    /// failures: a sibling that has refreshed meanwhile, or a new login, shows that the session goes on.
    func publishEnd() async -> Result<Renewed, BrokerError> {
        guard let held = current.record.held, let ending else { return .success(.overtaken) }
        let (id, refreshID, now) = (id, refreshID, renewer.time.now)
        let endReason: BrokerEvent.EndReason? = isDoubtful ? .outcomeUnknown : nil
        let grant = grant ?? .refreshToken
        let reason: BrokerError =
            switch ending {
            case .refused(let answer):
                BrokerError(.unexpectedError, "The provider ended the session.", errorCode: answer.errorCode)
            case .otherUser: .subjectChanged
            }
        var publication = Publication(
            id: id, tenantVersion: nil, holder: holder,
            record: CredentialRecord(
                held: nil, ended: held.refreshTokenDigest, session: EndedSession(.revoked, at: now)), spent: nil,
            events: { version in
                let ended: [BrokerEvent] =
                    switch ending {
                    case .refused:
                        [
                            .deauthorized(
                                id, from: held, version: version, by: .revoked, because: endReason, refreshID, at: now)
                        ]
                    case .otherUser: BrokerEvent.subjectChanged(id, from: held, version: version, refreshID, at: now)
                    }
                return ended + [.refreshFailed(id, grant, reason, refreshID, at: now)]
            }, base: current.version, aside: .keep(held, for: renewer.quarantine))
        let result = await storeEnd(&publication, endsRenewal: true)
        if case (.otherUser, .success(.new)) = (ending, result) { return .failure(.subjectChanged) }
        return result
    }

    /// Puts away what is over and cannot be renewed. A refresh token among it belongs to another client than the one
    /// that is configured: it is kept aside, in case the configuration is the mistake. So is a user's token that has not
    /// expired: an API has refused it, which may have been a mistake, too.
    func retire() async -> Result<Renewed, BrokerError> {
        guard let held = current.record.held else { return .success(.overtaken) }
        do throws(BrokerError) {
            if held.refreshToken != nil, try await !renewer.isCurrent(tenant) { return .success(.overtaken) }
        } catch {
            return .failure(error)
        }
        let (id, now) = (id, renewer.time.now)
        let session = held.level == .user ? EndedSession(.expired, at: now) : current.record.session
        // Another replica may be exchanging the refresh token just now: its lease is heeded.
        var publication = Publication(
            id: id, tenantVersion: nil, holder: held.refreshToken == nil ? nil : holder,
            record: CredentialRecord(held: nil, ended: current.record.ended, session: session), spent: nil,
            events: { version in [.deauthorized(id, from: held, version: version, by: .expired, nil, at: now)] },
            base: current.version,
            aside: held.refreshToken == nil && !(query.refusedByAPI && held.isLoggedIn(at: now))
                ? .none : .keep(held, for: renewer.quarantine, because: .expired))
        return await storeEnd(&publication, endsRenewal: false)
    }

    /// Stores that a session is over. A store that is away is asked until it answers; what was put away meanwhile in the
    /// place of what is kept aside is replaced.
    private func storeEnd(
        _ publication: inout Publication, endsRenewal: Bool
    ) async -> Result<Renewed, BrokerError> {
        while true {
            switch await renewer.publisher.advance(&publication, heedsLease: true) {
            case .stored(let snapshot): return .success(.new(snapshot, life: nil))
            case .conflict(.spent(let version, lease: nil)) where version == current.version: continue
            case .conflict:
                if endsRenewal { await tell(Self.overtaken) }
                return .success(.overtaken)
            case .storeAway(let error):
                guard error.code == .storageUnavailable else { return .failure(error) }
                do throws(BrokerError) {
                    try await renewer.records.waitForStore(beforeTry: publication.tries, id)
                } catch {
                    return .failure(error)
                }
            }
        }
    }
}

extension BrokerError {
    /// What the callers are told of a refresh that brought another user's token.
    static let subjectChanged = BrokerError(
        .tokenResponseError,
        "The provider answered the refresh with the token of another user than the one who logged in. That token is given to "
            + "nobody; the session is put aside and can be restored.")
}

extension ClientConfiguration {
    /// The registration that credentials were obtained with; nil where its secret is not known any more.
    fileprivate func asRegistered(by earlier: ClientFingerprint) -> ClientConfiguration? {
        let secret = earlier.clientSecretDigest == fingerprint.clientSecretDigest ? clientSecret : nil
        if secret == nil, earlier.clientSecretDigest != nil, earlier.clientID != clientID { return nil }
        return ClientConfiguration(
            clientID: earlier.clientID, clientSecret: earlier.clientID == clientID ? clientSecret : secret,
            clientUniqueKey: earlier.clientUniqueKey, scopes: earlier.scopes)
    }
}
