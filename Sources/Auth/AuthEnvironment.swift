package import BrokerCore
import CredentialStore
import Cryptography
import HTTPSClient
import OAuth
import Postgres
import Reactor
import Synchronization
import Waiting

/// The resources that the `AuthClient` instances of a process share: a store, connections to providers, and a thread
/// for both.
///
/// The first use opens them. If that fails, the next use tries again. Keep one environment for the life of the program,
/// and `close` it before the program ends so that granted tokens are stored.
public final class AuthEnvironment: Sendable {
    /// Where credentials are stored. Stored credentials are encrypted.
    public enum Storage: Sendable, CustomStringConvertible, CustomReflectable {
        /// In memory, until the process ends.
        case memory
        /// In files of a directory, which only this process may use while the environment is open. A missing directory
        /// is created, and so is the key that encrypts the files. The key is stored in the directory as well: protect
        /// it like the credentials.
        case directory(String)
        /// In PostgreSQL, for any number of processes. `url` is a libpq connection string. Without `sslmode` in it, a
        /// host that is not local is connected over TLS with `verify-full`. `masterKeys` is `id:base64 of 32 bytes`,
        /// several separated by commas: the first key encrypts, and all keys decrypt.
        case postgres(url: String, masterKeys: String)
        /// In one value of a storage that the program brings, such as an entry of a keychain; see `CredentialsStorage`.
        ///
        /// `key` names the value. `masterKeys`, in the form of `postgres`, encrypt the credentials in it. With nil, the key that
        /// encrypts them is made at the first use and stored in the value, as `directory` does beside its files: then the storage
        /// itself must keep secrets, as a keychain does. With `isShared`, several processes of one machine may use the value at
        /// once, such as an app and its extension; without it, one environment at a time.
        case program(
            any CredentialsStorage, key: String = "token-broker", masterKeys: String? = nil, isShared: Bool = false)

        /// Omits the keys and the connection string, which may contain a password.
        public var description: String {
            switch self {
            case .memory: "memory"
            case .directory(let directory): "directory \(directory)"
            case .postgres: "postgres"
            case .program(_, let key, _, _): "program's value \(key)"
            }
        }

        /// Printing a storage uses this mirror, which is empty for the same reason.
        public var customMirror: Mirror { Mirror(self, children: [], displayStyle: .enum) }
    }

    /// Receives log events: one line with a JSON object for each event, without secrets.
    public typealias Logger = @Sendable (String) -> Void

    private let storage: Storage
    private let trustedCAFile: String?
    let providerTargets: TargetPolicy
    private let log: Log
    let time: any Time
    /// What requests to providers go through instead of the HTTPS client; nil for that.
    private let transport: (any ProviderTransport)?
    private let interceptor: RequestInterceptor?
    private let state = Mutex(State())

    private struct State {
        var opening: Task<Result<Opened, AuthError>, Never>?
        var closing: Task<Void, Never>?
        /// The number of calls and streams that use the open resources.
        var users = 0
    }

    /// Is signalled when `users` becomes zero.
    private let userDepartures = KeyedSignal<Int>()

    /// - Parameters:
    ///   - storage: where credentials are stored.
    ///   - trustedCAFile: a PEM file with root certificates that are trusted in addition to the system's. Default:
    ///     none.
    ///   - allowsInsecureProviders: allows `http://` providers and private addresses except link-local ones, for
    ///     development only. Default false.
    ///   - logger: is called from any thread for events of level info and above, and must not block. Default: no log.
    ///   - requestInterceptor: sees each request to a provider before it is sent, and may add header fields or refuse it.
    ///     Default: none.
    public convenience init(
        storage: Storage, trustedCAFile: String? = nil, allowsInsecureProviders: Bool = false, logger: Logger? = nil,
        requestInterceptor: RequestInterceptor? = nil
    ) {
        self.init(
            storage: storage, trustedCAFile: trustedCAFile, allowsInsecureProviders: allowsInsecureProviders,
            time: SystemTime(), requestInterceptor: requestInterceptor, logger: logger)
    }

    /// - Parameters:
    ///   - time: the clocks to use; tests pass their own.
    ///   - transport: what sends the requests to providers; nil for the HTTPS client.
    ///   - requestInterceptor: sees each request first; nil for none.
    package init(
        storage: Storage, trustedCAFile: String? = nil, allowsInsecureProviders: Bool = false, time: any Time,
        transport: (any ProviderTransport)? = nil, requestInterceptor: RequestInterceptor? = nil,
        logger: Logger? = nil
    ) {
        self.time = time
        interceptor = requestInterceptor
        self.transport = transport
        self.storage = storage
        self.trustedCAFile = trustedCAFile
        providerTargets = allowsInsecureProviders ? .development : TargetPolicy()
        log = Log(threshold: logger == nil ? .error : .info, time: time) { line in
            logger?(String(decoding: line, as: UTF8.self))
        }
    }

    /// Waits for running operations, for about `limit` at most, and closes the store.
    ///
    /// From now on, every call on an `AuthClient` of this environment throws `storageUnusable`, and so do the calls
    /// that wait for a device login. The streams of `bus` end. Further calls of `close` wait for the same end. An
    /// environment that was never used has nothing to close. Cancelling the task does not shorten the wait.
    /// - Parameter limit: default 25 s.
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
        // Running calls must have sent their requests to the provider before `finish` waits for renewals.
        await waitForUsers(until: deadline)
        await opened.resources.finish(opened.broker, within: max(.zero, time.monotonic.duration(to: deadline)))
        // Jobs of a loop that has ended would never run. The remaining calls wait for the store only.
        await waitForUsers(until: nil)
        await opened.resources.close()
        opened.loop.shutDown()
    }

    /// - Parameter deadline: nil waits without a limit.
    private func waitForUsers(until deadline: MonotonicInstant?) async {
        while true {
            let ticket = userDepartures.ticket(0)
            let remaining = deadline.map { time.monotonic.duration(to: $0) } ?? .seconds(60)
            if remaining <= .zero || state.withLock({ $0.users == 0 }) { return }
            await userDepartures.wait(for: 0, since: ticket) { try? await self.time.sleep(for: remaining) }
        }
    }

    /// The open resources.
    struct Opened: Sendable {
        let broker: CredentialsBroker
        fileprivate let resources: BrokerResources
        fileprivate let loop: EventLoop
    }

    /// Returns the open resources, and opens them first if necessary. They stay open until `leave`, which the caller
    /// must call.
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
            // The next call tries again, unless another call has begun to.
            state.withLock { if $0.opening == opening { $0.opening = nil } }
            leave()
            throw error
        }
    }

    /// Ends the use that `enter` began.
    func leave() {
        let isLast = state.withLock { state in
            state.users -= 1
            return state.users == 0
        }
        if isLast { userDepartures.signal(0) }
    }

    static let closed = AuthError(.storageUnusable, message: "This environment was closed.")

    private func open() async -> Result<Opened, AuthError> {
        let loop: EventLoop
        do throws(SystemError) {
            loop = try EventLoop(name: "auth")
        } catch {
            return .failure(AuthError(OpeningFailure.system(error)))
        }
        do throws(AuthError) {
            return .success(try await open(on: loop))
        } catch {
            loop.shutDown()
            return .failure(error)
        }
    }

    private func open(on loop: EventLoop) async throws(AuthError) -> Opened {
        let location = try location()
        var settings = CredentialsBroker.Settings()
        settings.providerTargets = providerTargets
        // The whole value is written with each change, so it has the last events only.
        if case .value = location { settings.eventLimit = Self.eventsInValue }
        var options = BrokerResources.Options()
        options.trustedCAFile = trustedCAFile
        let resources: BrokerResources
        do throws(OpeningFailure) {
            let store = try await BrokerStore.open(location, on: loop, log: log, time: time)
            resources = try await BrokerResources.open(
                store, for: settings, options, on: loop, log: log, time: time)
        } catch {
            throw AuthError(error)
        }
        var transport: any ProviderTransport = self.transport ?? resources.client
        if let interceptor {
            transport = InterceptingTransport(transport, interceptor, time: resources.time, log: log)
        }
        let broker = CredentialsBroker(
            settings: settings, vault: resources.vault, transport: transport, time: resources.time, log: log)
        do throws(BrokerError) {
            try await broker.takeUpJournal()
        } catch {
            await resources.close()
            throw AuthError(error)
        }
        resources.start(broker)
        return Opened(broker: broker, resources: resources, loop: loop)
    }

    /// How many events a program's value keeps, about; a listener that is further behind misses some.
    private static let eventsInValue = 200

    private func location() throws(AuthError) -> BrokerStore.Location {
        switch storage {
        case .memory: return .memory
        case .directory(let directory): return .directory(directory)
        case .program(let storage, let key, let masterKeys, let isShared):
            do throws(KeyringError) {
                let keyring = try masterKeys.map { text throws(KeyringError) in try Keyring(parsing: text) }
                return .value(ProgramValue(storage: storage, key: key), keyring, isShared: isShared)
            } catch {
                throw AuthError(.illegalArgument, message: "\(error)")
            }
        case .postgres(let url, let masterKeys):
            do {
                let keyring = try Keyring(parsing: masterKeys)
                return .database(BrokerStore.Database(try PostgresConfiguration(url)), keyring)
            } catch {
                throw AuthError(.illegalArgument, message: "\(error)")
            }
        }
    }
}

extension AuthError {
    fileprivate init(_ failure: OpeningFailure) {
        switch failure {
        case .database(let error, _): self.init(BrokerError(error))
        case .value(.unavailable), .keys(.store(.unavailable)): self.init(BrokerError(.unavailable))
        default: self.init(.storageUnusable, message: failure.description)
        }
    }
}
