import CredentialStore
import Cryptography
package import ExternalText
import JSON
package import OAuth
import Reactor
import Waiting

/// Logs users in at a provider by a key that their device guards by biometrics. The key is not here: the caller has the proofs
/// signed. What is stored is which keys there are.
///
/// Safe to use from any task.
package final class BiometricLogins: Sendable {
    /// What a proof is made of.
    package struct Material: Sendable {
        package let keyID: String
        package let challenge: WireText
        package let rules: ProviderPreset.AppToAppRules
        package let now: Timestamp
    }

    /// How a login by a key has ended.
    package struct Ended: Sendable {
        /// What the app is told that was to be let in; nil where there was none.
        package let answer: AppToAppFlow.Outcome?
        /// Why the provider did not log the user in; nil where it did.
        package let refusal: BrokerError?
        /// Whether the provider does not know the key.
        package let isUnknownKey: Bool
    }

    /// The names of the keys that the device may have.
    fileprivate struct Keys: Equatable {
        /// The key that the provider knows; nil for none.
        var active: String?
        /// Keys that are to be removed from the device: one whose set-up has not ended well, or that another one has replaced.
        var spare: [String] = []
    }

    private let renewer: CredentialsRenewer
    private let credentials: CredentialsProvider
    private let intake: GrantIntake
    private let flights: SingleFlight<RefreshID, Result<Ended, BrokerError>>

    /// Random octets of a key's name.
    private static let nameBytes = 16
    private static let tries = 8

    init(renewer: CredentialsRenewer, credentials: CredentialsProvider, intake: GrantIntake) {
        self.renewer = renewer
        self.credentials = credentials
        self.intake = intake
        flights = SingleFlight(on: renewer.providers.endpoint.executor)
    }

    // MARK: Keys

    /// The name of the key that the provider knows; nil for none.
    package func activeKey(of id: CredentialsID) async throws(BrokerError) -> String? { try await keys(of: id).active }

    /// The names of the keys that are to be removed from the device before another one is made.
    package func spareKeys(of id: CredentialsID) async throws(BrokerError) -> [String] { try await keys(of: id).spare }

    /// Chooses the name of a new key, and remembers it as one to be removed until it is set up.
    /// - Throws: `unauthenticated` where no user is logged in.
    package func beginSetUp(_ id: CredentialsID) async throws(BrokerError) -> String {
        guard try await credentials.stored(id).record.granted?.level == .user else { throw Self.noUser }
        let name: String
        do throws(CryptographyError) {
            name = Base64URL.encode(try SecureRandom.bytes(Self.nameBytes))
        } catch {
            throw BrokerError(.internalError, "The system's source of random numbers failed.")
        }
        try await change(id) { keys in
            keys.spare.append(name)
            return nil
        }
        return name
    }

    /// Remembers that the device has these keys no more.
    package func forget(_ names: [String], of id: CredentialsID) async throws(BrokerError) {
        try await change(id) { keys in
            keys.spare.removeAll { names.contains($0) }
            if let active = keys.active, names.contains(active) { keys.active = nil }
            return nil
        }
    }

    private func keys(of id: CredentialsID) async throws(BrokerError) -> Keys {
        do throws(StoreError) {
            return try await stored(id).keys
        } catch {
            throw failure(error, id)
        }
    }

    private func stored(_ id: CredentialsID) async throws(StoreError) -> (keys: Keys, version: Int64?) {
        guard let record = try await renewer.records.vault.read(Self.recordID(id)) else { return (Keys(), nil) }
        guard let keys = Keys(record.content.revealedBytes) else {
            throw .damaged("the biometric keys of tenant \(id.tenant) cannot be read by this version")
        }
        return (keys, record.version)
    }

    /// Changes what is stored of the keys.
    /// - Parameter body: makes the change, for each try anew, or returns why it must not be made.
    private func change(
        _ id: CredentialsID, _ body: (inout Keys) -> BrokerError?
    ) async throws(BrokerError) {
        let records = renewer.records
        for _ in 0..<Self.tries {
            let known: (keys: Keys, version: Int64?)
            do throws(StoreError) {
                known = try await stored(id)
            } catch {
                throw failure(error, id)
            }
            var keys = known.keys
            if let refusal = body(&keys) { throw refusal }
            if keys == known.keys { return }
            do throws(StoreError) {
                let version = known.version
                let record = OpenRecord(
                    id: Self.recordID(id), version: records.nextVersion(after: version ?? 0),
                    content: SecretBytes(keys.encoded))
                let write: VaultChange = version.map { .replace(record, version: $0) } ?? .insert(record)
                try await records.vault.commit([.require(RecordID(.tenant, id.tenant)), write])
                return
            } catch .conflict {
                continue
            } catch {
                throw failure(error, id)
            }
        }
        throw BrokerError(.retryableError, "The biometric keys kept changing. Try again.", retryAfter: 1)
    }

    private func failure(_ error: StoreError, _ id: CredentialsID) -> BrokerError {
        renewer.records.report(error, id)
        return BrokerError(error)
    }

    private static func recordID(_ id: CredentialsID) -> RecordID {
        RecordID(.biometricLogin, id.tenant, key: id.storageKey.description)
    }

    // MARK: Requests

    /// Asks the provider for what a proof with that key is made of.
    /// - Throws: `network_error`, `retryable_error`, `provider_untrusted`; `illegal_configuration` where the provider has no
    ///   challenges or refuses.
    package func material(keyID: String, of tenant: Tenant) async throws(BrokerError) -> Material {
        let server = try await renewer.providers.servers.server(for: tenant)
        let (challenge, rules) = try await renewer.providers.endpoint.biometricChallenge(at: server, of: tenant.name)
        return Material(keyID: keyID, challenge: challenge, rules: rules, now: renewer.time.now)
    }

    /// Has the provider know a key for the user who is logged in. Repeating it with another proof of the same key does no harm.
    /// - Returns: the name of the key that this one has replaced, which is to be removed from the device; nil for none.
    /// - Throws: `unauthenticated` where no user is logged in; `unexpected_error` where the provider refuses; `network_error`,
    ///   `retryable_error`, `provider_untrusted`, `illegal_configuration`; `conflict` where another call has begun meanwhile.
    package func setUp(
        _ keyID: String, proof: WireText, _ id: CredentialsID, of tenant: Tenant
    ) async throws(BrokerError) -> String? {
        let query = CredentialsQuery(lowestLevel: .user)
        let snapshot: CredentialsSnapshot
        do throws(BrokerError) {
            snapshot = try await credentials.credentials(id, of: tenant, query, patience: nil).snapshot
        } catch {
            let isOfNoUser = [.levelNotAvailable, .missingTokenContainer].contains(error.code) && !error.isSessionKept
            throw isOfNoUser ? Self.noUser : error
        }
        guard let held = snapshot.record.held,
            let server = try await renewer.providers.servers.server(for: tenant, holding: held)
        else {
            throw BrokerError(
                .illegalConfiguration,
                "The credentials belong to another provider address than the one that is configured.")
        }
        let answer = try await renewer.providers.endpoint.send(
            biometricProof: proof, bearer: held.accessToken, refreshToken: held.refreshToken, lettingIn: nil,
            at: server, of: tenant)
        if case .refused(let error, _, _) = answer { throw error }
        var replaced: String?
        try await change(id) { keys in
            guard let place = keys.spare.firstIndex(of: keyID) else {
                return BrokerError(.conflict, "Another call has set up or removed biometric keys meanwhile.")
            }
            keys.spare.remove(at: place)
            replaced = keys.active
            if let active = keys.active { keys.spare.append(active) }
            keys.active = keyID
            return nil
        }
        renewer.log.info("biometric_key_set_up", LogField.credentials(id))
        return replaced
    }

    /// Logs the key's user in by a proof, and stores the credentials in place of any others. Goes on when the caller's task is
    /// cancelled: the provider has opened a session by then, and ended the one that the key had begun before.
    ///
    /// While the provider is asked, no replica renews the credentials that are stored: a renewal could find its session ended and
    /// log the user out.
    /// - Parameter target: the app that is to be let in besides; nil for none.
    /// - Throws: `network_error`, `retryable_error`, `provider_untrusted`, `illegal_configuration`: the provider has not decided;
    ///   `token_response_error` where its answer lacks something or a token is not believed; `not_found` where the tenant is gone.
    package func logIn(
        by proof: WireText, _ id: CredentialsID, of tenant: Tenant, lettingIn target: AppToAppRequest?
    ) async throws(BrokerError) -> Ended {
        try await flights.runToEnd(
            RefreshID(), on: renewer.providers.endpoint.executor,
            interruption: "The request ended before the provider decided.",
            work: { () async throws(BrokerError) in try await self.ask(proof, id, tenant, target) },
            reporting: { error in
                self.renewer.log.warning(
                    "biometric_login_failed", LogField.credentials(id) + LogField.reason(of: error))
            })
    }

    private func ask(
        _ proof: WireText, _ id: CredentialsID, _ tenant: Tenant, _ target: AppToAppRequest?
    ) async throws(BrokerError) -> Ended {
        let server = try await renewer.providers.servers.server(for: tenant)
        guard let known = try await credentials.stored(id).record.granted, known.level == .user,
            known.refreshToken != nil
        else {
            return try await exchange(proof, id, tenant, target, at: server)
        }
        let use = SessionUse(renewer, id, of: tenant)
        return try await use.run(at: server) { _ in
            nil
        } _: { held throws(BrokerError) in
            let ended = try await self.exchange(proof, id, tenant, target, at: server)
            await use.end(held, telling: [])
            return ended
        }
    }

    private func exchange(
        _ proof: WireText, _ id: CredentialsID, _ tenant: Tenant, _ target: AppToAppRequest?,
        at server: AuthorizationServer
    ) async throws(BrokerError) -> Ended {
        let (records, now) = (renewer.records, renewer.time.now)
        let answer = try await renewer.providers.endpoint.send(
            biometricProof: proof, bearer: nil, refreshToken: nil, lettingIn: target, at: server, of: tenant)
        switch answer {
        case .refused(let error, let isUnknownKey, let description):
            let name = error.errorCode ?? AppToAppFlow.unknown
            if let target { await tell(id, target, error: name) }
            let answer = target.map {
                AppToAppFlow.Outcome(
                    redirectURI: $0.answer(error: WireText(name), description: description), error: name)
            }
            return Ended(answer: answer, refusal: error, isUnknownKey: isUnknownKey)
        case .accepted(let granted, let code):
            guard let response = granted, target == nil || code != nil else {
                throw BrokerError(.tokenResponseError, "The provider answered without a usable token or code.")
            }
            let grant = GrantIntake.Grant(
                response, origin: .activation, to: tenant.configuration, by: server, now: now)
            var approved: [BrokerEvent] = []
            if let target {
                approved = [.appToApp(id, client: AppToAppFlow.shown(target), error: nil, at: now)]
            }
            let outcome = try await intake.take(grant, for: id) { [approved] _, _ async throws(StoreError) in
                try await records.tenantExists(id) ? ([], approved) : nil
            }
            switch outcome {
            case .stored: break
            // The credentials are stored, and served once the provider's keys are there.
            case .waits(let error), .refused(let error): throw error
            case .dropped: throw BrokerError.noSuchTenant
            }
            renewer.log.info("biometric_login_completed", LogField.credentials(id))
            var answer: AppToAppFlow.Outcome?
            if let target, let code { answer = .init(redirectURI: target.answer(code: code), error: nil) }
            return Ended(answer: answer, refusal: nil, isUnknownKey: false)
        }
    }

    /// Tells listeners that another app was not let in. The app is told whatever becomes of that.
    private func tell(_ id: CredentialsID, _ target: AppToAppRequest, error: String) async {
        let event = BrokerEvent.appToApp(
            id, client: AppToAppFlow.shown(target), error: error, at: renewer.time.now)
        do throws(StoreError) {
            try await renewer.records.commit([], events: [event], of: id)
        } catch {
            renewer.records.report(error, id)
        }
    }

    private static let noUser = BrokerError(.unauthenticated, "No user is logged in under this storage key.")

    /// Suspends until no login is under way.
    func finish() async {
        await flights.finish()
    }

    /// Cancels the logins in flight.
    /// - Returns: how many logins were in flight.
    func cancelAll() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }
}

extension BiometricLogins.Keys {
    fileprivate var encoded: [UInt8] {
        JSONWriter.object { json in
            json.memberIfPresent("active", active)
            json.member("spare", spare)
        }
    }

    /// Nil for bytes that are not `encoded`.
    fileprivate init?(_ bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let spare = json["spare"]?.array else { return nil }
        active = json["active"]?.string?.text
        self.spare = spare.compactMap { $0.string?.text }
    }
}
