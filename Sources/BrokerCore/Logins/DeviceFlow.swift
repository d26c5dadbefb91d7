internal import CredentialStore
package import Cryptography
package import OAuth
internal import Reactor
internal import Synchronization
internal import Waiting

/// The device login (TIDAL's Auth design, "Device login"; RFC 8628): begun by a call, then carried to its end by the
/// broker itself, whether somebody waits for it or not.
package final class DeviceFlow: Sendable {
    package struct Begun: Sendable {
        /// The broker's own name for the login. The provider's code never leaves.
        package let handle: SecretBytes
        package let userCode: String
        package let verificationURI: String
        package let verificationURIComplete: String?
        package let expiresIn: Duration
        package let interval: Duration
    }

    /// Who asks for a login: the tenant, and the storage keys that the caller is confined to (nil: all).
    package struct Caller: Sendable {
        let tenant: TenantName
        let storageKeys: [StorageKey]?

        package init(tenant: TenantName, storageKeys: [StorageKey]?) {
            self.tenant = tenant
            self.storageKeys = storageKeys
        }
    }

    private let vault: Vault
    private let servers: ProviderServers
    private let endpoint: TokenEndpoint
    private let writer: CredentialsWriter
    private let logins: LoginRecords
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let versions = VersionSource()
    private let endings: LoginEndings
    private let quota: PendingLoginQuota
    private let polls = SingleFlight<RecordID, Result<Sighting?, StoreError>>()
    private let pollers = Mutex(Pollers())

    /// The tasks that see logins through.
    private struct Pollers {
        var tasks: [RecordID: Task<Void, Never>] = [:]
        /// Those that the draining has cancelled; nil before it begins.
        var ending: [Task<Void, Never>]?
    }

    /// How long one poll may take before another replica may take the login over: longer than the HTTPS client lets a
    /// request live (20 s).
    static let longestPoll: Duration = .seconds(25)
    /// How much longer than its owner the other replicas wait before they take a login over.
    static let patienceWithOthers: Duration = .seconds(5)
    /// How often a shared store is searched for logins whose owner may have died.
    static let searchInterval: Duration = .seconds(5)
    /// By how much another replica's clock may be wrong before it ends a login that its owner still sees through.
    static let clockTolerance: Duration = .seconds(300)

    /// - Parameter limit: how many device logins of a tenant may be pending at once; nil for any number.
    init(
        vault: Vault, providers: ProviderAccess, writer: CredentialsWriter, bus: EventBus, limit: Int?,
        instruments: Instruments
    ) {
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        quota = PendingLoginQuota(.device, .pendingDeviceLogins, limit: limit, vault: vault, time: time)
        self.vault = vault
        servers = providers.servers
        endpoint = providers.endpoint
        self.writer = writer
        logins = LoginRecords(vault: vault, bus: bus, time: time)
        endings = LoginEndings(.device, vault: vault, bus: bus, time: time)
    }

    // MARK: For callers

    /// Asks the provider for a code, and begins to poll.
    /// - Throws: `too_many_requests` where the tenant has as many pending device logins as it may have.
    package func begin(_ storageKey: StorageKey, of tenant: Tenant) async throws(BrokerError) -> Begun {
        let server = try await servers.server(for: tenant)
        let client = tenant.configuration.client
        // Before the provider is asked for a code that would be given up.
        try await quota.admit(tenant.name)
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
                configuration: tenant.configuration.withoutListedURIs, server: server, deviceCode: answer.deviceCode),
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
        see(login.recordID, through: Sighting(version: record.version, at: time.monotonic, isOurs: true))
        return Begun(
            handle: handle, userCode: answer.userCode, verificationURI: answer.verificationURI,
            verificationURIComplete: answer.verificationURIComplete, expiresIn: answer.expiresIn,
            interval: answer.interval)
    }

    /// How far the login is; waits for its end for at most `wait`. Nil for one that is unknown or not the caller's.
    package func progress(
        _ handle: SecretBytes, for caller: Caller, wait: Duration
    ) async throws(BrokerError) -> LoginProgress? {
        guard let found = try await find(handle, for: caller) else { return nil }
        return try await endings.progress(of: found.record.id, within: wait) { record throws(StoreError) in
            let login = try PendingDeviceLogin(record)
            return (login.status, login.end)
        }
    }

    /// Ends the login without an outcome: nothing of it is stored from now on, even by a poll under way.
    /// - Returns: false for a login that is unknown or not the caller's.
    package func cancel(_ handle: SecretBytes, for caller: Caller) async throws(BrokerError) -> Bool {
        for _ in 0..<32 {
            guard let (record, login) = try await find(handle, for: caller) else { return false }
            do throws(StoreError) {
                try await vault.commit([.remove(record.id, version: record.version)])
            } catch .conflict {
                // A poll has written down how it went.
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
            guard login.tenant == caller.tenant, caller.storageKeys.map({ $0.contains(login.storageKey) }) ?? true
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

    /// Takes up the logins that an earlier process, or a replica that died, left pending, until its task is cancelled. The
    /// logins that it has taken up go on until `beginDraining`. Once at most.
    func run() async {
        repeat {
            let isComplete = await searchForLogins()
            // The only writer of its store has begun every later login itself.
            if isComplete, vault.revalidateAfter == nil { return }
            do {
                try await time.sleep(for: Self.searchInterval)
            } catch {
                return
            }
        } while !Task.isCancelled
    }

    /// - Returns: whether the whole store was seen.
    private func searchForLogins() async -> Bool {
        do throws(StoreError) {
            // Those that end first come first: with more than this, the others have their turn when these are over.
            let limit = 10_000
            let marks = try await vault.marked(.device, limit: limit)
            for mark in marks {
                see(mark.id, through: Sighting(version: mark.version, at: time.monotonic, isOurs: false))
            }
            return marks.count < limit
        } catch {
            log.storeFailed(error)
            return false
        }
    }

    /// Which version of a record this process saw when.
    private struct Sighting: Sendable {
        var version: Int64
        var at: MonotonicInstant
        /// Whether this process wrote it.
        var isOurs: Bool
        /// So that not all the others come at once when an owner has died.
        let jitter: Duration = .milliseconds(Int64.random(in: 0..<2000))
    }

    /// Starts the task that sees a login through, where there is none yet.
    private func see(_ id: RecordID, through first: Sighting) {
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
                if login.status != .pending { return }
                if record.version != sighting.version {
                    sighting = Sighting(version: record.version, at: time.monotonic, isOurs: false)
                }
                let due = sighting.at.advanced(by: patience(with: login, sighting))
                let untilDue = time.monotonic.duration(to: due)
                let remaining = time.now.duration(to: login.expires)
                // A clock that is ahead must not end what its owner, by a better one, still sees through.
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
                // Its owner could not write either, and may have a token to store.
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
        // Of a store with one writer, whoever wrote this is dead, and so is its poll.
        if vault.revalidateAfter == nil { return login.isBeingPolled ? login.polling.interval : login.wait }
        return login.wait + Self.patienceWithOthers + sighting.jitter
    }

    /// Does the work for a login. It goes on when the task that asked for it is cancelled.
    /// - Returns: what was written; nil when it was another's turn.
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

    /// Polls once, if this process gets to be the one, and writes down what came of it.
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
        // The others count from the moment when it was written, which may be as long ago. Their turn might come while
        // this poll is under way.
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
            // Not `remaining`: a clock that says otherwise would poll after it.
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

    /// Writes down how far the login is. A store that is away is asked again until it answers or the broker stops.
    private func write(
        _ login: PendingDeviceLogin, over record: OpenRecord, telling events: [VaultChange]
    ) async throws(StoreError) -> Sighting {
        let next = login.record(replacing: record)
        try await logins.replace(next, version: record.version, telling: events, retries: nil)
        return Sighting(version: next.version, at: time.monotonic, isOurs: true)
    }

    private func end(
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

    /// Stores what the provider granted together with the login's end, both or none.
    private func complete(
        _ login: PendingDeviceLogin, _ request: PendingDeviceLogin.Request, _ response: TokenResponse,
        as id: RefreshID
    ) async {
        let client = request.configuration.client
        let held = HeldCredentials(
            granted: response, level: .user, to: client, by: request.server, now: time.now)
        var completed = login
        completed.status = .completed
        completed.request = nil
        let finished = completed
        let told = BrokerEvent.loginCompleted(login.credentialsID, .device, loginID: nil, at: time.now)
        var tried: Int64?
        var hasArrived = false
        do throws(BrokerError) {
            let stored = try await writer.settle(login: held, by: .device, for: login.credentialsID) {
                () async throws(StoreError) in
                guard let standing = try await self.vault.read(login.recordID) else { return nil }
                let known = try PendingDeviceLogin(standing)
                // Where storing took so long that another replica has taken over, the code is spent and this is still
                // the token that the user allowed.
                if known.status == .pending {
                    let next = finished.record(replacing: standing)
                    tried = next.version
                    return ([.replace(next, version: standing.version)], [told])
                }
                // An earlier try may have arrived although its answer did not, and the credentials may have been renewed
                // since.
                hasArrived = known.status == .completed && standing.version == tried
                return nil
            }
            if stored == nil, !hasArrived {
                // Cancelled meanwhile: nobody will ever use this token.
                _ = await endpoint.revoke(held, for: client, at: request.server)
                log.info("device_login_dropped", fields(of: login))
                return
            }
            metrics.loginEnded(.device, "completed")
            log.info("login_completed", fields(of: login) + [.refresh(id)])
            endings.signal(login.recordID)
        } catch {
            log.error("login_outcome_not_stored", fields(of: login) + [.code(error.code)])
        }
    }

    private func fields(of login: PendingDeviceLogin) -> [LogField] {
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

    // MARK: Living on

    /// No poll begins any more, and nobody is kept waiting for one.
    func beginDraining() {
        endings.beginDraining()
        let tasks = pollers.withLock { pollers in
            let tasks = Array(pollers.tasks.values)
            pollers.ending = (pollers.ending ?? []) + tasks
            return tasks
        }
        for task in tasks { task.cancel() }
    }

    /// Suspends until no poll is under way and, while draining, none can begin any more: what a provider has granted is
    /// stored by then.
    package func finish() async {
        for task in pollers.withLock({ $0.ending ?? [] }) { await task.value }
        await polls.finish()
        await quota.finish()
    }

    /// Has the polls under way wait for nothing any more; see `CredentialsRenewer.cancelAll`.
    /// - Returns: how many there are.
    package func cancelAll() -> Int {
        defer { polls.cancelAll() }
        return polls.count
    }
}
