import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Reactor
import Synchronization
import Testing
import TokenBroker

@testable import BrokerCore

/// API keys that are made with `tenants`.
@Suite(.timeLimit(.minutes(2))) struct `A key of several tenants` {
    private struct Key {
        let id: String
        let secret: String

        init(_ answer: BrokerHarness.Answer) throws {
            #expect(answer.status == 201, "\(answer.text)")
            id = try #require(answer.json["id"]?.text)
            secret = answer.json["api_key"]?.text ?? ""
        }
    }

    private static let all = #""permissions": ["credentials:read", "credentials:write", "login", "events"]"#
    private static let path = "/tenants/t1/api-keys"

    /// A broker with the tenants t1, t2 and t3, and a token of each, such as `of-t1`.
    private static func broker(_ adjust: (inout Broker.Settings) -> Void = { _ in }) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(adjust)
        await makeTenants(broker)
        return broker
    }

    private static func makeTenants(_ broker: BrokerHarness) async {
        for tenant in ["t1", "t2", "t3"] {
            await broker.makeTenant(tenant)
            await broker.set("of-\(tenant)", lifetime: .seconds(604_800), tenant: tenant)
        }
    }

    /// Makes a key of t1 and t2, under the path of t1.
    private static func make(_ broker: BrokerHarness, _ members: String = "") async throws -> Key {
        try Key(
            await broker.call(
                .post, path, body: #"{"name": "k", \#(all), "tenants": ["t2", "t1"]\#(members)}"#))
    }

    private static func statuses(
        _ broker: BrokerHarness, _ key: Key, _ tenants: [String?] = ["t1", "t2", "t3", nil]
    ) async -> [Int] {
        var statuses: [Int] = []
        for tenant in tenants {
            statuses.append(await broker.call(.get, "/credentials", key: key.secret, tenant: tenant).status)
        }
        return statuses
    }

    private static func ids(_ broker: BrokerHarness, _ tenant: String) async -> [String] {
        await broker.call(.get, "/tenants/\(tenant)/api-keys").json["api_keys"]?.array?.compactMap { $0["id"]?.text }
            ?? []
    }

    // MARK: Making and listing

    @Test func `is made under the path of one of them, and each of them lists it`() async throws {
        let broker = try await Self.broker()
        let created = await broker.call(
            .post, Self.path,
            body: #"""
                {"name": "k", "permissions": ["login"], "storage_keys": ["a"], "tenants": ["t2", "t1", "t2"],
                 "expires_in": 60}
                """#)
        let key = try Key(created)
        let rest = """
            "id":"\(key.id)","name":"k","permissions":["login"],"storage_keys":["a"],"tenants":["t1","t2"],\
            "created":"2026-11-21T09:00:00Z","expires":"2026-11-21T09:01:00Z"
            """
        #expect(created.text == "{\(rest),\"api_key\":\"\(key.secret)\"}")
        #expect(key.secret.wholeMatch(of: /tb_[A-Za-z0-9_-]{43}/) != nil)
        for tenant in ["t1", "t2"] {
            let path = "/tenants/\(tenant)/api-keys"
            #expect(await broker.call(.get, path).text == "{\"api_keys\":[{\(rest)}]}")
            #expect(await broker.call(.get, "\(path)/\(key.id)").text == "{\(rest)}")
        }
        #expect(await Self.ids(broker, "t3") == [])
        #expect(await broker.call(.get, "/tenants/t3/api-keys/\(key.id)").status == 404)
        #expect(broker.log.contains { $0.contains(#""event":"api_key_created","tenant":"t1","api_key":"\#(key.id)""#) })
    }

    @Test func `stands in the pages of each tenant between its other keys`() async throws {
        let broker = try await Self.broker()
        var expected: [String: [String]] = [:]
        for index in 0..<5 {
            let key = try await Self.make(broker)
            for tenant in ["t1", "t2"] { expected[tenant, default: []].append(key.id) }
            if index == 1 { _ = await broker.call(.post, "\(Self.path)/\(key.id)/rotate") }
            _ = await broker.makeKey("t1")
        }
        for tenant in ["t1", "t2"] {
            let all = await Self.ids(broker, tenant)
            #expect(all == all.sorted() && all.count == (tenant == "t1" ? 10 : 5))
            #expect(Set(all).isSuperset(of: expected[tenant] ?? []))
            for limit in 1...3 {
                var (found, cursor): ([String], String?) = ([], nil)
                repeat {
                    let page = await broker.call(
                        .get, "/tenants/\(tenant)/api-keys?limit=\(limit)" + (cursor.map { "&cursor=\($0)" } ?? ""))
                    found += page.json["api_keys"]?.array?.compactMap { $0["id"]?.text } ?? []
                    cursor = page.json["next_cursor"]?.text
                } while cursor != nil
                #expect(found == all, "\(tenant) \(limit)")
            }
        }
    }

    /// The member `tenants`, the status, and the pointers of the faults.
    @Test(
        arguments: [
            ("[]", 400, ["/tenants"]), (#""t1""#, 400, ["/tenants"]), (#"["t1", "T2"]"#, 400, ["/tenants/1"]),
            (#"["t1", 5]"#, 400, ["/tenants/1"]), (#"["t1", "-"]"#, 400, ["/tenants/1"]),
            (#"["t2"]"#, 400, ["/tenants"]), (#"["t2", "t3"]"#, 400, ["/tenants"]),
            (#"["t1", "t8", "t2", "t9"]"#, 422, ["/tenants/1", "/tenants/3"]),
        ] as [(String, Int, [String])])
    func `that is not well described, or names a tenant that does not exist, is refused`(
        tenants: String, status: Int, pointers: [String]
    ) async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(
            .post, Self.path, body: #"{"name": "k", \#(Self.all), "tenants": \#(tenants)}"#)
        #expect((answer.status, answer.code) == (status, status == 400 ? "invalid_request" : "illegal_argument"))
        #expect(answer.pointers == pointers)
        #expect(await Self.ids(broker, "t1") == [])
    }

    @Test(arguments: [(100, 201), (101, 400)]) func `has so many tenants`(count: Int, status: Int) async throws {
        let broker = try await BrokerHarness()
        let names = (1...count).map { "t\($0)" }
        for name in names { await broker.makeTenant(name) }
        let list = names.map { "\"\($0)\"" }.joined(separator: ",")
        let answer = await broker.call(.post, Self.path, body: #"{"name": "k", \#(Self.all), "tenants": [\#(list)]}"#)
        #expect(answer.status == status)
        if status == 400 {
            #expect(answer.pointers == ["/tenants"])
            return
        }
        let key = try Key(answer)
        await broker.set("of-last", tenant: "t\(count)")
        let read = await broker.call(.get, "/credentials", key: key.secret, tenant: "t\(count)")
        #expect(read.json["token"]?.text == "of-last")
        #expect(try Key(await broker.call(.post, "/tenants/t50/api-keys/\(key.id)/rotate")).id == key.id)
        #expect(await broker.call(.delete, "/tenants/t\(count)/api-keys/\(key.id)").status == 204)
        #expect(try await broker.store.list(.apiKey, tenant: nil, after: nil, limit: 9) == [])
    }

    @Test(arguments: ["null", #"["t1"]"#, #"["t1", "t1"]"#])
    func `with one tenant is a key of that tenant`(tenants: String) async throws {
        let broker = try await Self.broker()
        let created = await broker.call(.post, Self.path, body: #"{"name": "k", \#(Self.all), "tenants": \#(tenants)}"#)
        #expect(created.json["tenants"] == nil)
        #expect(await Self.statuses(broker, try Key(created)) == [200, 403, 403, 200])
    }

    // MARK: Requests

    // H021
    @Test func `names one of them with each request`() async throws {
        let broker = try await Self.broker()
        let key = try await Self.make(broker)
        for tenant in ["t1", "t2"] {
            let read = await broker.call(.get, "/credentials", key: key.secret, tenant: tenant)
            #expect(read.json["token"]?.text == "of-\(tenant)")
            #expect(await broker.call(.get, "/credentials/status", key: key.secret, tenant: tenant).status == 200)
            #expect(broker.log.last?.contains(#""api_key":"\#(key.id)","tenant":"\#(tenant)""#) == true)
        }
        let none = await broker.call(.get, "/credentials", key: key.secret)
        #expect((none.status, none.code) == (400, "invalid_request"))
        #expect(none.text.contains("X-Tenant"))
        for other in ["t3", "t9", "T1", "", "-"] {
            let refused = await broker.call(.get, "/credentials", key: key.secret, tenant: other)
            #expect((refused.status, refused.code) == (403, "forbidden"), "\(other)")
        }
        let twice = await broker.call(
            .get, "/credentials", key: key.secret, tenant: "t1", fields: ["X-Tenant": "t2"])
        #expect((twice.status, twice.code) == (400, "invalid_request"))
        for target in ["/providers", "/providers/tidal"] {
            for tenant in [nil, "t1", "t3"] {
                #expect(await broker.call(.get, target, key: key.secret, tenant: tenant).status == 200, "\(target)")
            }
        }
        for (method, target) in [(Method.get, "/tenants"), (.delete, "/tenants/t1")] {
            #expect(await broker.call(method, target, key: key.secret, tenant: "t1").status == 403)
        }
    }

    @Test func `has the same permissions and storage keys in each of them`() async throws {
        let broker = try await Self.broker()
        let key = try Key(
            await broker.call(
                .post, Self.path,
                body: #"""
                    {"name": "k", "permissions": ["credentials:read"], "storage_keys": ["a", "b.*"],
                     "tenants": ["t1", "t2"]}
                    """#))
        for tenant in ["t1", "t2"] {
            for storageKey in ["a", "b.1", "c"] {
                await broker.set("\(tenant)-\(storageKey)", tenant: tenant, storageKey: storageKey)
                let read = await broker.call(
                    .get, "/credentials?storage_key=\(storageKey)", key: key.secret, tenant: tenant)
                #expect(read.status == (storageKey == "c" ? 403 : 200))
                if read.status == 200 { #expect(read.json["token"]?.text == "\(tenant)-\(storageKey)") }
            }
            let query = "/credentials?storage_key=a"
            #expect(await broker.call(.delete, query, key: key.secret, tenant: tenant).status == 403)
            #expect(await broker.call(.get, "/events", key: key.secret, tenant: tenant).status == 403)
        }
    }

    @Test func `expires in all of them at once`() async throws {
        let broker = try await Self.broker()
        let key = try await Self.make(broker, #", "expires_in": 60"#)
        broker.time.advance(by: .milliseconds(59_999))
        #expect(await Self.statuses(broker, key) == [200, 200, 403, 400])
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.statuses(broker, key) == [401, 401, 401, 401])
    }

    @Test func `gets the events of the tenant that it names`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(store: MemoryRecordStore(), time: time)
        await Self.makeTenants(broker)
        let key = try await Self.make(broker)
        #expect(await broker.call(.get, "/events", key: key.secret).status == 400)
        #expect(await broker.call(.get, "/events", key: key.secret, tenant: "t3").status == 403)
        let listener = await broker.listen(key: key.secret, tenant: "t2")
        await broker.set("a1", tenant: "t1", storageKey: "one")
        await broker.set("a2", tenant: "t2", storageKey: "two")
        #expect(await listener.events(1).map(\.storageKey) == ["two"])
        await listener.close()
    }

    /// What ends the right to listen in t2.
    enum Loss: String, CaseIterable {
        case keyDeleted
        case keyRotated
        case tenantDeleted
        case tenantMadeAnew
    }

    @Test(arguments: Loss.allCases) func `has its streams ended with its right to them`(loss: Loss) async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(store: MemoryRecordStore(), time: time)
        await Self.makeTenants(broker)
        let key = try await Self.make(broker)
        let listener = await broker.listen(key: key.secret, tenant: "t2")
        switch loss {
        case .keyDeleted: #expect(await broker.call(.delete, "\(Self.path)/\(key.id)").status == 204)
        case .keyRotated:
            _ = try Key(await broker.call(.post, "\(Self.path)/\(key.id)/rotate", body: #"{"overlap": 0}"#))
        case .tenantDeleted: #expect(await broker.call(.delete, "/tenants/t2").status == 204)
        case .tenantMadeAnew:
            #expect(await broker.call(.delete, "/tenants/t2").status == 204)
            await broker.makeTenant("t2")
        }
        await listener.end()
        #expect(listener.events == [])
    }

    // MARK: Identities

    @Test func `can be that of a certificate`() async throws {
        let broker = try await Self.broker()
        let key = try await Self.make(broker, #", "identity": "dns:cart.example""#)
        #expect(key.secret.isEmpty)
        let identity = try #require(CallerIdentity("dns:cart.example"))
        let peer = PeerIdentity([identity.digest.vector], expirySeconds: 4_070_908_800)
        for (tenant, status) in [("t1", 200), ("t2", 200), ("t3", 403), (nil, 400)] as [(String?, Int)] {
            let fields: Fields = tenant.map { ["X-Tenant": $0] } ?? [:]
            let read = await broker.call(.get, "/credentials", by: peer, fields: fields)
            #expect(read.status == status, "\(tenant ?? "none")")
            if let tenant, status == 200 { #expect(read.json["token"]?.text == "of-\(tenant)") }
        }
        let taken = await broker.call(
            .post, "/tenants/t3/api-keys", body: #"{"name": "k", \#(Self.all), "identity": "dns:cart.example"}"#)
        #expect((taken.status, taken.code) == (409, "conflict"))
        #expect(taken.text.contains("of the tenants t1, t2 has this identity"))
    }

    @Test func `can be that of a workload`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker { settings in
            settings.core.workloadIssuers = [
                WorkloadIssuer(
                    issuer: WireText(SigningProvider.issuer), audience: "token-broker",
                    keys: SigningProvider.keysAddress)
            ]
        }
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        _ = try await Self.make(broker, #", "identity": "jwt:\#(SigningProvider.issuer)#cart""#)
        let now = broker.time.now.seconds
        let token = provider.token(
            #"{"iss": "\#(SigningProvider.issuer)", "aud": "token-broker", "sub": "cart", "exp": \#(now + 3600)}"#)
        // Twice, since the second time the token is known.
        for _ in 0..<2 {
            for (tenant, status) in [("t1", 200), ("t2", 200), ("t3", 403), (nil, 400)] as [(String?, Int)] {
                let read = await broker.call(.get, "/credentials", key: token, tenant: tenant)
                #expect(read.status == status, "\(tenant ?? "none")")
            }
        }
    }

    // MARK: Rotation

    @Test func `gets another secret for all of them under the path of any of them`() async throws {
        let broker = try await Self.broker()
        let old = try await Self.make(broker, #", "expires_in": 86400"#)
        #expect(await Self.statuses(broker, old) == [200, 200, 403, 400])
        let answer = await broker.call(
            .post, "/tenants/t2/api-keys/\(old.id)/rotate", body: #"{"overlap": 3600, "replaces": 1}"#)
        let new = try Key(answer)
        #expect(new.id == old.id && answer.json["generation"]?.integer == 2)
        #expect(answer.json["tenants"]?.array?.compactMap(\.text) == ["t1", "t2"])
        for tenant in ["t1", "t2"] {
            let shown = await broker.call(.get, "/tenants/\(tenant)/api-keys/\(old.id)")
            #expect(shown.json["generation"]?.integer == 2)
            #expect(shown.json["earlier_secret_expires"]?.text == "2026-11-21T10:00:00Z")
            #expect(await Self.ids(broker, tenant) == [old.id])
        }
        for key in [old, new] { #expect(await Self.statuses(broker, key) == [200, 200, 403, 400]) }
        broker.time.advance(by: .milliseconds(3_599_999))
        #expect(await Self.statuses(broker, old) == [200, 200, 403, 400])
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.statuses(broker, old) == [401, 401, 401, 401])
        #expect(await Self.statuses(broker, new) == [200, 200, 403, 400])
        let last = try Key(
            await broker.call(.post, "\(Self.path)/\(old.id)/rotate", body: #"{"overlap": 0, "replaces": 2}"#))
        #expect(await Self.statuses(broker, new) == [401, 401, 401, 401])
        #expect(await Self.statuses(broker, last) == [200, 200, 403, 400])
        #expect(await broker.call(.post, "/tenants/t3/api-keys/\(old.id)/rotate").status == 404)
    }

    @Test func `keeps the secret in use where the answers to its rotations are lost`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await Self.makeTenants(broker)
        let used = try await Self.make(broker)
        for _ in 0..<2 {
            store.onCommit(of: .apiKey, .loseAnswer)
            let lost = await broker.call(.post, "\(Self.path)/\(used.id)/rotate", body: #"{"replaces": 1}"#)
            #expect(lost.status == 503)
            #expect(await Self.statuses(broker, used) == [200, 200, 403, 400])
        }
        let new = try Key(await broker.call(.post, "\(Self.path)/\(used.id)/rotate", body: #"{"replaces": 1}"#))
        for key in [used, new] { #expect(await Self.statuses(broker, key) == [200, 200, 403, 400]) }
    }

    // MARK: Ends

    @Test(arguments: ["t1", "t2"]) func `is deleted for all of them`(tenant: String) async throws {
        let broker = try await Self.broker()
        let old = try await Self.make(broker)
        let new = try Key(await broker.call(.post, "\(Self.path)/\(old.id)/rotate"))
        for key in [old, new] { #expect(await Self.statuses(broker, key) == [200, 200, 403, 400]) }
        #expect(await broker.call(.delete, "/tenants/t3/api-keys/\(old.id)").status == 404)
        #expect(await broker.call(.delete, "/tenants/\(tenant)/api-keys/\(old.id)").status == 204)
        for key in [old, new] { #expect(await Self.statuses(broker, key) == [401, 401, 401, 401]) }
        for tenant in ["t1", "t2"] {
            #expect(await Self.ids(broker, tenant) == [])
            #expect(await broker.call(.delete, "/tenants/\(tenant)/api-keys/\(old.id)").status == 404)
        }
        #expect(try await broker.store.list(.apiKey, tenant: nil, after: nil, limit: 9) == [])
        let log = #""event":"api_key_deleted","tenant":"\#(tenant)","api_key":"\#(old.id)""#
        #expect(broker.log.contains { $0.contains(log) })
    }

    @Test(arguments: ["t1", "t2"])
    func `lives on for the others where one is deleted, which does not get it back`(tenant: String) async throws {
        let broker = try await Self.broker()
        let (key, other) = (try await Self.make(broker), tenant == "t1" ? "t2" : "t1")
        #expect(await Self.statuses(broker, key) == [200, 200, 403, 400])
        #expect(await broker.call(.delete, "/tenants/\(tenant)").status == 204)
        #expect(await Self.statuses(broker, key, [tenant, other, nil]) == [403, 200, 400])
        let shown = await broker.call(.get, "/tenants/\(other)/api-keys/\(key.id)")
        #expect(shown.json["tenants"]?.array?.compactMap(\.text) == [other])
        await broker.makeTenant(tenant)
        await broker.set("of-another", tenant: tenant)
        #expect(await Self.statuses(broker, key, [tenant, other, nil]) == [403, 200, 400])
        #expect(await Self.ids(broker, tenant) == [])
        for path in ["/\(key.id)", "/\(key.id)/rotate"] {
            let method = path.hasSuffix("rotate") ? Method.post : .delete
            #expect(await broker.call(method, "/tenants/\(tenant)/api-keys\(path)").status == 404)
        }
        // A rotation does not bring it back either.
        let rotated = await broker.call(.post, "/tenants/\(other)/api-keys/\(key.id)/rotate")
        #expect(rotated.json["tenants"]?.array?.compactMap(\.text) == [other])
        #expect(await Self.statuses(broker, try Key(rotated), [tenant, other, nil]) == [403, 200, 400])
        #expect(await broker.call(.delete, "/tenants/\(other)/api-keys/\(key.id)").status == 204)
        #expect(await Self.statuses(broker, key, [tenant, other, nil]) == [401, 401, 401])
    }

    @Test func `is refused when its last tenant is deleted, and gives its identity back`() async throws {
        let broker = try await Self.broker()
        let key = try await Self.make(broker)
        let identified = #"{"name": "k", \#(Self.all), "identity": "dns:cart.example", "tenants": ["t1", "t2"]}"#
        #expect(await broker.call(.post, Self.path, body: identified).status == 201)
        for tenant in ["t1", "t2"] { #expect(await broker.call(.delete, "/tenants/\(tenant)").status == 204) }
        #expect(await Self.statuses(broker, key) == [401, 401, 401, 401])
        #expect(await broker.call(.get, "/providers", key: key.secret).status == 401)
        for tenant in ["t1", "t2"] { await broker.makeTenant(tenant) }
        #expect(await Self.statuses(broker, key) == [401, 401, 401, 401])
        #expect(await broker.call(.post, Self.path, body: identified).status == 201)
        #expect(await broker.call(.post, Self.path, body: identified).status == 409)
    }

    @Test func `is in the audit log once for each of them, and in none of the broker's own`() async throws {
        let broker = try await Self.broker { $0.core.audit.changes = true }
        let key = try await Self.make(broker)
        _ = try Key(await broker.call(.post, "/tenants/t2/api-keys/\(key.id)/rotate"))
        #expect(await broker.call(.get, "/credentials", key: key.secret, tenant: "t3").status == 403)
        #expect(await broker.call(.delete, "\(Self.path)/\(key.id)").status == 204)
        let lines = Mutex<[[UInt8]]>([])
        let unreadable = try await AuditExport().run(broker.store) { line in lines.withLock { $0.append(Array(line)) } }
        #expect(unreadable == (entries: 0, chains: 0))
        let entries = try lines.withLock { $0 }.map { try JSONValue(parsing: $0) }
            .filter { $0["action"]?.text?.hasPrefix("api-key.") ?? false }
        let told = entries.map { "\($0["action"]?.text ?? "") \($0["tenant"]?.text ?? "")" }
        #expect(
            told.sorted() == [
                "api-key.created t1", "api-key.created t2", "api-key.removed t1", "api-key.removed t2",
                "api-key.rotated t1", "api-key.rotated t2",
            ])
        for entry in entries { #expect(entry["key_id"]?.text == key.id) }
    }

    // MARK: Replicas and stores

    // H026
    @Test func `is refused at once by a replica that hears of its end`() async throws {
        let (base, group) = (MemoryRecordStore(), ReplicaStore.Group())
        let ways = [ReplicaStore(base, in: group), ReplicaStore(base, in: group)]
        let one = try await BrokerHarness(store: ways[0])
        let two = try await BrokerHarness(store: ways[1])
        for way in ways { way.follow() }
        await Self.makeTenants(one)
        let (key, other) = (try await Self.make(one), try await Self.make(one))
        for key in [key, other] { #expect(await Self.statuses(two, key) == [200, 200, 403, 400]) }
        #expect(await one.call(.delete, "/tenants/t2/api-keys/\(key.id)").status == 204)
        #expect(await Self.statuses(two, key) == [401, 401, 401, 401])
        #expect(await one.call(.delete, "/tenants/t2").status == 204)
        await one.makeTenant("t2")
        #expect(await Self.statuses(two, other) == [200, 403, 403, 400])
        let rotated = try Key(await two.call(.post, "\(Self.path)/\(other.id)/rotate", body: #"{"overlap": 0}"#))
        #expect(await Self.statuses(one, other) == [401, 401, 401, 401])
        #expect(await Self.statuses(one, rotated) == [200, 403, 403, 400])
    }

    @Test func `opens nothing where its rows are put back into the database`() async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let broker = try await BrokerHarness(
            store: FaultyStore(records, revalidateAfter: .seconds(5)), time: time)
        await Self.makeTenants(broker)
        let key = try await Self.make(broker)
        let rows = try await records.list(.apiKey, tenant: nil, after: nil, limit: 9)
        #expect(rows.count == 3)
        #expect(await broker.call(.delete, "\(Self.path)/\(key.id)").status == 204)
        try await records.commit(rows.map { .insert($0) })
        time.advance(by: .seconds(6))
        #expect(await Self.statuses(broker, key) == [401, 401, 401, 401])
        #expect(broker.log.contains { $0.contains("record_put_back") })
        #expect(await broker.call(.post, "\(Self.path)/\(key.id)/rotate").status == 404)
        #expect(await broker.call(.get, "\(Self.path)/\(key.id)").status == 404)
        #expect(await Self.ids(broker, "t2") == [])
    }

    /// What the store loses.
    enum Lost: String, CaseIterable {
        case making
        case rotation
        case deletion
        case tenant
    }

    @Test(arguments: Lost.allCases)
    func `is as it was left where the store loses its last commits`(lost: Lost) async throws {
        let time = ManualTime()
        let group = ReplicaStore.Group()
        let store = RewindingStore(MemoryRecordStore { time.monotonic })
        let ways = [ReplicaStore(store, in: group), ReplicaStore(store, in: group)]
        let one = try await BrokerHarness(store: ways[0], time: time)
        let two = try await BrokerHarness(store: ways[1], time: time)
        for way in ways { way.follow() }
        for broker in [one, two] { try await broker.broker.core.takeUpJournal() }
        await Self.makeTenants(one)
        if lost == .making { store.note() }
        let key = try await Self.make(one)
        if lost != .making { store.note() }
        var expected = [(key, [200, 200, 403, 400])]
        switch lost {
        case .making: break
        case .rotation:
            let new = try Key(await one.call(.post, "\(Self.path)/\(key.id)/rotate", body: #"{"overlap": 0}"#))
            expected = [(key, [401, 401, 401, 401]), (new, [200, 200, 403, 400])]
        case .deletion:
            #expect(await one.call(.delete, "\(Self.path)/\(key.id)").status == 204)
            expected = [(key, [401, 401, 401, 401])]
        case .tenant:
            #expect(await one.call(.delete, "/tenants/t2").status == 204)
            expected = [(key, [200, 403, 403, 400])]
        }
        time.advance(by: .seconds(2))
        store.goBack()
        for broker in [two, one] { _ = await broker.broker.core.storeRecovery.check() }
        time.advance(by: .seconds(10))
        for broker in [one, two] {
            for (key, statuses) in expected { #expect(await Self.statuses(broker, key) == statuses) }
        }
    }
}
