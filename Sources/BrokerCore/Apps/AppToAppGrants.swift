import CredentialStore
package import Cryptography
package import ExternalText
import HTTPCodec
import JOSE
import OAuth
package import Reactor

/// The grants by which one app of a device lets another one in, and by which a biometric key logs its user in (Authgear's
/// design of app-to-app authentication).
///
/// Safe to use from any task.
package struct AppToAppGrants: Sendable {
    /// The parameters of the app2app grant, and those of a biometric request. Nil for one left out.
    package struct Request: Sendable {
        package var jwt: WireText?
        package var refreshToken: WireText?
        package var redirectURI: WireText?
        package var codeChallenge: WireText?
        package var codeChallengeMethod: WireText?
        /// When the request came; nil for now.
        package var arrival: MonotonicInstant?

        package init(
            jwt: WireText?, refreshToken: WireText?, redirectURI: WireText?, codeChallenge: WireText?,
            codeChallengeMethod: WireText?, arrival: MonotonicInstant? = nil
        ) {
            self.arrival = arrival
            self.jwt = jwt
            self.refreshToken = refreshToken
            self.redirectURI = redirectURI
            self.codeChallenge = codeChallenge
            self.codeChallengeMethod = codeChallengeMethod
        }
    }

    let grants: AppGrants
    let challenges: AppChallenges
    private var sessions: AppSessions { grants.sessions }
    private var time: any Time { sessions.time }

    // MARK: Device keys

    /// The device key that a code's exchange binds, proven by the parameter `x_app2app_device_key_jwt`.
    /// - Returns: nil for a client whose sessions let no other apps in, whatever the parameter is.
    package func binding(
        _ text: WireText?, of client: AppClient
    ) async throws(AppError) -> AppSession.DeviceKey? {
        guard client.settings.allowsAppToApp, let text else { return nil }
        guard let proof = KeyProof(text, .device, now: time.now), let key = proof.key else { throw Self.payload }
        guard try await challenges.use(proof.challenge, for: .appToApp) else { throw Self.challenge }
        guard proof.isSigned(with: key) else { throw Self.signature }
        return AppSession.DeviceKey(key)
    }

    // MARK: The grant app2app

    /// Issues a code for another app, of the session that the refresh token names.
    /// - Parameter target: the client that is let in.
    package func approve(_ request: Request, for target: AppClient) async throws(AppError) -> SecretBytes {
        guard let jwt = request.jwt else { throw AppError(.invalidRequest, "jwt is required") }
        guard let refreshToken = request.refreshToken else {
            throw AppError(.invalidRequest, "refresh token is required")
        }
        guard request.redirectURI != nil else { throw AppError(.invalidRequest, "redirect uri is required") }
        let destination = try Self.destination(request, target)
        let (session, original) = try await liveSession(
            refreshToken, of: target.tenant, arrival(of: request))
        do throws(AppError) {
            guard original.settings.allowsAppToApp else { throw Self.notAllowed }
            if original.settings.requiresBiometricProtection {
                throw AppError(.accessDenied, "app2app requires biometric authentication")
            }
            guard let proof = KeyProof(jwt, .device, now: time.now), let key = proof.key else { throw Self.payload }
            guard try await challenges.use(proof.challenge, for: .appToApp) else { throw Self.challenge }
            return try await issue(for: target, destination, of: session, original, proof, key)
        } catch {
            await tell(session.credentialsID, target, error)
            throw error
        }
    }

    /// Issues a code, and binds the session to the key that has signed the proof, where its client binds insecurely: in one commit,
    /// so that no failure leaves a key bound.
    private func issue(
        for target: AppClient, _ destination: Destination, of found: AppSession, _ original: AppClient,
        _ proof: KeyProof,
        _ key: JSONWebKey
    ) async throws(AppError) -> SecretBytes {
        var session = found
        let id = session.credentialsID
        for _ in 0..<8 {
            let issued = try grants.codeToIssue(
                for: target, redirectURI: destination.redirectURI, codeChallenge: destination.codeChallenge, of: session
            )
            let event = BrokerEvent.appToApp(id, client: target.clientID, error: nil, at: time.now)
            let changes = [
                issued.change, .require(target.recordID), BrokerEvent.entry([event], of: id, at: time.now),
            ]
            if let bound = session.deviceKey {
                guard proof.isSigned(with: bound) else { throw Self.signature }
            } else {
                guard original.settings.bindsInsecurely else {
                    throw AppError(.invalidGrant, "app2app is not allowed in current session")
                }
                guard proof.isSigned(with: key) else { throw Self.signature }
            }
            do throws(StoreError) {
                if session.deviceKey != nil {
                    try await sessions.vault.commit(changes + [.require(session.recordID)])
                } else {
                    var next = session
                    next.deviceKey = AppSession.DeviceKey(key)
                    try await sessions.replace(next, original, alongside: changes)
                }
                sessions.bus.announce(id.tenant)
                return issued.code
            } catch .conflict {
                guard let standing = try await reread(session) else { throw AppError.invalidRefreshToken }
                session = standing
            } catch {
                throw AppError(BrokerError(error))
            }
        }
        throw AppError(.temporarilyUnavailable, "The session kept changing. Try again.")
    }

    private struct Destination {
        let redirectURI: String
        let codeChallenge: WireText
    }

    /// Where the other app gets its code, and what it proves itself by there.
    private static func destination(_ request: Request, _ target: AppClient) throws(AppError) -> Destination {
        let challenge: WireText
        do throws(CodeChallenge.Fault) {
            challenge = try CodeChallenge.read(request.codeChallenge, method: request.codeChallengeMethod)
        } catch {
            let text =
                switch error {
                case .missing: "code challenge is required"
                case .otherMethod: "only 'S256' PKCE transform is supported"
                case .malformed: "invalid code challenge"
                }
            throw AppError(.invalidRequest, text)
        }
        guard let given = request.redirectURI, RedirectURI.fault(given) == nil else {
            throw AppError(.invalidRequest, "invalid redirect URI")
        }
        guard let uri = target.redirectURI(given) else {
            throw AppError(.invalidRequest, "redirect URI is not allowed")
        }
        return Destination(redirectURI: uri, codeChallenge: challenge)
    }

    /// The session of a refresh token, of whichever client of the tenant, with that client, while its user is logged in. Counts a
    /// request of the user.
    private func liveSession(
        _ text: WireText, of tenant: TenantName, _ arrival: Timestamp?
    ) async throws(AppError) -> (AppSession, AppClient) {
        guard let token = AppSessionToken(text) else { throw .invalidRefreshToken }
        guard let known = try await sessions.known(token, of: tenant) else {
            throw try await sessions.isKnown(token) ? AppError.unknownTarget : AppError.invalidRefreshToken
        }
        guard let client = try await original(of: known) else {
            try await grants.limits.admit(known.credentialsID)
            throw Self.noOriginal
        }
        let found = try await sessions.find(token, of: client, arrival: arrival).session
        guard let session = try await grants.loggedIn(found) else {
            throw AppError.invalidRefreshToken
        }
        try await grants.limits.admit(session.credentialsID)
        return (session, client)
    }

    private func arrival(of request: Request) -> Timestamp? { request.arrival.map { time.timeOfDay(at: $0) } }

    /// The client of a session; nil where it is not configured any more.
    private func original(of session: AppSession) async throws(AppError) -> AppClient? {
        do throws(BrokerError) {
            return try await grants.clients.client(WireText(session.clientID), of: session.tenant)
        } catch {
            throw AppError(error)
        }
    }

    /// Tells listeners that another app was not let in. The app is told whatever becomes of that.
    private func tell(_ id: CredentialsID, _ target: AppClient, _ error: AppError) async {
        if error.status == .serviceUnavailable { return }
        let event = BrokerEvent.appToApp(id, client: target.clientID, error: error.code.rawValue, at: time.now)
        do throws(StoreError) {
            try await sessions.records.commit([], events: [event], of: id)
        } catch {
            sessions.log.storeFailed(error, LogField.credentials(id))
        }
    }

    // MARK: Biometric keys

    /// The result of a biometric request.
    package enum Biometric: Sendable {
        case isSetUp
        /// The body of the answer.
        case tokens(SecretBytes)
    }

    private enum Action: String, CaseIterable {
        case setUp = "setup"
        case authenticate
        case authenticateAppToApp = "authenticate_app2app"
    }

    /// Sets up a biometric key, logs its user in, or lets another app in besides.
    package func biometric(
        _ request: Request, for client: AppClient
    ) async throws(AppError) -> Biometric {
        guard let jwt = request.jwt else { throw AppError(.invalidRequest, "jwt is required") }
        guard let proof = KeyProof(jwt, .biometric, now: time.now) else { throw Self.credentials }
        guard let action = proof.action.flatMap({ Action($0) }) else {
            throw AppError(.invalidRequest, "invalid action: \(AppError.plain(proof.action?.prefix(64).text ?? ""))")
        }
        switch action {
        case .setUp:
            try await setUp(request, proof, client)
            return .isSetUp
        case .authenticate: return .tokens(try await authenticate(proof, client, nil))
        case .authenticateAppToApp:
            return .tokens(try await authenticate(proof, client, try await target(request, proof, client)))
        }
    }

    /// The app that is to be let in by a biometric login.
    private func target(
        _ request: Request, _ proof: KeyProof, _ client: AppClient
    ) async throws(AppError) -> (AppClient, Destination) {
        guard client.settings.allowsAppToApp else { throw Self.notAllowed }
        guard let clientID = proof.clientID else { throw AppError(.invalidRequest, "client id is required") }
        let target: AppClient?
        do throws(BrokerError) {
            target = try await grants.clients.client(clientID, of: client.tenant)
        } catch {
            throw AppError(error)
        }
        guard let target else { throw AppError.unknownTarget }
        guard request.redirectURI != nil else { throw AppError(.invalidRequest, "redirect uri is required") }
        return (target, try Self.destination(request, target))
    }

    private func setUp(
        _ request: Request, _ proof: KeyProof, _ client: AppClient
    ) async throws(AppError) {
        guard client.settings.allowsBiometrics else {
            throw AppError(.unauthorizedClient, "this client may not set up biometric keys")
        }
        guard var session = try await grants.loggedIn(try await sessionToSetUp(request, client)) else {
            throw Self.unauthenticated
        }
        try await grants.limits.admit(session.credentialsID)
        guard let key = proof.key, let keyID = key.keyID else { throw Self.credentials }
        guard try await challenges.use(proof.challenge, for: .biometric), proof.isSigned(with: key) else {
            throw Self.credentials
        }
        let bound = AppSession.DeviceKey(key)
        for _ in 0..<8 {
            do throws(StoreError) {
                let known = try await sessions.vault.find(
                    .biometricKey, lookup: BiometricKey.lookup(client.tenant, keyID))
                let stored = try known.map { record throws(StoreError) in try BiometricKey(record) }
                if let stored {
                    guard stored.thumbprint == bound.thumbprint, stored.isBeside(session) else { throw .conflict }
                }
                // A key that belongs to an earlier login has ended with it.
                let created = stored.flatMap { $0.owner.login == session.login ? $0.created : nil } ?? time.now
                let made = BiometricKey(
                    keyID: keyID, bound, of: session, created: created, deviceInfo: proof.deviceInfo)
                var next = session
                next.biometricKey = .init(keyID: keyID.text, thumbprint: bound.thumbprint)
                next.deviceInfo = proof.deviceInfo ?? session.deviceInfo
                let change: VaultChange =
                    known.map {
                        .replace(
                            made.record(client.tenant, version: sessions.records.nextVersion(after: $0.version)),
                            version: $0.version)
                    } ?? .insert(made.record(client.tenant, version: sessions.records.nextVersion(after: 0)))
                try await sessions.replace(
                    next, client,
                    alongside: [change] + (try await removal(of: session.biometricKey, unless: keyID, session)))
                return
            } catch .conflict {
                guard let standing = try await reread(session) else { throw Self.credentials }
                if standing.version == session.version { throw Self.credentials }
                session = standing
            } catch {
                throw AppError(BrokerError(error))
            }
        }
        throw AppError(.temporarilyUnavailable, "The session kept changing. Try again.")
    }

    /// The change that removes the biometric key which the session had before: it would not end with the session any more.
    private func removal(
        of earlier: AppSession.BiometricKey?, unless keyID: WireText, _ session: AppSession
    ) async throws(StoreError) -> [VaultChange] {
        guard let earlier, WireText(earlier.keyID) != keyID else { return [] }
        let id = BiometricKey.recordID(session.credentialsID, WireText(earlier.keyID))
        return try await sessions.vault.version(of: id).map { [.remove(id, version: $0)] } ?? []
    }

    private func reread(_ session: AppSession) async throws(AppError) -> AppSession? {
        do throws(StoreError) {
            return try await sessions.reread(session.recordID)
        } catch {
            throw AppError(BrokerError(error))
        }
    }

    /// The session that gets a biometric key: that of the refresh token. An access token is not enough, since the tenant's API keys
    /// read the same one.
    private func sessionToSetUp(_ request: Request, _ client: AppClient) async throws(AppError) -> AppSession {
        guard let token = request.refreshToken.flatMap({ AppSessionToken($0) }) else { throw Self.unauthenticated }
        do throws(AppError) {
            return try await sessions.find(token, of: client, arrival: arrival(of: request)).session
        } catch {
            throw error.code == .invalidGrant ? Self.unauthenticated : error
        }
    }

    /// Begins a session for the user of a biometric key, and ends those that were begun with it before.
    private func authenticate(
        _ proof: KeyProof, _ client: AppClient, _ target: (client: AppClient, destination: Destination)?
    ) async throws(AppError) -> SecretBytes {
        let key: BiometricKey
        do throws(StoreError) {
            guard let keyID = proof.keyID ?? proof.key?.keyID,
                let record = try await sessions.vault.find(
                    .biometricKey, lookup: BiometricKey.lookup(client.tenant, keyID))
            else { throw .conflict }
            key = try BiometricKey(record)
        } catch .conflict {
            throw Self.credentials
        } catch {
            throw AppError(BrokerError(error))
        }
        guard WireText(key.clientID) == WireText(client.clientID), key.created >= client.created else {
            throw Self.credentials
        }
        let id = CredentialsID(tenant: client.tenant, storageKey: key.storageKey)
        // A request that proves nothing must not use up what its user may ask for.
        guard proof.isSigned(with: AppSession.DeviceKey(jwk: key.jwk, thumbprint: key.thumbprint)) else {
            throw Self.credentials
        }
        try await grants.limits.admit(id)
        guard try await challenges.use(proof.challenge, for: .biometric) else { throw Self.credentials }
        let held = try await grants.held(id, of: client, as: key.owner)
        guard key.owner.isOf(held) else { throw Self.credentials }
        let begun = try grants.begin(
            id, client, held,
            AppGrants.Beginning(
                userID: key.userID, biometricKey: .init(keyID: key.keyID.text, thumbprint: key.thumbprint),
                begunWith: key.keyID.text, deviceInfo: proof.deviceInfo ?? key.deviceInfo))
        var changes: [VaultChange] = [.require(key.record(client.tenant, version: 1).id)]
        var code: SecretBytes?
        if let target {
            let issued = try grants.codeToIssue(
                for: target.client, redirectURI: target.destination.redirectURI,
                codeChallenge: target.destination.codeChallenge, of: begun.session)
            code = issued.code
            let event = BrokerEvent.appToApp(id, client: target.client.clientID, error: nil, at: time.now)
            changes += [
                issued.change, .require(target.client.recordID), BrokerEvent.entry([event], of: id, at: time.now),
            ]
        }
        let digest = SHA256.digest(proof.challenge.utf8.span)
        guard try await grants.commit(begun, client, changes, presented: digest) else { throw Self.credentials }
        await endOthers(begun.session, with: key)
        return grants.answer(begun, code: code)
    }

    private func endOthers(_ session: AppSession, with key: BiometricKey) async {
        do throws(StoreError) {
            var after: String?
            while true {
                let (page, next) = try await sessions.list(
                    of: session.tenant, storageKey: session.storageKey, after: after, limit: 100)
                for other in page where other.begunWith.map({ WireText($0) == key.keyID }) ?? false {
                    if other.id != session.id { _ = try await sessions.end(other.recordID, by: .revoked) }
                }
                guard let next else { return }
                after = next
            }
        } catch {
            // They end at the next login with the key, or when they expire.
            sessions.log.storeFailed(error, LogField.credentials(session.credentialsID))
        }
    }

    // MARK: Errors

    private static let payload = AppError(.invalidRequest, "invalid app2app jwt payload")
    private static let challenge = AppError(.invalidRequest, "invalid app2app jwt challenge")
    private static let signature = AppError(.invalidRequest, "invalid app2app jwt signature")
    private static let notAllowed = AppError(
        .unauthorizedClient, "this client may not use app2app authentication")
    private static let credentials = AppError(.invalidGrant, "InvalidCredentials")
    private static let noOriginal = AppError(
        .serverError, "cannot find original client for app2app", status: .badRequest)
    private static let unauthenticated = AppError(
        .invalidGrant, "biometric setup requires authenticated user", status: .unauthorized)
}
