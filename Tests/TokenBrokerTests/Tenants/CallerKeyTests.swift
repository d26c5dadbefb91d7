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

@Suite struct `API keys` {
    private static let all = #""permissions": ["credentials:read", "credentials:write", "login", "events"]"#

    // MARK: Making and listing

    @Test func `a key is shown once`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let created = await broker.call(
            .post, "/tenants/t1/api-keys",
            body: """
                {"name": "player", "permissions": ["login", "credentials:read", "login"],
                 "storage_keys": ["b", "a", "b"], "expires_in": 60}
                """)
        #expect(created.status == 201)
        #expect(created.fields["Cache-Control"] == "no-store")
        let secret = try #require(created.json["api_key"]?.text)
        let id = try #require(created.json["id"]?.text)
        let rest = """
            "id":"\(id)","name":"player","permissions":["credentials:read","login"],"storage_keys":["a","b"],\
            "created":"2026-11-21T09:00:00Z","expires":"2026-11-21T09:01:00Z"
            """
        #expect(created.text == "{\(rest),\"api_key\":\"\(secret)\"}")
        // 256 bits in base64url after the prefix.
        #expect(secret.wholeMatch(of: /tb_[A-Za-z0-9_-]{43}/) != nil)
        #expect(await broker.call(.get, "/tenants/t1/api-keys/\(id)").text == "{\(rest)}")
        #expect(await broker.call(.get, "/tenants/t1/api-keys").text == "{\"api_keys\":[{\(rest)}]}")
    }

    @Test func `a key without bounds shows none`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let created = await broker.call(.post, "/tenants/t1/api-keys", body: #"{"name": "k", \#(Self.all)}"#)
        #expect(created.json["expires"] == .null)
        #expect(created.json["storage_keys"] == nil)
    }

    @Test func `a key expires when the operator says so, unless its creator names another time`() async throws {
        let broker = try await BrokerHarness { $0.apiKeyLifetime = .seconds(86_400) }
        await broker.makeTenant()
        let usual = await broker.call(.post, "/tenants/t1/api-keys", body: #"{"name": "k", \#(Self.all)}"#)
        #expect(usual.json["expires"]?.text == "2026-11-22T09:00:00Z")
        let longer = await broker.call(
            .post, "/tenants/t1/api-keys", body: #"{"name": "k", "expires_in": 86401, \#(Self.all)}"#)
        #expect(longer.json["expires"]?.text == "2026-11-22T09:00:01Z")
        let key = try #require(usual.json["api_key"]?.text)
        broker.time.advance(by: .seconds(86_399))
        #expect(await broker.call(.get, "/credentials", key: key).status == 200)
        broker.time.advance(by: .seconds(1))
        #expect(await broker.call(.get, "/credentials", key: key).status == 401)
    }

    /// The days of API_KEY_DAYS and API_KEY_MAX_DAYS, the member `expires_in`, and the life of the key; nil for a refusal.
    @Test(
        arguments: [
            (nil, 2, "null", 172_800), (1, 2, "null", 86_400), (2, 2, "null", 172_800), (nil, 2, "1", 1),
            (nil, 2, "172799", 172_799), (nil, 2, "172800", 172_800), (nil, 2, "172801", nil), (1, 2, "172801", nil),
            (1, 2, "172800", 172_800), (nil, 2, "315360000", nil), (1, nil, "172801", 172_801),
        ] as [(Int64?, Int64?, String, Int64?)])
    func `no key lives longer than the operator allows`(
        usual: Int64?, most: Int64?, asked: String, life: Int64?
    ) async throws {
        let broker = try await BrokerHarness { settings in
            settings.apiKeyLifetime = usual.map { .seconds($0 * 86_400) }
            settings.apiKeyLongestLifetime = most.map { .seconds($0 * 86_400) }
        }
        await broker.makeTenant()
        let made = await broker.call(
            .post, "/tenants/t1/api-keys", body: #"{"name": "k", "expires_in": \#(asked), \#(Self.all)}"#)
        guard let life else {
            #expect((made.status, made.code) == (400, "invalid_request"))
            #expect(made.pointers == ["/expires_in"])
            #expect(made.text.contains("must be at most 172800, for the operator's TOKEN_BROKER_API_KEY_MAX_DAYS is 2"))
            return
        }
        #expect(made.json["expires"]?.text == broker.time.now.advanced(by: .seconds(life)).description)
    }

    /// The life of a key that was made before the limit, the member `expires_in` of its rotation, and its life after that.
    @Test(
        arguments: [
            ("null", "null", 172_800), ("172801", "null", 172_800), ("172800", "null", 172_800), ("60", "null", 60),
            ("60", "172800", 172_800), ("null", "172801", nil), ("null", "61", 61),
        ] as [(String, String, Int64?)])
    func `no rotated key lives longer than the operator allows`(
        before: String, asked: String, life: Int64?
    ) async throws {
        let store = MemoryRecordStore()
        let free = try await BrokerHarness(store: store)
        await free.makeTenant()
        let made = await free.call(
            .post, "/tenants/t1/api-keys", body: #"{"name": "k", "expires_in": \#(before), \#(Self.all)}"#)
        let id = try #require(made.json["id"]?.text)
        let broker = try await BrokerHarness(store: store) { $0.apiKeyLongestLifetime = .seconds(172_800) }
        let rotated = await broker.call(
            .post, "/tenants/t1/api-keys/\(id)/rotate", body: #"{"expires_in": \#(asked)}"#)
        guard let life else {
            #expect(rotated.status == 400 && rotated.pointers == ["/expires_in"])
            return
        }
        #expect(rotated.json["expires"]?.text == broker.time.now.advanced(by: .seconds(life)).description)
    }

    // H020
    @Test func `only a digest of a key is kept`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let secret = await broker.makeKey()
        _ = await broker.call(.get, "/credentials", key: secret)
        let raw = try #require(Base64URL.decode(String(secret.dropFirst(3))))
        let forms = [
            Array(secret.utf8), raw, Array(Hex.encode(raw).utf8), Array(Base64.encode(raw).utf8),
            Array(secret.utf8.dropFirst(3)),
        ]
        var dump: [UInt8] = []
        for kind in RecordKind.allCases {
            for record in try await broker.store.list(kind, tenant: nil, after: nil, limit: 100) {
                dump += record.sealed + (record.lookup ?? []) + Array(record.id.key.utf8)
                // What the seal protects holds no key either.
                let open = try await broker.vault.read(record.id)
                dump += open?.content.revealedBytes ?? []
            }
        }
        dump += broker.log.joined().utf8
        for form in forms { #expect(!dump.contains(form)) }
    }

    @Test func `keys differ`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        var keys: Set<String> = []
        for _ in 0..<50 { keys.insert(await broker.makeKey()) }
        #expect(keys.count == 50)
    }

    @Test func `a list of keys pages`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        for _ in 0..<3 { _ = await broker.makeKey("t1") }
        _ = await broker.makeKey("t2")
        let first = await broker.call(.get, "/tenants/t1/api-keys?limit=2")
        let cursor = try #require(first.json["next_cursor"]?.text)
        let second = await broker.call(.get, "/tenants/t1/api-keys?limit=2&cursor=\(cursor)")
        let ids = ((first.json["api_keys"]?.array ?? []) + (second.json["api_keys"]?.array ?? []))
            .compactMap { $0["id"]?.text }
        #expect(ids.count == 3)
        #expect(ids == ids.sorted())
        #expect(second.json["next_cursor"] == nil)
        #expect(await broker.call(.get, "/tenants/t1/api-keys?cursor=dDE").pointers == ["cursor"])
        #expect(await broker.call(.get, "/tenants/t1/api-keys?what=1").pointers == ["what"])
        #expect(await broker.call(.get, "/tenants/t1/api-keys?limit=3").json["next_cursor"] == nil)
    }

    @Test(arguments: [
        (#"{}"#, ["/name", "/permissions"]), (#"{"name": "", "permissions": ["login"]}"#, ["/name"]),
        (#"{"name": "n", "permissions": []}"#, ["/permissions"]),
        (#"{"name": "n", "permissions": "login"}"#, ["/permissions"]),
        (#"{"name": "n", "permissions": ["login", "admin"]}"#, ["/permissions/1"]),
        (#"{"name": "n", "permissions": ["Login"]}"#, ["/permissions/0"]),
        (#"{"name": "n", "permissions": ["login"], "storage_keys": []}"#, ["/storage_keys"]),
        (#"{"name": "n", "permissions": ["login"], "storage_keys": ["a b"]}"#, ["/storage_keys/0"]),
        (#"{"name": "n", "permissions": ["login"], "storage_keys": [5]}"#, ["/storage_keys/0"]),
        (#"{"name": "n", "permissions": ["login"], "storage_keys": ["*"]}"#, ["/storage_keys/0"]),
        (#"{"name": "n", "permissions": ["login"], "storage_keys": ["a*", "a*b"]}"#, ["/storage_keys/1"]),
        (#"{"name": "n", "permissions": ["login"], "storage_keys": ["a**"]}"#, ["/storage_keys/0"]),
        (#"{"name": "n", "permissions": ["login"], "expires_in": 0}"#, ["/expires_in"]),
        (#"{"name": "n", "permissions": ["login"], "expires_in": -1}"#, ["/expires_in"]),
        (#"{"name": "n", "permissions": ["login"], "expires_in": "60"}"#, ["/expires_in"]),
        (#"{"name": "n", "permissions": ["login"], "expires_in": 1.5}"#, ["/expires_in"]),
        (#"{"name": "n", "permissions": ["login"], "expires_in": 315360001}"#, ["/expires_in"]),
        (#"{"name": "n", "permissions": ["login"], "tenant": "t2"}"#, ["/tenant"]),
    ])
    func `a key that is not well described is refused`(body: String, pointers: [String]) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(.post, "/tenants/t1/api-keys", body: body)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == pointers)
        #expect(await broker.call(.get, "/tenants/t1/api-keys").json["api_keys"] == .array([]))
    }

    @Test func `a key needs a tenant that exists`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.post, "/tenants/t1/api-keys", body: #"{"name": "n", \#(Self.all)}"#)
        #expect((answer.status, answer.code) == (404, "not_found"))
        #expect(await broker.call(.get, "/tenants/t1/api-keys").status == 404)
    }

    @Test func `a key that is answered after its tenant was deleted opens nothing`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let gate = Gate()
        store.onCommit(of: .apiKey, .holdAnswer(gate))
        async let late = broker.call(.post, "/tenants/t1/api-keys", body: #"{"name": "n", \#(Self.all)}"#)
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        await broker.makeTenant()
        gate.open()
        let secret = try #require(await late.json["api_key"]?.text)
        #expect(await broker.call(.get, "/credentials", key: secret).status == 401)
    }

    // MARK: Deleting

    // H026
    @Test func `a deleted key is refused at once`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let created = await broker.call(.post, "/tenants/t1/api-keys", body: #"{"name": "n", \#(Self.all)}"#)
        let (secret, id) = (created.json["api_key"]?.text ?? "", created.json["id"]?.text ?? "")
        #expect(await broker.call(.get, "/credentials", key: secret).status == 200)
        #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        #expect(await broker.call(.get, "/credentials", key: secret).status == 401)
        #expect(await broker.call(.get, "/tenants/t1/api-keys/\(id)").status == 404)
        #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 404)
    }

    @Test func `a key whose deletion's answer was lost is refused at once`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let created = await broker.call(.post, "/tenants/t1/api-keys", body: #"{"name": "n", \#(Self.all)}"#)
        let (secret, id) = (created.json["api_key"]?.text ?? "", created.json["id"]?.text ?? "")
        #expect(await broker.call(.get, "/credentials", key: secret).status == 200)
        store.onCommit(of: .apiKey, .loseAnswer)
        #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 503)
        #expect(await broker.call(.get, "/credentials", key: secret).status == 401)
        #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 404)
    }

    // H022 H023
    @Test func `another tenant's key id is not found`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let created = await broker.call(.post, "/tenants/t1/api-keys", body: #"{"name": "n", \#(Self.all)}"#)
        let (secret, id) = (created.json["api_key"]?.text ?? "", created.json["id"]?.text ?? "")
        for path in [
            "/tenants/t2/api-keys/\(id)", "/tenants/t1/api-keys/000000000000000000000000",
            "/tenants/t1/api-keys/x", "/tenants/t1/api-keys/%00", "/tenants/t3/api-keys/\(id)",
        ] {
            #expect(await broker.call(.get, path).code == "not_found")
            #expect(await broker.call(.delete, path).code == "not_found")
        }
        #expect(await broker.call(.get, "/credentials", key: secret).status == 200)
    }

    // MARK: Expiry

    // H017
    @Test func `a key is good until the instant of its expiry`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey("t1", #"{"name": "n", \#(Self.all), "expires_in": 60}"#)
        broker.time.advance(by: .milliseconds(59_999))
        #expect(await broker.call(.get, "/credentials", key: key).status == 200)
        broker.time.advance(by: .milliseconds(1))
        let expired = await broker.call(.get, "/credentials", key: key)
        #expect((expired.status, expired.code) == (401, "unauthorized"))
        #expect(expired.fields["WWW-Authenticate"] == "Bearer")
    }

    @Test(arguments: [1, 315_360_000])
    func `the bounds of a lifetime are taken`(seconds: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey("t1", #"{"name": "n", \#(Self.all), "expires_in": \#(seconds)}"#)
        broker.time.advance(by: .seconds(seconds) - .milliseconds(1))
        #expect(await broker.call(.get, "/credentials", key: key).status == 200)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.call(.get, "/credentials", key: key).status == 401)
    }

    // MARK: Authorization

    // H017 H018
    @Test(arguments: [
        [], ["Bearer"], ["Bearer "], ["Bearer x"], ["Basic dXNlcjpwdw=="], ["x"], [""], ["Bearer a b"],
        ["Bearer \u{7f}"], ["Bearer \u{e4}"], ["Bearer\tx"], ["BearerX"],
        ["Bearer \(BrokerHarness.adminKey)x"], ["Bearer \(BrokerHarness.adminKey.dropLast())"],
        ["Bearer \(BrokerHarness.adminKey.uppercased())"], ["Bearer \(BrokerHarness.adminKey), Bearer x"],
        ["Token \(BrokerHarness.adminKey)"], [BrokerHarness.adminKey],
        ["Bearer \(BrokerHarness.adminKey)", "Bearer \(BrokerHarness.adminKey)"],
        ["Bearer x", "Bearer \(BrokerHarness.adminKey)"], ["Bearer \(String(repeating: "k", count: 513))"],
        ["Bearer \(String(repeating: "k", count: 512))"], ["Bearer \(String(repeating: "k", count: 60_000))"],
    ])
    func `without exactly one known key a call is 401 before anything else is looked at`(values: [String]) async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        var fields: Fields = ["X-Tenant": "no such tenant", "Content-Type": "text/plain"]
        for value in values { fields.append("Authorization", value) }
        for (method, path) in Self.closedOperations(broker) {
            let answer = await broker.call(method, path + "?what=1", key: nil, body: "{ no JSON", fields: fields)
            #expect((answer.status, answer.code) == (401, "unauthorized"), "\(method) \(path)")
            #expect(answer.fields.values("WWW-Authenticate") == ["Bearer"])
            #expect(answer.fields["Cache-Control"] == "no-store")
        }
    }

    @Test(arguments: ["Bearer ", "bearer ", "BEARER   "])
    func `the scheme's name has no case`(scheme: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .get, "/tenants", key: nil, fields: ["authorization": scheme + BrokerHarness.adminKey])
        #expect(answer.status == 200)
    }

    // H018
    @Test func `a bad key costs the store no look at tenants`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        let reads = store.reads
        _ = await broker.call(.get, "/tenants/t1", key: "unknown")
        #expect(store.reads == reads + 1)
        _ = await broker.call(.get, "/tenants/t1", key: nil)
        #expect(store.reads == reads + 1)
    }

    // MARK: Tenants

    @Test func `the admin names the tenant`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let without = await broker.call(.get, "/credentials")
        #expect((without.status, without.code) == (400, "invalid_request"))
        for name in ["t2", "T1", "", "t1,t2", "-"] {
            let unknown = await broker.call(.get, "/credentials", tenant: name)
            #expect((unknown.status, unknown.code) == (404, "not_found"), "\(name)")
        }
        #expect(await broker.call(.get, "/credentials", tenant: "t1").status == 200)
        let twice = await broker.call(.get, "/credentials", fields: ["X-Tenant": "t1", "x-tenant": "t1"])
        #expect(twice.status == 400)
    }

    // H021
    @Test func `a key's tenant is its own and no header changes it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let key = await broker.makeKey("t1")
        await broker.set("a1", tenant: "t1")
        await broker.set("b1", tenant: "t2")
        #expect(await broker.call(.get, "/credentials", key: key).token == "a1")
        #expect(await broker.call(.get, "/credentials", key: key, tenant: "t1").token == "a1")
        for other in ["t2", "t3", "T1", ""] {
            let answer = await broker.call(.get, "/credentials", key: key, tenant: other)
            #expect((answer.status, answer.code) == (403, "forbidden"), "\(other)")
        }
        for (method, body) in [
            (.put, #"{"credentials": {"client_id": "c1", "token": "x"}}"#), (.delete, nil),
        ] as [(Method, String?)] {
            #expect(await broker.call(method, "/credentials", key: key, tenant: "t2", body: body).status == 403)
        }
        #expect(await broker.call(.get, "/credentials?tenant=t2", key: key).status == 400)
        #expect(await broker.get(tenant: "t2").token == "b1")
        #expect(await broker.call(.get, "/tenants/t1", key: key).status == 403)
    }

    // MARK: Permissions

    // H025
    @Test func `every operation asks for the permission of the contract and no other opens it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for permission in Permission.allCases {
            let key = await broker.makeKey("t1", #"{"name": "n", "permissions": ["\#(permission.rawValue)"]}"#)
            for operation in Service.operations(of: broker.broker) {
                let needed = try #require(Need(operation.method, operation.path), "\(operation) is not in the table")
                if needed == .nothing || needed == .anyKey { continue }
                let answer = await broker.call(
                    Method(operation.method), Self.filled(operation.path), key: key, body: "{ no JSON")
                let isDenied = needed != .permission(permission)
                #expect(
                    (answer.status == 403) == isDenied, "\(permission) \(operation): \(answer.status) \(answer.text)")
                #expect((answer.code == "forbidden") == isDenied)
            }
        }
    }

    // H017
    @Test func `probes, metrics, the description and the browser's legs need no key`() async throws {
        let broker = try await BrokerHarness()
        broker.time.holdSleeps()
        for operation in Service.operations(of: broker.broker)
        where Need(operation.method, operation.path) == .nothing {
            // As from a page of the broker's own, where a browser sends a form.
            let answer = await broker.call(
                Method(operation.method), Self.filled(operation.path), key: nil,
                fields: ["Sec-Fetch-Site": "same-origin"])
            #expect(![401, 403].contains(answer.status), "\(operation)")
        }
    }

    @Test func `the admin may do everything`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for (method, path) in Self.closedOperations(broker) where path != "/events" {
            let answer = await broker.call(method, path, tenant: "t1", body: "{ no JSON")
            #expect(![401, 403].contains(answer.status), "\(method) \(path)")
        }
    }

    // H025
    @Test func `a narrowed key is good for its storage keys only`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey("t1", #"{"name": "n", \#(Self.all), "storage_keys": ["alice", "bob"]}"#)
        await broker.set("d1")
        await broker.set("a1", storageKey: "alice")
        await broker.set("e1", storageKey: "eve")
        #expect(await broker.call(.get, "/credentials?storage_key=alice", key: key).token == "a1")
        #expect(await broker.call(.get, "/credentials?storage_key=bob", key: key).level == "basic")
        for query in ["", "?storage_key=eve", "?storage_key=Alice", "?storage_key=alice2"] {
            for (method, path) in [
                (.get, "/credentials"), (.get, "/credentials/status"), (.get, "/credentials/claims"),
                (.delete, "/credentials"),
            ]
                as [(Method, String)]
            {
                let answer = await broker.call(method, path + query, key: key)
                #expect((answer.status, answer.code) == (403, "forbidden"), "\(method) \(path)\(query)")
            }
        }
        let credentials = #""credentials": {"client_id": "c1", "token": "x"}"#
        #expect(await broker.call(.put, "/credentials", key: key, body: "{\(credentials)}").status == 403)
        #expect(
            await broker.call(.put, "/credentials", key: key, body: #"{"storage_key": "eve", \#(credentials)}"#).status
                == 403)
        #expect(
            await broker.call(.put, "/credentials", key: key, body: #"{"storage_key": "bob", \#(credentials)}"#).status
                == 200)
        #expect(await broker.call(.post, "/login/initialize", key: key, body: "{}").status == 403)
        #expect(
            await broker.call(.post, "/login/initialize", key: key, body: #"{"storage_key": "bob"}"#).status == 201)
        #expect(await broker.get("storage_key=eve").token == "e1")
        #expect(await broker.get().token == "d1")
    }

    @Test func `a key that is narrowed by a pattern is good for the storage keys that begin with it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let made = await broker.call(
            .post, "/tenants/t1/api-keys",
            body: #"{"name": "n", \#(Self.all), "storage_keys": ["team-a.x", "team-a.*", "bob"]}"#)
        #expect(made.json["storage_keys"]?.array?.map(\.text) == ["bob", "team-a.*"])
        let key = try #require(made.json["api_key"]?.text)
        let table = [
            ("team-a.", true), ("team-a.alice", true), ("team-a.~", true), ("bob", true), ("team-a", false),
            ("team-a-1", false), ("team-b.alice", false), ("Team-a.alice", false), ("bob2", false), ("default", false),
        ]
        for (storageKey, isAllowed) in table {
            let status = isAllowed ? 200 : 403
            await broker.set("token", storageKey: storageKey)
            let query = "?storage_key=\(storageKey)"
            // Twice, because the second read may be answered in another way.
            for path in ["/credentials", "/credentials", "/credentials/status"] {
                #expect(await broker.call(.get, path + query, key: key).status == status, "\(path) \(storageKey)")
            }
            let begun = await broker.call(
                .post, "/login/initialize", key: key, body: #"{"storage_key": "\#(storageKey)"}"#)
            #expect(begun.status == (isAllowed ? 201 : 403), "\(storageKey)")
            let other = await broker.beginLogin(body: #"{"storage_key": "\#(storageKey)"}"#)
            #expect(await broker.call(.get, "/login/\(other.id)", key: key).status == (isAllowed ? 200 : 404))
            let put = await broker.call(
                .put, "/credentials", key: key,
                body: #"{"storage_key": "\#(storageKey)", "credentials": {"client_id": "c1", "token": "x"}}"#)
            #expect(put.status == status)
            #expect(await broker.call(.delete, "/credentials" + query, key: key).status == (isAllowed ? 204 : 403))
        }
    }

    @Test(arguments: [(32, 201), (33, 400)])
    func `so many patterns are taken`(count: Int, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let texts = (0..<count).map { "\"k\($0).*\"" } + (0..<100).map { "\"l\($0)\"" }
        let made = await broker.call(
            .post, "/tenants/t1/api-keys",
            body: #"{"name": "n", \#(Self.all), "storage_keys": [\#(texts.joined(separator: ","))]}"#)
        #expect(made.status == status)
        if status == 400 { #expect(made.pointers == ["/storage_keys"]) }
    }

    // MARK: The table

    /// What the contract (section 1) asks of a caller, by path.
    private enum Need: Equatable {
        case nothing
        case anyKey
        case admin
        case permission(Permission)

        init?(_ method: String, _ path: String) {
            switch (method, path) {
            case (_, "/"), (_, "/livez"), (_, "/healthz"), (_, "/readyz"), (_, "/metrics"), (_, "/openapi.yaml"),
                (_, "/docs"), (_, "/login/callback"):
                self = .nothing
            case (_, let path)
            where [
                "/login/callback/", "/login/start/", "/login/reconnect/", "/login/confirm/", "/login/ended/",
                "/oauth2/",
                "/.well-known/", "/oauth-client/",
            ].contains(
                where: path.hasPrefix):
                self = .nothing
            case ("GET", "/providers"), ("GET", "/providers/{name}"): self = .anyKey
            case (_, "/providers/{name}"): self = .admin
            case (_, "/credentials/restore"), (_, "/credentials/import"), (_, "/credentials/export"): self = .admin
            case (_, let path) where path == "/tenants" || path.hasPrefix("/tenants/"): self = .admin
            case (_, let path)
            where ["/login/", "/device", "/app2app/"].contains(where: path.hasPrefix):
                self = .permission(.login)
            case ("GET", "/credentials"), ("GET", "/credentials/status"), ("GET", "/credentials/claims"),
                ("GET", "/credentials/list"):
                self = .permission(.credentialsRead)
            case ("PUT", "/credentials"), ("DELETE", "/credentials"), ("POST", "/credentials/activate"):
                self = .permission(.credentialsWrite)
            case (_, "/events"): self = .permission(.events)
            default: return nil
            }
        }
    }

    /// A path of the table with its parameters filled in.
    private static func filled(_ path: String) -> String {
        path.replacing(/\{[a-z_]+\}/) { $0.output == "{tenant}" ? "t1" : "000000000000000000000000" }
    }

    private static func closedOperations(_ broker: BrokerHarness) -> [(Method, String)] {
        Service.operations(of: broker.broker).filter { Need($0.method, $0.path) != .nothing }
            .map { (Method($0.method), filled($0.path)) }
    }
}
