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

@Suite struct `Listing credentials` {
    private static let dead = #"{"error": "invalid_grant"}"#

    /// One storage key in each state, named for it.
    private static func allStates(_ store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        let user = #""level": "user", "user_id": "42", "#
        await broker.set("canary-b", refresh: "canary-s", storageKey: "degraded", members: user)
        for wait in [3600, 0] {
            broker.transport.enqueue(.json(400, ""))
            #expect(await broker.get("storage_key=degraded&policy=local_force_refresh").status == 502)
            broker.time.advance(by: .seconds(wait))
        }
        await broker.set("canary-a", refresh: "canary-r", storageKey: "active", members: user)
        await broker.set("canary-c", refresh: "canary-t", storageKey: "ended")
        await broker.logOut(storageKey: "ended")
        await broker.set(
            "canary-d", refresh: "canary-u", lifetime: .zero, storageKey: "quarantined", members: user)
        broker.transport.enqueue(.json(400, dead))
        #expect(await broker.get("storage_key=quarantined&level=user").status == 424)
        return broker
    }

    private static func list(
        _ broker: BrokerHarness, _ query: String = "", key: String? = BrokerHarness.adminKey, tenant: String? = "t1"
    ) async -> BrokerHarness.Answer {
        await broker.call(
            .get, "/credentials/list" + (query.isEmpty ? "" : "?" + query), key: key, tenant: tenant)
    }

    private static func keys(_ answer: BrokerHarness.Answer) -> [String]? {
        answer.json["credentials"]?.array?.compactMap { $0["storage_key"]?.text }
    }

    @Test func `tells of each storage key what is stored, and how that is`() async throws {
        let broker = try await Self.allStates()
        let answer = await Self.list(broker)
        #expect(answer.status == 200)
        #expect(answer.fields["Cache-Control"] == "no-store")
        let listed = try #require(answer.json["credentials"]?.array)
        let digest = "\"storage_key_digest\":\"\(Hex.encode(Array(SHA256.digest(Array("active".utf8)).prefix(6))))\""
        #expect(broker.log.contains { $0.contains(digest) })
        #expect(
            answer.text.hasPrefix(
                #"{"credentials":[{"storage_key":"active",\#(digest),"state":"active","level":"user","user_id":"42","#
                    + #""expires":"2026-11-21T11:00:00Z","refreshable":true,"ends":null,"last_refresh":null,"last_error":null},"#
            ))
        #expect(listed.map { $0["state"]?.text } == ["active", "degraded", "ended", "quarantined"])
        #expect(listed.map { $0["level"]?.text } == ["user", "user", "basic", "user"])
        #expect(listed.map { $0["user_id"]?.text } == ["42", "42", nil, "42"])
        #expect(listed[1]["last_error"]?["code"]?.text == "unexpected_error")
        #expect(listed[1]["last_error"]?["time"]?.text == "2026-11-21T10:00:00Z")
        #expect(listed[1]["last_error"]?["since"]?.text == "2026-11-21T09:00:00Z")
        #expect(listed[3]["ended"]?.text == "2026-11-21T10:00:00Z")
        #expect(listed[3]["cause"]?.text == "revoked")
        #expect(listed[3]["kept_until"]?.text == "2026-11-28T10:00:00Z")
        #expect(!answer.text.contains("canary"))
        #expect(answer.json["next_cursor"] == nil)
    }

    @Test func `a renewal that goes well is told with its time, and ends the error before it`() async throws {
        let broker = try await Self.allStates()
        broker.time.advance(by: .seconds(60))
        broker.transport.enqueue(.json(200, BrokerHarness.token("b2", refresh: "s2")))
        #expect(await broker.get("storage_key=degraded&policy=local_force_refresh").token == "b2")
        let listed = try #require(await Self.list(broker).json["credentials"]?.array)
        #expect(listed[1]["state"]?.text == "active")
        #expect(listed[1]["last_refresh"]?.text == "2026-11-21T10:01:00Z")
        #expect(listed[1]["last_error"] == .null)
        // A login begins anew.
        await broker.logIn(storageKey: "degraded")
        #expect(await Self.list(broker).json["credentials"]?.array?[1]["last_refresh"] == .null)
    }

    @Test func `the error of another replica is told as well, without a statement of its own`() async throws {
        let time = ManualTime()
        let records = MemoryRecordStore(now: { time.monotonic })
        let stores = (0..<2).map { _ in FaultyStore(records, revalidateAfter: .seconds(5)) }
        let one = try await BrokerHarness(store: stores[0], time: time)
        let two = try await BrokerHarness(store: stores[1], time: time)
        await one.makeTenant()
        await one.set("a1", refresh: "r1")
        one.transport.enqueue(.json(403, ""), .json(403, ""))
        let before = stores[0].commits
        #expect(await one.get("policy=local_force_refresh").status == 502)
        // The claim, and the release that tells of the failure.
        #expect(stores[0].commits == before + 2)
        time.advance(by: .seconds(600))
        let listed = try #require(await Self.list(two).json["credentials"]?.array?.first)
        #expect(listed["state"]?.text == "active")
        #expect(listed["last_error"]?["code"]?.text == "unexpected_error")
        #expect(listed["last_error"]?["time"]?.text == "2026-11-21T09:00:00Z")
        // It is over for callers, who are not kept from the provider by it.
        two.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await two.get("policy=local_force_refresh").token == "a2")
        #expect(await Self.list(one).json["credentials"]?.array?.first?["last_error"] == .null)
    }

    // Waves hold credentials: `WaveTests`.
    @Test(arguments: CredentialsState.allCases.filter { $0 != .held })
    func `can be of one state alone`(state: CredentialsState) async throws {
        let broker = try await Self.allStates()
        #expect(Self.keys(await Self.list(broker, "state=\(state.rawValue)")) == [state.rawValue])
    }

    @Test(arguments: [(-1, []), (0, []), (1, ["k"])] as [(Int, [String])])
    func `can be of what expires before a time`(seconds: Int, keys: [String]) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a", lifetime: .seconds(100), storageKey: "k")
        await broker.set("a", lifetime: .seconds(100), storageKey: "gone")
        await broker.logOut(storageKey: "gone")
        let time = broker.time.now.advanced(by: .seconds(100 + seconds))
        #expect(Self.keys(await Self.list(broker, "expires_before=\(time)")) == keys)
    }

    @Test func `what is kept aside beside the credentials of a later login, or beyond its time, is not told`()
        async throws
    {
        let broker = try await Self.allStates()
        let kept = try #require(try await broker.quarantined(storageKey: "quarantined"))
        #expect(
            kept.session
                == EndedSession(
                    .revoked, at: broker.time.now, code: "unexpected_error", errorCode: "invalid_grant"))
        broker.time.advance(by: .seconds(7 * 86_400 - 1))
        #expect(Self.keys(await Self.list(broker, "state=quarantined")) == ["quarantined"])
        broker.time.advance(by: .seconds(1))
        #expect(Self.keys(await Self.list(broker, "state=quarantined")) == [])
        #expect(Self.keys(await Self.list(broker, "state=ended")) == ["ended", "quarantined"])
        await broker.set("a9", refresh: "r9", storageKey: "quarantined")
        #expect(Self.keys(await Self.list(broker, "state=active")) == ["active", "quarantined"])
    }

    @Test(arguments: [1, 2, 3, 100])
    func `pages hold all of it once, in order`(limit: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeTenant("t2")
        let keys = ["A", "a", "a.b", "b", "~"]
        for key in keys.shuffled() { await broker.set("a", storageKey: key) }
        await broker.set("a", tenant: "t2", storageKey: "a2")
        var (seen, cursor, pages): ([String], String?, Int) = ([], nil, 0)
        repeat {
            let answer = await Self.list(broker, "limit=\(limit)" + (cursor.map { "&cursor=\($0)" } ?? ""))
            seen += try #require(Self.keys(answer))
            cursor = answer.json["next_cursor"]?.text
            pages += 1
        } while cursor != nil && pages < 10
        #expect(seen == keys)
        #expect(pages == (keys.count + limit - 1) / limit)
    }

    @Test func `a page looks at a thousand storage keys at most, however few a filter lets through`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let count = 1250
        for index in 0..<count {
            let id = CredentialsID(tenant: TenantName("t1")!, storageKey: StorageKey("k\(10_000 + index)")!)
            try await broker.vault.commit([
                .insert(
                    OpenRecord(
                        id: RecordID(.credentials, id.tenant, key: id.storageKey.description), version: 1,
                        content: SecretBytes(CredentialRecord(held: nil).encoded)))
            ])
        }
        await broker.set("a", storageKey: "z")
        let first = await Self.list(broker, "state=active&limit=5")
        #expect(Self.keys(first) == [])
        let cursor = try #require(first.json["next_cursor"]?.text)
        let second = await Self.list(broker, "state=active&limit=5&cursor=\(cursor)")
        #expect(Self.keys(second) == ["z"])
        #expect(second.json["next_cursor"] == nil)
    }

    @Test func `a narrowed key sees its own storage keys alone`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for key in ["a", "b", "c"] { await broker.set("x", storageKey: key) }
        let narrowed = await broker.makeKey(
            "t1", #"{"name": "n", "permissions": ["credentials:read"], "storage_keys": ["c", "a", "never"]}"#)
        #expect(Self.keys(await Self.list(broker, key: narrowed, tenant: nil)) == ["a", "c"])
        let first = await Self.list(broker, "limit=1", key: narrowed, tenant: nil)
        #expect(Self.keys(first) == ["a"])
        let cursor = try #require(first.json["next_cursor"]?.text)
        #expect(Self.keys(await Self.list(broker, "limit=1&cursor=\(cursor)", key: narrowed, tenant: nil)) == ["c"])
        let wide = await broker.makeKey("t1", #"{"name": "w", "permissions": ["credentials:read"]}"#)
        #expect(Self.keys(await Self.list(broker, key: wide, tenant: nil)) == ["a", "b", "c"])
        let blind = await broker.makeKey("t1", #"{"name": "b", "permissions": ["credentials:write"]}"#)
        #expect(await Self.list(broker, key: blind, tenant: nil).code == "forbidden")
        #expect(await Self.list(broker, tenant: nil).status == 400)
        #expect(await Self.list(broker, tenant: "t9").status == 404)
    }

    /// The patterns of a key, and the storage keys that it lists.
    @Test(arguments: [
        (["a*"], ["a", "a-", "a-1", "a.", "a.1", "a.2", "ab"]), (["a.*"], ["a.", "a.1", "a.2"]),
        (["a-*"], ["a-", "a-1"]),
        (["a.*", "a-1", "b"], ["a-1", "a.", "a.1", "a.2", "b"]), (["zz*", "b*"], ["b", "b.1", "zz", "zz1"]),
        (["0*", "a.1*", "c*", "x"], ["a.1"]), (["c*"], []), (["a.3*", "a.2"], ["a.2"]), (["z*"], ["z", "zz", "zz1"]),
    ])
    func `a key that is narrowed by patterns sees what they say, in pages of any length`(
        patterns: [String], listed: [String]
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for key in ["a", "a-", "a-1", "a.", "a.1", "a.2", "ab", "b", "b.1", "z", "zz", "zz1", "A"] {
            await broker.set("x", storageKey: key)
        }
        let texts = patterns.map { "\"\($0)\"" }.joined(separator: ",")
        let narrowed = await broker.makeKey(
            "t1", #"{"name": "n", "permissions": ["credentials:read"], "storage_keys": [\#(texts)]}"#)
        for limit in [1, 2, 3, 100] {
            for filter in ["", "&state=active"] {
                var (found, cursor): ([String], String?) = ([], nil)
                repeat {
                    let query = "limit=\(limit)\(filter)" + (cursor.map { "&cursor=\($0)" } ?? "")
                    let page = await Self.list(broker, query, key: narrowed, tenant: nil)
                    found += Self.keys(page) ?? ["none"]
                    cursor = page.json["next_cursor"]?.text
                } while cursor != nil
                #expect(found == listed, "\(limit) \(filter)")
            }
        }
        // A cursor is a place in the tenant, wherever that is.
        let everything = await broker.makeKey("t1", #"{"name": "w", "permissions": ["credentials:read"]}"#)
        let first = await Self.list(broker, "limit=4", key: everything, tenant: nil)
        let cursor = try #require(first.json["next_cursor"]?.text)
        let later = await Self.list(broker, "cursor=\(cursor)", key: narrowed, tenant: nil)
        #expect(
            Self.keys(later) == listed.filter { $0.utf8.lexicographicallyPrecedes("a-1".utf8) == false && $0 != "a-1" })
    }

    @Test(arguments: [
        ("state=lost", "state"), ("expires_before=tomorrow", "expires_before"), ("limit=0", "limit"),
        ("limit=1001", "limit"), ("cursor=%21", "cursor"), ("cursor=YSBi", "cursor"), ("storage_key=a", "storage_key"),
    ])
    func `refuses a parameter that is wrong with its name`(query: String, name: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await Self.list(broker, query)
        #expect((answer.status, answer.pointers) == (400, [name]))
    }

    @Test func `a record that does not open hides no other, and the log tells of it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for key in ["a", "b", "c"] { await broker.set("x", storageKey: key) }
        let id = RecordID(.credentials, TenantName("t1")!, key: "b")
        var stored = try #require(try await broker.store.read(id))
        let version = stored.version
        stored.version += 1
        try await broker.store.commit([.replace(stored, version: version)])
        #expect(Self.keys(await Self.list(broker)) == ["a", "c"])
        #expect(
            broker.log.contains { $0.contains(#""event":"credentials_unreadable","tenant":"t1","storage_key_digest""#) }
        )
    }

    @Test func `says so where the store does not answer`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        _ = await Self.list(broker)
        store.setDown(true)
        #expect(await Self.list(broker).code == "storage_unavailable")
    }
}
