import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Tenants` {
    private static let pin = "sha256/AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

    // MARK: PUT

    @Test func `a tenant is created and then replaced`() async throws {
        let broker = try await BrokerHarness()
        let created = await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#)
        #expect(created.status == 201)
        #expect(created.json["tenant"] == .string("t1"))
        #expect(created.fields["Cache-Control"] == "no-store")
        let replaced = await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c2"}"#)
        #expect(replaced.status == 200)
        #expect(await broker.call(.get, "/tenants/t1").json["client_id"] == .string("c2"))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `the answer shows the whole configuration and never the secret`() async throws {
        let broker = try await BrokerHarness()
        let body = """
            {"provider": "tidal", "client_id": "c1", "client_secret": "canary-secret", "client_unique_key": "u1",
             "scopes": ["w_usr", "r_usr", "w_usr"], "login_service_base_uri": "https://login.example",
             "auth_service_base_uri": "https://auth.example/v1", "certificate_pinning": true,
             "pinned_certificates": ["\(Self.pin)"], "issuer": "https://issuer.example",
             "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t",
                           "device_authorization": "https://op.example/d", "revocation": "https://op.example/r",
                           "jwks": "https://op.example/j"},
             "token_endpoint_auth_method": "client_secret_basic", "client_id_in_body": false,
             "trusted_audiences": ["project"],
             "allowed_redirect_uris": ["https://app.example/cb", "app.example:/cb"],
             "allowed_return_uris": ["https://app.example/done"], "browser_binding": "confirm",
             "callback_uri": "per_tenant", "display_name": "Müller & Söhne"}
            """
        let put = await broker.call(.put, "/tenants/t1", body: body)
        #expect(put.status == 201)
        let get = await broker.call(.get, "/tenants/t1")
        #expect(get.status == 200)
        #expect(get.text == put.text)
        var expected = try JSONValue(parsing: Array(body.utf8)).object ?? [:]
        expected["client_secret"] = nil
        expected["client_secret_set"] = .bool(true)
        expected["tenant"] = .string("t1")
        expected["scopes"] = .array([.string("r_usr"), .string("w_usr")])
        let list = await broker.call(.get, "/tenants")
        #expect(list.json["tenants"] == .array([.object(expected)]))
        expected["redirect_uri"] = .string("https://broker.example/login/callback/t1")
        expected["warnings"] = .array([])
        #expect(get.json == .object(expected))
        #expect(!(put.text + get.text + list.text + broker.log.joined()).contains("canary-secret"))
        // What was taken can be read by another process.
        let other = try await BrokerHarness(store: broker.store)
        #expect(await other.call(.get, "/tenants/t1").text == get.text)
    }

    @Test func `replacing unsets every field that is left out, the secret too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            """
            {"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["a"],
             "certificate_pinning": false, "allowed_redirect_uris": ["https://app.example/cb"],
             "allowed_return_uris": ["https://app.example/done"], "browser_binding": "off",
             "token_endpoint_auth_method": "none", "provider": "oidc", "issuer": "https://issuer.example",
             "callback_uri": "per_tenant", "display_name": "A"}
            """)
        await broker.makeTenant("t2")
        await broker.makeTenant("t1")
        let replaced = await broker.call(.get, "/tenants/t1").text
        #expect(replaced == (await broker.call(.get, "/tenants/t2").text).replacing(#""t2""#, with: #""t1""#))
        #expect(replaced.contains(#""client_secret_set":false"#))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `null unsets like leaving out`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1",
            body: #"{"client_id": "c1", "client_secret": null, "scopes": null, "endpoints": null, "issuer": null}"#)
        #expect(answer.status == 201)
        #expect(answer.json["client_secret_set"] == .bool(false))
    }

    @Test func `replacing keeps keys and credentials`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey()
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "off"}"#)
        #expect(await broker.call(.get, "/credentials", key: key).token == "a1")
    }

    // MARK: Names

    @Test(arguments: [
        ("a", true), ("0", true), ("a-", true), ("a--b", true), (String(repeating: "a", count: 62), true),
        (String(repeating: "a", count: 63), true), (String(repeating: "a", count: 64), false), ("-a", false),
        ("-", false), ("A", false), ("a_b", false), ("a.b", false), ("a%20b", false), ("%C3%A4", false),
        ("a%2Fb", false), ("a%00", false), ("%61", true),
    ])
    func `a tenant's name is of the contract's form`(name: String, isName: Bool) async throws {
        let broker = try await BrokerHarness()
        let put = await broker.call(.put, "/tenants/\(name)", body: #"{"client_id": "c1"}"#)
        #expect(put.status == (isName ? 201 : 400))
        #expect(await broker.call(.get, "/tenants/\(name)").status == (isName ? 200 : 404))
        #expect(await broker.call(.get, "/tenants/\(name)/api-keys").status == (isName ? 200 : 404))
        #expect(await broker.call(.delete, "/tenants/\(name)").status == (isName ? 204 : 404))
    }

    @Test(arguments: ["/tenants/", "/tenants/t1/", "/tenants//api-keys", "/tenants/%zz", "/tenants/t1/x"])
    func `a path that is not of the contract is not found`(path: String) async throws {
        let broker = try await BrokerHarness()
        #expect(await broker.call(.get, path).status == 404)
    }

    @Test func `what is at its default is not in the record, so that the version before can read it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "callback_uri": "shared", "display_name": null}"#)
        let record = try #require(try await broker.vault.read(RecordID(.tenant, TenantName("t1")!)))
        for member in ["callback_uri", "display_name"] { #expect(!record.content.revealedText.contains(member)) }
        #expect(await broker.call(.get, "/tenants/t1").json["callback_uri"] == nil)
    }

    @Test(arguments: [
        String(repeating: "ä", count: 100), "a", "<b>&\"'", "日本語", "👩‍👩‍👧",
    ])
    func `a display name is up to a hundred characters`(name: String) async throws {
        let broker = try await BrokerHarness()
        let body = JSONWriter.object { json in
            json.member("client_id", "c1")
            json.member("display_name", name)
        }
        let answer = await broker.call(.put, "/tenants/t1", body: String(decoding: body, as: UTF8.self))
        #expect(answer.status == 201)
        #expect(answer.json["display_name"]?.string == name)
    }

    // MARK: Lists

    @Test func `a list pages in the order of the names`() async throws {
        let broker = try await BrokerHarness()
        for name in ["b", "a0", "a", "c", "a-"] { await broker.makeTenant(name) }
        var names: [String] = []
        var cursor: String?
        var pages = 0
        repeat {
            let answer = await broker.call(.get, "/tenants?limit=2" + (cursor.map { "&cursor=\($0)" } ?? ""))
            #expect(answer.status == 200)
            let tenants = answer.json["tenants"]?.array ?? []
            names += tenants.compactMap { $0["tenant"]?.text }
            cursor = answer.json["next_cursor"]?.text
            #expect(tenants.count == (cursor == nil ? 1 : 2))
            pages += 1
        } while cursor != nil
        #expect(names == ["a", "a-", "a0", "b", "c"])
        #expect(pages == 3)
    }

    @Test(arguments: [(0, 1), (1, 1), (2, 1), (3, 2)])
    func `the last page has no cursor`(tenants: Int, pages: Int) async throws {
        let broker = try await BrokerHarness()
        for index in 0..<tenants { await broker.makeTenant("t\(index)") }
        let first = await broker.call(.get, "/tenants?limit=2")
        #expect(first.json["tenants"]?.array?.count == min(tenants, 2))
        #expect((first.json["next_cursor"] == nil) == (pages == 1))
        if let cursor = first.json["next_cursor"]?.text {
            let second = await broker.call(.get, "/tenants?limit=2&cursor=\(cursor)")
            #expect(second.json["tenants"]?.array?.count == 1)
            #expect(second.json["next_cursor"] == nil)
        }
    }

    @Test func `a page goes on where its cursor stands, whatever was deleted`() async throws {
        let broker = try await BrokerHarness()
        for name in ["a", "b", "c"] { await broker.makeTenant(name) }
        let cursor = await broker.call(.get, "/tenants?limit=1").json["next_cursor"]?.text ?? ""
        _ = await broker.call(.delete, "/tenants/a")
        let next = await broker.call(.get, "/tenants?cursor=\(cursor)")
        #expect(next.json["tenants"]?.array?.compactMap { $0["tenant"]?.text } == ["b", "c"])
    }

    @Test(arguments: [
        ("limit=0", "limit"), ("limit=1001", "limit"), ("limit=-1", "limit"), ("limit=x", "limit"),
        ("limit=", "limit"), ("limit=1&limit=2", "limit"), ("cursor=%21", "cursor"), ("cursor=", "cursor"),
        ("cursor=Qk9C", "cursor"), ("offset=5", "offset"),
    ])
    func `a list takes a limit of 1 to 1000 and cursors that it gave`(query: String, name: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.get, "/tenants?\(query)")
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == [name])
    }

    @Test(arguments: ["limit=1", "limit=1000"])
    func `limits at the bounds are taken`(query: String) async throws {
        let broker = try await BrokerHarness()
        #expect(await broker.call(.get, "/tenants?\(query)").status == 200)
    }

    @Test(arguments: [Method.get, .put, .delete])
    func `one tenant takes no query parameters`(method: Method) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let body = method == .put ? #"{"client_id": "c1"}"# : nil
        let answer = await broker.call(method, "/tenants/t1?force=true", body: body)
        #expect((answer.status, answer.pointers) == (400, ["force"]))
        #expect(await broker.call(.get, "/tenants/t1").status == 200)
    }

    // MARK: DELETE

    @Test func `deleting a tenant removes its keys, logins and credentials at once`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let (key, other) = (await broker.makeKey("t1"), await broker.makeKey("t2"))
        await broker.set("a1", refresh: "r1", tenant: "t1")
        await broker.set("b1", refresh: "r2", tenant: "t2")
        let login = await broker.beginLogin(tenant: "t1")
        #expect(await broker.call(.get, "/credentials", key: key).token == "a1")

        let answer = await broker.call(.delete, "/tenants/t1")
        #expect(answer.status == 204)
        #expect(answer.body.isEmpty)
        #expect(await broker.call(.get, "/credentials", key: key).status == 401)
        #expect(await broker.get(tenant: "t1").code == "not_found")
        #expect(await broker.call(.get, "/tenants/t1").code == "not_found")
        #expect(await broker.call(.get, "/tenants/t1/api-keys").code == "not_found")
        #expect(await broker.call(.get, "/login/callback?code=c&state=\(login.state)", key: nil).status == 410)
        #expect(await broker.call(.delete, "/tenants/t1").status == 404)
        for kind in RecordKind.allCases where kind != .keyCheck {
            let left = try await broker.store.list(kind, tenant: TenantName("t1"), after: nil, limit: 10)
            #expect(left.isEmpty, "\(kind)")
        }
        #expect(await broker.call(.get, "/credentials", key: other).token == "b1")

        // Neither does the next tenant of that name inherit anything.
        await broker.makeTenant("t1")
        #expect(await broker.call(.get, "/credentials", key: key).status == 401)
        #expect(await broker.get("policy=local", tenant: "t1").code == "missing_token_container")
        #expect(await broker.call(.get, "/login/\(login.id)", tenant: "t1").status == 404)
        #expect(await broker.call(.get, "/tenants/t1/api-keys").json["api_keys"] == .array([]))
    }

    @Test func `versions rise over a deletion`() async throws {
        let broker = try await BrokerHarness()
        var last: Int64 = 0
        for round in 0..<5 {
            await broker.makeTenant()
            for access in ["a1", "a2", "a3"] {
                await broker.set(access, refresh: "r1")
                let version = await broker.get().version
                #expect(version > last)
                last = version
            }
            _ = await broker.call(.delete, "/tenants/t1")
            // Two of the rounds pass within one tick of the clock, and in one it steps back.
            broker.time.advance(by: .milliseconds([0, 1, 0, -500, 10][round]))
        }
    }

    @Test func `the tag of basic credentials does not come back with a tenant's name`() async throws {
        let broker = try await BrokerHarness()
        var tags: Set<String> = []
        for _ in 0..<3 {
            await broker.makeTenant()
            tags.insert(await broker.get().tag)
            _ = await broker.call(.delete, "/tenants/t1")
        }
        #expect(tags.count == 3)
    }

    @Test func `a deletion whose answer was lost is seen at once`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let key = await broker.makeKey()
        await broker.set("a1", refresh: "r1")
        store.onCommit(of: .tenant, .loseAnswer)
        #expect(await broker.call(.delete, "/tenants/t1").code == "storage_unavailable")
        #expect(await broker.call(.get, "/credentials", key: key).status == 401)
        #expect(await broker.get().status == 404)
        await broker.makeTenant()
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `a configuration whose answer was lost is seen at once`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        store.onCommit(of: .tenant, .loseAnswer)
        #expect(await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c2"}"#).status == 503)
        #expect(await broker.get().json["client_id"] == .string("c2"))
    }

    @Test func `a configuration whose answer comes after the deletion does not bring the tenant back`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let gate = Gate()
        store.onCommit(of: .tenant, .holdAnswer(gate))
        async let put = broker.call(.put, "/tenants/t1", body: #"{"client_id": "c2"}"#)
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        #expect(await put.status == 200)
        #expect(await broker.get().status == 404)
        #expect(await broker.call(.get, "/tenants/t1").status == 404)
    }

    @Test func `many writers of one tenant all succeed`() async throws {
        let broker = try await BrokerHarness()
        let statuses = await withTaskGroup(of: Int.self) { group in
            for index in 0..<20 {
                group.addTask {
                    await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c\#(index)"}"#).status
                }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(statuses.filter { $0 == 201 }.count == 1)
        #expect(statuses.filter { $0 == 200 }.count == 19)
    }

    @Test func `a tenant whose record does not open can still be deleted`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let id = RecordID(.tenant, TenantName("t1")!)
        var record = try #require(try await store.read(id))
        record.version += 1
        record.sealed[record.sealed.count - 1] ^= 1
        try await store.commit([.replace(record, version: record.version - 1)])
        let restarted = try await BrokerHarness(store: store)
        #expect(await restarted.call(.get, "/tenants/t1").status == 500)
        #expect(await restarted.call(.delete, "/tenants/t1").status == 204)
        #expect(await restarted.call(.get, "/tenants/t1").status == 404)
    }
}
