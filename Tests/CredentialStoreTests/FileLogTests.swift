import BrokerTesting
import FoundationEssentials
import Glibc
import OAuth
import Reactor
import Testing

@testable import CredentialStore

@Suite struct `The log of a file record store`: FileStoreFixture {
    /// The keys of the entries, those of markers with an asterisk.
    private static func marks(_ store: FileRecordStore) async throws -> [String] {
        try await store.entries(after: 0, tenant: nil, limit: 1000).map { placed in
            placed.entry.key + (placed.entry.isMarker ? "*" : "")
        }
    }

    private static func isDamaged(_ directory: StoreFixtureDirectory) throws -> Bool {
        let examination = try StoreExamination(directory.path)
        examination.examine(with: nil, usesOwnKeys: false)
        return examination.isDamaged
    }

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
                    #expect(try await store.logBounds() == LogBounds(trimmed: 0, last: 6))
                    #expect(try await Self.marks(store) == ["second", "big-2*"])
                    try await store.commit([Self.entry("next")])
                }
                await store.close()
                let again = try await FileRecordStore(directory: directory.path)
                _ = try await again.trimLog(before: Timestamp(seconds: 0), keeping: 1, limit: 99)
                #expect(try await again.logBounds() == LogBounds(trimmed: 0, last: isDead ? 6 : 7))
                #expect(try await Self.marks(again) == ["second", isDead ? "big-2*" : "next*"])
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
        #expect(try segments().map { Int($0) } == [1, 21, 31])
        #expect(try await store.trimLog(before: Timestamp(seconds: 0), keeping: 20, limit: 19) == 1)
        #expect(try segments().map { Int($0) } == [1, 21, 31])
        #expect(try await store.entries(after: 0, tenant: nil, limit: 2).map(\.sequence) == [20, 21])
        #expect(try await store.trimLog(before: Timestamp(seconds: 0), keeping: 0, limit: 99) == 20)
        #expect(try segments().map { Int($0) } == [1, 31])
        await store.close()
        var again = try await FileRecordStore(directory: directory.path)
        #expect(try await again.logBounds() == LogBounds(trimmed: 0, last: 40))
        #expect(try await Self.marks(again) == ["39*"])
        #expect(try await again.trimLog(before: Timestamp(seconds: 2), keeping: 40, limit: 99) == 1)
        #expect(try segments().map { Int($0) } == [31])
        await again.close()
        again = try await FileRecordStore(directory: directory.path)
        #expect(try await again.logBounds() == LogBounds(trimmed: 40, last: 40))
        await again.close()
    }

    @Test func `what a busy tenant has lost takes no room, and a quiet one's entries stay where they are`() async throws
    {
        let directory = StoreFixtureDirectory(isInMemory: true)
        var store = try await FileRecordStore(directory: directory.path)
        var written: [String] = []
        func octets() throws -> Int {
            let log = directory.path + "/log"
            return try FileManager.default.contentsOfDirectory(atPath: log).reduce(0) { sum, name in
                sum + (FileManager.default.contents(atPath: "\(log)/\(name)")?.count ?? 0)
            }
        }
        for round in 0..<10 {
            try await store.commit([Self.entry("quiet-\(round)", Self.beta, count: 1000)])
            written.append("quiet-\(round)")
            for index in 0..<20 { try await store.commit([Self.entry("\(round)-\(index)", count: 100_000)]) }
            if round == 6 {
                // The counts are read from the files then.
                await store.close()
                store = try await FileRecordStore(directory: directory.path)
            }
            _ = try await store.trimLog(before: Timestamp(seconds: 0), keeping: 20, limit: 999)
            let kept = try await store.entries(after: 0, tenant: nil, limit: 999)
            #expect(kept.count { !$0.entry.isMarker } == 20)
            let quiet = kept.filter { $0.entry.tenant == Self.beta }
            let places = (0...round).map { Int64($0 * 21 + 1) }
            #expect(quiet.map(\.entry.key) == written)
            #expect(quiet.map(\.sequence) == places)
            #expect(kept.count { $0.entry.isMarker } == 1)
        }
        // About twice what counts, and the last segment.
        #expect(try octets() < 3 << 20)
        #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path + "/log").count <= 5)
        let kept = try await store.entries(after: 0, tenant: nil, limit: 999)
        for place in kept.indices {
            let rest = try await store.entries(after: kept[place].sequence - 1, tenant: nil, limit: 999)
            #expect(rest == Array(kept[place...]))
        }
        await store.close()
        #expect(try !Self.isDamaged(directory))
        store = try await FileRecordStore(directory: directory.path)
        #expect(try await store.entries(after: 0, tenant: nil, limit: 999) == kept)
        // What is left goes by its age as ever.
        #expect(try await store.trimLog(before: Timestamp(seconds: 2), keeping: 20, limit: 999) == 21)
        #expect(try await store.logBounds() == LogBounds(trimmed: 210, last: 210))
        await store.close()
    }

    @Test func `a marker is read again, and by an earlier build as the end of what does not count`() throws {
        func placed(_ sequence: Int64, _ tenant: TenantName = Self.alpha) -> PlacedLogEntry {
            PlacedLogEntry(
                sequence: sequence,
                entry: StoredLogEntry(
                    tenant: tenant, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [1]))
        }
        var state = LogState()
        state.trim(to: 2)
        state.cut(Self.beta, at: 9)
        state.mark(Self.alpha, at: 5)
        let read = try LogState(decoding: state.encode())
        #expect(read == state)
        #expect(read.cuts == [Self.beta: 9])
        #expect((3...6).map { read.hides(placed($0)) } == [true, true, false, false])
        #expect((3...6).map { read.counts(placed($0)) } == [false, false, false, true])
        #expect((3...6).map { read.shown(placed($0)).entry.isMarker } == [false, false, true, false])
        // A tenant has a cut or a marker, whichever was later.
        state.cut(Self.alpha, at: 8)
        state.mark(Self.beta, at: 11)
        let later = try LogState(decoding: state.encode())
        #expect(later == state)
        #expect(later.cuts == [Self.alpha: 8])
        #expect(later.hides(placed(10, Self.beta)) && !later.hides(placed(11, Self.beta)))
        // Age takes both.
        state.trim(to: 11)
        #expect(
            state.encode()
                == {
                    var bare = LogState()
                    bare.trim(to: 11)
                    return bare.encode()
                }())
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
        #expect(try segments() == [1, 11, 21, 31])
        // Too many only by what does not count: that takes no room any more.
        #expect(try await store.trimLog(before: Timestamp(seconds: 1), keeping: 20, limit: 9) == 0)
        #expect(try await store.logBounds() == LogBounds(trimmed: 0, last: 40))
        #expect(try segments() == [1, 31])
        #expect(try await store.trimLog(before: Timestamp(seconds: 2), keeping: 40, limit: 9) == 0)
        #expect(try #require(FileManager.default.contents(atPath: state)).count < full)
        #expect(try await store.logBounds() == LogBounds(trimmed: 40, last: 40))
        #expect(try segments() == [31])
        await store.close()
        let again = try await FileRecordStore(directory: directory.path)
        #expect(try await again.logBounds() == LogBounds(trimmed: 40, last: 40))
        await again.close()
    }
}
