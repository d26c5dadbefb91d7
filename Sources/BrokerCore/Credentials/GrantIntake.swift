import CredentialStore
import Cryptography
package import ExternalText
package import OAuth

/// Takes in what a provider has granted to a login: makes it durable, verifies it, and only then lets it be served.
///
/// Where the provider's keys are known, the set is verified in memory and stored once. Where they are not, it is stored at once
/// beside the credentials before it, so that nothing is lost, and verified when the keys are there: by this call, by a later
/// reader, or by `ExpiryJob` of any replica.
package struct GrantIntake: Sendable {
    /// What a login was granted.
    package struct Grant: Sendable {
        let credentials: HeldCredentials
        let idToken: SecretBytes?
        /// That of the authorization request; nil where it had none.
        let nonce: WireText?
        let origin: WaitingVerification.Origin
        /// The key of the login's record; nil where it has none.
        let login: String?
        /// The registration and the endpoints that the login began with.
        let configuration: TenantConfiguration
        let server: AuthorizationServer
        let granted: Timestamp

        package init(
            _ response: TokenResponse, origin: WaitingVerification.Origin, nonce: WireText? = nil, login: String? = nil,
            deviceKey: DeviceKey? = nil, to configuration: TenantConfiguration, by server: AuthorizationServer,
            now: Timestamp
        ) {
            var credentials = HeldCredentials(
                granted: response, level: .user, to: configuration.client, by: server, isLogin: true, now: now)
            credentials.deviceKey = deviceKey
            self.credentials = credentials
            idToken = response.idToken
            self.nonce = nonce
            self.origin = origin
            self.login = login
            self.configuration = configuration
            self.server = server
            granted = now
        }
    }

    package enum Outcome: Sendable {
        /// The credentials may be served.
        /// - Parameter waited: whether they were stored before they were verified, in a commit of their own.
        case stored(CredentialsSnapshot, waited: Bool)
        /// A token is not believed, which showed when the set was stored already. The credentials before are in place, and the
        /// login has ended.
        case refused(BrokerError)
        /// The credentials are stored, and wait for the provider's keys. The error says why.
        case waits(BrokerError)
        /// Another change has come first, or the companions said that nothing is to be stored.
        /// - Parameter wasStored: whether the credentials were stored before, and waited for the provider's keys. Then another
        ///   replica has verified and renewed them, or they were replaced, or their login was cancelled, which has them revoked.
        case dropped(wasStored: Bool)
    }

    /// As `CredentialsWriter.Companions`, and told whether the set waits for its verification, and what is stored.
    typealias Companions =
        (_ isWaiting: Bool, _ held: HeldCredentials) async throws(StoreError)
        -> (changes: [VaultChange], events: [BrokerEvent])?

    private let verifier: GrantVerifier
    private let writer: CredentialsWriter
    private let renewer: CredentialsRenewer
    private let revocations: RevocationJob

    var records: CredentialsRecords { renewer.records }

    init(
        verifier: GrantVerifier, writer: CredentialsWriter, renewer: CredentialsRenewer, revocations: RevocationJob
    ) {
        self.verifier = verifier
        self.writer = writer
        self.renewer = renewer
        self.revocations = revocations
    }

    /// Sets how logins of a kind end whose grants have waited. To be called before the first grant.
    func setLoginEnding(
        of origin: WaitingVerification.Origin, _ ending: @escaping GrantVerification.LoginEnding
    ) {
        renewer.verification.setEnding(of: origin, ending)
    }

    /// Verifies a grant without storing anything, for a login whose storage key its user decides.
    /// - Throws: `token_response_error` where a token is not believed; `network_error` where the provider's keys are not there.
    func verified(_ grant: Grant) async throws(BrokerError) -> HeldCredentials {
        let unverified = GrantVerifier.Grant.login(grant.credentials, idToken: grant.idToken, nonce: grant.nonce)
        switch await verifier.verdict(on: unverified, of: grant.configuration, at: grant.server, waits: true) {
        case .refused(let error), .unavailable(let error): throw error
        case .verified(let held, _): return held
        }
    }

    /// Stores and verifies a grant. A store that does not take it is asked again until it does.
    /// - Parameter stalled: see `CredentialsWriter.settle`.
    /// - Throws: `token_response_error` where a token is not believed before anything was stored; the credentials before stay.
    func take(
        _ grant: Grant, for id: CredentialsID, alongside companions: Companions, stalled: () -> Void = {}
    ) async throws(BrokerError) -> Outcome {
        let unverified = GrantVerifier.Grant.login(grant.credentials, idToken: grant.idToken, nonce: grant.nonce)
        switch await verifier.verdict(on: unverified, of: grant.configuration, at: grant.server, waits: false) {
        case .refused(let error): throw error
        case .verified(let held, _):
            let stored = try await writer.settle(login: held, by: grant.origin.cause, for: id) {
                held async throws(StoreError) in
                try await companions(false, held)
            } renewing: {
                await renewer.awaitRenewal(id)
            } stalled: {
                stalled()
            }
            return stored.map { .stored($0, waited: false) } ?? .dropped(wasStored: false)
        case .unavailable:
            let stored = try await writer.settle(login: grant.credentials, by: grant.origin.cause, for: id) { earlier in
                WaitingVerification(
                    origin: grant.origin, replacing: earlier, idToken: grant.idToken, nonce: grant.nonce,
                    login: grant.login, granted: grant.granted)
            } alongside: { held async throws(StoreError) in
                try await companions(true, held)
            } stalled: {
                stalled()
            }
            guard let stored else { return .dropped(wasStored: false) }
            return try await verify(stored, id)
        }
    }

    /// Removes the record of a login whose set waits for its verification. In the same commit, the set is dropped, the credentials
    /// before it are in place again, and the set is to be revoked. Where no set of the login waits any more, only the record
    /// is removed.
    /// - Parameters:
    ///   - login: the key of the login's record.
    ///   - removal: the change that removes that record.
    /// - Throws: `.conflict` where a record has changed meanwhile; then nothing was stored.
    func withdraw(
        _ login: String, from origin: WaitingVerification.Origin, _ id: CredentialsID, of tenant: Tenant,
        _ removal: VaultChange
    ) async throws(StoreError) {
        let current = try await records.reread(id)
        guard let waiting = current.record.waiting, let set = current.record.granted, waiting.login == login,
            waiting.origin == origin
        else { return try await records.commit([removal]) }
        let revocation = set.mayBeShared(with: waiting.earlier) ? [] : revocations.revocation(of: set, id, of: tenant)
        _ = try await records.write(
            GrantVerification.record(refusing: current.record), id, over: current,
            alongside: [removal] + revocation
        ) { _ in [] }
        if !revocation.isEmpty { revocations.beginSoon() }
    }

    /// Whether the stored credentials may be of the same grant as those of a login that were dropped, so that a revocation would end
    /// their session. Also true where the store does not answer.
    func isHeld(_ grant: Grant, _ id: CredentialsID) async -> Bool {
        await records.mayHold(grantOf: grant.credentials, id)
    }

    private func verify(_ stored: CredentialsSnapshot, _ id: CredentialsID) async throws(BrokerError) -> Outcome {
        var snapshot = stored
        for _ in 0..<8 {
            guard let tenant = try await renewer.tenants.currentTenant(id.tenant) else {
                return .dropped(wasStored: false)
            }
            switch await renewer.verification.verify(id, of: tenant, snapshot) {
            case .success(.new(let verified, _)): return .stored(verified, waited: true)
            case .success(.overtaken):
                do throws(StoreError) {
                    snapshot = try await records.reread(id, requiringTombstones: false)
                } catch {
                    throw BrokerError(error)
                }
                let isSame = snapshot.record.granted?.accessToken == stored.record.granted?.accessToken
                guard isSame else { return .dropped(wasStored: true) }
                if snapshot.record.waiting == nil { return .stored(snapshot, waited: true) }
            case .failure(let error): return error.code == .tokenResponseError ? .refused(error) : .waits(error)
            }
        }
        return .waits(BrokerError(.retryableError, "The credentials kept changing. Ask again.", retryAfter: 1))
    }
}
