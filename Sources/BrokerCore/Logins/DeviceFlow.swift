import CredentialStore
package import Cryptography
package import OAuth
import Reactor
import Synchronization
import Waiting

/// The device login (TIDAL's Auth design, "Device login"; RFC 8628): a call begins it, and the broker itself polls until it ends,
/// whether a caller waits for it or not.
package final class DeviceFlow: BackgroundJob {
    package struct Begun: Sendable {
        /// The broker's own name for the login. Callers never get the provider's device code.
        package let handle: SecretBytes
        package let userCode: String
        package let verificationURI: String
        package let verificationURIComplete: String?
        package let expiresIn: Duration
        package let interval: Duration
    }

    /// The caller that asks for a login: its tenant, and the storage keys that it may use; nil for all.
    package struct Caller: Sendable {
        let tenant: Tenant
        let storageKeys: StorageKeyLimit?

        package init(tenant: Tenant, storageKeys: StorageKeyLimit?) {
            self.tenant = tenant
            self.storageKeys = storageKeys
        }
    }

    let vault: Vault
    private let servers: ProviderServers
    private let discovery: ResourceDiscovery
    let endpoint: TokenEndpoint
    let intake: GrantIntake
    private let logins: LoginRecords
    package let time: any Time
    let metrics: Metrics
    let log: Log
    private let versions = VersionSource()
    let endings: LoginEndings
    private let quota: PendingLoginQuota
    private let polls = SingleFlight<RecordID, Result<Sighting?, StoreError>>()
    private let pollers = Mutex(Pollers())

    /// The tasks that poll, one for each login.
    private struct Pollers {
        var tasks: [RecordID: Task<Void, Never>] = [:]
        /// The tasks that were cancelled by draining; nil before that.
        var ending: [Task<Void, Never>]?
    }

    /// After this time another replica may take over a login that is being polled: longer than the HTTPS client's limit for a
    /// request (20 s).
    static let longestPoll: Duration = .seconds(25)
    /// How much longer than its owner the other replicas wait before they take over a login.
    static let patienceWithOthers: Duration = .seconds(5)
    /// The pause between two searches of a shared store for logins whose owner may have died.
    /// By how much a replica's clock may be wrong without its ending a login that its owner still polls.
    static let clockTolerance: Duration = .seconds(300)

    /// - Parameter limit: how many device logins of a tenant may be pending at once; nil for any number.
    init(
        vault: Vault, providers: ProviderAccess, discovery: ResourceDiscovery, intake: GrantIntake, bus: EventBus,
        limit: Int?, instruments: Instruments
    ) {
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        quota = PendingLoginQuota(.device, .pendingDeviceLogins, limit: limit, vault: vault, time: time)
        self.vault = vault
        servers = providers.servers
        self.discovery = discovery
        endpoint = providers.endpoint
        self.intake = intake
        logins = LoginRecords(vault: vault, bus: bus, memory: intake.records.memory, time: time)
        endings = LoginEndings(.device, vault: vault, records: intake.records, bus: bus, time: time)
        intake.setLoginEnding(of: .device) { [vault, time, endings] id, login, refusal throws(StoreError) in
            let record = RecordID(.device, id.tenant, key: login)
            return try await Self.end(of: record, id, refusal: refusal, in: vault, at: time.now) {
                endings.signal(record)
            }
        }
    }

    // MARK: For callers

    /// Requests a code from the provider, and begins to poll.
    /// - Parameter wish: what the login asks for; nil for what the tenant's configuration says.
    /// - Throws: `too_many_requests` where the tenant has as many pending device logins as it may have.
    package func begin(
        _ storageKey: StorageKey, of known: Tenant, wish: LoginWish? = nil
    ) async throws(BrokerError) -> Begun {
        let tenant = try await discovery.completed(known)
        var server = try await servers.server(for: tenant)
        if let wish {
            let id = CredentialsID(tenant: tenant.name, storageKey: storageKey)
            let held = wish.isUpgrade ? try await vault.credentials(id) : nil
            server.asked = try wish.asked(of: tenant.configuration, at: server, beside: held)
        }
        let client = tenant.configuration.client
        // Before the request to the provider, so that no code is requested in vain.
        try await quota.admit(tenant.name)
        var polled = server
        try polled.makeProofKey(for: tenant.configuration)
        let answer = try await endpoint.authorizeDevice(for: client, of: tenant.name, at: server)
        let id: String
        let handle: SecretBytes
        do {
            id = Base64URL.encode(try SecureRandom.bytes(16))
            handle = SecretBytes(utf8: Base64URL.encode(try SecureRandom.bytes(32)))
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
        let login = PendingDeviceLogin(
            id: id, tenant: tenant.name, storageKey: storageKey, expires: time.now.advanced(by: answer.expiresIn),
            request: .init(
                configuration: tenant.configuration.withoutListedURIs, server: polled, deviceCode: answer.deviceCode),
            polling: DevicePolling(interval: answer.interval), wait: answer.interval)
        let record = login.record(version: versions.first(at: time.now), handleDigest: Self.digest(handle))
        do throws(StoreError) {
            try await vault.commit([.require(RecordID(.tenant, tenant.name)), .insert(record)])
        } catch .conflict {
            throw BrokerError.noSuchTenant
        } catch {
            log.storeFailed(error, LogField.credentials(login.credentialsID))
            throw BrokerError(error)
        }
        log.info(
            "device_login_begun", LogField.credentials(login.credentialsID) + [.provider(server.preset)])
        startPolling(login.recordID, from: Sighting(version: record.version, at: time.monotonic, isOurs: true))
        return Begun(
            handle: handle, userCode: answer.userCode, verificationURI: answer.verificationURI,
            verificationURIComplete: answer.verificationURIComplete, expiresIn: answer.expiresIn,
            interval: answer.interval)
    }

    /// The progress of the login; waits for its end for `wait` at most. Nil for a login that is unknown or not the caller's.
    package func progress(
        _ handle: SecretBytes, for caller: Caller, wait: Duration
    ) async throws(BrokerError) -> LoginProgress? {
        guard let found = try await find(handle, for: caller) else { return nil }
        return try await endings.progress(of: found.record.id, within: wait) { record throws(StoreError) in
            let login = try PendingDeviceLogin(record)
            return LoginEndings.Seen(progress: login.status, end: login.end, credentials: login.credentialsID)
        }
    }

    /// Cancels the login: from now on no credentials of it are stored, even if a poll is under way. A set that waits for its
    /// verification is dropped and revoked.
    /// - Returns: false for a login that is unknown or not the caller's.
    package func cancel(_ handle: SecretBytes, for caller: Caller) async throws(BrokerError) -> Bool {
        for _ in 0..<32 {
            guard let (record, login) = try await find(handle, for: caller) else { return false }
            do throws(StoreError) {
                let removal = VaultChange.remove(record.id, version: record.version)
                if login.status == .pending, login.isVerifying {
                    try await intake.withdraw(login.id, from: .device, login.credentialsID, of: caller.tenant, removal)
                } else {
                    try await vault.commit([removal])
                }
            } catch .conflict {
                // A poll or a verification has written its result meanwhile.
                continue
            } catch {
                throw BrokerError(error)
            }
            log.info("device_login_cancelled", LogField.credentials(login.credentialsID))
            pollers.withLock { $0.tasks[record.id] }?.cancel()
            endings.signal(record.id)
            return true
        }
        throw BrokerError(StoreError.conflict)
    }

    private func find(
        _ handle: SecretBytes, for caller: Caller
    ) async throws(BrokerError) -> (record: OpenRecord, login: PendingDeviceLogin)? {
        do throws(StoreError) {
            guard let record = try await vault.find(.device, lookup: Self.digest(handle)) else { return nil }
            let login = try PendingDeviceLogin(record)
            guard login.tenant == caller.tenant.name, caller.storageKeys.map({ $0.includes(login.storageKey) }) ?? true
            else { return nil }
            return (record, login)
        } catch {
            log.storeFailed(error)
            throw BrokerError(error)
        }
    }

    private static func digest(_ handle: SecretBytes) -> [UInt8] {
        handle.withRevealed { SHA256.digest($0) }
    }

    // MARK: The job

    /// Searches for logins that an earlier process, or a replica that died, has left pending, and begins to poll for them. The
    /// polling goes on until `beginDraining`.
    package func work() async -> NextTime {
        let isComplete = await searchForLogins()
        // In a store of one writer, every later login is begun by this process.
        return isComplete && vault.revalidateAfter == nil ? .never : .after(JobInterval.deviceLogins)
    }

    /// - Returns: whether the whole store was seen.
    private func searchForLogins() async -> Bool {
        do throws(StoreError) {
            // The logins that expire first come first. Beyond this number, the others are found once these have ended.
            let limit = 10_000
            let marks = try await vault.marked(.device, limit: limit)
            for mark in marks {
                startPolling(mark.id, from: Sighting(version: mark.version, at: time.monotonic, isOurs: false))
            }
            return marks.count < limit
        } catch {
            log.storeFailed(error)
            return false
        }
    }

    /// When this process first saw a version of a record.
    struct Sighting: Sendable {
        var version: Int64
        var at: MonotonicInstant
        /// Whether this process wrote that version.
        var isOurs: Bool
        /// Random, so that the other replicas do not all act at once when an owner has died.
        let jitter: Duration = .milliseconds(Int64.random(in: 0..<2000))
    }

    /// Starts the task that polls for a login, unless there is one.
    private func startPolling(_ id: RecordID, from first: Sighting) {
        pollers.withLock { pollers in
            if pollers.ending != nil || pollers.tasks[id] != nil { return }
            pollers.tasks[id] = TraceContext.leaving {
                Task {
                    await self.carry(id, from: first)
                    self.pollers.withLock { $0.tasks[id] = nil }
                }
            }
        }
    }

    /// Waits and polls until the login has ended.
    private func carry(_ id: RecordID, from first: Sighting) async {
        var sighting = first
        var storeFailures = 0
        while !Task.isCancelled {
            let pause: Duration
            do throws(StoreError) {
                guard let record = try await vault.read(id) else { return }
                let login = try PendingDeviceLogin(record)
                // A login whose token waits for the provider's keys is not polled any more.
                if login.status != .pending || login.isVerifying { return }
                if record.version != sighting.version {
                    sighting = Sighting(version: record.version, at: time.monotonic, isOurs: false)
                }
                let due = sighting.at.advanced(by: patience(with: login, sighting))
                let untilDue = time.monotonic.duration(to: due)
                let remaining = time.now.duration(to: login.expires)
                // A replica whose clock is ahead must not end a login that its owner still polls by a better clock.
                let isOthers = !sighting.isOurs && vault.revalidateAfter != nil
                let untilEnd = isOthers ? remaining + Self.clockTolerance : remaining
                if Task.isCancelled { return }
                if untilEnd <= .zero || untilDue <= .zero && remaining <= .zero {
                    sighting =
                        try await act(on: record) { () throws(StoreError) in
                            try await self.end(login, over: record, .expired, nil)
                        } ?? sighting
                    pause = .zero
                } else if untilDue <= .zero {
                    sighting =
                        try await act(on: record) { () throws(StoreError) in
                            try await self.claimAndPoll(login, record)
                        } ?? sighting
                    pause = .zero
                } else {
                    pause = min(untilDue, untilEnd)
                }
                storeFailures = 0
            } catch {
                log.storeFailed(error, [.tenant(id.tenant)])
                if case .damaged = error { return }
                storeFailures += 1
                // The owner could not write either, and may have a token to store.
                if !sighting.isOurs { sighting.at = time.monotonic }
                pause = CredentialsRecords.pause(beforeTry: storeFailures)
            }
            if pause == .zero { continue }
            do {
                try await time.sleep(for: pause)
            } catch {
                return
            }
        }
    }

    private func patience(with login: PendingDeviceLogin, _ sighting: Sighting) -> Duration {
        if sighting.isOurs { return login.wait }
        // In a store of one writer, an earlier process has written this, so its poll has ended.
        if vault.revalidateAfter == nil { return login.isBeingPolled ? login.polling.interval : login.wait }
        return login.wait + Self.patienceWithOthers + sighting.jitter
    }

    /// Does what is due for a login. It goes on when the calling task is cancelled.
    /// - Returns: what was written; nil where another replica was faster.
    private func act(
        on record: OpenRecord, _ work: @escaping @Sendable () async throws(StoreError) -> Sighting?
    ) async throws(StoreError) -> Sighting? {
        let run = await polls.run(record.id, within: nil) { () async -> Result<Sighting?, StoreError> in
            do throws(StoreError) {
                return .success(try await work())
            } catch .conflict {
                return .success(nil)
            } catch {
                return .failure(error)
            }
        }
        return try run?.value.get() ?? nil
    }

    /// Polls once, unless another replica is faster, and writes the result.
    private func claimAndPoll(
        _ login: PendingDeviceLogin, _ record: OpenRecord
    ) async throws(StoreError) -> Sighting? {
        guard let request = login.request else { throw .damaged("a pending device login has no code") }
        var login = login
        login.isBeingPolled = true
        login.wait = Self.longestPoll
        let claim = login.record(replacing: record)
        let asked = time.monotonic
        try await vault.commit([.replace(claim, version: record.version)])
        // The other replicas count from when this version was written, which may be as long ago as the claim. They might take
        // over while this poll is under way.
        if asked.duration(to: time.monotonic) > Self.patienceWithOthers { return nil }

        let id = RefreshID()
        let (outcome, response) = await endpoint.poll(
            request.deviceCode, for: request.configuration.client, of: login.tenant, at: request.server, as: id)
        metrics.devicePolled(outcome)
        login.isBeingPolled = false
        switch login.polling.next(after: outcome, remaining: time.now.duration(to: login.expires)) {
        case .wait(let wait):
            login.wait = wait
            return try await write(login, over: claim, telling: [])
        case .expired(let remaining) where remaining > .zero:
            // Not `remaining`: a replica with another clock would poll once more after it.
            login.wait = PendingDeviceLogin.noMorePolls
            return try await write(login, over: claim, telling: [])
        case .expired:
            return try await end(login, over: claim, .expired, nil)
        case .failed(let reason):
            let error = Self.error(reason, outcome)
            return try await end(login, over: claim, .failed(LoginFailure(error)), error)
        case .granted:
            if let response { await complete(login, request, response, as: id) }
            return nil
        }
    }

    /// Writes the progress of the login. A store that does not answer is asked again until it does, or until the broker stops.
    private func write(
        _ login: PendingDeviceLogin, over record: OpenRecord, telling events: [VaultChange]
    ) async throws(StoreError) -> Sighting {
        let next = login.record(replacing: record)
        try await logins.replace(next, version: record.version, telling: events, retrying: .untilAnswered)
        return Sighting(version: next.version, at: time.monotonic, isOurs: true)
    }

    func end(
        _ login: PendingDeviceLogin, over record: OpenRecord, _ status: LoginProgress, _ error: BrokerError?
    ) async throws(StoreError) -> Sighting {
        var ended = login
        ended.status = status
        ended.request = nil
        ended.isBeingPolled = false
        let (id, now) = (login.credentialsID, time.now)
        let sighting = try await write(
            ended, over: record,
            telling: [BrokerEvent.entry([.loginFailed(id, .device, loginID: nil, error, at: now)], of: id, at: now)])
        metrics.loginEnded(.device, error?.code.rawValue ?? "expired")
        log.warning(
            "login_failed", fields(of: login) + (error.map { LogField.reason(of: $0) } ?? [.outcome("expired")]))
        endings.signal(login.recordID)
        return sighting
    }

    func fields(of login: PendingDeviceLogin) -> [LogField] {
        LogField.credentials(login.credentialsID) + (login.request.map { [.provider($0.configuration.preset)] } ?? [])
    }

    private static func error(_ reason: DevicePolling.Failure, _ outcome: DevicePolling.Outcome) -> BrokerError {
        var (errorCode, advice): (String?, String?) = (nil, nil)
        if case .answered(let status, let answer, _) = outcome {
            errorCode = answer.errorCode
            if !(200..<300).contains(status) {
                advice = RefusalAdvice.sentence(of: answer, status: status, grant: .deviceCode)
            }
        }
        return switch reason {
        case .authorizationError:
            BrokerError(.authorizationError, "The user did not allow the login.", errorCode: errorCode)
        case .tokenResponseError:
            BrokerError(
                .tokenResponseError, "The provider ended the login without a usable token.".followed(by: advice),
                errorCode: errorCode)
        }
    }

    // MARK: The end

    /// No poll begins any more, and callers do not wait for one any more.
    func beginDraining() {
        endings.beginDraining()
        let tasks = pollers.withLock { pollers in
            let tasks = Array(pollers.tasks.values)
            pollers.ending = (pollers.ending ?? []) + tasks
            return tasks
        }
        for task in tasks { task.cancel() }
    }

    /// Suspends until no poll is under way. While the broker is draining, none begins any more, so that each grant is stored by
    /// then.
    package func finish() async {
        for task in pollers.withLock({ $0.ending ?? [] }) { await task.value }
        await polls.finish()
        await quota.finish()
    }

    /// Cancels the polls under way; see `CredentialsRenewer.cancelAll`.
    /// - Returns: how many polls were under way.
    package func cancelAll() -> Int {
        defer { polls.cancelAll() }
        return polls.count
    }
}
