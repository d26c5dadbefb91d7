import BrokerTesting
import FoundationEssentials
import OAuth
import Synchronization
import Testing

@testable import CredentialStore

/// The audit log of the file store when its files are damaged, when the last process was killed, and while another one starts.
@Suite struct `Audit log in files` {
    typealias Store = `A damaged file store`

    private static let keys = BrokerHarness.masterKeys
    /// In the past: a process reads only files that were written lately, by the clock of the file system.
    private static let time = Timestamp(seconds: 1_700_000_000)

    private let directory = StoreFixtureDirectory(isInMemory: true)

    private func log(_ store: FileRecordStore, at time: Timestamp = time) throws -> AuditLog {
        AuditLog(vault: Vault(store: store, keyring: try Keyring(parsing: Self.keys))) { time }
    }

    /// Has a process write one chain with two entries of its own. Returns the chain's name.
    private func writeChain(closes: Bool = true) async throws -> String {
        let before = Set(try names())
        let store = try await FileRecordStore(directory: directory.path)
        let log = try log(store)
        try await log.sign(isStart: true)
        for _ in 0..<2 { try await log.record(AuditEntry("read")) }
        if closes { await log.close() }
        await store.close()
        return try #require(try names().first { !before.contains($0) })
    }

    /// The names of the files.
    private func names() throws -> [String] {
        let path = directory.path + "/audit"
        return FileManager.default.fileExists(atPath: path)
            ? try FileManager.default.contentsOfDirectory(atPath: path) : []
    }

    private func verify() async throws -> (summary: AuditExamination.Summary, faults: [String]) {
        try await verify(try AuditDirectory(directory.path))
    }

    private func verify(
        _ log: any AuditReading
    ) async throws -> (summary: AuditExamination.Summary, faults: [String]) {
        let faults = Mutex<[String]>([])
        let keyring = try Keyring(parsing: Self.keys)
        let summary = try await AuditExamination(log, keyring: keyring) { text in faults.withLock { $0.append(text) } }
            .run()
        return (summary, faults.withLock { $0 })
    }

    enum Damage: CaseIterable, Sendable {
        case truncated, flipped, replaced, isDirectory, unreadable
    }

    /// Damages the file of a chain.
    private func damage(_ chain: String, _ damage: Damage) throws {
        let path = "\(directory.path)/audit/\(chain)"
        var bytes = Array(try #require(FileManager.default.contents(atPath: path)))
        switch damage {
        case .truncated: bytes.removeLast()
        case .flipped: bytes[bytes.count - 40] ^= 1
        case .replaced: bytes = [1, 2, 3]
        case .isDirectory:
            try FileManager.default.removeItem(atPath: path)
            return try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: false)
        case .unreadable:
            try FileManager.default.removeItem(atPath: path)
            return try FileManager.default.createSymbolicLink(atPath: path, withDestinationPath: "/dev/null")
        }
        try Data(bytes).write(to: URL(filePath: path))
    }

    @Test(arguments: Damage.allCases)
    func `one damaged chain is named, and neither keeps a process from starting nor the others from being signed`(
        damage: Damage
    ) async throws {
        let broken = try await writeChain()
        let whole = try await writeChain(closes: false)
        try self.damage(broken, damage)
        let store = try await FileRecordStore(directory: directory.path)
        let log = try log(store)
        let found = try await log.sign(isStart: true)
        #expect(found.changed == 0 && found.damaged.map(\.chain) == [broken], "\(found)")
        let text = try #require(found.damaged.first?.text)
        #expect(text.hasPrefix("\(directory.path)/audit/\(broken) is damaged behind "), "\(text)")
        try await log.record(AuditEntry("read"))
        // Each damaged chain is reported once.
        #expect(try await log.sign() == AuditLog.Findings())
        await log.close()
        await store.close()

        let (summary, faults) = try await verify()
        #expect(faults.first == text && summary.faults == faults.count, "\(faults)")
        #expect(faults.dropFirst().allSatisfy { $0.contains(broken) }, "\(faults)")
        // The entries of the other chain that its process had not signed are covered by the one that started.
        #expect(summary.witnessed == 2 && summary.chains == 3, "\(summary)")
        // The signature of the damaged chain's last entries is in its damaged block.
        #expect(summary.unsigned == ([.truncated, .flipped].contains(damage) ? 2 : 0), "\(summary)")
        #expect(try await AuditDirectory(directory.path).auditBlocks(of: whole, after: 0, limit: 9).count == 3)
        let examination = try StoreExamination(directory.path)
        examination.examine(with: try Keyring(parsing: Self.keys), usesOwnKeys: false)
        #expect(examination.files.filter { $0.flaw != nil }.map(\.path).contains("audit/\(broken)"))
    }

    @Test func `a start reads the files of the newest chains only`() async throws {
        let writer = try await FileRecordStore(directory: directory.path)
        for day in 1...120 {
            let begun = Self.time.advanced(by: .seconds(-day * 86_400))
            let name = AuditChainName.make(begun: begun, process: "a", number: Int64(day))
            try await writer.commit([.audit(.sample(name, 1, time: begun.seconds))])
        }
        await writer.close()
        let read = Mutex<Set<String>>([])
        let store = try await FileRecordStore(
            directory: directory.path,
            fault: { step in
                if step.call == .read, step.path.hasPrefix("audit/") { read.withLock { _ = $0.insert(step.path) } }
                return nil
            })
        try await log(store).sign(isStart: true)
        await store.close()
        let names = try names().sorted().reversed().map { "audit/\($0)" }
        #expect(names.count == 121)
        // The first one is that of the start. One page of the others is looked at.
        #expect(read.withLock { $0 }.isSubset(of: names.prefix(51)))
    }

    @Test func `a file with a name that no process gives to a chain is told of, without its name`() async throws {
        _ = try await writeChain()
        try Data([1]).write(to: URL(filePath: directory.path + "/audit/A\u{1b}[2J"))
        let (summary, faults) = try await verify()
        #expect(faults == ["\(directory.path)/audit has a file with a name that no process gives to a chain"])
        #expect(summary.chains == 1)
    }

    /// The files of a store whose process was killed, in which only the write-ahead log has the last blocks of a chain.
    private func filesOfKilled() async throws -> (files: Store.Files, chain: String) {
        let store = try await FileRecordStore(directory: directory.path)
        let log = try log(store)
        try await log.sign(isStart: true)
        for _ in 0..<2 { try await log.record(AuditEntry("read")) }
        let files = try Store.files(directory)
        await store.close()
        let chain = try #require(try names().first)
        return (files, chain)
    }

    @Test func `a chain that only the write-ahead log has is verified`() async throws {
        let (killed, chain) = try await filesOfKilled()
        var files = killed
        files["audit/\(chain)"] = nil
        try Store.put(files, directory)
        let (summary, faults) = try await verify()
        #expect(faults == [])
        #expect(summary == .init(chains: 1, entries: 4, faults: 0, unsigned: 2, open: 1))
        #expect(try Store.files(directory) == files, "verifying changed something")
    }

    @Test func `a process can start while the log of a stopped store is verified, which reads it as it was`()
        async throws
    {
        let (killed, chain) = try await filesOfKilled()
        var files = killed
        files["audit/\(chain)"] = nil
        try Store.put(files, directory)
        let reading = try AuditDirectory(directory.path)
        let store = try await FileRecordStore(directory: directory.path)
        let log = try log(store)
        try await log.sign(isStart: true)
        try await log.record(AuditEntry("read"))
        let (summary, faults) = try await verify(reading)
        #expect(faults == [])
        #expect(summary == .init(chains: 1, entries: 4, faults: 0, unsigned: 2, open: 1))
        // What is opened now has the chain of the process that runs.
        #expect(
            try await verify().summary == .init(chains: 2, entries: 7, faults: 0, unsigned: 1, witnessed: 2, open: 2))
        await log.close()
        await store.close()
    }

    @Test(arguments: [0, 1, 100, 300])
    func `a chain that lost the part before the blocks of the write-ahead log keeps no process from starting`(
        count: Int
    ) async throws {
        let (killed, chain) = try await filesOfKilled()
        var files = killed
        // The write-ahead log has the blocks behind the first one.
        let path = "audit/\(chain)"
        let first = AuditFrame.blocks(of: try #require(files[path])).blocks[0]
        let length = AuditFrame.encode(first).count
        #expect(count < length)
        let commits = CommitLog.decode(try #require(files["commits"])).commits
        let later = commits.filter { commit in
            !commit.contains {
                if case .append(let at, let offset, _) = $0 { at == path && offset == 0 } else { false }
            }
        }
        var log = CommitFrame.encode([], number: 1)
        for (index, commit) in later.enumerated() { log += CommitFrame.encode(commit, number: Int64(index) + 2) }
        files["commits"] = log + [UInt8](repeating: 0, count: CommitLog.empty.count - log.count)
        files[path] = count == 0 ? nil : Array(try #require(files[path]).prefix(count))
        try Store.put(files, directory)
        let offline = try await verify()
        let reports = Mutex<[FileStoreError]>([])
        let store = try await FileRecordStore(directory: directory.path) { error in
            reports.withLock { $0.append(error) }
        }
        #expect(
            reports.withLock { $0 } == [
                .damaged("\(directory.path)/\(path) is damaged: it is \(count == 0 ? "missing" : "truncated")")
            ])
        let next = try self.log(store)
        #expect(try await next.sign(isStart: true).damaged.map(\.chain) == [chain])
        await next.close()
        await store.close()
        #expect(offline.faults.count == 1 && offline.faults[0].contains("\(chain) is damaged behind 0 blocks"))
        let faults = try await verify().faults
        #expect(faults == offline.faults)
        // What the write-ahead log has had is at its place.
        let kept = try #require(try Store.files(directory)[path])
        #expect(kept.count > length && AuditFrame.blocks(of: Array(kept[length...])).blocks.count == 2)
    }

    @Test func `a process whose own chain is damaged goes on in another one`() async throws {
        let store = try await FileRecordStore(directory: directory.path)
        let log = try log(store)
        try await log.sign(isStart: true)
        let chain = try #require(try names().first)
        // A large commit has the write-ahead log start again, so that it no longer has the chain.
        try await store.commit([
            .insert(
                StoredRecord(
                    id: RecordID(.credentials, TenantName("alpha")!, key: "k"), version: 1,
                    sealed: [UInt8](repeating: 1, count: 300_000)))
        ])
        try Data().write(to: URL(filePath: "\(directory.path)/audit/\(chain)"))
        // The block is in the write-ahead log, and stands behind a gap.
        try await log.record(AuditEntry("read"))
        await #expect(throws: StoreError.self) { try await log.record(AuditEntry("read")) }
        try await log.record(AuditEntry("read"))
        await log.close()
        await store.close()
        let faults = try await verify().faults
        #expect(faults.count == 1 && faults[0].contains("\(chain) is damaged behind 0 blocks"), "\(faults)")
    }
}
