package import CredentialStore
package import HTTPSClient
import OAuth
package import Reactor
import Synchronization

/// What a broker runs on: its unlocked store, its journal, the HTTPS client that calls providers, and the time that all
/// replicas share. The service and the library open these in one order and close them in one order.
///
/// 1. `BrokerStore.open`, `BrokerResources.open`; then the caller makes its `CredentialsBroker`.
/// 2. `CredentialsBroker.takeUpJournal` before the first caller is served, `start` from then on.
/// 3. `CredentialsBroker.beginDraining`, `finish`, `close`.
package final class BrokerResources: Sendable {
    /// What the two programs that embed a broker configure differently.
    package struct Options: Sendable {
        /// The directory of the journal; nil for none, which is the default.
        package var journalDirectory: String?
        /// A PEM file with root certificates that are trusted in addition to the system's; nil for none, which is the default.
        package var trustedCAFile: String?
        /// The proxy through which providers are reached over https; nil for none, which is the default.
        package var proxy: OutboundProxy?
        /// For how long the store is asked for its time until its answers prove that to a second. Nil, the default, asks once,
        /// and uses the wall clock where the store does not answer.
        package var timePatience: Duration?

        package init() {}
    }

    package let store: BrokerStore
    package let journal: Journal?
    package let client: HTTPSClient
    package let time: SharedTime
    private let log: Log
    /// The task that follows the store's clock.
    private let clock = Mutex<Task<Void, Never>?>(nil)

    package var vault: Vault { store.vault }

    private init(_ store: BrokerStore, _ journal: Journal?, _ client: HTTPSClient, _ time: SharedTime, _ log: Log) {
        self.store = store
        self.journal = journal
        self.client = client
        self.time = time
        self.log = log
    }

    /// Unlocks the store, opens the journal, makes the client and reads the store's time. Closes the store if it fails.
    /// - Parameters:
    ///   - settings: those of the broker that will use the resources; the client gets their limits.
    ///   - loop: runs the client. It must outlive the resources.
    ///   - time: the clocks of this machine.
    package static func open(
        _ store: BrokerStore, for settings: CredentialsBroker.Settings, _ options: Options, on loop: EventLoop,
        log: Log, time: any Time
    ) async throws(OpeningFailure) -> BrokerResources {
        var journal: Journal?
        do throws(OpeningFailure) {
            try await unlock(store)
            if let directory = options.journalDirectory {
                journal = try await openJournal(directory, keyring: store.vault.keyring, log: log, time: time)
            }
            let client = try makeClient(settings, options, on: loop, log: log)
            let shared = SharedTime(time)
            if let patience = options.timePatience {
                try await begin(shared, store, within: patience, log)
            } else {
                await shared.adjust(by: store.vault, log)
            }
            return BrokerResources(store, journal, client, shared, log)
        } catch {
            await journal?.close()
            await store.vault.close()
            throw error
        }
    }

    private static func unlock(_ store: BrokerStore) async throws(OpeningFailure) {
        do throws(VaultError) {
            try await store.vault.unlock()
        } catch {
            // The database has said what it lacks.
            if error == .store(.unavailable), let reason = store.reports.lastReason {
                throw .database(.unavailable, reason: reason)
            }
            throw .keys(error)
        }
    }

    /// Opens the journal, which is a file store that is sealed with the database's keys.
    private static func openJournal(
        _ directory: String, keyring: Keyring, log: Log, time: any Time
    ) async throws(OpeningFailure) -> Journal {
        let vault: Vault
        do throws(FileStoreError) {
            vault = Vault(
                store: try await FileRecordStore(directory: directory) { error in
                    log.warning("journal_failed", [.fileStore(error)])
                }, keyring: keyring)
        } catch {
            throw .journalFiles(error)
        }
        do throws(VaultError) {
            try await vault.unlock()
            try await retireOtherKeys(of: vault, log, time)
        } catch {
            await vault.close()
            throw .journalKeys(error)
        }
        return Journal(vault: vault, host: hostName)
    }

    /// The name of this machine, for operators.
    private static var hostName: String {
        let bytes = (try? SmallFile.read("/proc/sys/kernel/hostname", limit: 256)) ?? []
        let name = bytes.filter { $0 > 0x20 && $0 < 0x7F }
        return name.isEmpty ? "-" : String(decoding: name, as: UTF8.self)
    }

    /// Seals a journal under the first key, and retires its other keys. No other process can do so: the journal is this
    /// process's own. A key under which something is left that does not open stays.
    private static func retireOtherKeys(of journal: Vault, _ log: Log, _ time: any Time) async throws(VaultError) {
        let others = try await journal.otherKeys()
        if others.isEmpty { return }
        try await reseal(journal, log, time)
        for id in others {
            do throws(RetirementRefusal) {
                try await journal.retireKey(id: id)
            } catch {
                if case .store(let error) = error { throw .store(error) }
            }
        }
    }

    private static func reseal(_ journal: Vault, _ log: Log, _ time: any Time) async throws(VaultError) {
        do throws(StoreError) {
            let progress = try await Resealing(journal, time: time, perSecond: nil).run()
            log.info("journal_resealed", [.count(progress.resealed)])
        } catch {
            throw .store(error)
        }
    }

    private static func makeClient(
        _ settings: CredentialsBroker.Settings, _ options: Options, on loop: EventLoop, log: Log
    ) throws(OpeningFailure) -> HTTPSClient {
        var configuration = HTTPSClientConfiguration()
        configuration.trustedCAFile = options.trustedCAFile
        configuration.proxy = options.proxy
        configuration.onBackupPin = { origin in
            log.warning("provider_backup_pin", [.endpoint("\(origin.scheme.rawValue)://\(origin.authority)")])
        }
        settings.limit(&configuration)
        let resolver: NameResolver
        do throws(SystemError) {
            resolver = try NameResolver()
        } catch {
            throw .system(error)
        }
        do throws(HTTPSClientConfigurationError) {
            return try HTTPSClient(configuration: configuration, loop: loop, resolver: resolver)
        } catch {
            throw .client(error)
        }
    }

    private static func begin(
        _ time: SharedTime, _ store: BrokerStore, within patience: Duration, _ log: Log
    ) async throws(OpeningFailure) {
        do throws(StoreError) {
            try await time.begin(with: store.vault, within: patience, log)
        } catch {
            throw .time(error)
        }
    }

    /// What has become of other keys.
    package struct Adoption: Sendable {
        /// Whether they differ from those that the store had before.
        package let isChanged: Bool
        /// Why the journal still has its keys of before; nil where it has the new ones. Another call tries again.
        package let journalFault: VaultError?
    }

    /// Seals under other keys from now on, in the store and in the journal, and seals the journal anew under the first of them.
    /// - Throws: where the store or the journal needs a key that they lack, or fails. Then all keys stay.
    package func adopt(_ keyring: Keyring) async throws(OpeningFailure) -> Adoption {
        do throws(VaultError) {
            if let journal {
                // The keys before the last change are not needed any more: what was being written at that time is written.
                try await Self.retireOtherKeys(of: journal.vault, log, time)
                try await journal.vault.verify(keyring)
            }
        } catch {
            throw .journalKeys(error)
        }
        let isChanged = !keyring.isSame(as: vault.keyring)
        do throws(VaultError) {
            if isChanged { try await vault.adopt(keyring) }
        } catch {
            throw .keys(error)
        }
        do throws(VaultError) {
            if let journal, !keyring.isSame(as: journal.vault.keyring) {
                try await journal.vault.adopt(keyring)
                try await Self.reseal(journal.vault, log, time)
            }
        } catch {
            return Adoption(isChanged: isChanged, journalFault: error)
        }
        return Adoption(isChanged: isChanged, journalFault: nil)
    }

    /// Starts the broker's background jobs, and follows the store's clock until `close`. To be called once at most.
    package func start(_ broker: CredentialsBroker) {
        broker.start()
        clock.withLock { $0 = Task { await self.time.follow(broker.vault, self.log) } }
    }

    /// Ends the broker's work, then the client that it calls providers with. The store stays open for callers that still read.
    /// - Parameter limit: see `CredentialsBroker.finish`.
    package func finish(_ broker: CredentialsBroker, within limit: Duration) async {
        await broker.finish(within: limit)
        await client.close()
    }

    /// Closes the store, and the journal. No task may use them any more.
    package func close() async {
        let clock = clock.withLock { clock in
            defer { clock = nil }
            return clock
        }
        clock?.cancel()
        await clock?.value
        await journal?.close()
        await vault.close()
    }
}
