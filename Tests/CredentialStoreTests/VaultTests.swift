import CredentialStore
import Cryptography
import OAuth
import Testing

@Suite struct `A vault` {
    let store = MemoryRecordStore()
    let key: String
    let vault: Vault
    let alpha = TenantName("alpha")!

    init() throws {
        key = try Keyring.generate(id: "main")
        vault = Vault(store: store, keyring: try Keyring(parsing: key))
    }

    private func vault(_ text: String) throws -> Vault {
        Vault(store: store, keyring: try Keyring(parsing: text))
    }

    private func record(
        _ key: String = "k", version: Int64 = 1, _ content: String = "secret-canary", lookup: [UInt8]? = nil,
        expires: Timestamp? = nil
    ) -> OpenRecord {
        OpenRecord(
            id: RecordID(.login, alpha, key: key), version: version, content: SecretBytes(utf8: content),
            lookup: lookup, expires: expires)
    }

    private func checks() async throws -> [StoredRecord] {
        try await store.list(.keyCheck, tenant: .broker, after: nil, limit: 100)
    }

    @Test func `gives back what was committed`() async throws {
        let digest = SHA256.digest([1])
        let first = record(lookup: digest, expires: Timestamp(seconds: 4))
        try await vault.commit([.insert(first), .insert(record("l"))])
        #expect(try await vault.read(first.id) == first)
        #expect(try await vault.find(.login, lookup: digest) == first)
        #expect(try await vault.find(.login, lookup: SHA256.digest([2])) == nil)
        #expect(try await vault.read(RecordID(.login, alpha, key: "absent")) == nil)
        #expect(try await vault.list(.login, tenant: nil, limit: 9) == [first, record("l")])
        #expect(try await vault.list(.login, tenant: alpha, after: first.id, limit: 9) == [record("l")])

        let second = record(version: 2, "changed")
        try await vault.commit([
            .require(RecordID(.login, alpha, key: "l")), .replace(second, version: 1),
        ])
        #expect(try await vault.read(first.id) == second)
        await #expect(throws: StoreError.conflict) { try await vault.commit([.replace(second, version: 1)]) }
        try await vault.commit([.remove(second.id, version: 2)])
        #expect(try await vault.read(first.id) == nil)
        try await vault.commit([.removeAll(alpha)])
        #expect(try await vault.list(.login, tenant: nil, limit: 9) == [])
    }

    // H046
    @Test func `the store sees no content`() async throws {
        try await vault.commit([.insert(record())])
        let stored = try #require(try await store.read(record().id))
        #expect(!String(decoding: stored.sealed, as: UTF8.self).contains("canary"))
    }

    @Test func `passes expiry on to the store`() async throws {
        try await vault.commit([.insert(record(expires: Timestamp(seconds: 4)))])
        #expect(try await vault.removeExpired(before: Timestamp(seconds: 4), limit: 9) == 0)
        #expect(try await vault.removeExpired(before: Timestamp(seconds: 5), limit: 9) == 1)
        try await vault.check()
        #expect(vault.revalidateAfter == nil)
    }

    private func entry(_ key: String, _ content: String = "entry-canary") -> OpenLogEntry {
        OpenLogEntry(
            tenant: alpha, key: key, version: 7, time: Timestamp(seconds: 5), content: SecretBytes(utf8: content))
    }

    @Test func `gives back the entries of its log`() async throws {
        try await vault.commit([.insert(record()), .append(entry("a")), .append(entry("b", "other"))])
        let read = try await vault.entries(after: 0, limit: 9)
        #expect(read.map(\.key) == ["a", "b"])
        #expect(read.map { $0.content?.revealedText } == ["entry-canary", "other"])
        #expect(read.allSatisfy { $0.tenant == alpha && $0.version == 7 && $0.time == Timestamp(seconds: 5) })
        #expect(try await vault.entries(after: read[0].sequence, tenant: alpha, limit: 9) == [read[1]])
        #expect(try await vault.entries(after: 0, tenant: .broker, limit: 9) == [])
        #expect(try await vault.logBounds() == LogBounds(trimmed: 0, last: read[1].sequence))
        for placed in try await store.entries(after: 0, tenant: nil, limit: 9) {
            #expect(!String(decoding: placed.entry.sealed, as: UTF8.self).contains("canary"))
        }
        #expect(try await vault.trimLog(before: Timestamp(seconds: 6), keeping: 1, limit: 1) == 1)
        #expect(try await vault.logBounds().trimmed == read[0].sequence)
    }

    @Test func `a marker is no entry that does not open, and is sealed under no key`() async throws {
        for key in ["a", "b", "c"] { try await vault.commit([.append(entry(key))]) }
        #expect(try await vault.trimLog(before: Timestamp(seconds: 0), keeping: 1, limit: 9) == 2)
        let read = try await vault.entries(after: 0, limit: 9)
        #expect(read.map(\.key) == ["b", "c"])
        #expect(read.map(\.isMarker) == [true, false])
        #expect(read.map { $0.content?.revealedText } == ["", "entry-canary"])
        #expect(try await vault.keyUses().map(\.entries) == [1])
        var walk = SealedWalk()
        var walked: [SealedItem] = []
        while let page = try await vault.next(&walk, limit: 9) { walked += page }
        let stored = try await store.entries(after: 0, tenant: nil, limit: 9)
        #expect(walked == [.entry(stored[1])])
    }

    @Test func `an entry that does not open comes without its content, and those behind it with theirs`() async throws {
        try await vault.commit([.append(entry("a"))])
        var copied = try #require(try await store.entries(after: 0, tenant: nil, limit: 1).first).entry
        copied.key = "copied"
        try await store.commit([.append(copied)])
        try await vault(try Keyring.generate(id: "other")).commit([.append(entry("foreign"))])
        try await vault.commit([.append(entry("z"))])
        let read = try await vault.entries(after: 0, limit: 9)
        #expect(read.map(\.key) == ["a", "copied", "foreign", "z"])
        #expect(read.map { $0.content == nil } == [false, true, true, false])
    }

    @Test func `finds what is due, and settles it once`() async throws {
        var marked = record()
        marked.due = Timestamp(seconds: 4)
        try await vault.commit([.insert(marked), .insert(record("l"))])
        #expect(try await vault.nextDue(.login) == Timestamp(seconds: 4))
        #expect(try await vault.due(.login, before: Timestamp(seconds: 4), limit: 9) == [])
        #expect(try await vault.due(.login, before: Timestamp(seconds: 5), limit: 9).map(\.record) == [marked])
        let notice: [VaultChange] = [.settleDue(marked.id, version: 1), .append(entry("notice"))]
        try await vault.commit(notice)
        await #expect(throws: StoreError.conflict) { try await vault.commit(notice) }
        #expect(try await vault.read(marked.id) == record())
        #expect(try await vault.nextDue(.login) == nil)
        #expect(try await vault.entries(after: 0, limit: 9).map(\.key) == ["notice"])
    }

    // H047
    @Test func `a record that was copied over another is damage, named without its content`() async throws {
        let digests = [SHA256.digest([1]), SHA256.digest([2])]
        try await vault.commit([
            .insert(record("a", lookup: digests[0])), .insert(record("b", lookup: digests[1])),
        ])
        let source = try #require(try await store.read(RecordID(.login, alpha, key: "a")))
        var target = try #require(try await store.read(RecordID(.login, alpha, key: "b")))
        target.sealed = source.sealed
        target.version = 2
        try await store.commit([.replace(target, version: 1)])
        let expected = StoreError.damaged(
            "the login record 'b' of alpha does not open: it was altered, moved or replaced by an earlier version")
        await #expect(throws: expected) { try await vault.read(target.id) }
        await #expect(throws: expected) { try await vault.find(.login, lookup: digests[1]) }
        await #expect(throws: expected) { try await vault.list(.login, tenant: nil, limit: 9) }
        #expect(try await vault.read(source.id)?.content.revealedText == "secret-canary")
    }

    // H050
    @Test func `a record of a key that is gone is damage that names the key's identity`() async throws {
        try await vault.commit([.insert(record())])
        let other = try vault(try Keyring.generate(id: "other"))
        let error = await #expect(throws: StoreError.self) { try await other.read(record().id) }
        #expect("\(try #require(error))".contains("under a key that is not configured"))
    }

    @Test func `unlocking notes the first key once`() async throws {
        try await vault.unlock()
        let noted = try await checks()
        #expect(noted.count == 1)
        #expect(noted[0].id.key.hasPrefix("main."))
        try await vault.unlock()
        #expect(try await checks() == noted)
    }

    @Test func `unlocking refuses a ring that lacks a key, and changes nothing`() async throws {
        try await vault.unlock()
        let noted = try await checks()
        let other = try vault(try Keyring.generate(id: "other"))
        await #expect(throws: VaultError.missingKey(id: "main")) { try await other.unlock() }
        #expect("\(VaultError.missingKey(id: "main"))".contains("TOKEN_BROKER_MASTER_KEYS lacks"))
        #expect(try await checks() == noted)
    }

    @Test func `where the key checks are lost, the records themselves show a wrong key`() async throws {
        try await vault.unlock()
        try await vault.commit([.insert(record())])
        let noted = try await checks()
        try await store.commit(noted.map { .remove($0.id, version: $0.version) })
        let other = try vault(try Keyring.generate(id: "main"))
        let error = await #expect(throws: VaultError.self) { try await other.unlock() }
        #expect(error?.description.contains("is sealed under a key that is not configured") == true)
        #expect(try await checks().isEmpty)
        try await vault.unlock()
        #expect(try await checks().map(\.id) == noted.map(\.id))
    }

    @Test func `unlocking refuses another key under a known id, and changes nothing`() async throws {
        try await vault.unlock()
        let noted = try await checks()
        let other = try vault(try Keyring.generate(id: "main"))
        await #expect(throws: VaultError.otherKey(id: "main")) { try await other.unlock() }
        #expect("\(VaultError.otherKey(id: "main"))".contains("TOKEN_BROKER_MASTER_KEYS"))
        #expect(try await checks() == noted)
    }

    @Test func `other keys are adopted by all vaults of a store, and what was sealed before opens`() async throws {
        try await vault.unlock()
        let derived = vault.observed { _, _ in }
        try await vault.commit([.insert(record())])
        let old = try #require(try await store.list(.login, tenant: nil, after: nil, limit: 1).first)
        let new = try Keyring.generate(id: "new")
        let both = try Keyring(parsing: "\(new),\(key)")
        try await vault.verify(both)
        #expect(try await checks().count == 1)
        try await vault.adopt(both)
        #expect(derived.keyring.primaryID == "new")
        #expect(try await derived.read(record().id) == record())
        #expect(try await checks().count == 2)
        let changed = record(version: 2)
        try await derived.commit([.replace(changed, version: 1)])
        let sealed = try #require(try await store.list(.login, tenant: nil, after: nil, limit: 1).first)
        #expect(sealed.sealed[1...4] != old.sealed[1...4])
        #expect(try await vault.read(record().id) == changed)
    }

    @Test func `keys that lack one are not adopted, and those before stay`() async throws {
        try await vault.unlock()
        try await vault.commit([.insert(record())])
        let other = try Keyring(parsing: try Keyring.generate(id: "other"))
        await #expect(throws: VaultError.missingKey(id: "main")) { try await vault.verify(other) }
        await #expect(throws: VaultError.missingKey(id: "main")) { try await vault.adopt(other) }
        #expect(vault.keyring.primaryID == "main")
        #expect(try await checks().count == 1)
        #expect(try await vault.read(record().id) == record())
    }

    @Test func `a new key in front unlocks, and from then on both are needed`() async throws {
        try await vault.unlock()
        try await vault.commit([.insert(record())])
        let new = try Keyring.generate(id: "new")
        let rotated = try vault(new + "," + key)
        try await rotated.unlock()
        #expect(try await checks().map { $0.id.key.prefix(4) } == ["main", "new."])
        #expect(try await rotated.read(record().id) == record())
        await #expect(throws: VaultError.missingKey(id: "main")) { try await vault(new).unlock() }
        await #expect(throws: VaultError.missingKey(id: "new")) { try await vault.unlock() }
        try await vault(key + "," + new).unlock()
    }

    @Test func `many replicas that unlock at once note one key`() async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            for _ in 0..<32 {
                let replica = try vault(key)
                group.addTask { try await replica.unlock() }
            }
            try await group.waitForAll()
        }
        #expect(try await checks().count == 1)
    }

    @Test func `more than a page of keys is checked`() async throws {
        let keys = try (100..<202).map { try Keyring.generate(id: "key-\($0)") }
        let all = keys.joined(separator: ",")
        for index in keys.indices {
            // Puts each key in front once, so that each gets a check record.
            let ring = ([keys[index]] + keys[..<index] + keys[(index + 1)...]).joined(separator: ",")
            try await vault(ring).unlock()
        }
        #expect(try await store.list(.keyCheck, tenant: .broker, after: nil, limit: 1000).count == 102)
        try await vault(all).unlock()
        let allButLast = keys.dropLast().joined(separator: ",")
        await #expect(throws: VaultError.missingKey(id: "key-201")) { try await vault(allButLast).unlock() }
    }

    @Test func `an altered key check is damage`() async throws {
        try await vault.unlock()
        var check = try #require(try await checks().first)
        check.version = 2
        try await store.commit([.replace(check, version: 1)])
        let error = await #expect(throws: VaultError.self) { try await vault.unlock() }
        #expect("\(try #require(error))".contains("the store is damaged"))
    }

    @Test(arguments: ["", "main", "main.", "main.0011", "main.zzzzzzzz", "main.00112233.x"])
    func `a key check with an odd name is damage`(name: String) async throws {
        let id = RecordID(.keyCheck, .broker, key: name)
        try await vault.commit([.insert(OpenRecord(id: id, version: 1, content: SecretBytes([])))])
        await #expect(throws: VaultError.self) { try await vault.unlock() }
    }
}
