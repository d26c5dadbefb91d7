internal import BrokerCore
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
    public enum Storage: Sendable {
        /// For as long as the process lives.
        case memory
        /// Files in a directory that belongs to this process alone while it is open. It is made where it is missing,
        /// and so is the key that seals its files, beside them: keep it as safe as the credentials.
        case directory(String)
        /// PostgreSQL, for any number of processes. `masterKeys` is `id:base64 of 32 bytes`, several separated by
        /// commas: the first seals, all open. `url` is a libpq connection string.
        case postgres(url: String, masterKeys: String)
    }

    /// An event of the library's own log: one JSON object in one line, without secrets.
    public typealias Logger = @Sendable (String) -> Void

    private let storage: Storage
    private let trustedCAFile: String?
    let allowsInsecureProviders: Bool
    private let log: Log
    private let time = SystemTime()
    private let state = Mutex(State())

    private struct State {
        var opening: Task<Result<Opened, AuthError>, Never>?
        var isClosed = false
    }

    /// - Parameters:
    ///   - trustedCAFile: a PEM file of more root certificates for calls to providers.
    ///   - allowsInsecureProviders: allows `http://` providers and private addresses: for development only.
    ///   - logger: called from any thread for events of level info and above; must not block.
    public init(
        storage: Storage, trustedCAFile: String? = nil, allowsInsecureProviders: Bool = false, logger: Logger? = nil
    ) {
        self.storage = storage
        self.trustedCAFile = trustedCAFile
        self.allowsInsecureProviders = allowsInsecureProviders
        log = Log(threshold: logger == nil ? .error : .info, time: time) { line in
            logger?(String(decoding: line, as: UTF8.self))
        }
    }

    /// Lets what is under way come to its end, for at most `limit`, and closes the store. No other call may follow on
    /// any `Auth` of this environment.
    public func close(within limit: Duration = .seconds(25)) async {
        let opening = state.withLock { state in
            state.isClosed = true
            defer { state.opening = nil }
            return state.opening
        }
        if case .success(let opened)? = await opening?.value { await opened.close(within: limit) }
    }

    /// Whether `close` was called.
    var isClosed: Bool { state.withLock { $0.isClosed } }

    /// What is open while the environment is used.
    struct Opened: Sendable {
        let broker: CredentialsBroker
        fileprivate let vault: Vault
        fileprivate let client: HTTPSClient
        fileprivate let loop: EventLoop

        fileprivate func close(within limit: Duration) async {
            broker.beginDraining()
            await broker.finish(within: limit)
            await client.close()
            await vault.close()
            loop.shutDown()
        }
    }

    func opened() async throws(AuthError) -> Opened {
        let opening = try state.withLock { state throws(AuthError) in
            if state.isClosed { throw .storageUnusable("This environment was closed.") }
            if let opening = state.opening { return opening }
            let opening = Task { await self.open() }
            state.opening = opening
            return opening
        }
        let result = await opening.value
        if case .failure = result {
            // The next call tries again, unless another one does already.
            state.withLock { if $0.opening == opening { $0.opening = nil } }
        }
        return try result.get()
    }

    private func open() async -> Result<Opened, AuthError> {
        do {
            let loop = try EventLoop(name: "auth")
            do {
                return .success(try await open(on: loop, try NameResolver()))
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

    private func open(on loop: EventLoop, _ resolver: NameResolver) async throws -> Opened {
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
            do throws(StoreError) {
                let store = try await PostgresRecordStore.open(configuration, on: loop, resolver: resolver) {
                    [log] error in log.warning("database_failed", [.database(error)])
                }
                vault = Vault(store: store, keyring: keyring)
            } catch {
                throw AuthError(BrokerError(error))
            }
        }
        do {
            try await vault.unlock()
            var configuration = HTTPSClientConfiguration()
            configuration.trustedCAFile = trustedCAFile
            configuration.allowsInsecureTargets = allowsInsecureProviders
            let client = try HTTPSClient(configuration: configuration, loop: loop, resolver: resolver)
            var settings = CredentialsBroker.Settings()
            settings.allowsInsecureProviders = allowsInsecureProviders
            let broker = CredentialsBroker(
                settings: settings, vault: vault, transport: client, time: time, log: log)
            broker.start()
            return Opened(broker: broker, vault: vault, client: client, loop: loop)
        } catch {
            await vault.close()
            throw error
        }
    }
}
