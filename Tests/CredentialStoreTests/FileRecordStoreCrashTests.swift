internal import BrokerTesting
internal import Cryptography
internal import FoundationEssentials
internal import Glibc
internal import OAuth
internal import Reactor
internal import Synchronization
internal import Testing

@testable internal import CredentialStore

/// Each commit is broken off at every single step it makes.
@Suite struct `A file record store whose disk or process fails` {
    struct Scenario: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let changes: [RecordChange]
    }

    private static let alpha = TenantName("alpha")!
    private static let beta = TenantName("beta")!

    private static func record(
        _ kind: RecordKind, _ tenant: TenantName, _ key: String, version: Int64 = 1, sealed: [UInt8] = [1],
        lookup: UInt8? = nil, expires: Timestamp? = nil
    ) -> StoredRecord {
        StoredRecord(
            id: RecordID(kind, tenant, key: key), version: version, sealed: sealed,
            lookup: lookup.map { SHA256.digest([$0]) }, expires: expires)
    }

    static let before = [
        record(.tenant, alpha, ""), record(.credentials, alpha, "a"), record(.credentials, alpha, "b"),
        record(.apiKey, alpha, "key", lookup: 1), record(.login, alpha, "login", lookup: 2, expires: .latest),
        record(.credentials, beta, "a"),
    ]

    static let scenarios = [
        Scenario(testDescription: "an insert", changes: [.insert(record(.credentials, alpha, "new"))]),
        Scenario(
            testDescription: "a tenant's first record", changes: [.insert(record(.login, beta, "new", lookup: 9))]),
        Scenario(
            testDescription: "a replacement",
            changes: [.replace(record(.credentials, alpha, "a", version: 2, sealed: [7]), version: 1)]),
        Scenario(testDescription: "a removal", changes: [.remove(before[1].id, version: 1)]),
        Scenario(
            testDescription: "a record that gets an expiry",
            changes: [.replace(record(.credentials, alpha, "a", version: 2, expires: .latest), version: 1)]),
        Scenario(
            testDescription: "a record that loses its look-up digest and expiry",
            changes: [.replace(record(.login, alpha, "login", version: 2), version: 1)]),
        Scenario(
            testDescription: "several changes",
            changes: [
                .require(before[0].id), .replace(record(.credentials, alpha, "a", version: 2, sealed: [7]), version: 1),
                .remove(before[3].id, version: 1), .insert(record(.apiKey, beta, "heir", lookup: 1)),
                .insert(record(.credentials, beta, "new", expires: .latest)),
            ]),
        Scenario(
            testDescription: "the end of a tenant", changes: [.remove(before[0].id, version: 1), .removeAll(alpha)]),
    ]

    @Test func `says what the disk reported, which a store's error cannot`() async throws {
        let directory = StoreFixtureDirectory()
        let disk = StandInDisk()
        let reports = Mutex<[FileStoreError]>([])
        let store = try await FileRecordStore(directory: directory.path, fault: disk.fault) { error in
            reports.withLock { $0.append(error) }
        }
        disk.fail(0..<1000, number: ENOSPC)
        #expect(try await !succeeds(store, [.insert(Self.before[1])]))
        await #expect(throws: StoreError.unavailable) { try await store.check() }
        let expected = FileStoreError.system(path: directory.path, SystemError("read", number: ENOSPC))
        #expect(reports.withLock { $0.first } == expected)
        #expect(reports.withLock { $0.count } == 2)
        disk.heal()
        await store.close()
    }

    private func after(_ changes: [RecordChange]) async throws -> [StoredRecord] {
        let store = MemoryRecordStore()
        try await store.commit(Self.before.map { .insert($0) })
        try await store.commit(changes)
        return try await store.everything()
    }

    private func open(_ directory: StoreFixtureDirectory, _ disk: StandInDisk) async throws -> FileRecordStore {
        let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
        try await store.commit(Self.before.map { .insert($0) })
        return store
    }

    /// Whether the commit said that it took place.
    private func succeeds(_ store: FileRecordStore, _ changes: [RecordChange]) async throws -> Bool {
        do throws(StoreError) {
            try await store.commit(changes)
            return true
        } catch {
            #expect(error == .unavailable)
            return false
        }
    }

    private func reopened(_ directory: StoreFixtureDirectory) async throws -> [StoredRecord] {
        let store = try await FileRecordStore(directory: directory.path)
        let everything = try await store.everything()
        #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path + "/new") == [])
        #expect(!FileManager.default.fileExists(atPath: directory.path + "/commit"))
        await store.close()
        return everything
    }

    @Test(arguments: scenarios)
    func `a process that dies at any step leaves all of a commit or nothing`(scenario: Scenario) async throws {
        let before = Self.before.sorted { $0.id < $1.id }
        let after = try await after(scenario.changes)
        var outcomes: Set<Bool> = []
        for place in 0... {
            let directory = StoreFixtureDirectory()
            let disk = StandInDisk()
            let store = try await open(directory, disk)
            disk.fail(place..<Int.max, number: EIO)
            let said = try await succeeds(store, scenario.changes)
            await store.close()
            let found = try await reopened(directory)
            #expect(found == after || (found == before && !said), "step \(place): \(disk.steps)")
            outcomes.insert(found == after)
            if !disk.hasFailed {
                #expect(said)
                break
            }
        }
        #expect(outcomes == [true, false])
    }

    @Test(arguments: scenarios, [ENOSPC, EIO])
    func `after a failure at any step the store goes on, with all of the commit or nothing`(
        scenario: Scenario, number: CInt
    ) async throws {
        let before = Self.before.sorted { $0.id < $1.id }
        let after = try await after(scenario.changes)
        let later = Self.record(.credentials, Self.beta, "later")
        for place in 0... {
            let directory = StoreFixtureDirectory()
            let disk = StandInDisk()
            let store = try await open(directory, disk)
            disk.fail(place..<place + 1, number: number)
            let said = try await succeeds(store, scenario.changes)
            let hasFailed = disk.hasFailed
            let steps = disk.steps
            disk.heal()
            let expected = said ? after : before
            #expect(try await store.everything() == expected, "step \(place): \(steps)")
            for record in expected where record.lookup != nil {
                #expect(try await store.find(record.id.kind, lookup: record.lookup!) == record)
            }
            try await store.check()
            if !said { #expect(try await succeeds(store, scenario.changes)) }
            #expect(try await store.everything() == after)
            try await store.commit([.insert(later)])
            await store.close()
            #expect(try await reopened(directory) == (after + [later]).sorted { $0.id < $1.id })
            if !hasFailed { break }
        }
    }

    @Test func `while the disk stays broken nothing half-done is read`() async throws {
        let changes = Self.scenarios[6].changes
        let after = try await after(changes)
        let directory = StoreFixtureDirectory()
        let disk = StandInDisk()
        let store = try await open(directory, disk)
        disk.heal()
        try await store.commit(changes)
        let decided = try #require(disk.steps.firstIndex(of: FileStep(call: .rename, path: "commit")))
        await store.close()

        let second = StoreFixtureDirectory()
        let broken = try await open(second, disk)
        // Two steps on, one of the renames is done.
        disk.fail(decided + 3..<Int.max, number: EIO)
        #expect(try await !succeeds(broken, changes))
        for record in Self.before {
            await #expect(throws: StoreError.unavailable) { try await broken.read(record.id) }
        }
        await #expect(throws: StoreError.unavailable) { try await broken.find(.apiKey, lookup: SHA256.digest([1])) }
        await #expect(throws: StoreError.unavailable) { try await broken.check() }
        await #expect(throws: StoreError.unavailable) { try await broken.removeExpired(before: .latest, limit: 9) }
        disk.heal()
        #expect(try await broken.everything() == after)
        await broken.close()
        #expect(try await reopened(second) == after)
    }

    @Test func `a process that dies while it finishes another's commit leaves it to the next`() async throws {
        let changes = Self.scenarios[6].changes
        let after = try await after(changes)
        let disk = StandInDisk()
        let probe = StoreFixtureDirectory()
        let store = try await open(probe, disk)
        disk.heal()
        try await store.commit(changes)
        let decided = try #require(disk.steps.firstIndex(of: FileStep(call: .rename, path: "commit")))
        await store.close()

        for firstDeath in [decided + 1, decided + 2, decided + 4] {
            for secondDeath in 0... {
                let directory = StoreFixtureDirectory()
                let first = try await open(directory, disk)
                disk.fail(firstDeath..<Int.max, number: EIO)
                #expect(try await !succeeds(first, changes))
                await first.close()
                disk.fail(secondDeath..<Int.max, number: EIO)
                do throws(FileStoreError) {
                    let second = try await FileRecordStore(directory: directory.path, fault: disk.fault)
                    await second.close()
                } catch {
                    guard case .system = error else { throw error }
                }
                let hasFailed = disk.hasFailed
                disk.heal()
                #expect(try await reopened(directory) == after)
                if !hasFailed { break }
            }
        }
    }

    @Test func `a start that fails at any step can be repeated`() async throws {
        for place in 0... {
            let directory = StoreFixtureDirectory()
            let disk = StandInDisk()
            disk.fail(place..<Int.max, number: ENOSPC)
            do throws(FileStoreError) {
                let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
                await store.close()
            } catch {
                guard case .system = error else { throw error }
            }
            #expect(try await reopened(directory) == [])
            if !disk.hasFailed { break }
        }
    }

    @Test func `a removal of expired records that fails can be repeated`() async throws {
        for place in 0... {
            let directory = StoreFixtureDirectory()
            let disk = StandInDisk()
            let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
            for key in ["a", "b"] {
                let expiring = Self.record(.login, Self.alpha, key, expires: Timestamp(seconds: 1))
                try await store.commit([.insert(expiring)])
            }
            disk.fail(place..<place + 1, number: EIO)
            do throws(StoreError) {
                #expect(try await store.removeExpired(before: .latest, limit: 9) == 2)
            } catch {
                #expect(error == .unavailable)
            }
            let hasFailed = disk.hasFailed
            disk.heal()
            _ = try await store.removeExpired(before: .latest, limit: 9)
            #expect(try await store.everything() == [])
            await store.close()
            #expect(try await reopened(directory) == [])
            if !hasFailed { break }
        }
    }

    @Test func `every step is durable before the next relies on it`() async throws {
        let directory = StoreFixtureDirectory()
        let disk = StandInDisk()
        let store = try await open(directory, disk)
        disk.heal()
        try await store.commit([
            .replace(Self.record(.credentials, Self.alpha, "a", version: 2), version: 1),
            .remove(Self.before[2].id, version: 1),
        ])
        let calls = disk.steps.filter { $0.call != .read }.map { "\($0.call) \($0.path)" }
        #expect(
            calls.map { $0.replacing(#/new\/\d+/#, with: "new/N") } == [
                "create new/N", "write new/N", "synchronizeFile new/N", "synchronizeDirectory new",
                "create new/N", "write new/N", "synchronizeFile new/N", "rename commit", "synchronizeDirectory .",
                "rename plain/credentials/alpha/=a", "remove plain/credentials/alpha/=b",
                "synchronizeDirectory plain/credentials/alpha", "remove commit", "synchronizeDirectory .",
            ])

        disk.heal()
        try await store.commit([.replace(Self.record(.credentials, Self.alpha, "a", version: 3), version: 2)])
        #expect(
            disk.steps.filter { $0.call != .read }.map(\.call) == [
                .create, .write, .synchronizeFile, .rename, .synchronizeDirectory,
            ])
        await store.close()
    }
}
