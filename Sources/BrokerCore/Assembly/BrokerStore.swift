package import CredentialStore
package import Cryptography
import OAuth
package import Postgres
package import Reactor

/// The store of a broker, open and not unlocked yet; see `BrokerResources`.
package struct BrokerStore: Sendable {
    /// Where credentials are stored.
    package enum Location: Sendable {
        /// In memory, until the process ends.
        case memory
        /// In a directory, which one process at a time may use. The other values are those of `EmbeddedStore.open`.
        case directory(String, masterKeys: SecretBytes? = nil, keysFile: String? = nil)
        /// In PostgreSQL, for any number of processes with the same keys.
        case database(Database, Keyring)
        /// In one value of a storage that is not the broker's, for few users.
        /// - Parameters:
        ///   - masterKeys: nil for keys that are made at the first use, and stored in the value as well.
        ///   - isShared: whether several processes use the value at once, with clocks that agree.
        case value(any ValueStorage, Keyring?, isShared: Bool)
    }

    /// How long a call of a storage that is not the broker's may take.
    private static let valueLimit: Duration = .seconds(10)

    /// A PostgreSQL database, and how it is used.
    package struct Database: Sendable {
        package struct Options: Sendable {
            /// How notifications of other processes' commits are received. Default automatic.
            package var listening = PostgresRecordStore.Listening.automatic
            /// Whether missing migrations are applied. Default true.
            package var migrates = true
            /// For how long a cache entry is valid while no change feed covers it; 0 or more. Default 5 s.
            package var cacheValidity: Duration = .seconds(5)
            /// For how long a database that does not answer is asked again, every second. Default 0: it is asked once.
            package var patience: Duration = .zero

            package init() {}
        }

        let configuration: PostgresConfiguration
        let options: Options

        package init(_ configuration: PostgresConfiguration, _ options: Options = Options()) {
            self.configuration = configuration
            self.options = options
        }
    }

    package let vault: Vault
    /// The file store of a directory; nil for other locations.
    package let files: FileRecordStore?
    /// The store of a database; nil for other locations.
    package let database: PostgresRecordStore?
    /// What the database has reported; nothing for other locations.
    package let reports: DatabaseReports

    /// Opens the store. The caller unlocks it by `BrokerResources.open`, or closes it.
    /// - Parameters:
    ///   - loop: runs the database's connections. It must outlive the store.
    ///   - log: is told of each error of disk and database.
    package static func open(
        _ location: Location, on loop: EventLoop, log: Log, time: any Time
    ) async throws(OpeningFailure) -> BrokerStore {
        let reports = DatabaseReports(log, time: time)
        switch location {
        case .memory:
            let keyring: Keyring
            do {
                keyring = try Keyring(parsing: Keyring.generate(id: "k1"))
            } catch {
                throw .files(.random)
            }
            return BrokerStore(MemoryRecordStore(), keyring, reports)
        case .directory(let directory, let masterKeys, let keysFile):
            do throws(EmbeddedStore.Failure) {
                let (store, keyring) = try await EmbeddedStore.open(
                    directory, masterKeys: masterKeys, keysFile: keysFile
                ) { error in log.warning("file_store_failed", [.fileStore(error)]) }
                return BrokerStore(store, keyring, files: store, reports)
            } catch {
                throw .files(error)
            }
        case .database(let database, let keyring):
            let store = try await connect(database, on: loop, log: log, time: time, reports)
            return BrokerStore(store, keyring, database: store, reports)
        case .value(let storage, let keyring, let isShared):
            let clock: @Sendable () -> Timestamp = { time.now }
            let store = ValueRecordStore(storage, timeOfDay: isShared ? clock : nil) {
                try? await time.sleep(for: valueLimit)
            }
            return BrokerStore(store, try await keys(keyring, of: store), reports)
        }
    }

    /// - Parameter given: nil for the value's own keys.
    private static func keys(
        _ given: Keyring?, of store: ValueRecordStore
    ) async throws(OpeningFailure) -> Keyring {
        if let given { return given }
        let own: String?
        do throws(StoreError) {
            own = try await store.ownKeys()
        } catch {
            throw .value(error)
        }
        guard let own else { throw .value(.damaged("its keys are missing: it was sealed with keys that were given")) }
        do throws(KeyringError) {
            return try Keyring(parsing: own)
        } catch {
            throw .value(.damaged("its keys cannot be read"))
        }
    }

    /// Applies missing migrations to a database.
    package static func migrate(
        _ database: Database, on loop: EventLoop, log: Log, time: any Time
    ) async throws(OpeningFailure) {
        var options = database.options
        options.migrates = true
        let database = Database(database.configuration, options)
        await (try connect(database, on: loop, log: log, time: time, DatabaseReports(log, time: time))).close()
    }

    private init(
        _ store: any RecordStore, _ keyring: Keyring, files: FileRecordStore? = nil,
        database: PostgresRecordStore? = nil, _ reports: DatabaseReports
    ) {
        vault = Vault(store: store, keyring: keyring)
        (self.files, self.database) = (files, database)
        self.reports = reports
    }

    private static func connect(
        _ database: Database, on loop: EventLoop, log: Log, time: any Time, _ reports: DatabaseReports
    ) async throws(OpeningFailure) -> PostgresRecordStore {
        // A resolver of its own, so that slow look-ups of providers' names cannot delay those of the database.
        let resolver: NameResolver
        do throws(SystemError) {
            resolver = try NameResolver(name: "db-resolver", limits: .database)
        } catch {
            throw .system(error)
        }
        var direct: PostgresConfiguration?
        let options = database.options
        if case .through(let listener) = options.listening { direct = listener }
        DatabaseReports.noteLinks(database.configuration, listener: direct, log)
        let end = time.monotonic.advanced(by: options.patience)
        while true {
            do throws(StoreError) {
                return try await PostgresRecordStore.open(
                    database.configuration, on: loop, resolver: resolver, migrates: options.migrates,
                    listening: options.listening, revalidateAfter: options.cacheValidity,
                    report: { reports.note($0) }, reportFlaw: { reports.note($0) })
            } catch {
                log.warning("store_failed", [.store(error)])
                guard error == .unavailable, time.monotonic < end else {
                    throw .database(error, reason: reports.lastReason)
                }
            }
            do throws(CancellationError) {
                try await time.sleep(for: .seconds(1))
            } catch {
                throw .cancelled
            }
        }
    }
}
