import BrokerTesting
import Cryptography
import FoundationEssentials
import Glibc
import OAuth
import Reactor
import Synchronization
import Testing

@testable import CredentialStore

/// Each commit is interrupted at every step that it makes.
@Suite struct `A file record store whose disk or process fails`: FileStoreFixture {
    struct Scenario: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let changes: [RecordChange]
    }

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
        Scenario(testDescription: "an entry", changes: [entry("new")]),
        Scenario(testDescription: "several entries", changes: [entry("new"), entry("newer", beta), entry("newest")]),
        Scenario(testDescription: "an entry that begins a segment", changes: [entry("new", count: 1 << 20)]),
        Scenario(
            testDescription: "a replacement with an entry",
            changes: [.replace(record(.credentials, alpha, "a", version: 2, sealed: [7]), version: 1), entry("new")]),
        Scenario(
            testDescription: "a record with entries that begin a segment",
            changes: [
                entry("new"), .insert(record(.login, beta, "new", lookup: 9)), entry("newer", count: 1 << 20),
            ]),
        Scenario(
            testDescription: "a requirement with an entry", changes: [.require(before[0].id), entry("new")]),
        Scenario(
            testDescription: "a due mark that is settled with a notice",
            changes: [.settleDue(before[6].id, version: 1), entry("notice", beta)]),
        Scenario(
            testDescription: "a record that gets a due mark",
            changes: [.replace(record(.credentials, alpha, "a", version: 2, due: .latest), version: 1)]),
        Scenario(
            testDescription: "the end of a tenant with an entry",
            changes: [.remove(before[0].id, version: 1), .removeAll(alpha), entry("end"), entry("end", .broker)]),
        Scenario(
            testDescription: "the end of a tenant that has entries only", changes: [.removeAll(alpha), entry("end")]),
        Scenario(testDescription: "a block that begins a chain", changes: [.audit(.sample("new-1", 1, 2))]),
        Scenario(
            testDescription: "a record with an entry and a block",
            changes: [
                .insert(record(.credentials, alpha, "new")), entry("new"), .audit(.sample("old-1", 2, isSigned: true)),
            ]),
    ]

    // K16
    @Test func `says what the disk reported, which a store's error cannot`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
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

    private func after(_ changes: [RecordChange]...) async throws -> StoreContents {
        let store = MemoryRecordStore()
        for changes in Self.beginning + changes { try await store.commit(changes) }
        return try await StoreContents(of: store)
    }

    @Test(arguments: scenarios)
    func `a process that dies at any step leaves all of a commit or nothing`(scenario: Scenario) async throws {
        let before = try await after()
        let after = try await after(scenario.changes)
        var outcomes: Set<Bool> = []
        for place in 0... {
            let directory = StoreFixtureDirectory(isInMemory: true)
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
        let before = try await after()
        let after = try await after(scenario.changes)
        let later: [RecordChange] = [.insert(Self.record(.credentials, Self.beta, "later")), Self.entry("later")]
        let atLast = try await self.after(scenario.changes, later)
        for place in 0... {
            let directory = StoreFixtureDirectory(isInMemory: true)
            let disk = StandInDisk()
            let store = try await open(directory, disk)
            disk.fail(place..<place + 1, number: number)
            let said = try await succeeds(store, scenario.changes)
            let hasFailed = disk.hasFailed
            let steps = disk.steps
            disk.heal()
            let expected = said ? after : before
            #expect(try await StoreContents(of: store) == expected, "step \(place): \(steps)")
            for record in expected.records where record.lookup != nil {
                #expect(try await store.find(record.id.kind, lookup: record.lookup!) == record)
            }
            try await store.check()
            if !said { #expect(try await succeeds(store, scenario.changes)) }
            #expect(try await StoreContents(of: store) == after)
            try await store.commit(later)
            await store.close()
            #expect(try await reopened(directory) == atLast)
            if !hasFailed { break }
        }
    }

    @Test func `while the disk stays broken nothing half-done is read`() async throws {
        let changes = Self.scenarios[6].changes + [Self.entry("new")]
        let after = try await after(changes)
        let directory = StoreFixtureDirectory(isInMemory: true)
        let disk = StandInDisk()
        let store = try await open(directory, disk)
        disk.heal()
        try await store.commit(changes)
        let decided = try #require(disk.steps.firstIndex(of: FileStep(call: .synchronizeFile, path: "commits")))
        await store.close()

        let second = StoreFixtureDirectory(isInMemory: true)
        let broken = try await open(second, disk)
        // One of the renames has been made.
        disk.fail(decided + 2..<Int.max, number: EIO)
        #expect(try await !succeeds(broken, changes))
        for record in Self.before {
            await #expect(throws: StoreError.unavailable) { try await broken.read(record.id) }
        }
        await #expect(throws: StoreError.unavailable) { try await broken.find(.apiKey, lookup: SHA256.digest([1])) }
        await #expect(throws: StoreError.unavailable) { try await broken.entries(after: 0, tenant: nil, limit: 9) }
        await #expect(throws: StoreError.unavailable) { try await broken.logBounds() }
        await #expect(throws: StoreError.unavailable) { try await broken.nextDue(.credentials) }
        await #expect(throws: StoreError.unavailable) { try await broken.check() }
        await #expect(throws: StoreError.unavailable) { try await broken.removeExpired(before: .latest, limit: 9) }
        disk.heal()
        #expect(try await StoreContents(of: broken) == after)
        await broken.close()
        #expect(try await reopened(second) == after)
    }

    @Test func `a process that dies while it finishes another's commit leaves it to the next`() async throws {
        let changes = Self.scenarios[6].changes + [Self.entry("new")]
        let after = try await after(changes)
        let disk = StandInDisk()
        let probe = StoreFixtureDirectory(isInMemory: true)
        let store = try await open(probe, disk)
        disk.heal()
        try await store.commit(changes)
        let decided = try #require(disk.steps.firstIndex(of: FileStep(call: .synchronizeFile, path: "commits")))
        await store.close()

        for firstDeath in [decided + 1, decided + 2, decided + 5] {
            for secondDeath in 0... {
                let directory = StoreFixtureDirectory(isInMemory: true)
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
            let directory = StoreFixtureDirectory(isInMemory: true)
            let disk = StandInDisk()
            disk.fail(place..<Int.max, number: ENOSPC)
            do throws(FileStoreError) {
                let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
                await store.close()
            } catch {
                guard case .system = error else { throw error }
            }
            #expect(try await reopened(directory).records == [])
            if !disk.hasFailed { break }
        }
    }

    @Test func `a removal of expired records that fails can be repeated`() async throws {
        for place in 0... {
            let directory = StoreFixtureDirectory(isInMemory: true)
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
            #expect(try await reopened(directory).records == [])
            if !hasFailed { break }
        }
    }

    private func calls(
        _ store: FileRecordStore, _ disk: StandInDisk, _ changes: [RecordChange]
    ) async throws -> [String] {
        disk.heal()
        try await store.commit(changes)
        return disk.steps.filter { $0.call != .read }.map {
            "\($0.call) \($0.path)".replacing(#/new\/\d+/#, with: "new/N").replacing("0000000000000000001", with: "1")
        }
    }

    @Test func `a commit is synchronized once, when its files are finished and none is in its place`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let disk = StandInDisk()
        let store = try await open(directory, disk)
        let replacement = RecordChange.replace(Self.record(.credentials, Self.alpha, "a", version: 2), version: 1)
        #expect(
            try await calls(store, disk, [replacement, .remove(Self.before[2].id, version: 1), Self.entry("x")]) == [
                "create new/N", "write new/N", "write commits", "synchronizeFile commits",
                "rename plain/credentials/alpha/=a", "remove plain/credentials/alpha/=b", "create catalog",
                "write catalog", "create log/1", "write log/1",
            ])
        #expect(
            try await calls(store, disk, [Self.entry("y")]) == [
                "write commits", "synchronizeFile commits", "create log/1", "write log/1",
            ])
        await store.close()
    }

    /// The changes of a commit that took place must be made before anything is read.
    // H105
    @Test(arguments: [false, true])
    func `a commit for whose entries the disk has no room does not take place, and reads go on`(
        hasEntries: Bool
    ) async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let isFull = Mutex(false)
        let fault: FileFault = { step in
            let needsRoom = step.call == .reserve || step.call == .write && step.path.hasPrefix("log/0")
            return needsRoom && isFull.withLock { $0 } ? ENOSPC : nil
        }
        let store = try await FileRecordStore(directory: directory.path, fault: fault)
        try await store.commit([.insert(Self.before[1])] + (hasEntries ? [Self.entry("first")] : []))
        let before = try await StoreContents(of: store)
        isFull.withLock { $0 = true }
        let replacement = RecordChange.replace(Self.record(.credentials, Self.alpha, "a", version: 2), version: 1)
        #expect(try await !succeeds(store, [replacement, Self.entry("x")]))
        #expect(try await StoreContents(of: store) == before)
        #expect(try await succeeds(store, [replacement]))
        isFull.withLock { $0 = false }
        #expect(try await succeeds(store, [Self.entry("x")]))
        let after = try await StoreContents(of: store)
        #expect(after.log.map(\.entry.key) == (hasEntries ? ["first", "x"] : ["x"]))
        await store.close()
        #expect(try await reopened(directory) == after)
    }

    private static func bytes(_ count: Int) -> [UInt8] { [UInt8](repeating: 7, count: count) }

    /// A disk without room, on which only what the reserve gives up can be used.
    private final class FullDisk: Sendable {
        let state = Mutex((isFull: false, room: 0))

        var fault: FileFault {
            { step in
                self.state.withLock { state in
                    if step.call == .remove, step.path == RoomReserve.name { state.room = 20 }
                    // What is reserved can be written.
                    let needsRoom = step.call == .reserve || step.call != .remove && step.path.hasPrefix("new/")
                    guard state.isFull, needsRoom else { return nil }
                    if step.path == RoomReserve.name || state.room == 0 { return ENOSPC }
                    state.room -= 1
                    return nil
                }
            }
        }
    }

    // H105
    @Test func `a full disk takes logouts and renewals, and nothing else until there is room again`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let disk = FullDisk()
        let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
        let first = Self.record(.credentials, Self.alpha, "first", version: 1, sealed: Self.bytes(900))
        let second = Self.record(.credentials, Self.alpha, "second", version: 1, sealed: Self.bytes(900))
        try await store.commit([.insert(first), .insert(second)])
        disk.state.withLock { $0.isFull = true }
        let login = Self.record(.credentials, Self.alpha, "third", version: 1, sealed: Self.bytes(900))
        #expect(try await !succeeds(store, [.insert(login)]))
        #expect(try await !succeeds(store, [Self.entry("x")]))
        // Next to the emptied record, what is to be revoked.
        let emptied = Self.record(.credentials, Self.alpha, "first", version: 2, sealed: Self.bytes(60))
        let revocation = Self.record(.revocation, Self.alpha, "first", version: 1, sealed: Self.bytes(900))
        #expect(
            try await succeeds(
                store, [.replace(emptied, version: 1), .insert(revocation), Self.entry("deauthorized")]))
        #expect(try await store.read(first.id)?.sealed == emptied.sealed)
        let renewed = Self.record(.credentials, Self.alpha, "second", version: 2, sealed: Self.bytes(1000))
        #expect(try await succeeds(store, [.replace(renewed, version: 1), Self.entry("refreshed")]))
        // What was given up is not for these.
        #expect(try await !succeeds(store, [.insert(login)]))
        #expect(try await !succeeds(store, [Self.entry("x")]))
        #expect(try await store.read(second.id)?.version == 2)
        await #expect(throws: StoreError.unavailable) { try await store.check() }
        disk.state.withLock { $0.isFull = false }
        #expect(try await succeeds(store, [.insert(login)]))
        // It is whole again.
        disk.state.withLock { $0 = (true, 0) }
        #expect(try await succeeds(store, [.remove(login.id, version: 1), Self.entry("x")]))
        let after = try await StoreContents(of: store)
        await store.close()
        #expect(try await reopened(directory) == after)
    }

    @Test func `a commit that would have begun a segment and did not take place leaves no trace in the log`()
        async throws
    {
        for place in 0... {
            let directory = StoreFixtureDirectory(isInMemory: true)
            let disk = StandInDisk()
            let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
            try await store.commit([Self.entry("first", count: (1 << 20) - 1000)])
            disk.fail(place..<place + 1, number: ENOSPC)
            let said = try await succeeds(store, [Self.entry("large", count: 5000)])
            let hasFailed = disk.hasFailed
            disk.heal()
            // This entry fits into the first segment.
            try await store.commit([Self.entry("small")])
            await store.close()
            let again = try await FileRecordStore(directory: directory.path)
            try await again.commit([Self.entry("next")])
            let expected = (said ? ["first", "large"] : ["first"]) + ["small", "next"]
            for count in 0...expected.count {
                let rest = try await again.entries(after: Int64(count), tenant: nil, limit: 9)
                #expect(rest.map(\.entry.key) == Array(expected[count...]), "step \(place)")
            }
            _ = try await again.trimLog(before: Timestamp(seconds: 0), keeping: 2, limit: 99)
            let kept = try await again.entries(after: 0, tenant: nil, limit: 9).filter { !$0.entry.isMarker }
            #expect(kept.map(\.entry.key) == ["small", "next"])
            await again.close()
            if !hasFailed { break }
        }
    }

    @Test func `the log has room for a whole segment from its first entry on`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let disk = StandInDisk()
        let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
        var calls: [String] = []
        for _ in 0..<3 { calls += try await self.calls(store, disk, [Self.entry("x")]) }
        // The first segment is written under another name first.
        #expect(
            calls.filter { $0.hasPrefix("reserve") } == ["reserve catalog", "reserve new/N", "reserve log/1"])
        var status = stat()
        #expect(unsafe stat(directory.path + "/log/0000000000000000001", &status) == 0)
        #expect(status.st_size < 1000 && status.st_blocks * 512 >= 1 << 20)
        await store.close()
    }

    @Test func `what many commits have written is synchronized once before their file begins again`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let disk = StandInDisk()
        let store = try await open(directory, disk)
        await store.close()
        let again = try await FileRecordStore(directory: directory.path, fault: disk.fault)
        disk.heal()
        var version: Int64 = 1
        var synchronized: [String] = []
        while synchronized.isEmpty {
            let record = Self.record(
                .credentials, Self.alpha, "a", version: version + 1, sealed: [UInt8](repeating: 7, count: 10_000))
            disk.heal()
            try await again.commit([.replace(record, version: version), Self.entry("x")])
            version += 1
            synchronized = disk.steps.filter {
                [.synchronizeFile, .synchronizeDirectory].contains($0.call) && $0.path != "commits"
            }.map { "\($0.call) \($0.path)" }
            try #require(version < 100)
        }
        // A process that died may have created the directories above it.
        #expect(
            synchronized == [
                "synchronizeFile log/0000000000000000001", "synchronizeFile plain/credentials/alpha/=a",
                "synchronizeDirectory .", "synchronizeDirectory plain", "synchronizeDirectory plain/credentials",
                "synchronizeDirectory plain/credentials/alpha",
            ])
        // 256 KiB of frames.
        #expect(version == 27)
        #expect(try #require(FileManager.default.contents(atPath: directory.path + "/commits")).count == 256 << 10)
        await again.close()
    }

    @Test func `a start after a close finds nothing to do again`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let disk = StandInDisk()
        let store = try await open(directory, disk)
        await store.close()
        disk.heal()
        let again = try await FileRecordStore(directory: directory.path, fault: disk.fault)
        #expect(
            disk.steps.filter { $0.call != .read && $0.call != .list } == [
                // The file of the store's format may not be durable.
                FileStep(call: .synchronizeDirectory, path: "."),
                FileStep(call: .write, path: "commits"), FileStep(call: .synchronizeFile, path: "commits"),
                // The blocks are reserved already, so that this changes nothing.
                FileStep(call: .reserve, path: "reserve"),
            ])
        disk.heal()
        await again.close()
        #expect(disk.steps == [])
    }

    @Test func `a commit larger than the file of commits has it grow for as long as it is needed`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let disk = StandInDisk()
        let store = try await open(directory, disk)
        func size() throws -> Int {
            try #require(FileManager.default.contents(atPath: directory.path + "/commits")).count
        }
        let large = Self.record(.credentials, Self.alpha, "large", sealed: [UInt8](repeating: 9, count: 1_000_000))
        try await store.commit([.insert(large)])
        #expect(try size() > 1_000_000)
        try await store.commit([Self.entry("next")])
        #expect(try size() == 256 << 10)
        #expect(try await store.read(large.id) == large)
        await store.close()
        let again = try await FileRecordStore(directory: directory.path)
        #expect(try await again.read(large.id) == large)
        #expect(try await again.entries(after: 3, tenant: nil, limit: 9).map(\.entry.key) == ["next"])
        await again.close()
    }
}
