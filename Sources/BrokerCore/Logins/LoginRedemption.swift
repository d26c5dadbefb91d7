import CredentialStore
import Cryptography
import ExternalText
import OAuth
import Reactor
import Waiting

/// Uses the state of a login: redeems the code at the provider, and stores the credentials together with the login's end.
final class LoginRedemption: Sendable {
    /// The result of an attempt to use a state.
    private enum Attempt: Sendable {
        case ended(LoginFlow.Ended)
        /// The state could not be used.
        case failed(BrokerError)
        /// Another callback has used the state, or a browser was bound to the login: the record has to be read again.
        case overtaken
    }

    /// The use of a code, whose state is marked as used.
    private final class CodeUse: Sendable {
        let code: SecretBytes
        let codeGuard: RevocationJob.CodeGuard
        let secrets: PendingLogin.Secrets
        /// The login's record, as the mark has left it.
        let record: OpenRecord
        /// That of the device key, for the first request; nil where the exchange binds none.
        let proof: WireText?
        let id: RefreshID

        init(
            _ code: SecretBytes, _ codeGuard: RevocationJob.CodeGuard, _ secrets: PendingLogin.Secrets,
            over record: OpenRecord, proof: WireText?, as id: RefreshID
        ) {
            self.code = code
            self.codeGuard = codeGuard
            self.secrets = secrets
            self.record = record
            self.proof = proof
            self.id = id
        }
    }

    private let vault: Vault
    private let endpoint: TokenEndpoint
    private let moves: MovedEndpoints
    private let intake: GrantIntake
    private let revocations: RevocationJob
    private let logins: LoginRecords
    private let endings: LoginEndings
    private let time: any Time
    private let log: Log
    private let metrics: Metrics
    private let flights: SingleFlight<RefreshID, Attempt>
    /// How many failures of logins that browsers without a key have begun the log of events tells of, for each tenant: such browsers
    /// could else push out what the log tells of others.
    private let strangersFailures = TokenBuckets<TenantName>(Rate(perSecond: 1, burst: 100), capacity: 4096)

    /// How often a store that does not answer is asked again, after 0.2, 0.4, 0.8, 1.6 and 3.2 seconds: a user waits meanwhile,
    /// and the code of the login may expire.
    static let storeRetries = CommitRetries.times(5)

    init(
        vault: Vault, endpoint: TokenEndpoint, moves: MovedEndpoints, intake: GrantIntake, revocations: RevocationJob,
        logins: LoginRecords,
        endings: LoginEndings, instruments: Instruments
    ) {
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        self.vault = vault
        self.endpoint = endpoint
        self.moves = moves
        self.intake = intake
        self.revocations = revocations
        self.logins = logins
        self.endings = endings
        flights = SingleFlight(on: endpoint.executor)
    }

    /// Suspends until no code is being redeemed.
    func finish() async {
        await flights.finish()
    }

    /// Cancels the redemptions in flight.
    /// - Returns: how many redemptions were in flight.
    func cancelAll() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }

    /// Uses a login's state, and redeems the code where there is one. Goes on when the caller's task is cancelled.
    /// - Returns: nil where the login was changed meanwhile, and has to be read again.
    func redeem(
        _ login: PendingLogin, _ record: OpenRecord, _ secrets: PendingLogin.Secrets,
        _ grant: Result<SecretBytes, BrokerError>
    ) async throws(BrokerError) -> LoginFlow.Ended? {
        let id = RefreshID()
        // A caller waits where the work runs, unless it prefers another executor.
        let run = await withDefaultTaskExecutor(endpoint.executor) {
            await flights.run(id, within: nil) { await self.take(login, record, secrets, grant, as: id) }
        }
        switch run?.value {
        case .ended(let ended)?: return ended
        case .failed(let error)?: throw error
        case .overtaken?: return nil
        case nil: throw BrokerError(.retryableError, "The request ended before the login did.", retryAfter: 1)
        }
    }

    /// Marks the state as used, then redeems the code or stores the failure.
    private func take(
        _ login: PendingLogin, _ record: OpenRecord, _ secrets: PendingLogin.Secrets,
        _ grant: Result<SecretBytes, BrokerError>, as id: RefreshID
    ) async -> Attempt {
        var proof: WireText?
        if case .success = grant, let key = secrets.deviceKey {
            // Before the state is used, so that the login can still be finished when there is no challenge now.
            do throws(BrokerError) {
                proof = try await endpoint.proof(of: key, at: secrets.server, of: login.tenant, retries: 2)
            } catch {
                log.warning(
                    "login_has_no_challenge", LogField.credentials(login.credentialsID) + LogField.reason(of: error))
                return .failed(error)
            }
        }
        do throws(StoreError) {
            if try await isOvertaken(login) { return .failed(Self.overtakenByUser) }
        } catch {
            log.storeFailed(error, LogField.credentials(login.credentialsID))
            return .failed(BrokerError(error))
        }
        var used = login
        used.secrets = nil
        used.attempt = id.text
        if login.app != nil { used.finisher = secrets.binding }
        var codeGuard: RevocationJob.CodeGuard?
        switch grant {
        case .failure(let error): used.status = .failed(LoginFailure(error))
        case .success(let code):
            codeGuard = revocations.guardingCode(
                code, of: login.credentialsID, redirectURI: secrets.redirectURI, codeVerifier: secrets.codeVerifier,
                at: secrets.server)
        }
        let usedRecord = used.record(replacing: record)
        do throws(StoreError) {
            try await logins.replace(
                usedRecord, version: record.version,
                telling: failure(of: used, grant) + (codeGuard.map { [$0.insertion] } ?? []),
                retrying: Self.storeRetries)
        } catch .conflict {
            return .overtaken
        } catch {
            log.storeFailed(error, LogField.credentials(login.credentialsID))
            return .failed(BrokerError(error))
        }
        switch (grant, codeGuard) {
        case (.success(let code), let codeGuard?):
            let use = CodeUse(code, codeGuard, secrets, over: usedRecord, proof: proof, as: id)
            return .ended(await redeem(use, used))
        case (.failure(let error), _): return .ended(end(used, secrets, .failure(error)))
        case (.success, nil): preconditionFailure("a code has its guard")
        }
    }

    private func redeem(_ use: CodeUse, _ login: PendingLogin) async -> LoginFlow.Ended {
        let secrets = use.secrets
        var (login, server) = (login, secrets.server)
        var spent = Spent.inDoubt
        do throws(BrokerError) {
            var response: TokenResponse
            (response, server) = try await exchange(use, login)
            spent = .granted(nil)
            response.extra.merge(secrets.callbackFacts) { told, _ in told }
            let grant = GrantIntake.Grant(
                response, origin: .login, nonce: secrets.nonce, login: login.id, deviceKey: secrets.deviceKey,
                to: secrets.configuration, by: server, now: time.now)
            if let app = login.app, app.storesByUser {
                spent = .granted(grant.credentials)
                guard let userID = try await intake.verified(grant).userID else {
                    throw BrokerError(
                        .tokenResponseError,
                        "The provider does not tell who the user is, whom the app's storage key is made of: configure a "
                            + "storage_key for the client, or the scope openid.")
                }
                login.storageKey = StorageKey(user: userID, of: WireText(server.issuer ?? server.tokenEndpoint))
                spent = .granted(nil)
            }
            let code = try login.app.map { _ throws(BrokerError) in try AppCode.secret() }
            let (outcome, isOvertaken) = try await store(grant, of: login, by: use, issuing: code)
            switch outcome {
            case .stored(let snapshot, let waited):
                let held = snapshot.record.held ?? grant.credentials
                if let code, waited { try await issue(code, for: login, held) }
                return end(login, secrets, .success(held), code)
            case .refused(let error): return end(login, secrets, .failure(error))
            case .dropped:
                if isOvertaken {
                    if await !intake.isHeld(grant, login.credentialsID) { spent = .granted(grant.credentials) }
                    throw Self.overtakenByUser
                }
                throw BrokerError(
                    .gone, "The tenant was deleted, or the login was given up, before the login ended.")
            case .waits(let error):
                // The login completes once the provider's keys are there.
                log.warning(
                    "login_waits", LogField.credentials(login.credentialsID) + [.provider(secrets.configuration.preset)]
                )
                return ended(login, secrets, .failure(error), nil)
            }
        } catch {
            if case .inDoubt = spent, Self.isRefusal(error) { spent = .refused }
            await markFailed(login, error, use, spent, by: server)
            return end(login, secrets, .failure(error))
        }
    }

    /// Exchanges the code at the login's server, and once more where its token endpoint has moved since the login began: there was none
    /// at the address, or it did not know the client, so that the code is not used.
    private func exchange(
        _ use: CodeUse, _ login: PendingLogin
    ) async throws(BrokerError) -> (response: TokenResponse, by: AuthorizationServer) {
        let secrets = use.secrets
        var (server, proof, hasMoved) = (secrets.server, use.proof, false)
        while true {
            do throws(BrokerError) {
                let response = try await endpoint.redeem(
                    .authorizationCode(
                        code: use.code, redirectURI: secrets.redirectURI, codeVerifier: secrets.codeVerifier,
                        keyProof: proof),
                    for: secrets.configuration.client, of: login.tenant, at: server, as: use.id,
                    binding: secrets.deviceKey, notesOutage: !login.isStrangers)
                return (response, server)
            } catch {
                let tenant = Tenant(name: login.tenant, version: 0, configuration: secrets.configuration)
                guard error.isMisdirected, !hasMoved,
                    var moved = await moves.server(insteadOf: server, of: tenant)
                else { throw error }
                (moved.asked, moved.proofKey) = (server.asked, server.proofKey)
                (server, hasMoved) = (moved, true)
                // A proof is good for one request.
                if let key = secrets.deviceKey {
                    proof = try await endpoint.proof(of: key, at: server, of: login.tenant, retries: 0)
                }
            }
        }
    }

    static let overtakenByUser = BrokerError(.gone, "A user has logged in or out since this address was made.")

    /// The end of a user's session, where no user has logged in or out since.
    func endedSession(of id: CredentialsID) async throws(StoreError) -> EndedSession? {
        try await vault.read(CredentialsRecords.recordID(id))
            .flatMap { CredentialRecord(decoding: $0.content.revealedBytes) }?.session
    }

    /// Whether a user has logged in or out since the end of the session for which the login was begun.
    private func isOvertaken(_ login: PendingLogin) async throws(StoreError) -> Bool {
        guard let end = login.endedSession else { return false }
        return try await endedSession(of: login.credentialsID)?.time != end
    }

    /// What has become of the code of a login that fails.
    private enum Spent {
        /// The provider may have granted something that has not arrived.
        case inDoubt
        case refused
        /// What was granted, which nothing uses; nil where it may be in the store.
        case granted(HeldCredentials?)
    }

    /// Whether a provider that answers so has granted nothing.
    private static func isRefusal(_ error: BrokerError) -> Bool {
        switch error.code {
        case .unexpectedError, .illegalConfiguration, .authorizationError: true
        default: false
        }
    }

    /// Stores the credentials and the login's progress in one commit: its completion, or that it waits for the provider's keys.
    /// - Parameters:
    ///   - use: its guard is removed with it.
    ///   - code: of the app that the login is for, to be issued with its completion; nil for none.
    /// - Returns: the outcome, and whether nothing was stored because of `isOvertaken`.
    private func store(
        _ grant: GrantIntake.Grant, of login: PendingLogin, by use: CodeUse, issuing code: SecretBytes?
    ) async throws(BrokerError) -> (outcome: GrantIntake.Outcome, isOvertaken: Bool) {
        let record = use.record
        var (isFirst, isOvertaken) = (true, false)
        let told = BrokerEvent.loginCompleted(login.credentialsID, .standard, loginID: login.id, at: time.now)
        let outcome = try await intake.take(grant, for: login.credentialsID) {
            isWaiting, held async throws(StoreError) in
            // Only the process that has used the state writes the login, so that the first try, which names the versions, reads
            // neither the login nor the guard.
            var (standing, settled) = (record.version, [use.codeGuard.removal])
            let reads = !isFirst
            isFirst = false
            if reads {
                // An earlier version stands where the store has lost the commit that began the redemption.
                guard let version = try await self.vault.version(of: login.recordID), version <= record.version else {
                    return nil
                }
                standing = version
            }
            // A change of the credentials after this is a conflict.
            isOvertaken = try await self.isOvertaken(login)
            if isOvertaken { return nil }
            if reads {
                // Another process may have given the login up, and revoked what it was granted.
                guard let removal = try await self.revocations.removal(of: use.codeGuard) else { return nil }
                settled = removal
            }
            var next = login
            if isWaiting { next.isVerifying = true } else { (next.status, next.appCode) = (.completed, code) }
            let completion = VaultChange.replace(next.record(replacing: record), version: standing)
            if isWaiting { return ([completion] + settled, []) }
            return ([completion] + settled + (code.map { self.issuing($0, for: login, held) } ?? []), [told])
        } stalled: {
            // The login completes once the store takes it.
            self.flights.answer(use.id, with: .failed(.grantNotStored))
        }
        return (outcome, isOvertaken)
    }

    /// The changes that issue the code of the app that the login is for.
    private func issuing(_ code: SecretBytes, for login: PendingLogin, _ held: HeldCredentials) -> [VaultChange] {
        guard let app = login.app else { return [] }
        let issued = AppCode(
            for: (login.tenant, app.clientID), redirectURI: app.redirectURI, mustNameRedirectURI: app.namedRedirectURI,
            codeChallenge: app.codeChallenge, of: login.credentialsID, userID: held.userID,
            login: held.loggedInSince, now: time.now)
        return [issued.insertion(as: code)]
    }

    /// Issues the code of a login whose credentials were stored before they were verified.
    private func issue(_ code: SecretBytes, for login: PendingLogin, _ held: HeldCredentials) async throws(BrokerError)
    {
        do throws(StoreError) {
            try await vault.commit(issuing(code, for: login, held))
        } catch {
            log.storeFailed(error, LogField.credentials(login.credentialsID))
            throw BrokerError(error)
        }
    }

    /// The end of a login whose credentials have waited for the provider's keys, for `GrantVerification`.
    static func end(
        of id: RecordID, _ credentials: CredentialsID, refusal: BrokerError?, in vault: Vault, at now: Timestamp,
        signal: @escaping @Sendable () -> Void
    ) async throws(StoreError) -> GrantVerification.LoginEnd {
        guard let record = try await vault.read(id) else { return .ended }
        var login = try PendingLogin(record)
        guard login.status == .pending else { return .ended }
        login.isVerifying = false
        login.status = LoginProgress(endedBy: refusal)
        let event = BrokerEvent.loginEnded(credentials, .standard, loginID: login.id, refusal: refusal, at: now)
        return .ends(
            .replace(login.record(replacing: record), version: record.version), event, signal: signal)
    }

    private func end(
        _ login: PendingLogin, _ secrets: PendingLogin.Secrets, _ result: Result<HeldCredentials, BrokerError>,
        _ code: SecretBytes? = nil
    ) -> LoginFlow.Ended {
        report(login, secrets.configuration.preset, result)
        return ended(login, secrets, result, code)
    }

    private func ended(
        _ login: PendingLogin, _ secrets: PendingLogin.Secrets, _ result: Result<HeldCredentials, BrokerError>,
        _ code: SecretBytes?
    ) -> LoginFlow.Ended {
        LoginFlow.Ended(
            login: login.description, credentialsID: login.credentialsID, returnTo: secrets.returnTo,
            appReturn: login.app.map { app in
                let noCode = BrokerError(.internalError, "A login has ended without a code.")
                return AppLogin.Return(
                    login: app, result.flatMap { _ in code.map { .success($0) } ?? .failure(noCode) })
            }, result: result)
    }

    /// Stores why the login failed. If the store does not take that, the login expires in due time.
    /// - Parameter use: its guard stays where something may have been granted, and another try of the code settles that.
    private func markFailed(
        _ login: PendingLogin, _ error: BrokerError, _ use: CodeUse, _ spent: Spent, by server: AuthorizationServer
    ) async {
        var failed = login
        failed.status = .failed(LoginFailure(error))
        var settlement: [VaultChange] = []
        switch spent {
        case .inDoubt, .granted(nil): break
        case .refused: settlement = [use.codeGuard.removal]
        case .granted(let unused?):
            // Without a refresh token, a revocation could end another session of the same user.
            let revocation =
                unused.refreshToken == nil ? [] : revocations.revocation(of: unused, login.credentialsID, by: server)
            settlement = [use.codeGuard.removal] + revocation
        }
        do throws(StoreError) {
            try await logins.replace(
                failed.record(replacing: use.record), version: use.record.version,
                telling: failure(of: login, Result<SecretBytes, BrokerError>.failure(error)) + settlement,
                retrying: Self.storeRetries)
            if settlement.count > 1 { revocations.beginSoon() }
        } catch {
            log.warning("login_outcome_not_stored", LogField.credentials(login.credentialsID) + [.store(error)])
        }
    }

    /// The event of a failed login; none for a successful one.
    private func failure<Success>(
        of login: PendingLogin, _ result: Result<Success, BrokerError>
    ) -> [VaultChange] {
        guard case .failure(let error) = result else { return [] }
        if login.isStrangers, case .refused = strangersFailures.take(login.tenant, now: time.monotonic) {
            metrics.leftUntold()
            return []
        }
        let (id, now) = (login.credentialsID, time.now)
        return [
            BrokerEvent.entry(
                [.loginFailed(id, .standard, loginID: login.id, error, at: now)], of: id, at: now)
        ]
    }

    private func report(
        _ login: PendingLogin, _ preset: ProviderPreset, _ result: Result<HeldCredentials, BrokerError>
    ) {
        let fields = LogField.credentials(login.credentialsID) + [.provider(preset)]
        switch result {
        case .success:
            metrics.loginEnded(.standard, "completed")
            log.info("login_completed", fields)
        case .failure(let error):
            metrics.loginEnded(.standard, error.code.rawValue)
            log.warning("login_failed", fields + LogField.reason(of: error))
        }
        endings.signal(login.recordID)
    }
}
