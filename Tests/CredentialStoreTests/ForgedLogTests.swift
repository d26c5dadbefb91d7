import BrokerTesting
import FoundationEssentials
import Glibc
import OAuth
import Testing

@testable import CredentialStore

/// The digests in a store's files are no seals: a file that someone has made has the right ones.
@Suite struct `A forged log of a file store` {
    private let directory = StoreFixtureDirectory(isInMemory: true)

    /// Makes a new store, and replaces some of its files.
    private func make(_ files: [String: [UInt8]]) async throws {
        try? FileManager.default.removeItem(atPath: directory.path)
        let store = try await FileRecordStore(directory: directory.path)
        await store.close()
        for (name, bytes) in files {
            #expect(FileManager.default.createFile(atPath: directory.path + "/" + name, contents: Data(bytes)))
        }
    }

    /// A write-ahead log with these changes.
    private func log(_ changes: [FileChange], number: Int64 = 1) -> [UInt8] {
        let frame = CommitFrame.encode(changes, number: number)
        return frame + [UInt8](repeating: 0, count: max(0, CommitLog.empty.count - frame.count))
    }

    /// Whether a start and an examination both come to an end and refuse the store.
    private func isRefused() async throws -> Bool {
        let examination = try StoreExamination(directory.path)
        examination.examine(with: nil, usesOwnKeys: false)
        let opens = await opens()
        return examination.isDamaged && !opens
    }

    private func opens() async -> Bool {
        do throws(FileStoreError) {
            await (try FileRecordStore(directory: directory.path)).close()
            return true
        } catch {
            return false
        }
    }

    @Test(arguments: [
        "../outside", "plain/../../outside", "plain/credentials/../../../outside", "/dev/null/outside", "outside",
        "format",
        "lock", "commits", "master.keys", "admin.key", "new/1", "log/outside", "log/../../outside", "", ".",
        "catalog/../../outside", "catalog\0", "plain/credentials/alpha/=a\0", "plain/credentials/alpha/..",
        "plain/credentials/alpha/=A", "plain/unknown/alpha/=a", "plain/credentials/a b/=a", "log/1",
        "log/0000000000000000000", "log/9223372036854775807",
        "audit/", "audit/../outside", "audit/a/b", "audit/A", "audit", "audita",
    ])
    func `changes no file that commits do not change`(path: String) async throws {
        // What the path leads to from the directory of the store.
        let outside = directory.path.split(separator: "/").dropLast().joined(separator: "/")
        let changes: [FileChange] = [
            .write(to: path, [1]), .append(to: path, offset: 0, [1]), .append(to: path, offset: .max, [1]),
            .remove(path),
        ]
        for change in changes {
            try await make(["commits": log([change])])
            #expect(try await isRefused(), "\(change)")
        }
        #expect(!FileManager.default.fileExists(atPath: "/\(outside)/outside"))
        for name in ["lock", "format"] { #expect(FileManager.default.fileExists(atPath: "\(directory.path)/\(name)")) }
    }

    @Test(arguments: [
        "plain/credentials/alpha/=a", "indexed/login/-/=a=01", "log/state", "log/0000000000000000001", "catalog",
    ])
    func `may change the files that commits change`(path: String) throws {
        let frame = CommitFrame.encode([.write(to: path, [1])], number: 1)
        #expect(try CommitFrame(decoding: frame[...]).changes == [.write(to: path, [1])])
    }

    /// From these numbers no store can count on.
    private static let numbers: [Int64] = [(1 << 62) + 1, .max - 1, .max, .min, -1]

    @Test(arguments: numbers) func `has no number that cannot be followed`(number: Int64) async throws {
        try await make(["commits": log([], number: number)])
        #expect(try await isRefused())
    }

    @Test func `goes on after the last number that can be followed`() async throws {
        try await make(["commits": log([], number: 1 << 62)])
        #expect(await opens())
        #expect(await opens())
    }

    @Test(arguments: numbers) func `has no sequence that cannot be followed`(sequence: Int64) async throws {
        let entry = StoredLogEntry(
            tenant: TenantName("alpha")!, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [1])
        let frame = LogFrame.encode([entry], first: sequence)
        #expect(LogFrame.frames(of: frame, in: sequence).flaw != nil)
        let gap = LogFrame.encode(gap: sequence...sequence)
        #expect(LogFrame.frames(of: gap, in: sequence).flaw != nil)
        var files = [
            ["log/state": state(trimmed: sequence)], ["catalog": Catalog.encode(Catalog.Content(segment: sequence))],
            ["log/0000000000000000001": frame],
        ]
        if sequence > 0 {
            files.append([FileLog.path(of: sequence): frame, "log/state": state(trimmed: sequence - 1)])
        }
        for files in files {
            try await make(files)
            #expect(try await isRefused(), "\(files.keys)")
        }
    }

    /// Behind the last entry there is nothing to trim: the end of the segment is missing.
    @Test(arguments: [(0, true), (2, true), (3, true), (4, false), (1 << 62, false)] as [(Int64, Bool)])
    func `is not trimmed behind its last entry`(trimmed: Int64, isTaken: Bool) async throws {
        try await make([:])
        let store = try await FileRecordStore(directory: directory.path)
        let entry = RecordChange.append(
            StoredLogEntry(
                tenant: TenantName("alpha")!, key: "k", version: 1, time: Timestamp(seconds: 1), content: [1]))
        for _ in 0..<3 { try await store.commit([entry]) }
        await store.close()
        let forged = Data(state(trimmed: trimmed))
        #expect(FileManager.default.createFile(atPath: directory.path + "/log/state", contents: forged))
        guard isTaken else {
            #expect(try await isRefused())
            return
        }
        for _ in 0..<2 {
            let store = try await FileRecordStore(directory: directory.path)
            try await store.commit([entry])
            await store.close()
        }
        let bounds = try await FileRecordStore(directory: directory.path).logBounds()
        #expect(bounds == LogBounds(trimmed: trimmed, last: 5))
    }

    private func state(trimmed: Int64) -> [UInt8] {
        var state = LogState()
        state.trimmed = trimmed
        return state.encode()
    }

    @Test func `has a last sequence that can be followed`() {
        let entry = StoredLogEntry(
            tenant: TenantName("alpha")!, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [1])
        let last: Int64 = 1 << 62
        #expect(LogFrame.frames(of: LogFrame.encode([entry], first: last), in: last).flaw == nil)
        #expect(LogFrame.frames(of: LogFrame.encode([entry, entry], first: last), in: last).flaw != nil)
        #expect(LogFrame.frames(of: LogFrame.encode([entry, entry], first: last - 1), in: last - 1).flaw == nil)
    }

    /// Octets in each few of which a frame seems to begin that ends with them.
    private func claims(_ count: Int, number: Int64) -> [UInt8] {
        var body = FieldWriter()
        body.write(number)
        var bytes = CommitFrame.encode([], number: 1)
        while bytes.count < count {
            var length = FieldWriter()
            length.write(UInt32(max(0, count - bytes.count - 4)))
            bytes += length.bytes + Array("TBcf".utf8) + [1] + body.bytes
        }
        return Array(bytes.prefix(count))
    }

    @Test(arguments: [1, 2]) func `costs no more than its length`(number: Int64) {
        // As long as a log is, and four times that.
        let growth = ReadingCost.growth(from: 1 << 18) {
            claims($0, number: number)
        } _: {
            _ = CommitLog.decode($0)
        }
        #expect(growth < ReadingCost.limit)
    }

    @Test func `is damaged where more frames seem to begin than fit`() {
        #expect(CommitLog.decode(claims(1 << 18, number: 2)).flaw == .checksum)
        #expect(CommitLog.decode(claims(1 << 18, number: 1)).flaw == nil)
    }
}
