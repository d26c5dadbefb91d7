internal import BrokerTesting
internal import FoundationEssentials
internal import Glibc
internal import OAuth
internal import Reactor
internal import Testing

@testable internal import CredentialStore

@Suite struct `The log of a file record store`: FileStoreFixture {
    @Test func `trimming that fails can be repeated, and removes what it says`() async throws {
        for isDead in [false, true] {
            for place in 0... {
                let directory = StoreFixtureDirectory(isInMemory: true)
                let disk = StandInDisk()
                let store = try await open(directory, disk)
                for index in 0..<3 { try await store.commit([Self.entry("big-\(index)", count: 1 << 20)]) }
                disk.fail(place..<(isDead ? Int.max : place + 1), number: EIO)
                do throws(StoreError) {
                    #expect(try await store.trimLog(before: Timestamp(seconds: 0), keeping: 1, limit: 99) == 5)
                } catch {
                    #expect(error == .unavailable)
                }
                let hasFailed = disk.hasFailed
                disk.heal()
                if !isDead {
                    _ = try await store.trimLog(before: Timestamp(seconds: 0), keeping: 1, limit: 99)
                    #expect(try await store.logBounds() == LogBounds(trimmed: 5, last: 6))
                    try await store.commit([Self.entry("next")])
                }
                await store.close()
                let again = try await FileRecordStore(directory: directory.path)
                _ = try await again.trimLog(before: Timestamp(seconds: 0), keeping: 1, limit: 99)
                #expect(
                    try await again.logBounds()
                        == (isDead ? LogBounds(trimmed: 5, last: 6) : LogBounds(trimmed: 6, last: 7)))
                #expect(
                    try await again.entries(after: 0, tenant: nil, limit: 9).map(\.entry.key) == [
                        isDead ? "big-2" : "next"
                    ])
                await again.close()
                if !hasFailed { break }
            }
        }
    }

    @Test func `a log that lost octets at its end is damage`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let path = directory.path + "/log/0000000000000000001"
        let store = try await open(directory, StandInDisk())
        let good = try #require(FileManager.default.contents(atPath: path)).count
        try await store.commit([Self.entry("x"), Self.entry("y")])
        await store.close()
        let whole = try #require(FileManager.default.contents(atPath: path))
        for count in good + 1..<whole.count {
            // Truncated; and with the full length, but zeros at the end.
            for rest in [0, whole.count - count] {
                let torn = Array(whole.prefix(count)) + [UInt8](repeating: 0, count: rest)
                #expect(FileManager.default.createFile(atPath: path, contents: Data(torn)))
                let error = await #expect(throws: FileStoreError.self) {
                    try await FileRecordStore(directory: directory.path)
                }
                #expect(error?.description.hasPrefix("\(path) is damaged: ") == true)
            }
        }
    }

    @Test func `a flipped octet of the log's last segment is damage`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let path = directory.path + "/log/0000000000000000001"
        let store = try await open(directory, StandInDisk())
        await store.close()
        let whole = Array(try #require(FileManager.default.contents(atPath: path)))
        for index in whole.indices {
            var altered = whole
            altered[index] ^= 1
            #expect(FileManager.default.createFile(atPath: path, contents: Data(altered)))
            let error = await #expect(throws: FileStoreError.self) {
                try await FileRecordStore(directory: directory.path)
            }
            #expect(error?.description.hasPrefix("\(path) is damaged: ") == true)
        }
    }

    @Test func `the log is kept in segments, and memory holds none of it`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let store = try await FileRecordStore(directory: directory.path)
        for index in 0..<40 { try await store.commit([Self.entry("\(index)", count: 100_000)]) }
        func segments() throws -> [String] {
            try FileManager.default.contentsOfDirectory(atPath: directory.path + "/log").filter { $0 != "state" }
                .sorted()
        }
        #expect(try segments().map { Int($0) } == [1, 11, 21, 31])
        for limit in [1, 9, 10, 11, 100] {
            var read: [PlacedLogEntry] = []
            while case let page = try await store.entries(after: read.last?.sequence ?? 0, tenant: nil, limit: limit),
                !page.isEmpty
            { read += page }
            #expect(read.map(\.entry.key) == (0..<40).map { "\($0)" })
        }
        #expect(try await store.trimLog(before: Timestamp(seconds: 0), keeping: 20, limit: 19) == 19)
        #expect(try segments().count == 3)
        #expect(try await store.trimLog(before: Timestamp(seconds: 0), keeping: 20, limit: 19) == 1)
        #expect(try segments().map { Int($0) } == [21, 31])
        #expect(try await store.entries(after: 0, tenant: nil, limit: 1).map(\.sequence) == [21])
        #expect(try await store.trimLog(before: Timestamp(seconds: 0), keeping: 0, limit: 99) == 20)
        #expect(try segments().map { Int($0) } == [31])
        await store.close()
        let again = try await FileRecordStore(directory: directory.path)
        #expect(try await again.logBounds() == LogBounds(trimmed: 40, last: 40))
        await again.close()
    }

    @Test func `what removed tenants have left in the log goes with the rest`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let store = try await FileRecordStore(directory: directory.path)
        for index in 0..<40 {
            let tenant = try #require(TenantName("tenant-\(index)"))
            let sealed = [UInt8](repeating: 7, count: 100_000)
            let entry = StoredLogEntry(
                tenant: tenant, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: sealed)
            try await store.commit([.append(entry)])
            try await store.commit([.removeAll(tenant)])
        }
        func segments() throws -> [Int?] {
            try FileManager.default.contentsOfDirectory(atPath: directory.path + "/log").filter { $0 != "state" }
                .sorted().map { Int($0) }
        }
        let state = directory.path + "/log/state"
        let full = try #require(FileManager.default.contents(atPath: state)).count
        // The entries are neither too old nor too many.
        #expect(try await store.trimLog(before: Timestamp(seconds: 1), keeping: 40, limit: 9) == 0)
        #expect(try await store.logBounds() == LogBounds(trimmed: 0, last: 40))
        #expect(try await store.trimLog(before: Timestamp(seconds: 1), keeping: 20, limit: 9) == 0)
        #expect(try await store.logBounds() == LogBounds(trimmed: 20, last: 40))
        #expect(try segments() == [21, 31])
        #expect(try #require(FileManager.default.contents(atPath: state)).count < full)
        #expect(try await store.trimLog(before: Timestamp(seconds: 2), keeping: 40, limit: 9) == 0)
        #expect(try await store.logBounds() == LogBounds(trimmed: 40, last: 40))
        #expect(try segments() == [31])
        await store.close()
        let again = try await FileRecordStore(directory: directory.path)
        #expect(try await again.logBounds() == LogBounds(trimmed: 40, last: 40))
        await again.close()
    }
}
