package import BrokerCore
internal import CredentialStore
internal import Cryptography
internal import HTTPSClient
internal import OAuth
internal import Postgres
internal import Reactor
internal import Synchronization

/// What the `Auth` instances of a process share: a store, connections to providers, a thread for both.
///
/// Opened at the first use, which can fail and be tried again. Make one and keep it; `close` it in the end, so that
/// what a provider has granted is stored.
public final class AuthEnvironment: Sendable {
    /// Where credentials are kept. Everything in it is sealed.
    public enum Storage: Sendable, CustomStringConvertible, CustomReflectable {
        /// For as long as the process lives.
        case memory
        /// Files in a directory that belongs to this process alone while it is open. It is made where it is missing,
        /// and so is the key that seals its files, beside them: keep it as safe as the credentials.
        case directory(String)
        /// PostgreSQL, for any number of processes. `masterKeys` is `id:base64 of 32 bytes`, several separated by
        /// commas: the first seals, all open. `url` is a libpq connection string; without `sslmode` in it, a host that is
        /// not local is spoken to over TLS with `verify-full`.
        case postgres(url: String, masterKeys: String)

        /// Neither the keys nor the connection string, which may hold a password.
        public var description: String {
            switch self {
            case .memory: "memory"
            case .directory(let directory): "directory \(directory)"
            case .postgres: "postgres"
            }
        }

        public var customMirror: Mirror { Mirror(self, children: [], displayStyle: .enum) }
    }

    /// An event of the library's own log: one JSON object in one line, without secrets.
    public typealias Logger = @Sendable (String) -> Void

    private let storage: Storage
    private let trustedCAFile: String?
    let providerTargets: TargetPolicy
    private let log: Log
    private let time: any Time
    private let state = Mutex(State())

    private struct State {
        var opening: Task<Result<Opened, AuthError>, Never>?
        var closing: Task<Void, Never>?
        /// Calls and streams that use what is open.
        var users = 0
    }

    /// Tells that the last of the users is gone.
    private let departures = Signals<Int>()

    /// - Parameters:
    ///   - trustedCAFile: a PEM file of more root certificates for calls to providers.
    ///   - allowsInsecureProviders: allows `http://` providers and private addresses, link-local ones excepted: for development
    ///     only.
    ///   - logger: called from any thread for events of level info and above; must not block.
    public convenience init(
        storage: Storage, trustedCAFile: String? = nil, allowsInsecureProviders: Bool = false, logger: Logger? = nil
    ) {
        self.init(
            storage: storage, trustedCAFile: trustedCAFile, allowsInsecureProviders: allowsInsecureProviders,
            time: SystemTime(), logger: logger)
    }

    /// - Parameter time: the machine's clocks, as a test has them.
    package init(
        storage: Storage, trustedCAFile: String? = nil, allowsInsecureProviders: Bool = false, time: any Time,
        logger: Logger? = nil
    ) {
        self.time = time
        self.storage = storage
        self.trustedCAFile = trustedCAFile
        providerTargets = allowsInsecureProviders ? .development : TargetPolicy()
        log = Log(threshold: logger == nil ? .error : .info, time: time) { line in
            logger?(String(decoding: line, as: UTF8.self))
        }
    }

    /// Lets what is under way come to its end, for about `limit` at most, and closes the store.
    ///
    /// Whoever waits for a device login is told `storageUnusable`, and so is every call from now on, on any `Auth` of
    /// this environment; the streams of `bus` end. Closing again waits for the same end. An environment that was never
    /// used has nothing to close. Cancelling the task does not shorten it.
    public func close(within limit: Duration = .seconds(25)) async {
        let closing = state.withLock { state in
            if let closing = state.closing { return closing }
            let closing = Task { [opening = state.opening] in
                guard case .success(let opened)? = await opening?.value else { return }
                await self.close(opened, within: limit)
            }
            (state.opening, state.closing) = (nil, closing)
            return closing
        }
        await closing.value
    }

    var isClosed: Bool { state.withLock { $0.closing != nil } }

    private func close(_ opened: Opened, within limit: Duration) async {
        let deadline = time.monotonic.advanced(by: limit)
        opened.broker.beginDraining()
        // A call that has not asked the provider yet must have done so before renewals are waited for.
        await waitForUsers(until: deadline)
        await opened.broker.finish(within: max(.zero, time.monotonic.duration(to: deadline)))
        await opened.client.close()
        // Work for a thread that has ended is never done. What is left of calls waits for the store alone.
        await waitForUsers(until: nil)
        opened.clock.cancel()
        await opened.clock.value
        await opened.vault.close()
        opened.loop.shutDown()
    }

    /// - Parameter deadline: nil for as long as it takes.
    private func waitForUsers(until deadline: MonotonicInstant?) async {
        while true {
            let ticket = departures.ticket(0)
            let remaining = deadline.map { time.monotonic.duration(to: $0) } ?? .seconds(60)
            if remaining <= .zero || state.withLock({ $0.users == 0 }) { return }
            await departures.wait(for: 0, since: ticket) { try? await self.time.sleep(for: remaining) }
        }
    }

    /// What is open while the environment is used.
    struct Opened: Sendable {
        let broker: CredentialsBroker
        fileprivate let vault: Vault
        fileprivate let client: HTTPSClient
        /// Keeps the time that all users of the store share.
        fileprivate let clock: Task<Void, Never>
        fileprivate let loop: EventLoop
    }

    /// What is open; opens it where nobody has. It stays so until `leave`, which must follow.
    func enter() async throws(AuthError) -> Opened {
        let opening = try state.withLock { state throws(AuthError) in
            if state.closing != nil { throw Self.closed }
            state.users += 1
            if let opening = state.opening { return opening }
            let opening = Task { await self.open() }
            state.opening = opening
            return opening
        }
        switch await opening.value {
        case .success(let opened): return opened
        case .failure(let error):
            // The next call tries again, unless another one does already.
            state.withLock { if $0.opening == opening { $0.opening = nil } }
            leave()
            throw error
        }
    }

    /// Ends what `enter` began.
    func leave() {
        let isLast = state.withLock { state in
            state.users -= 1
            return state.users == 0
        }
        if isLast { departures.signal(0) }
    }

    static let closed = AuthError.storageUnusable("This environment was closed.")

    private func open() async -> Result<Opened, AuthError> {
        do {
            let loop = try EventLoop(name: "auth")
            do {
                return .success(try await open(on: loop))
            } catch {
                loop.shutDown()
                throw error
            }
        } catch let error as AuthError {
            return .failure(error)
        } catch {
            return .failure(.storageUnusable("\(error)"))
        }
    }

    private func open(on loop: EventLoop) async throws -> Opened {
        let vault: Vault
        switch storage {
        case .memory:
            vault = Vault(store: MemoryRecordStore(), keyring: try Keyring(parsing: Keyring.generate(id: "k1")))
        case .directory(let directory):
            let (store, keyring) = try await EmbeddedStore.open(directory, masterKeys: nil) { [log] error in
                log.warning("file_store_failed", [.fileStore(error)])
            }
            vault = Vault(store: store, keyring: keyring)
        case .postgres(let url, let masterKeys):
            let keyring: Keyring
            let configuration: PostgresConfiguration
            do {
                keyring = try Keyring(parsing: masterKeys)
                configuration = try PostgresConfiguration(url)
            } catch {
                throw AuthError.illegalArgument("\(error)")
            }
            let reports = DatabaseReports(log, time: time)
            DatabaseReports.noteLinks(configuration, log)
            let resolver = try NameResolver(name: "db-resolver", limits: .database)
            do throws(StoreError) {
                let store = try await PostgresRecordStore.open(configuration, on: loop, resolver: resolver) {
                    reports.note($0)
                }
                vault = Vault(store: store, keyring: keyring)
            } catch {
                throw AuthError(BrokerError(error))
            }
        }
        do {
            try await vault.unlock()
            var settings = CredentialsBroker.Settings()
            settings.providerTargets = providerTargets
            var configuration = HTTPSClientConfiguration()
            settings.limit(&configuration)
            configuration.trustedCAFile = trustedCAFile
            let client = try HTTPSClient(configuration: configuration, loop: loop, resolver: try NameResolver())
            let shared = SharedTime(time)
            await shared.adjust(by: vault, log)
            let broker = CredentialsBroker(
                settings: settings, vault: vault, transport: client, time: shared, log: log)
            broker.start()
            let clock = Task { [log] in await shared.follow(broker.vault, log) }
            return Opened(broker: broker, vault: vault, client: client, clock: clock, loop: loop)
        } catch {
            await vault.close()
            throw error
        }
    }
}
