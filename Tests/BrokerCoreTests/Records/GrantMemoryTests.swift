internal import BrokerTesting
internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import OAuth
internal import Testing

@testable internal import BrokerCore

@Suite struct `The memory of grants` {
    private struct Setting {
        let time = ManualTime()
        let vault: Vault
        let memory: GrantMemory

        init(_ limits: GrantMemory.Limits) throws {
            vault = Vault(
                store: BrokerFaultyStore(revalidateAfter: .seconds(5)),
                keyring: try Keyring(parsing: BrokerHarness.masterKeys))
            memory = GrantMemory(
                limits, vault: vault, journal: nil, time: time, log: Log(threshold: .error, time: time) { _ in })
        }

        func keep(_ key: String, _ version: Int64, _ token: String) async {
            await memory.keep(GrantMemoryTestRecord.holding(token), Self.id(key), version: version, after: [])
        }

        static func id(_ key: String) -> CredentialsID {
            CredentialsID(tenant: TenantName("t1")!, storageKey: StorageKey(key)!)
        }
    }

    @Test func `gives back what was kept, with what it came after`() async throws {
        let setting = try Setting(GrantMemory.Limits(span: .seconds(900)))
        let id = Setting.id("u")
        for number in 1...10 { await setting.keep("u", Int64(number), "r\(number)") }
        let kept = try #require(try setting.memory.grant(id))
        #expect(kept.version == 10 && kept.record == GrantMemoryTestRecord.holding("r10"))
        let digests = (2...9).map { GrantMemoryTestRecord.holding("r\($0)").tokenDigest! }
        #expect(kept.replaced == digests)
        // Something that comes late is of the past.
        await setting.keep("u", 9, "r9")
        #expect(try setting.memory.grant(id)?.version == 10)
    }

    // The operator has retired the old key, and removes it while a grant is kept that was stored before.
    @Test func `gives back what was kept before the master keys were replaced`() async throws {
        let setting = try Setting(GrantMemory.Limits(span: .seconds(900)))
        await setting.keep("u", 10, "r1")
        try await setting.vault.adopt(try Keyring(parsing: try Keyring.generate(id: "k2")))
        #expect(try setting.memory.grant(Setting.id("u"))?.record == GrantMemoryTestRecord.holding("r1"))
        await setting.keep("u", 11, "r2")
        #expect(try setting.memory.grant(Setting.id("u"))?.record == GrantMemoryTestRecord.holding("r2"))
    }

    @Test(arguments: [(899, 10), (900, 0), (901, 0)])
    func `keeps something for its span`(age: Int, version: Int64) async throws {
        let setting = try Setting(GrantMemory.Limits(span: .seconds(900)))
        await setting.keep("u", 10, "r1")
        setting.time.advance(by: .seconds(age))
        await setting.memory.expire()
        #expect(setting.memory.version(Setting.id("u")) == version)
    }

    @Test func `has what was kept first give way where there is no room`() async throws {
        let byCount = try Setting(GrantMemory.Limits(span: .seconds(900), entries: 2))
        for (number, key) in ["a", "b", "a", "c"].enumerated() { await byCount.keep(key, Int64(number + 1), "r") }
        #expect(byCount.memory.version(Setting.id("b")) == 0)
        #expect(byCount.memory.version(Setting.id("a")) == 3 && byCount.memory.version(Setting.id("c")) == 4)

        let byBytes = try Setting(GrantMemory.Limits(span: .seconds(900), bytes: 2000))
        for number in 1...50 { await byBytes.keep("u\(number)", Int64(number), "r") }
        #expect((1...4).contains(byBytes.memory.count))
        #expect(byBytes.memory.hasContent(Setting.id("u50")))
    }

    @Test func `remembers of what another replica wrote the version alone`() async throws {
        let setting = try Setting(GrantMemory.Limits(span: .seconds(900)))
        let id = Setting.id("u")
        await setting.keep("u", 10, "r1")
        setting.memory.supersede(id, by: 10)
        #expect(setting.memory.hasContent(id))
        setting.memory.supersede(id, by: 11)
        #expect(!setting.memory.hasContent(id) && setting.memory.version(id) == 11)
        #expect(try setting.memory.grant(id) == nil)
        // What was written before, and is kept late.
        await setting.keep("u", 10, "r1")
        #expect(!setting.memory.hasContent(id))
        setting.memory.drop(id.tenant)
        #expect(setting.memory.version(id) == 0 && setting.memory.count == 0)
    }
}

private enum GrantMemoryTestRecord {
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
