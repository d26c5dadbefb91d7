import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Restoring many sets of credentials` {
    /// Ends the sessions of these users, in the name of the provider.
    private static func end(_ broker: BrokerHarness, _ storageKeys: [String]) async {
        for key in storageKeys {
            await broker.set("a-\(key)", refresh: "r-\(key)", lifetime: .seconds(1), storageKey: key)
            broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
            #expect(await broker.get("storage_key=\(key)").level == "basic")
        }
    }

    private static func broker(_ store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        return broker
    }

    private static func restore(_ broker: BrokerHarness, _ body: String) async -> BrokerHarness.Answer {
        await broker.call(.post, "/credentials/restore", tenant: "t1", body: body)
    }

    /// Writes what is kept aside under a storage key anew.
    private static func change(
        _ broker: BrokerHarness, _ key: String, _ change: (inout QuarantinedCredentials) -> Void
    ) async throws {
        let id = RecordID(.quarantine, TenantName("t1")!, key: key)
        var record = try #require(try await broker.vault.read(id))
        var kept = try #require(try await broker.quarantined(storageKey: key))
        change(&kept)
        let version = record.version
        record.version += 1
        record.content = SecretBytes(kept.encoded)
        try await broker.vault.commit([.replace(record, version: version)])
    }

    private static func outcomes(_ answer: BrokerHarness.Answer) -> [String]? {
        answer.json["outcomes"]?.array?.map { outcome in
            "\(outcome["storage_key"]?.text ?? "") \(outcome["code"]?.text ?? outcome["outcome"]?.text ?? "")"
        }
    }

    @Test func `tells of each what became of it, and one keeps no other from it`() async throws {
        let broker = try await Self.broker()
        await Self.end(broker, ["u1", "u2", "u3"])
        await broker.set("new", refresh: "new", storageKey: "u2")
        let answer = await Self.restore(broker, #"{"storage_keys": ["u3", "never", "u2", "u1", "u3"]}"#)
        #expect(answer.status == 200)
        #expect(Self.outcomes(answer) == ["u3 restored", "never not_found", "u2 conflict", "u1 restored"])
        #expect(await broker.status(storageKey: "u1").isLoggedIn == true)
        #expect(await broker.get("storage_key=u2").token == "new")
        #expect(broker.log.count { $0.contains("credentials_restored") } == 2)
        #expect(!(answer.text + broker.log.joined()).contains("r-u1"))
    }

    @Test func `can be of all that ended since a time, and of one cause`() async throws {
        let broker = try await Self.broker()
        await Self.end(broker, ["early"])
        broker.time.advance(by: .seconds(60))
        let since = broker.time.now
        await Self.end(broker, ["late1", "late2", "other"])
        try await Self.change(broker, "other") { $0.session = $0.session.map { EndedSession(.expired, at: $0.time) } }
        #expect(Self.outcomes(await Self.restore(broker, #"{"ended_since": "2026-11-21T10:00:00Z"}"#)) == [])
        let revoked = await Self.restore(broker, #"{"ended_since": "\#(since)", "cause": "revoked"}"#)
        #expect(Self.outcomes(revoked) == ["late1 restored", "late2 restored"])
        let rest = await Self.restore(broker, #"{"ended_since": "\#(since)", "cause": "expired"}"#)
        #expect(Self.outcomes(rest) == ["other restored"])
        #expect(rest.json["next_cursor"] == nil)
        let all = await Self.restore(broker, #"{"ended_since": "2026-11-21T09:00:00Z"}"#)
        #expect(Self.outcomes(all) == ["early restored"])
    }

    @Test func `a call restores a thousand at most, and its cursor leads to the rest`() async throws {
        let broker = try await Self.broker()
        await Self.end(broker, ["k1"])
        let kept = try #require(try await broker.quarantined(storageKey: "k1"))
        let tenant = TenantName("t1")!
        for index in 0..<1000 {
            let key = "m\(1000 + index)"
            try await broker.vault.commit([
                .insert(
                    OpenRecord(
                        id: RecordID(.quarantine, tenant, key: key), version: 1, content: SecretBytes(kept.encoded),
                        expires: kept.until))
            ])
        }
        let first = await Self.restore(broker, #"{"ended_since": "2026-11-21T09:00:00Z"}"#)
        #expect(Self.outcomes(first)?.count == 1000)
        #expect(Self.outcomes(first)?.last == "m1998 restored")
        let cursor = try #require(first.json["next_cursor"]?.text)
        let second = await Self.restore(
            broker, #"{"ended_since": "2026-11-21T09:00:00Z", "cursor": "\#(cursor)"}"#)
        #expect(Self.outcomes(second) == ["m1999 restored"])
        #expect(second.json["next_cursor"] == nil)
        #expect(try await broker.count(.quarantine) == 0)
    }

    @Test func `what an earlier build kept aside has no time, and is restored by its name`() async throws {
        let broker = try await Self.broker()
        await Self.end(broker, ["old"])
        try await Self.change(broker, "old") { $0.session = nil }
        #expect(Self.outcomes(await Self.restore(broker, #"{"ended_since": "2020-01-01T00:00:00Z"}"#)) == [])
        #expect(Self.outcomes(await Self.restore(broker, #"{"storage_keys": ["old"]}"#)) == ["old restored"])
    }

    @Test func `a store that goes away meanwhile is not tried for all that are left`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store)
        let keys = (0..<50).map { "u\(10 + $0)" }
        await Self.end(broker, Array(keys.prefix(3)))
        store.setDown(true)
        let before = store.reads
        let answer = await Self.restore(
            broker, #"{"storage_keys": [\#(keys.map { "\"\($0)\"" }.joined(separator: ","))]}"#)
        #expect(answer.status == 200)
        #expect(Self.outcomes(answer) == keys.map { "\($0) storage_unavailable" })
        #expect(store.reads - before <= 8)
        store.setDown(false)
        #expect(Self.outcomes(await Self.restore(broker, #"{"storage_keys": ["u10"]}"#)) == ["u10 restored"])
    }

    @Test(arguments: [
        (#"{"storage_keys": []}"#, ["/storage_keys"]), (#"{"storage_keys": ["a b"]}"#, ["/storage_keys/0"]),
        (#"{"storage_keys": ["a"], "storage_key": "a"}"#, ["/storage_key"]),
        (#"{"storage_keys": ["a"], "ended_since": "2026-11-21T09:00:00Z"}"#, ["/ended_since"]),
        (#"{"ended_since": "yesterday"}"#, ["/ended_since"]),
        (#"{"ended_since": "2026-11-21T09:00:00Z", "cause": "logout"}"#, ["/cause"]),
        (#"{"ended_since": "2026-11-21T09:00:00Z", "cursor": "!"}"#, ["/cursor"]),
        (#"{"ended_since": "2026-11-21T09:00:00Z", "storage_key": "a"}"#, ["/storage_key"]),
        (#"{"cause": "revoked"}"#, ["/cause"]), (#"{"storage_key": "a", "cursor": "YQ"}"#, ["/cursor"]),
    ])
    func `refuses fields that do not go together`(body: String, pointers: [String]) async throws {
        let broker = try await Self.broker()
        let answer = await Self.restore(broker, body)
        #expect((answer.status, answer.pointers) == (400, pointers))
    }

    @Test func `is the admin's`() async throws {
        let broker = try await Self.broker()
        let key = await broker.makeKey()
        let answer = await broker.call(
            .post, "/credentials/restore", key: key, body: #"{"storage_keys": ["default"]}"#)
        #expect((answer.status, answer.code) == (403, "forbidden"))
    }
}
