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

@Suite struct `A warm read` {
    @Test func `is answered as every request is, without a task, a suspension or the handler`() async throws {
        try await withWarmServer { server async throws in
            let usual = await server.harness.call(.get, "/credentials", key: server.key)
            for _ in 0..<5 {
                let quick = try await server.get()
                #expect(quick.status == 200)
                #expect(quick.text == usual.text)
                for name in ["Content-Type", "Cache-Control", "ETag"] {
                    #expect(quick.fields[name] == usual.fields[name], "\(name)")
                }
                #expect(quick.fields["Content-Length"] == "\(quick.body.count)")
                #expect(quick.fields["Date"]?.text.hasSuffix(" GMT") == true)
            }
            #expect(server.usual() == 0)
        }
    }

    @Test func `has a name of its own each time`() async throws {
        try await withWarmServer { server async throws in
            var seen: Set<String> = []
            for _ in 0..<100 {
                let name = try #require(try await server.get().fields["X-Request-ID"]?.text)
                #expect(name.utf8.count == 32 && name.utf8.allSatisfy { $0.isDigit || $0.isLowercaseLetter })
                seen.insert(name)
            }
            #expect(seen.count == 100)
        }
    }

    @Test(
        arguments: [
            ("/credentials", [], 200), ("/credentials?storage_key=default", [], 200),
            ("/credentials?min_ttl=0", [], 200),
            ("/credentials?min_ttl=60&storage_key=default", [], 200), ("/credentials", ["Accept: */*"], 200),
            ("/credentials", ["If-None-Match: \"1\""], 200), ("/credentials", ["if-none-match: TAG"], 304),
            ("/credentials", ["Connection: keep-alive"], 200), ("/credentials", ["X-Forwarded-For: 10.0.0.1"], 200),
        ] as [(String, [String], Int)])
    func `may name a storage key, a lifetime, a version, and what changes nothing`(
        target: String, fields: [String], status: Int
    ) async throws {
        try await withWarmServer { server async throws in
            let tag = try #require(
                await server.harness.call(.get, "/credentials", key: server.key).fields["ETag"]?.text)
            let lines = fields.map { $0.replacing("TAG", with: tag) + "\r\n" }.joined()
            for _ in 0..<3 {
                try await server.client.send(
                    "GET \(target) HTTP/1.1\r\nHost: h\r\nauthorization: bearer \(server.key)\r\n\(lines)\r\n")
                let response = try await server.client.response()
                #expect(response.status.code == status)
                #expect(response.fields["ETag"] == tag)
                #expect(response.fields.values("X-Content-Type-Options") == ["nosniff"])
                #expect(response.body.isEmpty == (status == 304))
            }
            #expect(server.usual() == 0)
        }
    }

    /// Whether each is answered at once, and what.
    @Test(arguments: [
        ("GET /credentials?level=user", "", 200, true), ("GET /credentials?storage%5Fkey=default", "", 200, true),
        ("GET /credentials?storage_key=", "", 400, false),
        ("GET /credentials?storage_key=a&storage_key=b", "", 400, false),
        ("GET /credentials?min_ttl=86401", "", 400, false), ("GET /credentials?min_ttl=", "", 400, false),
        ("GET /credentials?unknown=1", "", 400, false), ("GET /credentials?storage_key=default&", "", 200, true),
        ("GET /credentials?policy=local", "", 200, true),
        ("GET /credentials?api_error_sub_status=1", "", 200, true),
        ("GET /credentials", "X-Tenant: t2\r\n", 403, false), ("GET /credentials", "Prefer: wait=1\r\n", 200, false),
        ("GET /credentials", "If-None-Match: *\r\n", 304, true),
        ("GET /credentials", "If-None-Match: W/\"1\"\r\n", 200, true),
        ("GET /credentials/status", "", 200, false), ("GET /credentialsx", "", 404, false),
        ("GET /credentials", "Authorization: Bearer x\r\n", 401, false), ("HEAD /credentials", "", 200, false),
    ])
    func `may ask for whatever memory has; all else waits`(
        start: String, fields: String, status: Int, isAtOnce: Bool
    ) async throws {
        try await withWarmServer { server async throws in
            _ = try await server.get()
            try await server.client.send(
                "\(start) HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer \(server.key)\r\n\(fields)\r\n")
            let method: HTTPCodec.Method = start.hasPrefix("HEAD") ? .head : .get
            #expect(try await server.client.response(to: method).status.code == status)
            #expect(server.usual() == (isAtOnce ? 0 : 1))
        }
    }

    @Test func `of a stranger, or with no key, is refused the usual way, however often it comes`() async throws {
        try await withWarmServer { server async throws in
            for _ in 0..<3 {
                try await server.client.send(server.head(key: "tb_unknown"))
                #expect(try await server.answer().status == 401)
            }
            try await server.client.send("GET /credentials HTTP/1.1\r\nHost: h\r\n\r\n")
            #expect(try await server.answer().status == 401)
            #expect(server.usual() == 4)
        }
    }

    @Test func `by a key that is for other storage keys is refused`() async throws {
        try await withWarmServer { server async throws in
            let narrow = await server.harness.makeKey(
                "t1", #"{"name": "n", "permissions": ["credentials:read"], "storage_keys": ["other"]}"#)
            let wide = await server.harness.makeKey(
                "t1", #"{"name": "w", "permissions": ["credentials:read"], "storage_keys": ["default"]}"#)
            let blind = await server.harness.makeKey("t1", #"{"name": "b", "permissions": ["events"]}"#)
            for (key, status) in [(narrow, 403), (wide, 200), (blind, 403)] {
                for _ in 0..<3 {
                    try await server.client.send(server.head(key: key))
                    #expect(try await server.answer().status == status)
                }
            }
        }
    }

    @Test func `sees each change at once`() async throws {
        try await withWarmServer { server async throws in
            func read() async throws -> BrokerHarness.Answer {
                var answer = try await server.get()
                for _ in 0..<2 { answer = try await server.get() }
                return answer
            }
            #expect(try await read().json["token"]?.string == "access-1")
            let put = await server.harness.call(
                .put, "/credentials", key: server.key,
                body: #"{"credentials": {"client_id": "c1", "user_id": "9", "token": "a2", "expires_in": 3600}}"#)
            #expect(put.status == 200)
            #expect(try await read().json["token"]?.string == "a2")
            // A logout.
            #expect(await server.harness.call(.delete, "/credentials", key: server.key).status == 204)
            #expect(try await read().json["level"]?.string == "basic")
            await server.harness.logIn()
            #expect(try await read().json["level"]?.string == "user")
            // Another registration, which the session is to be moved to: no more served as it is stands.
            await server.harness.makeTenant("t1", #"{"client_id": "c2", "scopes": ["r_usr"]}"#)
            let before = server.usual()
            _ = try await server.get()
            #expect(server.usual() == before + 1)
            // The tenant's end is the key's.
            #expect(await server.harness.call(.delete, "/tenants/t1").status == 204)
            #expect(try await read().status == 401)
        }
    }

    @Test func `of a token that JSON has to escape takes the usual way, and of another one does not`() async throws {
        try await withWarmServer { server async throws in
            for (written, token, isPlain) in [
                (#"p1"#, "p1", true), (#"with\"quote"#, "with\"quote", false), (#"p2"#, "p2", true),
                (#"with\\backslash"#, "with\\backslash", false), (#"p3"#, "p3", true),
            ] {
                let put = await server.harness.call(
                    .put, "/credentials", key: server.key,
                    body: """
                        {"storage_key": "k", "credentials":
                            {"client_id": "c1", "user_id": "9", "token": "\(written)", "expires_in": 3600}}
                        """)
                #expect(put.status == 200)
                let before = server.usual()
                for _ in 0..<3 {
                    #expect(try await server.get("/credentials?storage_key=k").json["token"]?.string == token)
                }
                #expect(server.usual() == before + (isPlain ? 0 : 3))
            }
        }
    }

    @Test func `goes by the tenant's terms as they are now`() async throws {
        try await withWarmServer { server async throws in
            let target = "/credentials?storage_key=user-2"
            let put = await server.harness.call(
                .put, "/credentials", key: server.key,
                body: """
                    {"storage_key": "user-2", "refresh_token": "r2", "credentials":
                        {"client_id": "c1", "user_id": "9", "token": "a2", "expires_in": 3600}}
                    """)
            #expect(put.status == 200)
            // A user's session is to be moved to another client, and is not while it is the one that it is of.
            for (client, isUsual) in [("c1", false), ("c2", true), ("c1", false)] {
                await server.harness.makeTenant("t1", #"{"client_id": "\#(client)", "scopes": ["r_usr"]}"#)
                for _ in 0..<3 { _ = try await server.get(target) }
                let before = server.usual()
                let token = try await server.get(target).json["token"]?.text
                #expect((server.usual() > before) == isUsual)
                #expect(isUsual || token == "a2")
            }
        }
    }

    @Test func `ends with the API key`() async throws {
        try await withWarmServer { server async throws in
            let made = await server.harness.call(
                .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["credentials:read"]}"#)
            let (id, secret) = (try #require(made.json["id"]?.text), try #require(made.json["api_key"]?.text))
            let brief = await server.harness.makeKey(
                "t1", #"{"name": "b", "permissions": ["credentials:read"], "expires_in": 60}"#)
            func status(_ key: String) async throws -> Int {
                var status = 0
                for _ in 0..<3 {
                    try await server.client.send(server.head(key: key))
                    status = try await server.answer().status
                }
                return status
            }
            #expect(try await status(secret) == 200)
            #expect(await server.harness.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
            #expect(try await status(secret) == 401)
            #expect(try await status(brief) == 200)
            server.harness.time.advance(by: .milliseconds(59_999))
            #expect(try await status(brief) == 200)
            server.harness.time.advance(by: .milliseconds(1))
            #expect(try await status(brief) == 401)
        }
    }

    @Test func `tells the seconds that are left, and is renewed when they are too few`() async throws {
        try await withWarmServer { server async throws in
            for _ in 0..<3 { #expect(try await server.get().json["expires_in"]?.integer == 3600) }
            for (step, left) in [
                (Duration.milliseconds(1), 3599), (.milliseconds(999), 3599), (.milliseconds(1), 3598),
            ] {
                server.harness.time.advance(by: step)
                #expect(try await server.get().json["expires_in"]?.integer == Int64(left))
            }
            // 60 seconds are the least that is served without being asked otherwise.
            server.harness.time.advance(by: .seconds(3600 - 2 - 61))
            #expect(try await server.get().json["token"]?.string == "access-1")
            server.harness.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
            server.harness.time.advance(by: .seconds(2))
            #expect(try await server.get().json["token"]?.string == "access-2")
        }
    }

    @Test func `goes by the time of day when the clock is moved`() async throws {
        try await withWarmServer { server async throws in
            let brief = await server.harness.makeKey(
                "t1", #"{"name": "b", "permissions": ["credentials:read"], "expires_in": 60}"#)
            func status(_ storageKey: String) async throws -> Int {
                try await server.client.send(server.head("/credentials?storage_key=\(storageKey)", key: brief))
                return try await server.answer().status
            }
            for name in ["a", "b"] { try await server.store(name) }
            for _ in 0..<3 {
                for name in ["a", "b"] { #expect(try await status(name) == 200) }
            }
            for _ in 0..<3 { #expect(try await server.get().token == "access-1") }
            server.harness.time.moveClock(by: .seconds(61))
            #expect(try await status("a") == 401)
            #expect(try await status("b") == 401)
            #expect(try await server.get().json["expires_in"]?.integer == 3539)
            server.harness.time.moveClock(by: .seconds(3600 - 61))
            server.harness.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
            #expect(try await server.get().token == "access-2")
        }
    }

    @Test func `is answered in order with what is not, in one batch`() async throws {
        try await withWarmServer { server async throws in
            let (warm, other) = (server.head(), "GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
            for _ in 0..<2 { _ = try await server.get() }
            try await server.client.send(warm + warm + other + warm + other + warm)
            for isWarm in [true, true, false, true, false, true] {
                let answer = try await server.answer()
                #expect(answer.status == 200)
                #expect((answer.json["token"] != nil) == isWarm)
            }
        }
    }

    @Test func `may come in any number of pieces, alone or behind others`() async throws {
        try await withWarmServer { server async throws in
            let head = server.head()
            for _ in 0..<2 { _ = try await server.get() }
            try await server.client.drip(head)
            #expect(try await server.answer().status == 200)
            for cut in [1, 20, head.utf8.count - 1] {
                let bytes = Array(head.utf8)
                try await server.client.send(bytes + bytes[..<cut])
                #expect(try await server.answer().status == 200)
                try await server.client.send(Array(bytes[cut...]) + bytes)
                #expect(try await server.answer().status == 200)
                #expect(try await server.answer().status == 200)
            }
        }
    }

    @Test func `comes in crowds on one connection`() async throws {
        try await withWarmServer { server async throws in
            let head = server.head()
            for _ in 0..<2 { _ = try await server.get() }
            // More than one read takes, and more than may be unsent.
            for count in [1, 16, 170, 1000] {
                async let sent: Void = server.client.send(String(repeating: head, count: count))
                try await sent
                for _ in 0..<count { #expect(try await server.answer().status == 200) }
            }
        }
    }

    @Test(arguments: [1, 3]) func `closes its connection where the client asks for it`(rounds: Int) async throws {
        try await withWarmServer { server async throws in
            for _ in 0..<rounds {
                let client = try HTTPRawClient(server.address)
                try await client.send(server.head("/credentials", "Connection: close"))
                let text = try await client.rest()
                #expect(text.hasPrefix("HTTP/1.1 200 OK\r\n"))
                #expect(text.contains("\r\nConnection: close\r\n"))
                #expect(text.hasSuffix("\"}"))
            }
            #expect(server.usual() == 0)
        }
    }

    @Test func `is counted like every other`() async throws {
        try await withWarmServer { server async throws in
            let tag = try #require(try await server.get().fields["ETag"]?.text)
            for _ in 0..<9 { _ = try await server.get() }
            for _ in 0..<5 { _ = try await server.get("/credentials", "If-None-Match: \(tag)") }
            // The loop has counted those before it when it answers this one.
            _ = try await server.get("/nowhere")
            let text = await server.harness.call(.get, "/metrics").text
            // One more by the harness, which has no server.
            #expect(text.contains(#"http_requests_total{route="/credentials",method="GET",code="200"} 11"#))
            #expect(text.contains(#"http_requests_total{route="/credentials",method="GET",code="304"} 5"#))
            #expect(text.contains(#"token_reads_total{provider="tidal",outcome="fresh"} 11"#))
            #expect(text.contains(#"token_reads_total{provider="tidal",outcome="not_modified"} 5"#))
            #expect(text.contains(#"http_request_duration_seconds_count{route="/credentials"} 16"#))
        }
    }

    @Test func `is in the log only where the settings say so`() async throws {
        for logsReads in [false, true] {
            let harness = try await BrokerHarness { $0.logsReads = logsReads }
            await harness.makeTenant("t1", #"{"client_id": "c1"}"#)
            let key = await harness.makeKey()
            let before = harness.log.count
            #expect(await harness.call(.get, "/credentials", key: key).status == 200)
            #expect(harness.log.count - before == (logsReads ? 1 : 0))
            #expect(await harness.call(.get, "/credentials?level=user", key: key).status == 424)
            #expect(harness.log.count - before == (logsReads ? 2 : 1))
        }
    }
}
