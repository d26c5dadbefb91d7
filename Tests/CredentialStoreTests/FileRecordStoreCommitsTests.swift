import BrokerTesting
import Cryptography
import DevelopmentProvider
import FoundationEssentials
import Glibc
import OAuth
import Synchronization
import Testing

@testable import CredentialStore

/// After a power failure a disk has what was synchronized, and any part of the rest.
@Suite struct `The commits of a file record store` {
    let directory = StoreFixtureDirectory(isInMemory: true)
    var path: String { directory.path }

    private static let tenants = [TenantName("alpha")!, TenantName("beta")!]

    // MARK: Directories

    /// The content of each file, by path.
    private typealias Files = [String: [UInt8]]

    private func files() throws -> Files {
        var files: Files = [:]
        for name in try FileManager.default.subpathsOfDirectory(atPath: path) {
            let attributes = try FileManager.default.attributesOfItem(atPath: path + "/" + name)
            guard attributes[.type] as? FileAttributeType == .typeRegular else { continue }
            files[name] = Array(try #require(FileManager.default.contents(atPath: path + "/" + name)))
        }
        return files
    }

    /// - Parameter directories: the directories that exist without a file in them.
    private func put(
        _ files: Files, _ directories: Set<String> = [], in directory: StoreFixtureDirectory
    ) throws {
        let owner: [FileAttributeKey: Any] = [.posixPermissions: 0o700]
        for name in ["", "plain", "indexed", "new", "log"] + directories {
            try FileManager.default.createDirectory(
                atPath: directory.path + "/" + name, withIntermediateDirectories: true, attributes: owner)
        }
        for (name, bytes) in files {
            let file = directory.path + "/" + name
            try FileManager.default.createDirectory(
                atPath: Self.parent(of: file), withIntermediateDirectories: true, attributes: owner)
            #expect(FileManager.default.createFile(atPath: file, contents: Data(bytes)))
        }
    }

    private static func parent(of path: String) -> String {
        String(path[..<(path.lastIndex(of: "/") ?? path.startIndex)])
    }

    private func contents(of files: Files, _ directories: Set<String> = []) async throws -> StoreContents {
        let directory = StoreFixtureDirectory(isInMemory: true)
        try put(files, directories, in: directory)
        let store = try await FileRecordStore(directory: directory.path)
        let contents = try await StoreContents(of: store)
        await store.close()
        // A second recovery finds nothing to do.
        let again = try await FileRecordStore(directory: directory.path)
        #expect(try await StoreContents(of: again) == contents)
        await again.close()
        return contents
    }

    private func refusal(of files: Files) async throws -> String? {
        let directory = StoreFixtureDirectory(isInMemory: true)
        try put(files, in: directory)
        do throws(FileStoreError) {
            let store = try await FileRecordStore(directory: directory.path)
            await store.close()
            return nil
        } catch {
            return error.description.replacing(directory.path, with: "")
        }
    }

    // MARK: Commits

    private static func change(_ generator: inout SplitMix64, octets: Int = 40) -> RecordChange {
        let tenant = tenants.randomElement(using: &generator)!
        let key = String(Int.random(in: 0..<5, using: &generator))
        let id = RecordID([.credentials, .login, .device].randomElement(using: &generator)!, tenant, key: key)
        let version = Int64.random(in: 1...3, using: &generator)
        let record = StoredRecord(
            id: id, version: version,
            sealed: [UInt8](repeating: .random(in: 0...255, using: &generator), count: octets),
            lookup: Int.random(in: 0..<3, using: &generator) == 0 ? SHA256.digest([UInt8(version)]) : nil,
            expires: [.latest, Timestamp(seconds: 1), nil, nil].randomElement(using: &generator)!,
            due: Int.random(in: 0..<3, using: &generator) == 0 ? Timestamp(seconds: 3) : nil)
        switch Int.random(in: 0..<20, using: &generator) {
        case 0..<7: return .insert(record)
        case 7..<12: return .replace(record, version: version - 1)
        case 12..<15: return .remove(id, version: version)
        case 15: return .removeAll(tenant)
        default:
            return .append(
                StoredLogEntry(
                    tenant: tenant, key: key, version: version, time: Timestamp(seconds: 1),
                    sealed: [UInt8](repeating: 5, count: octets / 2)))
        }
    }

    /// Makes `count` commits without conflicts in both stores.
    private static func fill(
        _ store: FileRecordStore, _ model: MemoryRecordStore, count: Int, _ generator: inout SplitMix64
    ) async throws {
        var made = 0
        while made < count {
            let changes = (0..<Int.random(in: 1...3, using: &generator)).map { _ in change(&generator) }
            do throws(StoreError) {
                try await model.commit(changes)
            } catch {
                guard error == .conflict else { throw error }
                continue
            }
            try await store.commit(changes)
            made += 1
        }
    }

    // MARK: Power failures

    @Test(arguments: 1...40 as ClosedRange<UInt64>)
    func `outlast a loss of power, whatever the disk has of the files that they change`(seed: UInt64) async throws {
        var generator = SplitMix64(seed: seed)
        let model = MemoryRecordStore()
        let first = try await FileRecordStore(directory: path)
        try await Self.fill(first, model, count: 20, &generator)
        await first.close()
        let settled = try files()
        let store = try await FileRecordStore(directory: path)
        try await Self.fill(store, model, count: 30, &generator)
        let written = try files()
        let expected = try await StoreContents(of: model)
        await store.close()
        for _ in 0..<5 {
            var found: Files = ["new/77": [1, 2]]
            for name in Set(settled.keys).union(written.keys).sorted() {
                let (before, after) = (settled[name], written[name])
                if before == after || name == "commits" {
                    found[name] = after
                    continue
                }
                switch Int.random(in: 0..<4, using: &generator) {
                case 0: found[name] = before
                case 1: found[name] = after
                case 2: found[name] = (before ?? []) + [UInt8](repeating: 0, count: after?.count ?? 0)
                default:
                    // A segment of the log, and the catalog, may have lost what was appended last, but not what was
                    // synchronized.
                    let kept = name.hasPrefix("log/0") || name == "catalog" ? before?.count ?? 0 : 0
                    found[name] = after.map { Array($0.prefix(max(kept, $0.count / 2))) }
                }
            }
            #expect(try await contents(of: found, Set(settled.keys.map(Self.parent))) == expected)
        }
    }

    /// Changes a store in a random way. Returns whether it changed.
    private static func step(
        _ store: FileRecordStore, _ model: MemoryRecordStore, _ generator: inout SplitMix64
    ) async throws -> Bool {
        switch Int.random(in: 0..<12, using: &generator) {
        case 0:
            let removed = try await model.removeExpired(before: Timestamp(seconds: 2), limit: 99)
            #expect(try await store.removeExpired(before: Timestamp(seconds: 2), limit: 99) == removed)
        case 1:
            let removed = try await model.trimLog(before: Timestamp(seconds: 0), keeping: 4, limit: 99)
            #expect(try await store.trimLog(before: Timestamp(seconds: 0), keeping: 4, limit: 99) == removed)
        default:
            let octets = [40, 3000, 30_000, 600_000].randomElement(using: &generator)!
            let changes = (0..<Int.random(in: 1...3, using: &generator)).map { _ in
                change(&generator, octets: octets)
            }.filter { change in
                // The entries of a removed tenant are still in the log of one store, and not in that of the other.
                if case .removeAll = change { false } else { true }
            }
            do throws(StoreError) {
                try await model.commit(changes)
            } catch {
                guard error == .conflict else { throw error }
                return false
            }
            try await store.commit(changes)
        }
        return true
    }

    @Test(arguments: 1...8 as ClosedRange<UInt64>)
    func `take place or do not, wherever the power is lost, and last when they have`(seed: UInt64) async throws {
        var generator = SplitMix64(seed: seed)
        let disk = PessimalDisk(path)
        let model = MemoryRecordStore()
        let store = try await FileRecordStore(directory: path, fault: disk.fault)
        var places = 0
        for _ in 0..<60 {
            let before = try await StoreContents(of: model)
            disk.losePower(after: .random(in: 0..<16, using: &generator))
            guard try await Self.step(store, model, &generator) else { continue }
            let after = try await StoreContents(of: model)
            if let left = disk.left {
                places += 1
                let found = try await contents(of: left.files, left.directories)
                #expect(found == before || found == after)
            }
            #expect(try await StoreContents(of: store) == after)
            let left = disk.now
            #expect(try await contents(of: left.files, left.directories) == after)
        }
        #expect(places > 5)
        await store.close()
        #expect(try await contents(of: disk.now.files, disk.now.directories) == StoreContents(of: model))
    }

    @Test(arguments: [false, true])
    func `outlast a loss of power where the process died that was to make the format's file durable`(
        isConverted: Bool
    ) async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let disk = PessimalDisk(directory.path)
        if isConverted { try await put(former().0, in: directory) } else { try put([:], in: directory) }
        try disk.settle()
        let isPlaced = Mutex(false)
        let dying: FileFault = { step in
            if isPlaced.withLock({ $0 }) { return EIO }
            if step == FileStep(call: .rename, path: "format") { isPlaced.withLock { $0 = true } }
            return disk.fault(step)
        }
        await #expect(throws: FileStoreError.self) {
            try await FileRecordStore(directory: directory.path, fault: dying)
        }
        #expect(FileManager.default.fileExists(atPath: directory.path + "/format"))
        let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
        let id = RecordID(.credentials, Self.tenants[0], key: "written")
        try await store.commit([.insert(StoredRecord(id: id, version: 1, sealed: [7]))])
        let expected = try await StoreContents(of: store)
        let left = disk.now
        #expect(try await contents(of: left.files, left.directories) == expected)
        await store.close()
    }

    @Test func `that could not be synchronized are not there after a loss of power, however whole they look`()
        async throws
    {
        var generator = SplitMix64(seed: 21)
        let disk = StandInDisk()
        let model = MemoryRecordStore()
        let store = try await FileRecordStore(directory: path, fault: disk.fault)
        try await Self.fill(store, model, count: 5, &generator)
        let expected = try await StoreContents(of: model)
        let id = RecordID(.credentials, Self.tenants[0], key: "late")
        let late = RecordChange.insert(StoredRecord(id: id, version: 1, sealed: [1, 2]))
        // Creates the directory that the record needs.
        try await store.commit([late])
        try await store.commit([.remove(id, version: 1)])
        disk.heal()
        try await store.commit([late])
        let synchronized = try #require(
            disk.steps.firstIndex(of: FileStep(call: .synchronizeFile, path: "commits")))
        try await store.commit([.remove(id, version: 1)])
        // The frame is written but cannot be synchronized. Then erasing it fails for so many steps.
        for count in 1...4 {
            disk.fail(synchronized..<synchronized + count, number: EIO)
            await #expect(throws: StoreError.unavailable) { try await store.commit([late]) }
            // Reads never see the frame, while all other calls on the disk succeed.
            if count < 3 { #expect(try await StoreContents(of: store) == expected) }
            if count == 1 { #expect(try await contents(of: files()) == expected) }
            disk.heal()
            #expect(try await StoreContents(of: store) == expected)
        }
        try await store.commit([late])
        #expect(try await store.read(id)?.sealed == [1, 2])
        let now = try await StoreContents(of: store)
        #expect(try await contents(of: files()) == now)
        await store.close()
    }

    @Test func `may be made again when all of their files are durable`() async throws {
        var generator = SplitMix64(seed: 5)
        let model = MemoryRecordStore()
        let store = try await FileRecordStore(directory: path)
        try await Self.fill(store, model, count: 50, &generator)
        let full = try files()["commits"]
        await store.close()
        var settled = try files()
        #expect(settled["commits"] != full)
        settled["commits"] = full
        let expected = try await StoreContents(of: model)
        #expect(try await contents(of: settled) == expected)
    }

    @Test func `are there whole or not at all, wherever the writing of one broke off`() async throws {
        var generator = SplitMix64(seed: 9)
        let model = MemoryRecordStore()
        let store = try await FileRecordStore(directory: path)
        // More frames than fit into the file, so that older frames are behind the last one.
        try await Self.fill(store, model, count: 10, &generator)
        await store.close()
        let again = try await FileRecordStore(directory: path)
        try await Self.fill(again, model, count: 2, &generator)
        let before = try files()
        let expected = try await StoreContents(of: model)
        try await Self.fill(again, model, count: 1, &generator)
        let after = try #require(try files()["commits"])
        let old = try #require(before["commits"])
        let differing = after.indices.filter { old[$0] != after[$0] }
        for place in try #require(differing.first)...differing[differing.count - 1] {
            var torn = before
            torn["commits"] = Array(after[..<place] + old[place...])
            #expect(try await contents(of: torn) == expected, "\(place)")
        }
        await again.close()
    }

    /// The files of a store with a few commits that are only in the write-ahead log, and the offsets of the frames of
    /// that log.
    private func unsettled() async throws -> (
        files: Files, commits: [UInt8], frames: [(start: Int, frame: CommitFrame)]
    ) {
        var generator = SplitMix64(seed: 3)
        let store = try await FileRecordStore(directory: path)
        try await Self.fill(store, MemoryRecordStore(), count: 3, &generator)
        let files = try files()
        await store.close()
        let commits = try #require(files["commits"])
        var frames: [(start: Int, frame: CommitFrame)] = []
        var rest = commits[...]
        while let frame = try? CommitFrame(decoding: rest) {
            frames.append((rest.startIndex, frame))
            rest = rest.dropFirst(frame.count)
        }
        try #require(frames.count == 4)
        return (files, commits, frames)
    }

    @Test func `are damaged when an octet before the last frame is not what was written`() async throws {
        let (good, _, frames) = try await unsettled()
        for index in 0..<frames[3].start {
            var altered = good
            altered["commits"]?[index] ^= 1
            #expect(try await refusal(of: altered)?.hasPrefix("/commits is damaged: ") == true, "\(index)")
        }
        for commits: [UInt8]? in [nil, [], [1, 2, 3]] {
            var altered = good
            altered["commits"] = commits
            #expect(try await refusal(of: altered)?.hasPrefix("/commits is damaged: ") == true)
        }
    }

    @Test func `of a later build are refused, not taken for the end`() async throws {
        let (good, commits, frames) = try await unsettled()
        let (start, last) = frames[3]
        var body = FieldWriter()
        body.write(last.number + 1)
        body.write(UInt8(9))
        for frame in [
            FramedFile.encodePart(mark: "TBcf", format: 1, body.bytes),
            FramedFile.encodePart(mark: "TBcf", format: 2, body.bytes),
        ] {
            var later = good
            later["commits"] = commits[..<(start + last.count)] + frame
            #expect(try await refusal(of: later) == " was written by a later version")
        }
    }

    // MARK: Format 2

    /// The files of a store of format 2, which has no catalog, whose process died during a commit; and the contents of
    /// the store after a recovery.
    private func former() async throws -> (Files, StoreContents) {
        var generator = SplitMix64(seed: 11)
        let store = try await FileRecordStore(directory: path)
        try await Self.fill(store, MemoryRecordStore(), count: 20, &generator)
        let gone = RecordID(.credentials, Self.tenants[0], key: "gone")
        try await store.commit([.insert(StoredRecord(id: gone, version: 1, sealed: [1]))])
        await store.close()
        var files = try files()
        let again = try await FileRecordStore(directory: path)
        let late = StoredRecord(id: RecordID(.credentials, Self.tenants[0], key: "late"), version: 1, sealed: [4, 5])
        let entry = StoredLogEntry(
            tenant: Self.tenants[1], key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [1])
        try await again.commit([.insert(late), .remove(gone, version: 1), .append(entry)])
        let expected = try await StoreContents(of: again)
        await again.close()
        let segment = "log/0000000000000000001"
        let count = try #require(files[segment]).count
        let frame = CommitFrame.encode(
            [
                .write(to: RecordPath(.plain, late.id).text, RecordFile.encode(late)),
                .remove(RecordPath(.plain, gone).text),
                .append(to: segment, offset: count, Array(try #require(try self.files()[segment]).dropFirst(count))),
            ], number: 7)
        files["commits"] = frame + [UInt8](repeating: 0, count: CommitLog.empty.count - frame.count)
        files["catalog"] = nil
        // A store of format 2 had no such file before the first trimming.
        if files["log/state"] == LogState().encode() { files["log/state"] = nil }
        files["new/5"] = [1, 2, 3]
        files["format"] = Array("token-broker records 2\n".utf8)
        return (files, expected)
    }

    @Test func `of a store of format 2 are recovered, and the store is converted`() async throws {
        let (files, expected) = try await former()
        for isDead in [false, true] {
            for place in 0... {
                let directory = StoreFixtureDirectory(isInMemory: true)
                try put(files, in: directory)
                let disk = StandInDisk()
                disk.fail(place..<(isDead ? Int.max : place + 1), number: EIO)
                do throws(FileStoreError) {
                    let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
                    await store.close()
                } catch {
                    guard case .system = error else { throw error }
                }
                let hasFailed = disk.hasFailed
                let store = try await FileRecordStore(directory: directory.path)
                #expect(try await StoreContents(of: store) == expected, "step \(place): \(disk.steps)")
                await store.close()
                let names = try FileManager.default.contentsOfDirectory(atPath: directory.path)
                #expect(
                    names.sorted() == [
                        "catalog", "commits", "format", "indexed", "lock", "log", "new", "plain", "reserve",
                    ])
                #expect(
                    FileManager.default.contents(atPath: directory.path + "/format")
                        == Data("token-broker records 3\n".utf8))
                if !hasFailed { break }
            }
        }
    }

    @Test func `of a damaged store of format 2 are refused, and the store is not converted`() async throws {
        let (files, _) = try await former()
        for name in files.keys where name.hasPrefix("plain/") {
            var damaged = files
            damaged[name]?[40] ^= 1
            // The pending commit removes this record.
            if name.hasSuffix("=gone") { continue }
            #expect(try await refusal(of: damaged)?.hasPrefix("/\(name) is damaged: ") == true, "\(name)")
        }
    }
}
