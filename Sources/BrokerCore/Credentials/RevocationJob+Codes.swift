import CredentialStore
import Cryptography
import OAuth
import Reactor

/// Codes whose login may end with its process.
extension RevocationJob {
    /// The record of a code that is being redeemed. Its removal belongs into the commit that stores the grant: it is a conflict
    /// once another process has taken the code over.
    struct CodeGuard: Sendable {
        let insertion: VaultChange
        let removal: VaultChange
        fileprivate let id: RecordID
        fileprivate let version: Int64
    }

    /// For how long a login may redeem a code until another process takes the code over: six calls, the waits between them, and
    /// those for a store that does not answer.
    private var longestRedemption: Duration { providers.callLimit * 6 + .seconds(30) }

    /// Makes the record of a code, which the commit that begins the redemption is to insert.
    func guardingCode(
        _ code: SecretBytes, of id: CredentialsID, redirectURI: String, codeVerifier: SecretBytes,
        at server: AuthorizationServer
    ) -> CodeGuard {
        let now = time.now
        let unsettled = UnsettledCode(
            storageKey: id.storageKey, code: code, redirectURI: redirectURI, codeVerifier: codeVerifier,
            tokenEndpoint: server.tokenEndpoint, asked: server.asked, begun: now, proofKey: server.proofKey)
        let record = newRecord(unsettled.encoded, of: id.tenant, since: now, due: now.advanced(by: longestRedemption))
        return CodeGuard(
            insertion: .insert(record), removal: .remove(record.id, version: record.version), id: record.id,
            version: record.version)
    }

    /// The changes that remove the record of a code: none where the store has lost the record. Nil where another process has taken
    /// the code over.
    func removal(of codeGuard: CodeGuard) async throws(StoreError) -> [VaultChange]? {
        guard let version = try await vault.version(of: codeGuard.id) else {
            return records.rollback.isDoubtful(codeGuard.version) ? [] : nil
        }
        return version == codeGuard.version ? [codeGuard.removal] : nil
    }

    /// Takes a code over whose login has not ended, and presents it to the provider.
    ///
    /// If the store has lost commits since the login began, the lost ones may have removed the record, together with storing the
    /// grant, which a replica has stored again since: then the provider would revoke the session that the user has. So the code is
    /// not presented, and a grant may be left at the provider that nothing uses.
    func settle(_ unsettled: UnsettledCode, _ due: DueRecord) async throws(StoreError) {
        if records.rollback.isDoubtful(due.version) {
            let id = CredentialsID(tenant: due.id.tenant, storageKey: unsettled.storageKey)
            log.warning("interrupted_login_in_doubt", LogField.credentials(id))
            return try await vault.commit([.remove(due.id, version: due.version)])
        }
        // A new version, so that the login cannot store any more what it was granted.
        let taken = Self.record(
            unsettled.encoded, due.id, version: due.version + 1, since: unsettled.begun,
            due: time.now.advanced(by: longestTry))
        try await vault.commit([.replace(taken, version: due.version)])
        try await vault.commit([await outcome(of: unsettled, taken)])
    }

    /// What is to become of the record of a code that this process has taken over.
    private func outcome(of unsettled: UnsettledCode, _ taken: OpenRecord) async -> VaultChange {
        let id = CredentialsID(tenant: taken.id.tenant, storageKey: unsettled.storageKey)
        let removal = VaultChange.remove(taken.id, version: taken.version)
        do throws(BrokerError) {
            guard let tenant = try await records.tenants.currentTenant(id.tenant) else { return removal }
            var server = try await providers.servers.server(for: tenant)
            guard server.tokenEndpoint == unsettled.tokenEndpoint else { return removal }
            (server.asked, server.proofKey) = (unsettled.asked, unsettled.proofKey)
            let response = try await providers.endpoint.redeem(
                .authorizationCode(
                    code: unsettled.code, redirectURI: unsettled.redirectURI, codeVerifier: unsettled.codeVerifier),
                for: tenant.configuration.client, of: id.tenant, at: server, as: RefreshID(), notesOutage: false,
                repeats: false)
            log.warning("interrupted_login_granted", LogField.credentials(id))
            guard server.canRevoke else { return removal }
            let held = HeldCredentials(
                granted: response, level: .user, to: tenant.configuration.client, by: server, now: time.now)
            if await records.mayHold(grantOf: held, id) { return removal }
            let pending = PendingRevocation(storageKey: id.storageKey, credentials: held, loggedOut: time.now)
            return .replace(
                Self.record(
                    pending.encoded, taken.id, version: taken.version + 1, since: unsettled.begun, due: time.now),
                version: taken.version)
        } catch {
            let fields = LogField.credentials(id) + LogField.reason(of: error)
            switch error.code {
            case .networkError, .retryableError, .storageUnavailable, .providerUntrusted:
                log.warning("interrupted_login_unsettled", fields)
                guard let next = unsettled.nextTry(after: time.now) else { return removal }
                return .settleDue(taken.id, version: taken.version, due: taken.due, next: next)
            default:
                // The provider refuses the code, and revokes what it has granted for it.
                log.warning("interrupted_login_settled", fields)
                return removal
            }
        }
    }
}
