import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Reactor
import Testing

/// One process of `token-broker` that the kernel stops while it waits, for longer than it would wait: as when a virtual
/// machine is moved or a debugger is attached.
@Suite(.timeLimit(.minutes(1)))
struct `The program, stopped while the provider answers` {
    @Test func `takes the response that came meanwhile, also though its limit has passed`() async throws {
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1", secret: "client-secret")]))
        let directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port,
            [
                "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
                "DATA_DIR": directory.path, "PROVIDER_TIMEOUT": "3",
            ])
        let broker = try BrokerClient(port: port)
        try await broker.makeTenant("t1", at: provider)
        provider.provider.script(Fault(.token, grant: .clientCredentials, answerDelay: .milliseconds(300)))
        async let answer = broker.call(.get, "/credentials", tenant: "t1")
        while provider.provider.counters.requests(.clientCredentials) == 0 {
            try await Task.sleep(for: .milliseconds(5))
        }
        process.pause()
        // The response comes, and the time limit of the call passes.
        try await Task.sleep(for: .milliseconds(3300))
        while !provider.provider.requests.contains(where: { $0.grant == "client_credentials" && $0.finishedAt != nil })
        {
            try await Task.sleep(for: .milliseconds(5))
        }
        process.resume()
        let (status, text) = (try await answer.status, try await answer.text)
        #expect(status == 200, "\(text)")
        #expect(provider.provider.counters.requests(.clientCredentials) == 1)
        #expect(await process.terminate() == 0)
        await broker.close()
        await provider.close()
    }
}

/// Two processes of `token-broker`, of which the kernel stops one for longer than an app may repeat a refresh token.
@Suite(.timeLimit(.minutes(2)))
struct `The program, stopped while another replica goes on` {
    private static let redirectURI = "http://127.0.0.1:7/callback"

    private static func form(_ token: String) -> String {
        let body = FormEncoding.encode([
            .init("grant_type", "refresh_token"), .init("client_id", "player"), .init("refresh_token", token),
        ])
        return "POST /oauth2/token HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            + "Content-Length: \(body.utf8.count)\r\n\r\n\(body)"
    }

    private static func put(_ token: String, under key: String) -> String {
        let body = #"""
            {"storage_key": "\#(key)", "refresh_token": "r-\#(token)", "credentials": {"client_id": "c1", "token": "\#(token)"}}
            """#
        return
            "PUT /credentials HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(BrokerHarness.adminKey)\r\nX-Tenant: t1\r\n"
            + "Content-Type: application/json\r\nContent-Length: \(body.utf8.count)\r\n\r\n\(body)"
    }

    private static func delete(_ key: String) -> String {
        "DELETE /credentials?storage_key=\(key) HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(BrokerHarness.adminKey)\r\n"
            + "X-Tenant: t1\r\n\r\n"
    }

    private static let get = "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"

    @Test func `ends no session and overwrites nothing by what waited in its sockets`() async throws {
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1", secret: "client-secret")]))
        let server = try await PostgresServer.shared.value
        let uri = server.uri(database: try await server.makeDatabase())
        let ports = [try PostgresServer.freePort(), try PostgresServer.freePort()]
        var processes: [TestProcess] = []
        for port in ports {
            processes.append(
                try await BrokerProcess.start(
                    port: port,
                    [
                        "DATABASE_URL": uri, "MASTER_KEYS": BrokerHarness.masterKeys,
                        "ALLOW_INSECURE_PROVIDERS": "true", "PUBLIC_BASE_URL": "http://127.0.0.1:\(ports[0])",
                    ]))
        }
        let brokers = [try BrokerClient(port: ports[0]), try BrokerClient(port: ports[1])]
        try await brokers[0].makeTenant("t1", at: provider)
        let registered = try await brokers[0].call(
            .put, "/tenants/t1/clients/player",
            body: #"{"redirect_uris": ["http://127.0.0.1/callback"], "storage_key": "default"}"#)
        #expect(registered.status == 201, "\(registered.text)")
        // Of these, the apps of the second one wait for their answers.
        var tokens: [String] = []
        for _ in 0..<2 {
            var browser = AppBrowser([brokers[0]], at: provider)
            let code = try await browser.logIn(to: "player", redirectURI: Self.redirectURI, as: "alice")
            let answer = try await brokers[0].exchange(code, of: "player", redirectURI: Self.redirectURI)
            tokens.append(try #require(answer.json["refresh_token"]?.text, "\(answer.text)"))
        }
        let address = SocketAddress(ip: .v4([127, 0, 0, 1]), port: ports[1])
        let known = try HTTPRawClient(address, timeoutSeconds: 30)
        try await known.send(Self.get)
        _ = try await known.response()

        processes[1].pause()
        // On a connection that the process knows, and on others that wait to be accepted.
        var clients = [known]
        for _ in 0..<5 { clients.append(try HTTPRawClient(address, timeoutSeconds: 30)) }
        let requests = [
            Self.form(tokens[0]), Self.put("given-up", under: "a"), Self.delete("b"), Self.form(tokens[0]),
            Self.form(tokens[1]), Self.put("waiting", under: "c"),
        ]
        for (client, request) in zip(clients, requests) { try await client.send(request) }
        for client in clients.prefix(4) { await client.close() }

        var next: [String] = []
        for token in tokens {
            let answer = try await brokers[0].refresh(token, of: "player")
            next.append(try #require(answer.json["refresh_token"]?.text, "\(answer.text)"))
        }
        for key in ["a", "b"] {
            let stored = try await brokers[0].call(
                .put, "/credentials", tenant: "t1",
                body: #"""
                    {"storage_key": "\#(key)", "refresh_token": "r", "credentials": {"client_id": "c1", "token": "new"}}
                    """#)
            #expect(stored.status == 200, "\(stored.text)")
        }
        try await Task.sleep(for: .seconds(11))
        processes[1].resume()

        let late = try await clients[4].response()
        #expect(late.status == .ok, "\(String(decoding: late.body, as: UTF8.self))")
        #expect(try await clients[5].response().status == .ok)
        // The process has read what the others sent, too.
        for _ in 0..<3 { #expect(try await brokers[1].call(.get, "/livez").status == 200) }
        for token in next {
            let answer = try await brokers[0].refresh(token, of: "player")
            #expect(answer.status == 200, "\(answer.text)")
        }
        for (key, token) in [("a", "new"), ("b", "new"), ("c", "waiting")] {
            let answer = try await brokers[0].call(.get, "/credentials?storage_key=\(key)", tenant: "t1")
            #expect(answer.json["token"]?.text == token, "\(key): \(answer.text)")
        }
        #expect(try await brokers[0].call(.get, "/tenants/t1/sessions").json["sessions"]?.array?.count == 2)
        for process in processes { #expect(await process.terminate() == 0) }
        for broker in brokers { await broker.close() }
        await provider.close()
    }
}
