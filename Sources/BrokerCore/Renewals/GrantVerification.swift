import CredentialStore
import Cryptography
import OAuth
import Synchronization
import Waiting

/// Verifies the sets of credentials that were stored before they were verified.
///
/// It needs no lease: if two replicas verify one set, one of them stores the result, and the other finds it stored.
final class GrantVerification: Sendable {
    typealias Renewed = CredentialsRenewer.Renewed

    /// How the login that brought a set ends.
    enum LoginEnd: Sendable {
        /// The change of the same commit, and the event that follows that of the credentials. `signal` is called after it.
        case ends(VaultChange, BrokerEvent, signal: @Sendable () -> Void)
        /// The login's record is gone.
        case ended
        /// The user does not want the login any more: its set is dropped.
        case cancelled
    }

    /// Makes the end of a login whose set was verified, or refused with an error.
    typealias LoginEnding =
        @Sendable (
            _ id: CredentialsID, _ login: String, _ refusal: BrokerError?
        ) async throws(StoreError) -> LoginEnd

    let records: CredentialsRecords
    private let providers: ProviderAccess
    private let quarantine: Duration
    let metrics: Metrics
    private let endings = Mutex<[WaitingVerification.Origin: LoginEnding]>([:])

    /// - Parameter quarantine: for how long credentials are quarantined whose session has ended.
    init(records: CredentialsRecords, providers: ProviderAccess, quarantine: Duration, metrics: Metrics) {
        self.records = records
        self.providers = providers
        self.quarantine = quarantine
        self.metrics = metrics
    }

    /// Sets how logins of a kind end. To be called before the first login.
    func setEnding(of origin: WaitingVerification.Origin, _ ending: @escaping LoginEnding) {
        endings.withLock { $0[origin] = ending }
    }

    /// Verifies the set of a record, and stores the result: the set may be served from then on, or is put aside.
    ///
    /// Where the keys do not answer, the record stays as it is. A set that fails leaves the credentials before it in place. The
    /// refresh token of a refresh that failed is kept with them, since the provider has spent the one before it. That of an import is
    /// kept, too: the line's own is spent.
    /// - Parameters:
    ///   - snapshot: the record, whose set waits.
    ///   - refresh: the refresh that has just brought the set, whose last events are told; nil for a later verification.
    func verify(
        _ id: CredentialsID, of tenant: Tenant, _ snapshot: CredentialsSnapshot, in refresh: BrokerEvent.Refresh? = nil
    ) async -> Result<Renewed, BrokerError> {
        guard let waiting = snapshot.record.waiting, let grant = GrantVerifier.Grant.waiting(snapshot.record) else {
            return .success(.overtaken)
        }
        // The store does not have the set yet, so the result could not take its place.
        guard snapshot.isStored else { return .failure(BrokerError(StoreError.unavailable)) }
        let verdict: GrantVerifier.Verdict
        do throws(BrokerError) {
            let server = try await providers.servers.server(for: tenant, holding: grant.credentials)
            guard let server else { return .failure(Self.otherProvider) }
            verdict = await providers.verifier.verdict(on: grant, of: tenant.configuration, at: server, waits: true)
        } catch {
            verdict = .unavailable(error)
        }
        let time = records.time
        switch verdict {
        case .unavailable(let error):
            records.log.warning("verification_waits", LogField.credentials(id) + [.code(error.code)])
            return .failure(error.asMissingKeys)
        case .refused(let error):
            records.log.error("tokens_refused", LogField.credentials(id) + LogField.reason(of: error))
            let settlement = Settlement(
                record: Self.record(refusing: snapshot.record), refusal: error,
                aside: Self.setAside(refusing: snapshot.record))
            let stored = await store(settlement, id, over: snapshot) { _ in [] }
            return stored.flatMap { $0.isOvertaken ? .success($0) : .failure(error) }
        case .verified(let held, let told) where snapshot.record.isImportOfOtherUser(than: told):
            return await putAside(held, id, over: snapshot, at: tenant.configuration.preset)
        case .verified(var held, let told):
            if waiting.origin == .imported { held.userID = held.identity.userID ?? held.userID }
            if let earlier = waiting.earlier, waiting.origin.isRenewal, earlier.isOfOtherUser(than: told) {
                // With the newest refresh token, which works if the provider was wrong about the user.
                let newest = Self.record(refusing: snapshot.record).held ?? earlier
                return await end(id, snapshot, newest, at: tenant.configuration.preset)
            }
            if waiting.earlier?.learnsSubject(from: held) == true {
                records.log.info("subject_adopted", LogField.credentials(id))
            }
            let now = time.now
            // Only a verified token tells whether the login is of the user who was logged in before.
            let held = waiting.origin.isRenewal ? held : held.verifiedLogin(after: waiting.earlier, at: now)
            var record = snapshot.record.settled(to: held)
            let dropped =
                waiting.origin.isRenewal ? nil : records.keepRefreshToken(in: &record, of: waiting.earlier, id)
            let served = record.held ?? held
            let stored = await store(Settlement(record: record), id, over: snapshot) { version in
                let updated = BrokerEvent.updated(
                    id, to: served, version: version, by: waiting.origin.cause, refresh?.refreshID, at: now)
                guard let refresh else { return [updated] }
                let kinds = [.refreshFetchedKeys] + BrokerEvent.Kind.verifying(by: tenant.configuration)
                return BrokerEvent.steps(kinds, storing: updated, of: refresh, at: now)
            }
            if let dropped, case .success(.new) = stored { records.noteDropped(dropped, id) }
            // A token that has expired while it waited is refreshed like any other.
            return served.expires > now ? stored : stored.map { _ in .overtaken }
        }
    }

    /// The record after its set was refused.
    static func record(refusing record: CredentialRecord) -> CredentialRecord {
        guard let waiting = record.waiting, let granted = record.granted else { return record }
        if waiting.origin == .imported, !waiting.hasSessionBefore {
            return record.settled(to: granted.unserved(at: waiting.granted))
        }
        var kept = waiting.earlier
        if waiting.origin.isRenewal, let successor = granted.refreshToken, successor != kept?.refreshToken {
            kept = kept?.renewing(refreshToken: successor, usableFrom: granted.refreshableFrom)
        }
        var settled = record.settled(to: kept)
        settled.heldSince = record.heldSince
        // The set before an import's was not renewed by that.
        if waiting.origin == .imported { settled.renewed = nil }
        return settled
    }

    /// What becomes of a set that has waited.
    struct Settlement: Sendable {
        let record: CredentialRecord
        /// Why the set is not served; nil for a verified one.
        var refusal: BrokerError?
        /// Its refresh token is put aside in the same commit; nil for nothing.
        var aside: HeldCredentials?
    }

    func store(
        _ settlement: Settlement, _ id: CredentialsID, over snapshot: CredentialsSnapshot,
        events: @escaping CredentialsRecords.Events
    ) async -> Result<Renewed, BrokerError> {
        let refusal = settlement.refusal
        do throws(StoreError) {
            var (record, events) = (settlement.record, events)
            var (changes, isCancelled): ([VaultChange], Bool) = ([], false)
            var signal: (@Sendable () -> Void)?
            if let waiting = snapshot.record.waiting, let login = waiting.login,
                let ending = endings.withLock({ $0[waiting.origin] })
            {
                switch try await ending(id, login, refusal) {
                case .ended: break
                case .ends(let change, let event, let afterwards):
                    (changes, signal) = ([change], afterwards)
                    events = { [events] version in events(version) + [event] }
                case .cancelled:
                    (record, events, isCancelled) = (Self.record(refusing: snapshot.record), { _ in [] }, true)
                }
            }
            if let aside = settlement.aside {
                changes += try await records.changes(puttingAside: aside, id, for: quarantine)
            }
            let stored = try await records.write(record, id, over: snapshot, alongside: changes, events: events)
            signal?()
            if isCancelled { return .success(.overtaken) }
            if refusal == nil {
                records.log.info("credentials_verified", LogField.credentials(id) + [.version(stored.version)])
            }
            return .success(.new(stored, life: (stored.record.held?.expires).map { records.time.now.duration(to: $0) }))
        } catch .conflict {
            return .success(.overtaken)
        } catch {
            records.report(error, id)
            return .failure(BrokerError(error))
        }
    }

    /// Ends the session whose refresh brought another user's tokens, and quarantines its credentials.
    private func end(
        _ id: CredentialsID, _ snapshot: CredentialsSnapshot, _ earlier: HeldCredentials, at preset: ProviderPreset
    ) async -> Result<Renewed, BrokerError> {
        let now = records.time.now
        records.log.error("subject_changed", LogField.credentials(id) + [.provider(preset)])
        do throws(StoreError) {
            let session = EndedSession(.revoked, at: now, for: .subjectChanged)
            let empty = CredentialRecord(
                held: nil, ended: snapshot.record.granted?.refreshTokenDigest, session: session)
            _ = try await records.write(
                empty, id, over: snapshot,
                alongside: try await records.changes(.keep(earlier, for: quarantine, after: session), id),
                endingSessionsBy: .revoked
            ) { version in BrokerEvent.subjectChanged(id, from: earlier, version: version, nil, at: now) }
            // Of several replicas that verify one set, the one counts whose commit is carried out.
            metrics.subjectChanged(provider: preset.name)
            return .failure(.subjectChanged)
        } catch .conflict {
            return .success(.overtaken)
        } catch {
            records.report(error, id)
            return .failure(BrokerError(error))
        }
    }

    private static let otherProvider = BrokerError(
        .illegalConfiguration,
        "The credentials wait for their verification, and belong to another provider address than the one that is "
            + "configured. Configure that address again, or have the user log in anew.")
}

extension BrokerEvent.Kind {
    /// The steps of a refresh in which a tenant's tokens are verified, once the provider's keys are there.
    static func verifying(by configuration: TenantConfiguration) -> [BrokerEvent.Kind] {
        let verification = configuration.effectiveTokenVerification
        return (verification?.accessToken == nil ? [] : [.refreshVerifyingAccessToken])
            + (verification?.refreshToken == nil ? [] : [.refreshVerifyingRefreshToken])
    }
}

extension CredentialsRenewer.Renewed {
    fileprivate var isOvertaken: Bool { if case .overtaken = self { true } else { false } }
}

extension WaitingVerification.Origin {
    /// Whether a renewal of credentials has brought the set, and not a login.
    var isRenewal: Bool {
        switch self {
        case .refresh, .upgrade, .client: true
        case .login, .device, .activation, .imported: false
        }
    }

    /// - Parameter cause: that of a renewal. The creation of an account has the cause of a login.
    init(_ cause: BrokerEvent.Origin) {
        self =
            switch cause {
            case .client: .client
            case .upgrade: .upgrade
            case .login: .activation
            case .refresh, .device, .set, .restored, .recovery: .refresh
            }
    }

    /// The cause that the event of the set names.
    var cause: BrokerEvent.Origin {
        switch self {
        case .login, .activation: .login
        case .device: .device
        case .refresh: .refresh
        case .upgrade: .upgrade
        case .client: .client
        case .imported: .set
        }
    }
}

extension BrokerError {
    /// What callers get while the provider's keys do not answer.
    var asMissingKeys: BrokerError {
        switch code {
        case .retryableError, .storageUnavailable, .networkError, .illegalConfiguration, .providerUntrusted: self
        default: BrokerError(.networkError, detail, errorCode: errorCode, retryAfter: retryAfter ?? 5)
        }
    }
}
