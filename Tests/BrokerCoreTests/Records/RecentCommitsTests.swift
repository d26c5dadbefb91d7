import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Testing

@testable import BrokerCore

@Suite struct `The memory of recent commits` {
    private struct Setting {
        let time = ManualTime()
        let store = BrokerFaultyStore(revalidateAfter: .seconds(5))
        let vault: Vault
        let journal: Journal?
        let memory: RecentCommits

        init(_ limits: RecentCommits.Limits = .init(span: .seconds(900)), journal: Journal? = nil) throws {
            vault = Vault(store: store, keyring: try Keyring(parsing: BrokerHarness.masterKeys))
            self.journal = journal
            memory = Self.memory(limits, vault, journal, time)
        }

        static func memory(
            _ limits: RecentCommits.Limits, _ vault: Vault, _ journal: Journal?, _ time: ManualTime
        ) -> RecentCommits {
            RecentCommits(
                limits, vault: vault, journal: journal, time: time, log: Log(threshold: .error, time: time) { _ in })
        }

        /// What the next process has that opens the journal.
        func next() async throws -> RecentCommits {
            let memory = Self.memory(.init(span: .seconds(900)), vault, journal, time)
            try await memory.takeUp()
            return memory
        }

        func keep(_ key: String, _ version: Int64, _ token: String, after replaced: [[UInt8]] = []) async throws {
            let (id, content) = (Self.recordID(key), RecentCommitsTestRecord.holding(token).encoded)
            try await memory.replacing(replaced, of: id, by: version) {
                await memory.note([
                    .replace(OpenRecord(id: id, version: version, content: SecretBytes(content)), version: version - 1)
                ])
            }
        }

        func token(_ key: String) throws -> CredentialRecord? {
            try memory.commit(Self.recordID(key))?.record.flatMap {
                CredentialRecord(decoding: $0.content.revealedBytes)
            }
        }

        static func recordID(_ key: String) -> RecordID { CredentialsRecords.recordID(id(key)) }

        static func id(_ key: String) -> CredentialsID { CredentialsID(tenant: tenant, storageKey: StorageKey(key)!) }
    }

    private static let tenant = TenantName("t1")!

    private static func record(_ kind: RecordKind, _ key: String = "k", _ version: Int64 = 1) -> OpenRecord {
        OpenRecord(
            id: RecordID(kind, tenant, key: key), version: version, content: SecretBytes(utf8: "content"),
            lookup: [UInt8](repeating: 1, count: 32), expires: ManualTime.beginning)
    }

    // MARK: Credentials

    @Test func `gives back what was kept, with what it came after`() async throws {
        let setting = try Setting()
        for number in 1...10 { try await setting.keep("u", Int64(number), "r\(number)") }
        let kept = try #require(try setting.memory.commit(Setting.recordID("u")))
        #expect(kept.version == 10)
        #expect(try setting.token("u") == RecentCommitsTestRecord.holding("r10"))
        let digests = (2...9).map { RecentCommitsTestRecord.holding("r\($0)").tokenDigest! }
        #expect(kept.replaced == digests)
        // Something that comes late is of the past.
        try await setting.keep("u", 9, "r9")
        #expect(try setting.memory.commit(Setting.recordID("u"))?.version == 10)
    }

    @Test func `knows of tokens that were replaced and that this process has not stored`() async throws {
        let setting = try Setting()
        try await setting.keep("u", 1, "r1", after: [[7], [8]])
        try await setting.keep("u", 2, "r2", after: [[9]])
        let first = try #require(RecentCommitsTestRecord.holding("r1").tokenDigest)
        #expect(try setting.memory.commit(Setting.recordID("u"))?.replaced == [[7], [8], first, [9]])
    }

    // The operator has retired the old key, and removes it while a grant is kept that was stored before.
    @Test func `gives back what was kept before the master keys were replaced`() async throws {
        let setting = try Setting()
        try await setting.keep("u", 10, "r1")
        try await setting.vault.adopt(try Keyring(parsing: try Keyring.generate(id: "k2")))
        #expect(try setting.token("u") == RecentCommitsTestRecord.holding("r1"))
        try await setting.keep("u", 11, "r2")
        #expect(try setting.token("u") == RecentCommitsTestRecord.holding("r2"))
    }

    @Test func `remembers of what another replica wrote the version alone`() async throws {
        let setting = try Setting()
        let id = Setting.id("u")
        try await setting.keep("u", 10, "r1")
        setting.memory.supersede(Setting.recordID("u"), by: 10)
        #expect(setting.memory.hasContent(id))
        setting.memory.supersede(Setting.recordID("u"), by: 11)
        #expect(!setting.memory.hasContent(id) && setting.memory.version(id) == 11)
        #expect(try setting.token("u") == nil)
        // What was written before, and is kept late.
        try await setting.keep("u", 10, "r1")
        #expect(!setting.memory.hasContent(id))
        setting.memory.forget(id.tenant)
        #expect(setting.memory.version(id) == 0 && setting.memory.isEmpty)
    }

    // MARK: Bounds

    @Test(arguments: [(899, 10), (900, 0), (901, 0)])
    func `keeps something for its span`(age: Int, version: Int64) async throws {
        let setting = try Setting()
        try await setting.keep("u", 10, "r1")
        setting.time.advance(by: .seconds(age))
        await setting.memory.expire()
        #expect(setting.memory.version(Setting.id("u")) == version)
    }

    @Test func `has what was kept first give way where there is no room`() async throws {
        let byCount = try Setting(RecentCommits.Limits(span: .seconds(900), entries: 2))
        for (number, key) in ["a", "b", "a", "c"].enumerated() { try await byCount.keep(key, Int64(number + 1), "r") }
        #expect(byCount.memory.version(Setting.id("b")) == 0)
        #expect(byCount.memory.version(Setting.id("a")) == 3 && byCount.memory.version(Setting.id("c")) == 4)

        let byBytes = try Setting(RecentCommits.Limits(span: .seconds(900), bytes: 2000))
        for number in 1...50 { try await byBytes.keep("u\(number)", Int64(number), "r") }
        #expect((1...4).contains(byBytes.memory.countOfCredentials))
        #expect(byBytes.memory.hasContent(Setting.id("u50")))
    }

    // A stranger's logins and an app's keys are many, and an operator's API keys are few.
    @Test func `has no kind of record push out another one`() async throws {
        let setting = try Setting(RecentCommits.Limits(span: .seconds(900), entries: 1, otherEntries: 2))
        try await setting.keep("u", 1, "r")
        await setting.memory.note([.remove(RecordID(.apiKey, Self.tenant, key: "k"), version: 1)])
        for number in 1...5 {
            for kind in [RecordKind.login, .session, .biometricKey, .requestCount] {
                await setting.memory.note([.insert(Self.record(kind, "k\(number)"))])
            }
        }
        #expect(setting.memory.hasContent(Setting.id("u")))
        #expect(setting.memory.known([.apiKey]).count == 1)
        for kind in [RecordKind.login, .session, .biometricKey] {
            #expect(setting.memory.known([kind]).map(\.id.key) == ["k4", "k5"])
        }
        #expect(setting.memory.known([.requestCount]).isEmpty)
    }

    @Test func `keeps nothing of a store that only this process writes to`() async throws {
        let time = ManualTime()
        let vault = Vault(store: MemoryRecordStore(), keyring: try Keyring(parsing: BrokerHarness.masterKeys))
        let memory = Setting.memory(.init(span: .seconds(900)), vault, nil, time)
        await memory.note([.insert(Self.record(.client))])
        #expect(!memory.isEnabled && memory.isEmpty)
    }

    // MARK: Other records

    /// What another process does to a record that this one has stored in version 5 or removed in version 5, and whether it is
    /// known after that, and superseded.
    @Test(
        arguments: [
            (.login, false, 6, false, false), (.login, false, 5, true, false), (.login, false, nil, false, false),
            (.session, false, 6, true, true), (.session, false, nil, false, false), (.session, true, 6, true, false),
            (.session, true, nil, true, false),
            (.client, false, 6, false, false), (.client, false, 5, true, false), (.client, false, nil, false, false),
            (.client, true, 6, false, false), (.client, true, nil, true, false),
        ] as [(RecordKind, Bool, Int64?, Bool, Bool)])
    func `gives way to what another process has done`(
        kind: RecordKind, isRemoved: Bool, version: Int64?, isKnown: Bool, isSuperseded: Bool
    ) async throws {
        let setting = try Setting()
        let id = RecordID(kind, Self.tenant, key: "k")
        await setting.memory.note([.insert(Self.record(kind, "k", 5))])
        if isRemoved { await setting.memory.note([.remove(id, version: 5)]) }
        if let version { setting.memory.supersede(id, by: version) } else { setting.memory.forget(id) }
        let known = setting.memory.known([id]).first
        #expect((known != nil) == isKnown)
        #expect(known?.isSuperseded ?? false == isSuperseded)
    }

    /// Whether a record is taken for there that was removed in version 5.
    @Test(
        arguments: [
            (.client, false, 5, false), (.client, false, 4, false), (.client, false, 6, true),
            // Made anew by this replica, whose clock is behind that of the one that made the first.
            (.client, true, 4, true), (.client, true, 5, false), (.session, true, 6, false),
        ] as [(RecordKind, Bool, Int64, Bool)])
    func `is not confused by commits that are noted late`(
        kind: RecordKind, isInsertion: Bool, version: Int64, isThere: Bool
    ) async throws {
        let setting = try Setting()
        let record = Self.record(kind, "k", version)
        await setting.memory.note([.remove(record.id, version: 5)])
        await setting.memory.note([isInsertion ? .insert(record) : .replace(record, version: version - 1)])
        #expect(try setting.memory.commit(record.id)?.record == (isThere ? record : nil))
        #expect(setting.memory.known([record.id]).first?.isRemoved == !isThere)
    }

    @Test func `has the progress of a login although the answer to its commit was lost`() async throws {
        let setting = try Setting()
        let first = Self.record(.login)
        try await setting.vault.commit([.insert(first)])
        setting.store.disturb([.loseAnswer]) { $0.replaces(.login) }
        let logins = LoginRecords(
            vault: setting.vault, bus: EventBus(cacheValidity: CacheValidity(lifetime: nil)), memory: setting.memory,
            time: setting.time)
        try await logins.replace(Self.record(.login, "k", 2), version: 1, telling: [], retrying: .times(1))
        #expect(try setting.memory.commit(first.id)?.version == 2)
    }

    @Test func `knows that it has removed a tenant, and nothing under it`() async throws {
        let setting = try Setting()
        let tenant = RecordID(.tenant, Self.tenant)
        try await setting.keep("u", 1, "r")
        await setting.memory.note([.insert(Self.record(.client)), .insert(Self.record(.login))])
        await setting.memory.note([.remove(tenant, version: 3), .removeAll(Self.tenant)])
        #expect(setting.memory.known(RecentCommits.kinds).map(\.id) == [tenant])
        setting.memory.forget(Self.tenant)
        #expect(setting.memory.known(RecentCommits.kinds).map(\.id) == [tenant])
    }

    // MARK: The journal

    @Test func `has the next process know what belongs in the journal, and nothing that has left it`() async throws {
        let setting = try Setting(journal: try Journal(in: MemoryRecordStore()))
        try await setting.keep("u", 3, "r", after: [[7]])
        let long = String(repeating: "~", count: 200)
        await setting.memory.note([
            .insert(Self.record(.apiKey, "made")), .replace(Self.record(.apiKey, long, 4), version: 2),
            .remove(RecordID(.apiKey, Self.tenant, key: "gone"), version: 9),
            .insert(Self.record(.session, "begun")), .replace(Self.record(.session, "goes-on", 2), version: 1),
            .remove(RecordID(.session, Self.tenant, key: "ended"), version: 6),
            .insert(Self.record(.login)), .insert(Self.record(.tenant, "")),
            .remove(RecordID(.tenant, TenantName("t2")!), version: 1),
        ])
        let next = try await setting.next()
        #expect(try next.commit(Setting.recordID("u"))?.replaced == [[7]])
        #expect(next.version(Setting.id("u")) == 3 && next.hasContent(Setting.id("u")))
        #expect(try next.commit(RecordID(.apiKey, Self.tenant, key: long))?.record == Self.record(.apiKey, long, 4))
        let known = next.known([.apiKey, .session, .login, .tenant])
        #expect(Set(known.map(\.id.key)) == ["made", long, "gone", "begun", "ended"])
        #expect(Set(known.filter(\.isRemoved).map(\.id.key)) == ["gone", "ended"])
        #expect(known.filter { !$0.isTakenUp }.isEmpty)
        setting.time.advance(by: .seconds(900))
        await next.expire()
        #expect(try await setting.journal?.recent().isEmpty == true)
    }

    // The replica that made the first record has a clock that is ahead.
    @Test(arguments: [false, true])
    func `has the next process know a record that was removed and made anew in a lower version`(
        isFollowed: Bool
    ) async throws {
        let setting = try Setting(journal: try Journal(in: MemoryRecordStore()))
        let (first, second) = (Self.record(.client, "k", 5), Self.record(.client, "k", 3))
        await setting.memory.note([.insert(first)])
        await setting.memory.note([.remove(first.id, version: 5)])
        // Another replica made it, and removed it.
        if isFollowed { setting.memory.supersede(first.id, by: 6) }
        await setting.memory.note([.insert(second)])
        var next = try await setting.next()
        #expect(try next.commit(first.id)?.record == second)
        await next.note([.remove(second.id, version: 3)])
        next = try await setting.next()
        #expect(try next.commit(first.id) == RecentCommit(removing: first.id, version: 3, at: setting.time.now))
        setting.time.advance(by: .seconds(900))
        await next.expire()
        #expect(try await setting.journal?.recent().isEmpty == true)
    }

    @Test func `remembers a bounded number of records to remove from a journal that fails`() async throws {
        let disk = BrokerFaultyStore()
        let journal = try Journal(in: disk)
        let setting = try Setting(RecentCommits.Limits(span: .seconds(900), leaving: 2), journal: journal)
        for number in 1...3 { await setting.memory.note([.insert(Self.record(.client, "k\(number)"))]) }
        setting.time.advance(by: .seconds(900))
        disk.isAway = true
        await setting.memory.expire()
        disk.isAway = false
        await setting.memory.expire()
        #expect(try await journal.recent().map(\.commit.id.key) == ["k1"])
        let next = try await setting.next()
        await next.expire()
        #expect(try await journal.recent().isEmpty)
    }

    @Test(.timeLimit(.minutes(1)))
    func `holds up a commit for a second at most where the journal's disk hangs, and writes it later`() async throws {
        let disk = BrokerFaultyStore()
        let journal = try Journal(in: disk)
        let setting = try Setting(journal: journal)
        let gate = Gate()
        disk.disturb([.hold(gate)]) { $0.writes(.recent) }
        let id = RecordID(.apiKey, Self.tenant, key: "k")
        async let noted: Void = setting.memory.note([.remove(id, version: 5)])
        await gate.arrivals()
        #expect(setting.memory.known([id]).first?.isRemoved == true)
        // The wait may begin a moment after the write.
        let clock = Task {
            while !Task.isCancelled {
                setting.time.advance(by: .seconds(1))
                await Task.yield()
            }
        }
        await noted
        clock.cancel()
        await clock.value
        #expect(try await journal.recent().isEmpty)
        gate.open()
        while try await journal.recent().isEmpty { await Task.yield() }
        #expect(try await journal.recent().map(\.commit.id) == [id])
    }

    @Test func `reads what earlier builds have written, and removes it in the end`() async throws {
        let journal = try Journal(in: MemoryRecordStore())
        let setting = try Setting(journal: journal)
        let now = setting.time.now.milliseconds
        let credentials = Base64URL.encode(RecentCommitsTestRecord.holding("r1").encoded)
        for (kind, key, content) in [
            (.recent, "u", #"{"kept": \#(now), "replaced": ["Bw"], "record": "\#(credentials)"}"#),
            (.keptSession, "begun", #"{"kept": \#(now), "version": 5, "session": "e30"}"#),
            (.keptSession, "ended", #"{"kept": \#(now), "version": 5}"#),
        ] as [(RecordKind, String, String)] {
            try await journal.vault.commit([
                .insert(
                    OpenRecord(
                        id: RecordID(kind, Self.tenant, key: key), version: 5, content: SecretBytes(utf8: content)))
            ])
        }
        let next = try await setting.next()
        #expect(try next.commit(Setting.recordID("u"))?.replaced == [[7]])
        let begun = try #require(try next.commit(RecordID(.session, Self.tenant, key: "begun")))
        #expect(begun.record?.content.revealedText == "{}" && begun.version == 5)
        #expect(next.known([RecordID(.session, Self.tenant, key: "ended")]).first?.isRemoved == true)
        // What takes the place of an entry of the earlier kind does not leave that behind.
        await next.note([.remove(begun.id, version: 5)])
        await next.expire()
        #expect(try await journal.recent().filter { $0.commit.id == begun.id }.map(\.commit.record) == [nil])
        setting.time.advance(by: .seconds(900))
        await next.expire()
        #expect(try await journal.recent().isEmpty)
    }
}

private enum RecentCommitsTestRecord {
    static func holding(_ token: String) -> CredentialRecord {
        CredentialRecord(
            held: HeldCredentials(
                level: .user, accessToken: SecretBytes(utf8: "a"), refreshToken: SecretBytes(utf8: token),
                expires: ManualTime.beginning, grantedScopes: .empty, userID: nil,
                obtainedWith: ClientFingerprint(
                    clientID: WireText("c1"), scopes: .empty, clientUniqueKey: nil, clientSecretDigest: nil),
                grantedBy: nil))
    }
}
