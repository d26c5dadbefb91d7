import BrokerTesting
import Cryptography
import OAuth
import Synchronization
import Testing

@testable import CredentialStore

/// An audit log as a person with access to the database can leave it.
private struct TamperedLog: AuditReading {
    var blocks: [String: [AuditBlock]] = [:]

    init(_ store: any RecordStore) async throws {
        for chain in try await store.allAuditChains() {
            blocks[chain.end.chain] = try await store.auditBlocks(of: chain.end.chain, after: 0, limit: 10_000)
        }
    }

    func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        AuditPage(of: blocks.values.compactMap { AuditChain($0) }, order, since: since, after: place, limit: limit)
    }

    func auditBlocks(of chain: String, after first: Int64, limit: Int) async throws(StoreError) -> [AuditBlock] {
        Array((blocks[chain] ?? []).filter { $0.first > first }.prefix(limit))
    }
}

extension AuditBlock {
    /// The same block with other members.
    fileprivate func with(
        first: Int64? = nil, last: Int64? = nil, time: Timestamp? = nil, body: String? = nil, hash: [UInt8]? = nil,
        signature: [UInt8]?? = nil
    ) -> AuditBlock {
        AuditBlock(
            chain: chain, first: first ?? self.first, last: last ?? self.last, time: time ?? self.time,
            body: body.map { Array($0.utf8) } ?? self.body, hash: hash ?? self.hash,
            signature: signature ?? self.signature)
    }

    /// The body with one text in place of another.
    fileprivate func body(_ text: String, _ other: String) -> String {
        String(decoding: self.body, as: UTF8.self).replacing(text, with: other)
    }

    /// The block with this body and the hash that belongs to it.
    fileprivate func rehashed(_ body: String, after previous: [UInt8]) -> AuditBlock {
        let changed = with(body: body)
        var hash = previous
        for line in changed.lines ?? [] { hash = Self.hash(of: line, after: hash) }
        return changed.with(hash: hash)
    }
}

@Suite struct `Audit log` {
    static let keys = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    private static let otherKeys = "k2:HwAHBgUEAwIBAAECAwQFBgcICQoLDA0ODxAREhMUFRY="
    static let alpha = TenantName("alpha")!

    final class Clock: Sendable {
        private let time = Mutex(Timestamp(seconds: 1_800_000_000))

        var now: Timestamp { time.withLock { $0 } }

        func move(by duration: Duration) { time.withLock { $0 = $0.advanced(by: duration) } }
    }

    let clock = Clock()
    let store: FaultyStore

    init() {
        store = FaultyStore(MemoryRecordStore(), revalidateAfter: .seconds(5))
    }

    func log(
        keys: String = keys, limits: AuditLog.Limits = AuditLog.Limits()
    ) throws -> (log: AuditLog, vault: Vault) {
        let vault = Vault(store: store, keyring: try Keyring(parsing: keys))
        let log = AuditLog(vault: vault, limits: limits) { [clock] in clock.now }
        let audited = vault.audited(by: log) { changes in
            changes.compactMap { change in
                guard case .insert(let record) = change else { return nil }
                return AuditEntry(
                    "record.created", tenant: record.id.tenant, AuditEntry.Subject("storage_key", record.id.key),
                    version: record.version)
            }
        }
        return (log, audited)
    }

    func insertion(_ key: String) -> VaultChange {
        let id = RecordID(.credentials, Self.alpha, key: key)
        return .insert(OpenRecord(id: id, version: 1, content: SecretBytes(utf8: "s")))
    }

    func verify(
        _ log: any AuditReading, keys: String = keys
    ) async throws -> (summary: AuditExamination.Summary, faults: [String]) {
        let faults = Mutex<[String]>([])
        let keyring = try Keyring(parsing: keys)
        let summary = try await AuditExamination(log, keyring: keyring) { text in faults.withLock { $0.append(text) } }
            .run()
        return (summary, faults.withLock { $0 })
    }

    func lines(_ export: AuditExport = AuditExport()) async throws -> [String] {
        let lines = Mutex<[String]>([])
        let unreadable = try await export.run(store) { line in
            lines.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
        }
        #expect(unreadable == (0, 0))
        return lines.withLock { $0 }
    }

    @Test func `is intact after changes, conflicts, lost answers and refused commits`() async throws {
        let (log, vault) = try log()
        try await log.sign(isStart: true)
        try await vault.commit([insertion("a")])
        await #expect(throws: StoreError.conflict) { try await vault.commit([insertion("a")]) }
        try await vault.commit([insertion("b")])
        store.onCommit(of: .credentials, .loseAnswer, .refuse(.unavailable))
        await #expect(throws: StoreError.unavailable) { try await vault.commit([insertion("c")]) }
        await #expect(throws: StoreError.unavailable) { try await vault.commit([insertion("d")]) }
        try await vault.commit([insertion("d")])
        try await log.sign()
        let open = try await verify(store)
        #expect(open.faults == [])
        // The chain whose last block may or may not have been stored goes on in another one.
        #expect(open.summary == .init(chains: 2, entries: 8, faults: 0, unsigned: 0, open: 2))
        await log.close()
        let closed = try await verify(store)
        #expect(closed.faults == [])
        #expect(closed.summary == .init(chains: 2, entries: 9, faults: 0, unsigned: 0, open: 1))
        let told = try await lines().compactMap(Self.key)
        #expect(Set(told) == ["a", "b", "c", "d"] && told.count == 4)
    }

    /// The storage key of a line.
    private static func key(in line: String) -> String? {
        let parts = line.split(separator: #""storage_key":""#)
        return parts.count == 2 ? String(parts[1].prefix(1)) : nil
    }

    @Test func `many commits at once take few chains, and none waits for long`() async throws {
        let (log, vault) = try log()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for index in 0..<200 { group.addTask { try await vault.commit([insertion("k\(index)")]) } }
            for index in 0..<200 {
                let entry = AuditEntry("read", AuditEntry.Subject("storage_key", "r\(index)"))
                group.addTask { try await log.record(entry) }
            }
            try await group.waitForAll()
        }
        await log.close()
        let (summary, faults) = try await verify(store)
        #expect(faults == [])
        #expect(summary.chains <= 8 && summary.open == 0 && summary.unsigned == 0)
        #expect(summary.entries == 400 + 2 * Int64(summary.chains))
    }

    @Test func `entries that wait together are written in one commit`() async throws {
        let gate = Gate()
        let held = HeldStore(store, gate)
        let vault = Vault(store: held, keyring: try Keyring(parsing: Self.keys))
        let waiting = AuditLog(vault: vault) { [clock] in clock.now }
        async let first: Void = waiting.record(AuditEntry("first"))
        await gate.arrivals()
        // Each has entered the list when its task suspends.
        let others = (0..<50).map { index in Task.immediate { try await waiting.record(AuditEntry("other \(index)")) } }
        gate.open()
        try await first
        for other in others { try await other.value }
        #expect(held.commits == 2)
        await waiting.close()
        #expect(try await verify(store).faults == [])
    }

    @Test func `an entry that cannot be written is reported to each caller that waits for it`() async throws {
        let (log, _) = try log()
        store.setDown(true)
        for _ in 0..<3 {
            await #expect(throws: StoreError.unavailable) { try await log.record(AuditEntry("read")) }
        }
        store.setDown(false)
        try await log.record(AuditEntry("read"))
        await log.close()
        let (summary, faults) = try await verify(store)
        #expect(faults == [] && summary.entries == 3)
    }

    @Test func `a chain ends at its limits, and the next one names its end`() async throws {
        var limits = AuditLog.Limits()
        limits.entries = 4
        limits.age = .seconds(100)
        let (log, _) = try log(limits: limits)
        // Two chains of a beginning, three entries and an end; then one that ends by its age; then one more.
        for _ in 0..<7 { try await log.record(AuditEntry("read")) }
        clock.move(by: .seconds(99))
        try await log.record(AuditEntry("read"))
        clock.move(by: .seconds(1))
        try await log.record(AuditEntry("read"))
        await log.close()
        let (summary, faults) = try await verify(store)
        #expect(faults == [])
        #expect(summary == .init(chains: 4, entries: 17, faults: 0, unsigned: 0, open: 0))
        // Removing one of them shows.
        let chains = try await store.allAuditChains().map(\.end.chain)
        var tampered = try await TamperedLog(store)
        tampered.blocks[chains[1]] = nil
        let missing = try await verify(tampered).faults
        #expect(missing.count == 1 && missing[0].hasPrefix("chain \(chains[1]) is missing"), "\(missing)")
    }

    /// What is done to a chain of six blocks, with the entries 1 to 2 (signed), 3, 4, 5, 6 and 7 (signed).
    struct Tampering: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let change: @Sendable (inout [AuditBlock]) -> Void
        /// A part of each fault, in order.
        let faults: [String]

        init(_ description: String, _ faults: [String], _ change: @escaping @Sendable (inout [AuditBlock]) -> Void) {
            testDescription = description
            self.faults = faults
            self.change = change
        }
    }

    static let tamperings = [
        Tampering("nothing", []) { _ in },
        Tampering("a removed block", ["entry 4 is missing"]) { $0.remove(at: 2) },
        Tampering("two removed blocks", ["entries 3 to 4 are missing"]) { $0.removeSubrange(1...2) },
        Tampering("the beginning removed", ["entries 1 to 2 are missing"]) { $0.removeFirst() },
        Tampering("a changed line", ["entry 4 was changed"]) {
            $0[2] = $0[2].with(body: $0[2].body("\"b\"", "\"x\""))
        },
        Tampering("a changed line with its hash", ["entry 5 was changed"]) {
            $0[2] = $0[2].rehashed($0[2].body("\"b\"", "\"x\""), after: $0[1].hash)
        },
        Tampering("a rewritten end", ["the signature of entry 7 is wrong"]) { blocks in
            for index in 2...5 {
                blocks[index] = blocks[index].rehashed(
                    blocks[index].body("\"b\"", "\"x\""), after: blocks[index - 1].hash)
            }
        },
        Tampering("a removed signature", ["the signature of entry 7 is missing"]) {
            $0[5] = $0[5].with(signature: .some(nil))
        },
        Tampering("a wrong signature", ["the signature of entry 7 is wrong"]) {
            $0[5] = $0[5].with(signature: [UInt8](repeating: 1, count: 32))
        },
        Tampering("a short signature", ["the signature of entry 7 is wrong"]) { $0[5] = $0[5].with(signature: [1]) },
        Tampering("a hash of no length", ["entry 4 was changed", "entry 5 was changed"]) {
            $0[2] = $0[2].with(hash: [])
        },
        Tampering("another time", ["entry 4 was changed"]) { $0[2] = $0[2].with(time: Timestamp(seconds: 1)) },
        Tampering("a line too many", ["entry 4 was changed", "entry 5 was changed"]) {
            $0[2] = $0[2].rehashed($0[2].body("\n", "\n{}\n"), after: $0[1].hash)
        },
        Tampering("no newline", ["entry 4 was changed"]) { $0[2] = $0[2].with(body: $0[2].body("\n", "")) },
        Tampering("a second block", ["a second block has entries 2 to 3"]) {
            $0.insert($0[1].with(first: 2, last: 3), at: 1)
        },
        Tampering("impossible numbers", ["impossible numbers", "entry 4 is missing"]) {
            $0[2] = $0[2].with(last: .max)
        },
        Tampering("numbers that go back", ["impossible numbers", "entry 4 is missing"]) {
            $0[2] = $0[2].with(last: 1)
        },
    ]

    @Test(arguments: tamperings)
    func `what was done to a chain shows`(tampering: Tampering) async throws {
        let (log, vault) = try log()
        try await log.sign(isStart: true)
        for key in ["a", "b", "c", "d"] { try await vault.commit([insertion(key)]) }
        try await log.sign()
        var tampered = try await TamperedLog(store)
        let chain = try #require(tampered.blocks.keys.first)
        #expect(tampered.blocks[chain]?.map(\.last) == [2, 3, 4, 5, 6, 7])
        tampering.change(&tampered.blocks[chain]!)
        let (summary, faults) = try await verify(tampered)
        #expect(summary.faults == faults.count)
        #expect(faults.count == tampering.faults.count, "\(faults)")
        for (fault, expected) in zip(faults, tampering.faults) { #expect(fault.contains(expected), "\(faults)") }
    }

    @Test func `an end that is cut off shows as soon as any process has named it`() async throws {
        let (first, vault) = try log()
        try await first.sign(isStart: true)
        for key in ["a", "b", "c"] { try await vault.commit([insertion(key)]) }
        let killed = try #require(try await store.allAuditChains().first?.end.chain)
        var unnamed = try await TamperedLog(store)
        unnamed.blocks[killed]?.removeLast()
        // Nothing knows of that end.
        #expect(try await verify(unnamed).faults == [])

        let (second, _) = try log()
        try await second.sign(isStart: true)
        #expect(
            try await verify(store).summary
                == .init(chains: 2, entries: 7, faults: 0, unsigned: 0, witnessed: 3, open: 2))
        var cut = try await TamperedLog(store)
        cut.blocks[killed]?.removeLast()
        let faults = try await verify(cut).faults
        #expect(faults.count == 1, "\(faults)")
        #expect(faults[0].hasPrefix("chain \(killed) was cut off: it ends at entry 4"), "\(faults)")
        cut.blocks[killed] = nil
        let missing = try await verify(cut).faults
        #expect(missing.count == 1, "\(missing)")
        #expect(missing[0].hasPrefix("chain \(killed) is missing: it had 5 entries"), "\(missing)")
    }

    @Test func `a chain that was rewritten shows, although a later signature names its new end`() async throws {
        let (first, vault) = try log()
        try await first.sign(isStart: true)
        for key in ["a", "b", "c"] { try await vault.commit([insertion(key)]) }
        let chain = try #require(try await store.allAuditChains().first?.end.chain)
        var blocks = try await store.auditBlocks(of: chain, after: 0, limit: 99)
        let (second, _) = try log()
        try await second.sign(isStart: true)

        // Other contents, no signatures, and an entry more than the second process has named.
        let end = try #require(blocks.last)
        blocks.append(
            end.with(
                first: end.last + 1, last: end.last + 1,
                body: end.body("\"sequence\":\(end.last)", "\"sequence\":\(end.last + 1)")))
        try await store.removeAuditChain(chain)
        var hash = AuditBlock.beginning
        for block in blocks {
            let body = String(decoding: block.body, as: UTF8.self)
                .replacing("\"audit.signed\"", with: "\"read\"").replacing("\"b\"", with: "\"x\"")
            let forged = block.with(signature: .some(nil)).rehashed(body, after: hash)
            hash = forged.hash
            try await store.commit([.audit(forged)])
        }
        let (third, _) = try log()
        try await third.sign(isStart: true)
        let faults = try await verify(store).faults
        #expect(
            faults.count == 1 && faults[0].hasPrefix("chain \(chain) was changed up to entry \(end.last)"), "\(faults)")
    }

    /// A block that continues the chain of `block`, as only its process may do.
    private func forged(after block: AuditBlock) -> AuditBlock {
        let next = block.last + 1
        return block.with(first: next, last: next, signature: .some(nil))
            .rehashed(block.body("\"sequence\":\(block.last)", "\"sequence\":\(next)"), after: block.hash)
    }

    @Test func `a process signs what it has written, and nothing that stands behind it in its chain`() async throws {
        let (log, vault) = try log()
        try await log.sign(isStart: true)
        try await vault.commit([insertion("a")])
        let chain = try #require(try await store.allAuditChains().first?.end.chain)
        let end = try #require(try await store.auditBlocks(of: chain, after: 0, limit: 99).last)
        try await store.commit([.audit(forged(after: end))])

        // The place of the process's next block is taken; it goes on in another chain.
        await #expect(throws: StoreError.unavailable) { try await log.sign() }
        #expect(try await log.sign().changed == 1)
        #expect(try await verify(store).summary == .init(chains: 2, entries: 6, faults: 0, unsigned: 1, open: 2))
        try await vault.commit([insertion("b")])
        #expect(try await log.sign().changed == 1)
        #expect(try await verify(store).summary.unsigned == 1)
    }

    @Test func `a process notices that an entry of its own was replaced, and its signature contradicts the new one`()
        async throws
    {
        let (log, vault) = try log()
        let gate = Gate()
        store.onCommit(of: .credentials, .hold(gate))
        async let held: Void = vault.commit([insertion("a")])
        await gate.arrivals()
        // Another chain, since the first one is in use. The next block is written to the first one.
        try await vault.commit([insertion("b")])
        let chain = try #require(try await store.allAuditChains().first?.end.chain)
        gate.open()
        try await held
        let block = try #require(try await store.auditBlocks(of: chain, after: 0, limit: 99).first)
        try await store.removeAuditChain(chain)
        try await store.commit([.audit(block.rehashed(block.body("\"b\"", "\"x\""), after: AuditBlock.beginning))])

        #expect(try await log.sign().changed == 1)
        let faults = try await verify(store).faults
        #expect(
            faults.count == 1 && faults[0].hasPrefix("chain \(chain) was changed up to entry \(block.last)"),
            "\(faults)")
    }

    @Test func `a block whose answer was lost is signed with the others, and is no change`() async throws {
        let (log, vault) = try log()
        try await log.sign(isStart: true)
        store.onCommit(of: .credentials, .loseAnswer)
        await #expect(throws: StoreError.unavailable) { try await vault.commit([insertion("a")]) }
        try await vault.commit([insertion("b")])
        #expect(try await log.sign() == AuditLog.Findings())
        #expect(try await verify(store).summary == .init(chains: 2, entries: 6, faults: 0, unsigned: 0, open: 2))
    }

    @Test(arguments: [1, 2, 30]) func `a process that starts names the chains of the last one, however long ago`(
        days: Int
    ) async throws {
        let (first, vault) = try log()
        try await first.sign(isStart: true)
        try await vault.commit([insertion("a")])
        clock.move(by: .seconds(days * 86_400))
        let (second, _) = try log()
        try await second.sign(isStart: true)
        #expect(
            try await verify(store).summary
                == .init(chains: 2, entries: 5, faults: 0, unsigned: 0, witnessed: 1, open: 2))
        var tampered = try await TamperedLog(store)
        let chain = try #require(tampered.blocks.first { $0.value.count == 2 }?.key)
        tampered.blocks[chain] = nil
        let faults = try await verify(tampered).faults
        #expect(faults.count == 1 && faults[0].hasPrefix("chain \(chain) is missing"), "\(faults)")
    }

    @Test func `a name that no process gives to a chain is not printed`() async throws {
        let (first, _) = try log()
        try await first.sign(isStart: true)
        var tampered = try await TamperedLog(store)
        let name = "a\u{1b}[2J"
        tampered.blocks[name] = [
            AuditBlock(
                chain: name, first: 1, last: 1, time: Timestamp(seconds: 1), body: [], hash: AuditBlock.beginning,
                signature: nil)
        ]
        let faults = try await verify(tampered).faults
        #expect(faults == ["a chain has a name with characters that no process writes"])
    }

    @Test func `entries behind the last signature count as unsigned`() async throws {
        let (log, vault) = try log()
        try await log.sign(isStart: true)
        try await vault.commit([insertion("a")])
        #expect(try await verify(store).summary.unsigned == 1)
        try await log.sign()
        #expect(try await verify(store).summary.unsigned == 0)
        let count = store.commits
        try await log.sign()
        #expect(store.commits == count, "a log that does not grow is not signed again")
    }

    @Test func `a signature under a key that is not configured is told apart from a wrong one`() async throws {
        let (log, _) = try log()
        try await log.sign(isStart: true)
        let (_, faults) = try await verify(store, keys: Self.otherKeys)
        #expect(faults.count == 1 && faults[0].hasSuffix("was signed under a key that is not configured"), "\(faults)")
        #expect(try await verify(store, keys: Self.otherKeys + "," + Self.keys).faults == [])
    }

    @Test func `chains that an operator has removed are not missing`() async throws {
        let (old, vault) = try log()
        try await old.sign(isStart: true)
        try await vault.commit([insertion("a")])
        await old.close()
        clock.move(by: .seconds(86_400))
        let (present, _) = try log()
        try await present.sign(isStart: true)
        clock.move(by: .seconds(30 * 86_400))
        let limit = clock.now.advanced(by: .seconds(-30 * 86_400))
        let (tool, _) = try log()
        #expect(try await tool.remove(before: limit).count == 1)
        let (summary, faults) = try await verify(store)
        #expect(faults == [])
        #expect(summary.chains == 2)
        #expect(try await lines().contains { $0.contains(#""action":"audit.removed""#) })
        #expect(try await tool.remove(before: limit).count == 0)
    }

    @Test func `a process whose chain was removed goes on in a new one, and nothing is missing`() async throws {
        let (idle, vault) = try log()
        try await idle.sign(isStart: true)
        try await vault.commit([insertion("a")])
        let removed = try #require(try await store.allAuditChains().first?.end.chain)
        clock.move(by: .seconds(30 * 86_400))
        let (tool, _) = try log()
        #expect(try await tool.remove(before: clock.now.advanced(by: .seconds(-7 * 86_400))).count == 1)
        try await vault.commit([insertion("b")])
        try await idle.sign()
        #expect(try await verify(store).faults == [])
        #expect(try await !store.allAuditChains().contains { $0.end.chain == removed })
    }

    @Test func `a new chain names none that may have been removed`() async throws {
        let (idle, vault) = try log()
        try await idle.sign(isStart: true)
        clock.move(by: .seconds(86_400))
        await idle.endOld()
        clock.move(by: .seconds(30 * 86_400))
        let (tool, _) = try log()
        #expect(try await tool.remove(before: clock.now.advanced(by: .seconds(-7 * 86_400))).count == 1)
        clock.move(by: .seconds(30 * 86_400))
        try await vault.commit([insertion("a")])
        // This removes the entry that tells of the first removal. The chain that has begun since then stays.
        clock.move(by: .seconds(3 * 86_400))
        let (later, _) = try log()
        #expect(try await later.remove(before: clock.now.advanced(by: .seconds(-7 * 86_400))).count == 1)
        try await idle.sign()
        #expect(try await verify(store).faults == [])
    }

    @Test func `a process that ends does not write to a chain that may have been removed`() async throws {
        let (idle, _) = try log()
        try await idle.sign(isStart: true)
        clock.move(by: .seconds(30 * 86_400))
        let (tool, _) = try log()
        #expect(try await tool.remove(before: clock.now.advanced(by: .seconds(-7 * 86_400))).count == 1)
        await idle.close()
        #expect(try await verify(store).faults == [])
    }

    @Test func `a chain that no commit uses any more ends at its age`() async throws {
        var limits = AuditLog.Limits()
        limits.age = .seconds(100)
        let (log, vault) = try log(limits: limits)
        try await log.sign(isStart: true)
        try await vault.commit([insertion("a")])
        clock.move(by: .seconds(99))
        await log.endOld()
        #expect(try await verify(store).summary == .init(chains: 1, entries: 3, faults: 0, unsigned: 1, open: 1))
        clock.move(by: .seconds(1))
        await log.endOld()
        #expect(try await verify(store).summary == .init(chains: 1, entries: 4, faults: 0, unsigned: 0, open: 0))
        let count = store.commits
        await log.endOld()
        #expect(store.commits == count, "a chain that has not begun has no end")
        try await vault.commit([insertion("b")])
        #expect(try await verify(store).summary.chains == 2)
        #expect(try await lines().contains { $0.contains(#""action":"audit.opened""#) && $0.contains(#""previous""#) })
    }

    @Test func `an export selects by tenant and by time`() async throws {
        let (log, _) = try log()
        let start = clock.now
        let beta = TenantName("beta")
        for (index, tenant) in [Self.alpha, beta, nil, Self.alpha].enumerated() {
            try await log.record(AuditEntry("read", tenant: tenant, version: Int64(index)))
            clock.move(by: .seconds(10))
        }
        func selected(_ export: AuditExport) async throws -> [Int] {
            try await lines(export).compactMap { line in
                (0..<4).first { line.contains("\"version\":\($0)") }
            }
        }
        let ten = start.advanced(by: .seconds(10))
        #expect(try await selected(AuditExport()) == [0, 1, 2, 3])
        #expect(try await selected(AuditExport(tenant: Self.alpha)) == [0, 3])
        #expect(try await selected(AuditExport(tenant: beta)) == [1])
        #expect(try await selected(AuditExport(from: ten)) == [1, 2, 3])
        #expect(try await selected(AuditExport(from: ten.advanced(by: .milliseconds(1)))) == [2, 3])
        #expect(try await selected(AuditExport(to: ten)) == [0])
        #expect(try await selected(AuditExport(to: ten.advanced(by: .milliseconds(1)))) == [0, 1])
        #expect(try await selected(AuditExport(tenant: Self.alpha, from: ten, to: .latest)) == [3])
        let line = try await lines(AuditExport(tenant: beta)).joined()
        #expect(
            line.hasSuffix(
                #","sequence":3,"time":"2027-01-15T08:00:10.000Z","action":"read","outcome":"done","tenant":"beta","#
                    + #""version":1,"caller":"broker"}"# + "\n"), "\(line)")
    }
}

/// A store whose first commit waits for a gate.
private final class HeldStore: ForwardingStore {
    let inner: any RecordStore
    private let gate: Gate
    private let count = Mutex(0)

    init(_ inner: any RecordStore, _ gate: Gate) {
        self.inner = inner
        self.gate = gate
    }

    var revalidateAfter: Duration? { inner.revalidateAfter }
    var commits: Int { count.withLock { $0 } }

    func admit() throws(StoreError) {}

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        let isFirst = count.withLock { count in
            count += 1
            return count == 1
        }
        if isFirst {
            gate.arrive()
            await gate.opened()
        }
        try await inner.commit(changes)
    }
}
