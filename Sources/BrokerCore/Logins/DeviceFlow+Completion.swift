import CredentialStore
import OAuth

/// The last part of the device login: what the provider granted is stored.
extension DeviceFlow {
    /// Stores what the provider granted and the login's end in one commit.
    func complete(
        _ login: PendingDeviceLogin, _ request: PendingDeviceLogin.Request, _ response: TokenResponse,
        as id: RefreshID
    ) async {
        let grant = GrantIntake.Grant(
            response, origin: .device, login: login.id, to: request.configuration, by: request.server, now: time.now)
        let told = BrokerEvent.loginCompleted(login.credentialsID, .device, loginID: nil, at: time.now)
        do throws(BrokerError) {
            let outcome = try await intake.take(grant, for: login.credentialsID) {
                isWaiting, _ async throws(StoreError) in
                guard let standing = try await self.vault.read(login.recordID) else { return nil }
                let known = try PendingDeviceLogin(standing)
                // If another replica has taken over meanwhile, the code is spent, and this is still the token that the user
                // allowed.
                guard known.status == .pending, !known.isVerifying else { return nil }
                var next = login
                (next.request, next.isBeingPolled) = (nil, false)
                if isWaiting { next.isVerifying = true } else { next.status = .completed }
                return (
                    [.replace(next.record(replacing: standing), version: standing.version)], isWaiting ? [] : [told]
                )
            }
            switch outcome {
            case .stored: break
            case .dropped(let wasStored):
                // The login was cancelled meanwhile, or another replica has ended it. If nothing else has this token, nothing will
                // use it.
                if !wasStored, await !intake.isHeld(grant, login.credentialsID) {
                    _ = await endpoint.revoke(
                        grant.credentials, for: request.configuration.client, at: request.server)
                }
                log.info("device_login_dropped", fields(of: login))
                return
            case .waits:
                log.warning("login_waits", fields(of: login))
                return
            case .refused(let error):
                metrics.loginEnded(.device, error.code.rawValue)
                log.warning("login_failed", fields(of: login) + LogField.reason(of: error))
                return
            }
            metrics.loginEnded(.device, "completed")
            log.info("login_completed", fields(of: login) + [.refresh(id)])
            endings.signal(login.recordID)
        } catch {
            if error.code == .tokenResponseError { return await markFailed(login, error) }
            log.error("login_outcome_not_stored", fields(of: login) + [.code(error.code)])
        }
    }

    /// Stores that the token of a login was refused.
    private func markFailed(_ login: PendingDeviceLogin, _ error: BrokerError) async {
        do throws(StoreError) {
            guard let record = try await vault.read(login.recordID),
                try PendingDeviceLogin(record).status == .pending
            else { return }
            _ = try await end(login, over: record, .failed(LoginFailure(error)), error)
        } catch {
            log.storeFailed(error, fields(of: login))
        }
    }

    /// The end of a login whose credentials have waited for the provider's keys, for `GrantVerification`.
    static func end(
        of id: RecordID, _ credentials: CredentialsID, refusal: BrokerError?, in vault: Vault, at now: Timestamp,
        signal: @escaping @Sendable () -> Void
    ) async throws(StoreError) -> GrantVerification.LoginEnd {
        guard let record = try await vault.read(id) else { return .ended }
        var login = try PendingDeviceLogin(record)
        guard login.status == .pending else { return login.status == .completed ? .ended : .cancelled }
        login.isVerifying = false
        login.status = LoginProgress(endedBy: refusal)
        let event = BrokerEvent.loginEnded(credentials, .device, loginID: nil, refusal: refusal, at: now)
        return .ends(
            .replace(login.record(replacing: record), version: record.version), event, signal: signal)
    }
}
