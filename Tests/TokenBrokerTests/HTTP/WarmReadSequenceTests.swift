import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Reactor
import Synchronization
import Testing
import TokenBroker

@Suite struct `A warm read after others` {
    @Test func `of each storage key gets that one's credentials, alone and in batches`() async throws {
        try await withWarmServer { server async throws in
            // One byte, as many as a word has and both neighbours, and the most.
            let names = [
                "a", "abcdefg", "abcdefgh", "abcdefghi", "user@example.com", String(repeating: "k", count: 200),
            ]
            for name in names { try await server.store(name) }
            let targets = names.map { "/credentials?storage_key=\($0)" }
            for target in targets + targets.reversed() + ["/credentials"] + targets {
                #expect(try await server.get(target).status == 200)
            }
            let before = server.usual()
            for _ in 0..<3 {
                for (name, target) in zip(names, targets) {
                    #expect(try await server.get(target).json["token"]?.string == "token-of-\(name)")
                    #expect(try await server.get(target + "&min_ttl=61").json["token"]?.string == "token-of-\(name)")
                }
            }
            try await server.client.send(targets.map { server.head($0) }.joined())
            for name in names { #expect(try await server.answer().json["token"]?.string == "token-of-\(name)") }
            #expect(server.usual() == before)
        }
    }

    @Test(arguments: [
        // An unknown one, too long, not a storage key, and more than one.
        ("nobody", 200), (String(repeating: "k", count: 201), 400), ("a%62", 200), ("a%20", 400), ("", 400),
        ("a&min_ttl=0", 200), ("a&storage_key=a", 400), ("a&x=1", 400), ("a#b", 400), ("a?b", 400), ("a/b", 400),
    ])
    func `of one storage key leads to no other reading of the next`(part: String, status: Int) async throws {
        try await withWarmServer { server async throws in
            for name in ["a", "b"] { try await server.store(name) }
            for name in ["a", "b", "a", "b"] {
                #expect(try await server.get("/credentials?storage_key=\(name)").status == 200)
            }
            let answer = try await server.get("/credentials?storage_key=\(part)")
            #expect(answer.status == status)
            if status == 200, part != "a&min_ttl=0" {
                #expect(answer.json["token"] == .null || answer.json["token"] == nil)
            }
        }
    }

    /// With each byte of a head changed, every other byte is as it was: none of them is looked at less than the others.
    @Test func `by a key that is wrong in one byte is refused, whatever was read before`() async throws {
        try await withWarmServer { server async throws in
            for name in ["a", "b", "c"] { try await server.store(name) }
            for index in server.key.utf8.indices {
                for name in ["a", "b", "a"] {
                    #expect(try await server.get("/credentials?storage_key=\(name)").status == 200)
                }
                var wrong = Array(server.key.utf8)
                let place = server.key.utf8.distance(from: server.key.utf8.startIndex, to: index)
                wrong[place] = wrong[place] == UInt8(ascii: "x") ? UInt8(ascii: "y") : UInt8(ascii: "x")
                try await server.client.send(
                    server.head("/credentials?storage_key=c", key: String(decoding: wrong, as: UTF8.self)))
                #expect(try await server.answer().status == 401, "\(place)")
            }
        }
    }

    @Test func `of a storage key that the API key is not for is refused, whatever was read before`() async throws {
        try await withWarmServer { server async throws in
            for name in ["a", "b", "c"] { try await server.store(name) }
            let narrow = await server.harness.makeKey(
                "t1", #"{"name": "n", "permissions": ["credentials:read"], "storage_keys": ["a", "b"]}"#)
            for _ in 0..<3 {
                for (name, status) in [("a", 200), ("b", 200), ("c", 403), ("a", 200), ("default", 403)] {
                    try await server.client.send(server.head("/credentials?storage_key=\(name)", key: narrow))
                    #expect(try await server.answer().status == status, "\(name)")
                }
            }
        }
    }

    @Test func `of changing storage keys ends with the API key, with the tenant, and with their credentials`()
        async throws
    {
        try await withWarmServer { server async throws in
            for name in ["a", "b", "c"] { try await server.store(name) }
            let made = await server.harness.call(
                .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["credentials:read"]}"#)
            let (id, secret) = (try #require(made.json["id"]?.text), try #require(made.json["api_key"]?.text))
            func read(_ name: String) async throws -> BrokerHarness.Answer {
                try await server.client.send(server.head("/credentials?storage_key=\(name)", key: secret))
                return try await server.answer()
            }
            for name in ["a", "b", "c"] { #expect(try await read(name).json["level"]?.string == "user") }
            let logout = await server.harness.call(.delete, "/credentials?storage_key=b", key: server.key)
            #expect(logout.status == 204)
            for (name, level) in [("a", "user"), ("b", "basic"), ("c", "user")] {
                #expect(try await read(name).json["level"]?.string == level)
            }
            #expect(await server.harness.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
            for name in ["c", "a"] { #expect(try await read(name).status == 401) }
            _ = try await server.get("/credentials?storage_key=a")
            #expect(await server.harness.call(.delete, "/tenants/t1").status == 204)
            for name in ["c", "a"] { #expect(try await server.get("/credentials?storage_key=\(name)").status == 401) }
        }
    }

    @Test func `of each API key gets its tenant's credentials, alone and in batches, on any connection`() async throws {
        try await withWarmServer { server async throws in
            var keys: [(key: String, token: String)] = []
            for number in 0..<20 {
                let tenant = "tenant-\(number)"
                await server.harness.makeTenant(tenant, #"{"client_id": "c1", "scopes": ["r_usr"]}"#)
                let key = await server.harness.makeKey(
                    tenant, #"{"name": "k", "permissions": ["credentials:read", "credentials:write"]}"#)
                for name in ["a", "b"] {
                    let put = await server.harness.call(
                        .put, "/credentials", key: key,
                        body: """
                            {"storage_key": "\(name)", "credentials": {"client_id": "c1", "user_id": "9",
                                "token": "\(name)-of-\(tenant)", "expires_in": 3600}}
                            """)
                    #expect(put.status == 200)
                }
                keys.append((key, "of-\(tenant)"))
            }
            let other = try HTTPRawClient(server.address)
            for name in ["a", "b", "a", "b"] {
                let heads = keys.map { server.head("/credentials?storage_key=\(name)", key: $0.key) }
                for client in [server.client, other] {
                    for (head, known) in zip(heads, keys) {
                        try await client.send(head)
                        #expect(try await Self.token(client) == "\(name)-\(known.token)")
                    }
                    try await client.send(heads.joined())
                    for known in keys { #expect(try await Self.token(client) == "\(name)-\(known.token)") }
                }
            }
        }
    }

    private static func token(_ client: HTTPRawClient) async throws -> String? {
        let response = try await client.response()
        return BrokerHarness.Answer(Response(response.status, fields: response.fields, body: response.body))
            .json["token"]?.text
    }

    @Test func `by an API key that ended is refused at once, between those of others`() async throws {
        try await withWarmServer { server async throws in
            for name in ["a", "b"] { try await server.store(name) }
            let made = await server.harness.call(
                .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["credentials:read"]}"#)
            let (id, secret) = (try #require(made.json["id"]?.text), try #require(made.json["api_key"]?.text))
            let brief = await server.harness.makeKey(
                "t1", #"{"name": "b", "permissions": ["credentials:read"], "expires_in": 60}"#)
            func read(_ key: String, _ name: String) async throws -> Int {
                try await server.client.send(server.head("/credentials?storage_key=\(name)", key: key))
                return try await server.answer().status
            }
            for name in ["a", "b", "a"] {
                for key in [secret, brief, server.key] { #expect(try await read(key, name) == 200) }
            }
            #expect(await server.harness.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
            for name in ["a", "b"] {
                for (key, status) in [(server.key, 200), (secret, 401), (brief, 200)] {
                    #expect(try await read(key, name) == status)
                }
            }
            server.harness.time.advance(by: .milliseconds(59_999))
            for name in ["a", "b"] { #expect(try await read(brief, name) == 200) }
            server.harness.time.advance(by: .milliseconds(1))
            for name in ["a", "b"] {
                #expect(try await read(brief, name) == 401)
                #expect(try await read(server.key, name) == 200)
            }
        }
    }
}
