package import CredentialStore
package import Cryptography
package import ExternalText
import HTTPCodec
import JSON
package import OAuth
package import Reactor

/// The token endpoint of apps: exchanges codes and refresh tokens for access tokens, and begins and ends sessions (RFC 6749 §4.1
/// and §6, RFC 7009).
///
/// An access token is what `GET /credentials` would answer, for at least a minute. Safe to use from any task.
package final class AppGrants: Sendable {
    /// The parameters of a code's exchange (RFC 6749 §4.1.3, RFC 7636 §4.5).
    package struct Exchange: Sendable {
        package let code: WireText
        package let redirectURI: WireText?
        package let codeVerifier: WireText?
        /// When the request came; nil for now.
        package let arrival: MonotonicInstant?

        package init(
            code: WireText, redirectURI: WireText?, codeVerifier: WireText?, arrival: MonotonicInstant? = nil
        ) {
            self.arrival = arrival
            self.code = code
            self.redirectURI = redirectURI
            self.codeVerifier = codeVerifier
        }
    }

    /// What a new session is made of.
    package struct Beginning: Sendable {
        package var userID: WireText?
        package var deviceKey: AppSession.DeviceKey?
        package var biometricKey: AppSession.BiometricKey?
        package var begunWith: String?
        package var deviceInfo: [UInt8]?

        package init(
            userID: WireText?, deviceKey: AppSession.DeviceKey? = nil, biometricKey: AppSession.BiometricKey? = nil,
            begunWith: String? = nil, deviceInfo: [UInt8]? = nil
        ) {
            self.biometricKey = biometricKey
            self.userID = userID
            self.deviceKey = deviceKey
            self.begunWith = begunWith
            self.deviceInfo = deviceInfo
        }
    }

    package let clients: AppClientDirectory
    package let sessions: AppSessions
    package let limits: TokenEndpointLimits
    let tenants: TenantDirectory
    let credentials: CredentialsProvider
    let vault: Vault
    let time: any Time
    let log: Log
    let audit: AuditTrail

    init(
        clients: AppClientDirectory, sessions: AppSessions, credentials: CredentialsProvider,
        limits: TokenEndpointLimits, audit: AuditTrail
    ) {
        self.clients = clients
        self.sessions = sessions
        self.limits = limits
        self.credentials = credentials
        self.audit = audit
        (tenants, vault) = (sessions.records.tenants, sessions.vault)
        (time, log) = (sessions.time, sessions.log)
    }

    // MARK: Grants

    /// Exchanges a code for the first tokens of a session.
    /// - Parameter binding: the device key that the session is bound to; nil for none. Called once the code is known to be good,
    ///   so that a bad one costs no challenge. Where it throws, the code stays usable.
    /// - Returns: the answer's body.
    package func exchange(
        _ exchange: Exchange, for client: AppClient,
        binding: () async throws(AppError) -> AppSession.DeviceKey? = { () async throws(AppError) in nil }
    ) async throws(AppError) -> SecretBytes {
        let digest = SHA256.digest(exchange.code.utf8.span)
        let id = AppCode.recordID(client.tenant, code: exchange.code.utf8.span)
        var deviceKey: AppSession.DeviceKey??
        for _ in 0..<16 {
            let record: OpenRecord
            let code: AppCode
            switch try await find(id, digest, exchange, client) {
            case .answered(let answer): return answer
            case .unused(let found, let content): (record, code) = (found, content)
            }
            let held = try await held(code.credentialsID, of: client, as: code.owner)
            // A code of a login that has ended is dead, also after the same user's next login.
            guard code.owner.isOf(held) else { throw .invalidCode }
            if deviceKey == nil {
                try await limits.admit(code.credentialsID)
                deviceKey = .some(try await binding())
            }
            var used = code
            let begun = try begin(
                code.credentialsID, client, held,
                Beginning(userID: code.userID ?? held.userID, deviceKey: deviceKey ?? nil))
            used.session = begun.session.id
            let use = VaultChange.replace(used.record(id, version: record.version + 1), version: record.version)
            if try await commit(begun, client, [use], presented: digest) { return begun.answer }
        }
        throw Self.busy
    }

    /// Gives an access token to the session of a refresh token, and with rotation a new refresh token.
    ///
    /// Where this cannot be done now, or takes long, the app is not late that presents the token again.
    /// - Parameters:
    ///   - arrival: when the request came; nil for now.
    ///   - client: finds the client, and throws where the request is not of one.
    /// - Returns: the answer's body.
    package func refresh(
        _ token: AppSessionToken, arrival: MonotonicInstant? = nil, for client: () async throws(AppError) -> AppClient
    ) async throws(AppError) -> SecretBytes {
        let arrival = sessions.deferred.begin(token.secretDigest, arrival: arrival.map { time.timeOfDay(at: $0) })
        var outcome = DeferredTokens.Outcome.refused
        defer { sessions.deferred.end(token.secretDigest, arrival: arrival, outcome) }
        do throws(AppError) {
            let answer = try await refresh(token, for: try await client(), arrival: arrival)
            outcome = arrival.duration(to: time.now) > Self.longestUsualWait ? .deferred : .answered
            return answer
        } catch {
            if error.status == .serviceUnavailable { outcome = .deferred }
            throw error
        }
    }

    /// The longest time that an app waits for an answer when the store and the provider answer as usual.
    static let longestUsualWait: Duration = .seconds(1)

    private func refresh(
        _ token: AppSessionToken, for client: AppClient, arrival: Timestamp
    ) async throws(AppError) -> SecretBytes {
        var isCounted = false
        for _ in 0..<16 {
            let found = try await sessions.find(token, of: client, arrival: arrival)
            if !isCounted {
                try await limits.admit(found.session.credentialsID)
                isCounted = true
            }
            switch found {
            case .repeated(let session, let answer):
                try await tell(ofAnswerFor: session.credentialsID, to: client)
                return answer
            case .delayed(let session, let answer): return try await renewed(answer, for: session, client)
            case .present(let session):
                let given = try await refreshed(session, client)
                if let answer = try await goOn(session, token, client, given) { return answer }
            }
        }
        throw Self.busy
    }

    /// Ends the session of a refresh token (RFC 7009). Does nothing for any other token.
    package func revoke(_ text: WireText, for client: AppClient) async throws(AppError) {
        guard let token = AppSessionToken(text) else { return }
        do throws(StoreError) {
            _ = try await sessions.end(
                RecordID(.session, client.tenant, key: token.sessionID), by: .revoked,
                isKnown: token.isAuthentic(in: vault),
                if: { WireText($0.clientID) == WireText(client.clientID) && $0.hasIssued(token, by: vault) })
        } catch {
            throw AppError(BrokerError(error))
        }
    }

    /// A code for another app of a session's user, and the change that issues it.
    func codeToIssue(
        for target: AppClient, redirectURI: String, codeChallenge: WireText, of session: AppSession
    ) throws(AppError) -> (code: SecretBytes, change: VaultChange) {
        do throws(BrokerError) {
            let secret = try AppCode.secret()
            let code = AppCode(
                for: (target.tenant, target.clientID), redirectURI: redirectURI, mustNameRedirectURI: true,
                codeChallenge: codeChallenge, of: session.credentialsID, userID: session.userID, login: session.login,
                origin: session.id, now: time.now)
            return (secret, code.insertion(as: secret))
        } catch {
            throw AppError(error)
        }
    }

    /// The session with the login that it belongs to, if its user is logged in, as far as this is known without asking the
    /// provider; nil where the login has ended.
    func loggedIn(_ session: AppSession) async throws(AppError) -> AppSession? {
        do throws(BrokerError) {
            if let found = loggedIn(session, try await credentials.lastKnown(session.credentialsID)) { return found }
        } catch {
            throw AppError(error)
        }
        do throws(StoreError) {
            // Another replica may have logged the user in just now.
            return loggedIn(session, try await sessions.records.reread(session.credentialsID))
        } catch {
            throw AppError(BrokerError(error))
        }
    }

    private func loggedIn(_ session: AppSession, _ snapshot: CredentialsSnapshot) -> AppSession? {
        guard let held = snapshot.record.held, held.isLoggedIn(at: time.now), session.owner.isOf(held) else {
            return nil
        }
        var session = session
        session.login = session.login ?? held.loggedInSince
        return session
    }

    // MARK: Sessions

    /// A session that is not stored yet.
    package struct Begun: Sendable {
        package let session: AppSession
        /// The body of the answer to the app.
        package let answer: SecretBytes
    }

    /// Makes a session, without storing it.
    package func begin(
        _ id: CredentialsID, _ client: AppClient, _ held: HeldCredentials, _ beginning: Beginning
    ) throws(AppError) -> Begun {
        do throws(BrokerError) {
            let token = try AppSessionToken(for: id.storageKey, in: vault)
            var session = AppSession(
                of: id, client: client, userID: beginning.userID, login: held.loggedInSince, token: token,
                now: time.now, version: sessions.records.nextVersion(after: 0), deviceKey: beginning.deviceKey,
                begunWith: beginning.begunWith, deviceInfo: beginning.deviceInfo)
            session.biometricKey = beginning.biometricKey
            return Begun(session: session, answer: answer(held, token))
        } catch {
            throw AppError(error)
        }
    }

    /// Stores a session that was begun, if the user is still logged in.
    /// - Parameters:
    ///   - others: changes of the same commit.
    ///   - digest: of what the app has presented, which cannot be presented twice.
    /// - Returns: false where the user or what was presented has changed meanwhile.
    package func commit(
        _ begun: Begun, _ client: AppClient, _ others: [VaultChange], presented digest: [UInt8]
    ) async throws(AppError) -> Bool {
        let session = begun.session
        do throws(StoreError) {
            let commit = try vault.prepare(sessions.beginning(session, client) + others)
            return try await time.retrying(Self.storeRetries) { () async throws(StoreError) in
                try await self.sessions.begin(session, by: commit)
                // A logout that came first has not found the session, and one that comes from now on does. The app does not
                // know the session yet, so nothing is lost if this process ends here.
                let standing = try await self.sessions.records.reread(session.credentialsID).record
                let isLoggedIn = standing.held.map(session.owner.isOf) ?? false
                if !isLoggedIn { _ = try await self.sessions.end(session.recordID, by: Self.ending(standing)) }
                self.sessions.unanswered.forget(digest)
                return isLoggedIn
            } unanswered: {
                self.sessions.unanswered.note(begun.answer, to: digest, provenBy: Array(session.id.utf8))
            }
        } catch .conflict {
            return false
        } catch {
            throw AppError(BrokerError(error))
        }
    }

    /// An answer whose access token may have expired, with one that is good now.
    private func renewed(
        _ answer: SecretBytes, for session: AppSession, _ client: AppClient
    ) async throws(AppError) -> SecretBytes {
        let held = try await refreshed(session, client).held
        guard let text = (try? JSONValue(parsing: answer.revealedBytes))?["refresh_token"]?.string,
            let token = AppSessionToken(text)
        else { return answer }
        return self.answer(held, token)
    }

    /// The answer to a refresh of this session; nil where it was changed meanwhile.
    private func goOn(
        _ session: AppSession, _ token: AppSessionToken, _ client: AppClient, _ given: Given
    ) async throws(AppError) -> SecretBytes? {
        let held = given.held
        var next = session
        next.lastUsed = time.now
        next.login = session.login ?? held.loggedInSince
        // A client that counts a short token as over comes again with each of its calls: it need not store a new refresh token
        // each time.
        guard client.settings.rotatesRefreshTokens, given.isRenewed || !isShort(held) else {
            let answer = answer(held, nil)
            if !session.has(token) {
                (next.secretDigest, next.generation) = (token.secretDigest, token.generation)
            } else if !sessions.isDue(session) {
                return answer
            }
            do throws(StoreError) {
                try await sessions.replace(next, client)
            } catch .conflict {
                return nil
            } catch {
                // The session goes on without this note of its use.
                log.storeFailed(error, LogField.credentials(session.credentialsID))
            }
            return answer
        }
        let rotated: AppSessionToken
        do throws(BrokerError) {
            rotated = try token.rotated(in: vault)
        } catch {
            throw AppError(error)
        }
        let answer = answer(held, rotated)
        do throws(StoreError) {
            try await time.retrying(Self.storeRetries) { () async throws(StoreError) in
                // Not one commit for all tries: one that takes long is not to shorten the time in which the app may repeat its
                // request. The new secret shows whether an earlier one was carried out.
                var next = next
                next.replace(token, by: rotated, answer: answer, at: self.time.now)
                do throws(StoreError) {
                    try await self.sessions.replace(next, client)
                } catch .conflict {
                    guard let standing = try await self.sessions.reread(session.recordID),
                        ConstantTime.equal(standing.secretDigest, rotated.secretDigest)
                    else { throw .conflict }
                    await self.sessions.memory.note([
                        .replace(
                            standing.record(end: self.sessions.end(of: standing, client)), version: session.version)
                    ])
                }
            } unanswered: {
                // If the store has carried it out, the app's next try presents a token that is replaced.
                self.sessions.unanswered.note(answer, to: token.secretDigest, provenBy: rotated.secretDigest)
            }
        } catch .conflict {
            return nil
        } catch {
            throw AppError(BrokerError(error))
        }
        sessions.unanswered.forget(token.secretDigest)
        return answer
    }

    private static let storeRetries = CommitRetries.times(4)

    // MARK: Answers

    /// The body of the answer to an app that has begun a session.
    /// - Parameter code: for the app that it lets in; nil for none.
    func answer(_ begun: Begun, code: SecretBytes?) -> SecretBytes {
        guard let code else { return begun.answer }
        var body = begun.answer.revealedBytes
        body.removeLast()
        body.append(UInt8(ascii: ","))
        return SecretBytes(body + JSONWriter.object { $0.member("code", code.revealedText) }.dropFirst())
    }

    /// RFC 6749 §5.1.
    private func answer(_ held: HeldCredentials, _ token: AppSessionToken?) -> SecretBytes {
        SecretBytes(
            JSONWriter.object { json in
                json.member("access_token", held.accessToken.revealedText)
                json.member("token_type", "Bearer")
                if let expiry = held.expiry {
                    json.member("expires_in", CredentialsSnapshot.seconds(until: expiry.milliseconds, at: time.now))
                }
                json.member("scope", held.grantedScopes.values.joined(separator: " "))
                json.memberIfPresent("refresh_token", token?.text.revealedText)
            })
    }

    private static let busy = AppError(.temporarilyUnavailable, "The session kept changing. Try again.")
}
