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

/// Cases of Peter-Schorn/SpotifyAPI's own tests, at the preset `spotify`. The numbers are those of Tests/README.md.
@Suite struct `Cases of a Spotify library` {
    private static let tenant = #"{"provider": "spotify", "client_id": "c1", "client_secret": "s1"}"#
    /// Without a secret the client shows nothing but its verifier.
    private static let publicTenant = #"{"provider": "spotify", "client_id": "c1"}"#
    private static let basic = "Basic " + Base64.encode(Array("c1:s1".utf8))
    /// The last one comes within the grace that is assumed of a provider.
    private static let waits: [Duration] = [
        .milliseconds(500), .seconds(1), .seconds(2), .seconds(1), .milliseconds(833), .seconds(1), .milliseconds(222),
    ]

    private static func made(_ tenant: String = tenant) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        return broker
    }

    /// A broker with a user whose token is over.
    private static func expired(_ tenant: String = tenant) async throws -> BrokerHarness {
        let broker = try await made(tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        return broker
    }

    private static func error(_ code: String, _ description: String) -> String {
        #"{"error": "\#(code)", "error_description": "\#(description)"}"#
    }

    // MARK: Logging in

    // S01 K02 K37
    @Test(arguments: [("&state=wrong", 410, "gone"), ("", 400, "invalid_request"), ("&state=", 400, "invalid_request")])
    func `a response with a wrong state or without one asks for no token`(
        state: String, status: Int, code: String
    ) async throws {
        let broker = try await Self.made()
        let login = await broker.beginLogin()
        let answer = await broker.callback("code=c-1\(state)", accept: "application/json")
        #expect((answer.status, answer.code) == (status, code))
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
    }

    // S01
    @Test func `a response with a state that no login waits for asks for no token`() async throws {
        let broker = try await Self.made()
        let answer = await broker.callback("code=c-1&state=\(Base64URL.encode([UInt8](repeating: 7, count: 32)))")
        #expect(answer.status == 410)
        #expect(broker.transport.seen.isEmpty)
    }

    // S02 S03 S04 S05 K35
    @Test(arguments: [
        (400, "invalid_client", "Invalid client secret"), (400, "invalid_grant", "Invalid authorization code"),
        (400, "invalid_grant", "code_verifier was incorrect"), (400, "invalid_grant", "Invalid redirect URI"),
    ])
    func `a refusal of the code is told by its error and not in its words`(
        status: Int, code: String, description: String
    ) async throws {
        let broker = try await Self.made()
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(status, Self.error(code, description)))
        let answer = await broker.callback("code=c-1&state=\(login.state)", accept: "application/json")
        #expect((answer.status, answer.code) == (502, "unexpected_error"))
        #expect(answer.json["error_code"] == .string(code))
        #expect(!answer.text.contains(description))
        #expect(!broker.log.joined().contains(description))
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    // S04 S05 H033
    @Test(arguments: [tenant, publicTenant])
    func `the exchange repeats the redirect_uri and proves the verifier`(tenant: String) async throws {
        let broker = try await Self.made(tenant)
        let login = await broker.beginLogin()
        #expect(login.uri.hasPrefix("https://accounts.spotify.com/authorize?response_type=code&"))
        let asked = BrokerHarness.parameters(of: login.uri)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        let request = try #require(broker.transport.seen.first)
        #expect(request.url == "https://accounts.spotify.com/api/token")
        let verifier = try #require(request.form["code_verifier"])
        #expect((43...128).contains(verifier.utf8.count))
        #expect(Base64URL.encode(SHA256.digest(Array(verifier.utf8))) == asked["code_challenge"])
        var form = [
            "grant_type": "authorization_code", "code": "c-1", "redirect_uri": asked["redirect_uri"] ?? "",
            "code_verifier": verifier,
        ]
        if tenant == Self.publicTenant { form["client_id"] = "c1" }
        #expect(request.form == form)
        #expect(request.fields["Authorization"] == (tenant == Self.publicTenant ? nil : Self.basic))
    }

    // S06
    @Test func `a user who says no costs no request`() async throws {
        let broker = try await Self.made()
        let login = await broker.beginLogin()
        let answer = await broker.callback("error=access_denied&state=\(login.state)", accept: "application/json")
        #expect((answer.status, answer.code) == (400, "authorization_error"))
        #expect(answer.json["error_code"] == .string("access_denied"))
        #expect(broker.transport.seen.isEmpty)
        // A refusal counts only for its own login, and without a state it belongs to none.
        let forged = await broker.callback("error=access_denied", accept: "application/json")
        #expect((forged.status, forged.code) == (400, "invalid_request"))
    }

    // MARK: Configuration

    // S09
    @Test(arguments: [400, 401])
    func `client credentials that are refused are a fault of the configuration`(status: Int) async throws {
        let broker = try await Self.made()
        broker.transport.enqueue(.json(status, Self.error("invalid_client", "Invalid client")))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(answer.json["error_code"] == .string("invalid_client"))
        #expect(broker.transport.seen.map(\.form) == [["grant_type": "client_credentials"]])
        #expect(broker.transport.seen.first?.fields["Authorization"] == Self.basic)
    }

    // S12
    @Test func `a configuration that leaves the preset's values out is the one that names them`() async throws {
        let named = try await Self.made(
            #"""
            {"provider": "spotify", "client_id": "c1", "client_secret": "s1", "scopes": [],
             "token_endpoint_auth_method": "client_secret_basic", "browser_binding": "when_started_here",
             "endpoints": {"authorization": "https://accounts.spotify.com/authorize",
                           "token": "https://accounts.spotify.com/api/token"}}
            """#)
        let short = try await Self.made()
        var asked: [[String: String]] = []
        var sent: [[String: String]] = []
        for broker in [named, short] {
            let login = await broker.beginLogin()
            var parameters = BrokerHarness.parameters(of: login.uri)
            (parameters["state"], parameters["code_challenge"]) = (nil, nil)
            asked.append(parameters)
            broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
            #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
            let request = try #require(broker.transport.seen.first)
            var form = request.form
            form["code_verifier"] = nil
            form["url"] = request.url
            form["authorization"] = request.fields["Authorization"]?.text
            sent.append(form)
        }
        #expect(asked[0] == asked[1])
        #expect(sent[0] == sent[1])
    }

    // S16 K13
    @Test(arguments: [
        tenant, publicTenant,
        #"""
        {"provider": "spotify", "client_id": "c1", "client_secret": "s1",
         "scopes": ["user-read-email", "playlist-read-private"], "token_endpoint_auth_method": "client_secret_post",
         "endpoints": {"authorization": "https://proxy.example/authorize", "token": "https://proxy.example/token"},
         "allowed_redirect_uris": ["com.example.app:/cb"], "allowed_return_uris": ["https://app.example/done"],
         "browser_binding": "required"}
        """#,
    ])
    func `a configuration is after a restart what it was`(tenant: String) async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let before = await broker.call(.get, "/tenants/t1")
        let restarted = try await BrokerHarness(store: store)
        #expect(await restarted.call(.get, "/tenants/t1").body == before.body)
        var requests: [ScriptedTransport.Seen] = []
        for broker in [broker, restarted] {
            broker.transport.enqueue(.json(503, ""), .json(403, ""))
            #expect(await broker.get().code == "unexpected_error")
            requests.append(try #require(broker.transport.seen.last))
        }
        #expect(requests[0].url == requests[1].url)
        #expect(requests[0].form == requests[1].form)
        #expect(requests[0].fields["Authorization"] == requests[1].fields["Authorization"])
    }

    // MARK: Reading

    // S14
    @Test func `all who meet an expired token get the one that a single refresh brought`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        let answers = await withTaskGroup(of: BrokerHarness.Answer.self) { group in
            for _ in 0..<50 { group.addTask { await broker.get() } }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(answers.map(\.token) == Array(repeating: "a2", count: 50))
        #expect(
            broker.transport.seen.map(\.form) == [["grant_type": "refresh_token", "refresh_token": "r1"]])
        #expect(broker.transport.seen.first?.fields["Authorization"] == Self.basic)
    }

    // S17 K09
    @Test func `without a key, and without a login, there is no token and no request`() async throws {
        let broker = try await Self.made(Self.publicTenant)
        let stranger = await broker.call(.get, "/credentials", key: nil)
        #expect((stranger.status, stranger.code) == (401, "unauthorized"))
        let user = await broker.get("level=user")
        #expect((user.status, user.code) == (424, "level_not_available"))
        let any = await broker.get()
        #expect((any.level, any.token) == ("basic", nil))
        #expect(broker.transport.seen.isEmpty)
    }

    // S18 K28
    @Test func `a token that the API calls invalid is renewed once for all who saw it`() async throws {
        let broker = try await Self.made()
        await broker.set("a1", refresh: "r1")
        let refused = await broker.get()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        for _ in 0..<3 {
            let answer = await broker.get("api_error_sub_status=11002", fields: ["If-None-Match": refused.tag])
            #expect(answer.token == "a2")
        }
        #expect(broker.transport.seen.count == 1)
    }

    // MARK: Trying again

    // S19 K26
    @Test(arguments: [false, true])
    func `callers who meet a limit on the rate are told when, and then all succeed`(isSerial: Bool) async throws {
        let broker = try await Self.expired()
        for key in ["k1", "k2", "k3", "k4"] {
            await broker.set("\(key)-1", refresh: key, lifetime: .zero, storageKey: key)
        }
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "7"]))
        let first = await broker.get("storage_key=k1")
        #expect((first.status, first.code, first.retryAfter) == (503, "retryable_error", 7))
        broker.transport.always(
            .decide { seen in .json(200, BrokerHarness.token("\(seen.form["refresh_token"] ?? "")-2")) })
        func ask() async -> [BrokerHarness.Answer] {
            await withTaskGroup(of: (Int, BrokerHarness.Answer).self) { group in
                var answers: [(Int, BrokerHarness.Answer)] = []
                for index in 1...4 {
                    group.addTask { (index, await broker.get("storage_key=k\(index)")) }
                    if isSerial { for await answer in group { answers.append(answer) } }
                }
                for await answer in group { answers.append(answer) }
                return answers.sorted { $0.0 < $1.0 }.map(\.1)
            }
        }
        // The provider may count each user's calls, so that others are paused for less.
        for (answer, seconds) in zip(await ask(), [7, 5, 5, 5]) {
            #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", seconds))
        }
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .seconds(7))
        #expect(await ask().map(\.token) == ["k1-2", "k2-2", "k3-2", "k4-2"])
        #expect(broker.transport.seen.count == 5)
    }

    // S20 K21
    @Test func `a provider that recovers after three failures has its answer taken`() async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.json(503, ""), .json(503, ""), .json(503, ""), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.time.slept == Array(Self.waits.prefix(3)))
    }

    // S21 D27 K23
    @Test(arguments: [(5, nil), (6, "retryable_error")] as [(Int, String?)])
    func `five retries are the limit`(failures: Int, code: String?) async throws {
        let broker = try await Self.expired()
        for _ in 0..<failures { broker.transport.enqueue(.json(502, "")) }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().code == code)
        #expect(broker.transport.seen.count == 6)
        #expect(broker.time.slept == Self.waits)
        #expect(await broker.get("policy=local").token == (code == nil ? "a2" : "a1"))
    }

    // S22
    @Test(arguments: [(30, 1, nil), (31, 0, "retryable_error")] as [(Int, Int, String?)])
    func `a call waits half a minute for a retry and no longer`(seconds: Int, waits: Int, code: String?) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(
            .json(503, "", fields: ["Retry-After": "\(seconds)"]), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect(answer.code == code)
        #expect(answer.retryAfter == (code == nil ? nil : seconds))
        // In steps that the lease outlasts.
        #expect(broker.time.slept.reduce(.zero, +) == .seconds(seconds * waits))
        #expect(broker.transport.seen.count == waits + 1)
    }

    // S23 D27 K22
    @Test(arguments: [400, 401, 403, 404])
    func `a refusal is not asked for twice`(status: Int) async throws {
        let broker = try await Self.expired()
        broker.transport.always(.json(status, Self.error("invalid_scope", "no")))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "unexpected_error"))
        #expect(broker.transport.seen.count == 1)
        #expect(broker.time.slept.isEmpty)
    }

    // S25
    @Test(
        arguments: [
            ([], ""), (["streaming"], "streaming"),
            (["user-read-email", "streaming", "user-read-email"], "streaming user-read-email"),
            (
                [
                    "app-remote-control", "playlist-modify-private", "playlist-modify-public",
                    "playlist-read-collaborative", "playlist-read-private", "streaming", "ugc-image-upload",
                    "user-follow-modify", "user-follow-read", "user-library-modify", "user-library-read",
                    "user-modify-playback-state", "user-read-currently-playing", "user-read-email",
                    "user-read-playback-position", "user-read-playback-state", "user-read-private",
                    "user-read-recently-played", "user-top-read",
                ],
                "app-remote-control playlist-modify-private playlist-modify-public playlist-read-collaborative "
                    + "playlist-read-private streaming ugc-image-upload user-follow-modify user-follow-read "
                    + "user-library-modify user-library-read user-modify-playback-state user-read-currently-playing "
                    + "user-read-email user-read-playback-position user-read-playback-state user-read-private "
                    + "user-read-recently-played user-top-read"
            ),
        ] as [([String], String)])
    func `scopes go out as a text, each once and in order`(scopes: [String], text: String) async throws {
        let list = scopes.map { "\"\($0)\"" }.joined(separator: ",")
        let broker = try await Self.made(#"{"provider": "spotify", "client_id": "c1", "scopes": [\#(list)]}"#)
        let sent = BrokerHarness.parameters(of: await broker.beginLogin().uri)["scope"]
        #expect(sent == (scopes.isEmpty ? nil : text))
    }
}
