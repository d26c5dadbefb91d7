internal import BrokerCore
internal import BrokerTesting
internal import CredentialStore
internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import OAuth
internal import Testing
internal import TokenBroker

@Suite struct `Renewing credentials` {
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1"}"#
    private static let designWaits: [Duration] = [
        .milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8),
    ]
    /// Where the refresh token may be spent, the last call comes within the grace that is assumed of a provider. From a third
    /// of it on, each wait is a third of what is left, and other replicas have the lease. A wait for another replica is one
    /// for a second at most, and a look.
    private static let waitsBetweenCalls: [[Duration]] = [
        [.milliseconds(500)], [.seconds(1)], [.seconds(2)], [.seconds(1), .milliseconds(833)],
        [.seconds(1), .milliseconds(222)],
    ]
    private static let waitsWithinGrace = waitsBetweenCalls.flatMap(\.self)

    /// A tenant whose user's token has to be refreshed.
    private static func expired(_ tenant: String = #"{"client_id": "c1"}"#) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        return broker
    }

    // MARK: What is sent

    @Test func `a refresh sends the refresh token and the scopes to the pinned token endpoint`() async throws {
        let broker = try await Self.expired(
            #"{"client_id": "c1", "client_secret": "s1", "scopes": ["w_usr", "r_usr"]}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        let request = try #require(broker.transport.seen.first)
        #expect(request.method == .post)
        #expect(request.url == "https://auth.tidal.com/v1/oauth2/token")
        #expect(request.isPinned)
        #expect(
            request.form == [
                "grant_type": "refresh_token", "refresh_token": "r1", "scope": "r_usr w_usr", "client_id": "c1",
                "client_secret": "s1",
            ])
        #expect(request.fields["Content-Type"] == "application/x-www-form-urlencoded")
        #expect(request.fields["Accept"] == "application/json")
    }

    @Test func `a client that authenticates by HTTP Basic sends its secret in no form`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"provider": "oidc", "client_id": "c 1", "client_secret": "s:1", "endpoints": {"#
                + #""authorization": "https://op.example/auth", "token": "https://op.example/token"}}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        let answer = await broker.get()
        #expect(answer.level == "client", "\(answer.text)")
        let request = try #require(broker.transport.seen.first)
        // RFC 6749 §2.3.1: both halves form-encoded first. "c+1:s%3A1" or "c%201:s%3A1".
        #expect(
            ["Basic YysxOnMlM0Ex", "Basic YyUyMDE6cyUzQTE="].contains(request.fields["Authorization"]?.text ?? ""))
        #expect(request.form["client_secret"] == nil)
        #expect(!request.isPinned)
    }

    // MARK: Refresh tokens

    // T45
    @Test func `a refresh token is kept until an answer brings another`() async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a2")), .json(200, BrokerHarness.token("a3", refresh: "r2")),
            .json(200, #"{"access_token": "a4", "refresh_token": null, "expires_in": 3600}"#),
            .json(200, #"{"access_token": "a5", "refresh_token": "", "expires_in": 3600}"#),
            .json(200, BrokerHarness.token("a6")))
        for expected in ["a2", "a3", "a4", "a5", "a6"] {
            #expect(await broker.get("policy=local_force_refresh").token == expected)
        }
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r1", "r2", "r2", "r2"])
    }

    @Test(arguments: [
        "", "{}", "[]", "null", "<html>", #"{"access_token": ""}"#, #"{"access_token": 5}"#,
        #"{"access_token": null}"#, #"{"access_token": "a b"}"#, #"{"access_token": "a2", "token_type": "mac"}"#,
        #"{"access_token": "a2", "token_type": 5}"#,
        #"{"access_token": "a2", "refresh_token": 5}"#, #"{"access_token": "a2"} x"#,
        #"{"access_token": "a2", "access_token": "a3"}"#, #"{"error": "invalid_grant"}"#,
        "{\"access_token\": \"a\\u0000\"}", #"{"token": "a2"}"#, "\u{feff}{\"access_token\": \"a2\"",
    ])
    func `a 2xx without a usable token is token_response_error and changes nothing`(body: String) async throws {
        let broker = try await Self.expired()
        let tag = await broker.get("policy=local").tag
        // The provider may have spent the refresh token, and takes it again while its grace lasts.
        broker.transport.always(.json(200, body))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        #expect(broker.transport.seen.count == 6)
        #expect(broker.time.slept == Self.waitsWithinGrace)
        #expect(await broker.get("policy=local").tag == tag)
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r1")
    }

    @Test(arguments: [301, 302, 304, 307, 308])
    func `a redirect of the token endpoint is not followed`(status: Int) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.json(status, "", fields: ["Location": "https://other.example/token"]))
        #expect(await broker.get().code == "token_response_error")
        #expect(broker.transport.seen.count == 1)
    }

    @Test(arguments: [TransportError.malformedResponse, .responseTooLarge])
    func `an answer that is no HTTP is token_response_error`(error: TransportError) async throws {
        let broker = try await Self.expired()
        broker.transport.always(.failure(error))
        #expect(await broker.get().code == "token_response_error")
        #expect(broker.transport.seen.count == 6)
    }

    @Test(arguments: [TransportError.malformedResponse, .connectionLost(requestSent: true)])
    func `an answer that cannot be read after a rotation costs nothing`(error: TransportError) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.failure(error), .json(200, "<html>"), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r1", "r1"])
    }

    // MARK: Retries

    @Test(
        arguments: [("", 10_000), (#", "reuse_grace": 0"#, 10_000), (#", "reuse_grace": 10"#, 4500)] as [(String, Int)])
    func `a slow call is given up for another one only within a grace that is known`(
        member: String, milliseconds: Int
    ) async throws {
        let broker = try await Self.expired(#"{"client_id": "c1"\#(member)}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.map(\.timeLimit) == [.milliseconds(milliseconds)])
    }

    // T29
    @Test(arguments: [500, 502, 503, 504, 599])
    func `a 5xx is tried again five times by the design's schedule`(status: Int) async throws {
        let broker = try await Self.expired(#"{"client_id": "c1", "reuse_grace": 60}"#)
        // A 5xx with a terminal error in its body says nothing about the session.
        broker.transport.always(.json(status, #"{"error": "invalid_grant", "sub_status": 11101}"#))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, "retryable_error"))
        #expect(answer.retryAfter != nil)
        #expect(broker.transport.seen.count == 6)
        #expect(broker.time.slept == Self.designWaits)

        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test(
        arguments: [
            (0, designWaits),
            (
                9,
                [.milliseconds(500), .seconds(1), .seconds(2), .seconds(1), .milliseconds(500), .seconds(1)]
            ),
            (10, waitsWithinGrace),
            (16, designWaits.dropLast() + [.seconds(1), .seconds(1), .milliseconds(500)]),
            (17, designWaits.dropLast() + [.seconds(1), .seconds(1), .milliseconds(833)]),
            (22, designWaits.dropLast() + [.seconds(1), .seconds(1), .seconds(1), .seconds(1), .milliseconds(500)]),
            // The last wait of 8 s ends in the second half of a grace below 32 s, and others are to have their turn before.
            (
                23,
                designWaits.dropLast() + [.seconds(1), .seconds(1), .seconds(1), .seconds(1), .milliseconds(833)]
            ),
            (32, designWaits),
        ] as [(Int, [Duration])])
    func `the last retry comes within the provider's grace, where there is one`(
        grace: Int, waits: [Duration]
    ) async throws {
        let broker = try await Self.expired(#"{"client_id": "c1", "reuse_grace": \#(grace)}"#)
        broker.transport.always(.json(500, ""))
        #expect(await broker.get().code == "retryable_error")
        #expect(broker.time.slept == waits)
    }

    @Test(arguments: [
        TransportError.connectFailed, .nameNotFound, .nameResolutionFailed, .tlsFailed,
        .connectionLost(requestSent: false), .connectionLost(requestSent: true),
        .timedOut(.connect, requestSent: false), .timedOut(.firstByte, requestSent: true),
    ])
    func `a lost connection is tried again like a 5xx and is then network_error`(error: TransportError) async throws {
        let broker = try await Self.expired()
        broker.transport.always(.failure(error))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, "network_error"))
        #expect(answer.retryAfter != nil)
        #expect(broker.transport.seen.count == 6)
        #expect(
            broker.time.slept == (error.requestMayHaveBeenProcessed ? Self.waitsWithinGrace : Self.designWaits))
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test(arguments: 1...5)
    func `a retry that succeeds ends the schedule`(failures: Int) async throws {
        let broker = try await Self.expired()
        for failure in 0..<failures {
            broker.transport.enqueue(failure % 2 == 0 ? .json(503, "") : .failure(.connectionLost(requestSent: true)))
        }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.time.slept == Self.waitsBetweenCalls.prefix(failures).flatMap(\.self))
    }

    @Test func `client credentials are tried again likewise`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.always(.json(500, ""))
        #expect(await broker.get().code == "retryable_error")
        #expect(broker.time.slept == Self.designWaits)
        broker.time.forgetSleeps()
        broker.transport.always(.failure(.connectFailed))
        #expect(await broker.get().code == "network_error")
        #expect(broker.time.slept == Self.designWaits)
        broker.transport.always(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
    }

    @Test(arguments: [
        ("0", Duration.milliseconds(500)), ("1", .seconds(1)), ("3", .seconds(3)), ("30", .seconds(30)),
        ("Sat, 21 Nov 2026 09:00:07 GMT", .seconds(7)), ("Sat, 21 Nov 2020 09:00:00 GMT", .milliseconds(500)),
        ("soon", .milliseconds(500)), ("", .milliseconds(500)), ("-5", .milliseconds(500)),
    ])
    func `a 503 with Retry-After is tried again then, the schedule being the least`(
        value: String, wait: Duration
    ) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(
            .json(503, "", fields: ["Retry-After": value]), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        // In steps that the lease outlasts.
        #expect(broker.time.slept.reduce(.zero, +) == wait)
    }

    @Test(arguments: [("31", 31), ("59", 59), ("60", 60), ("61", 60), ("3600", 60), ("99999999999999999999", 60)])
    func `a 503 that asks for more than a call can wait ends the call and is obeyed for a minute at most`(
        value: String, seconds: Int
    ) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(
            .json(503, "", fields: ["Retry-After": value]), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", seconds))
        #expect(broker.time.slept == [])
        broker.time.advance(by: .seconds(seconds) - .milliseconds(1))
        #expect(await broker.get().retryAfter == 1)
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.get().token == "a2")
    }

    // MARK: 429

    // T32
    @Test(
        arguments: [
            ("1", 1), ("7", 7), ("3600", 3600), ("3601", 3600), (nil, 5), ("x", 5),
            ("Sat, 21 Nov 2026 09:00:09 GMT", 9),
        ] as [(String?, Int)])
    func `a 429 is answered at once and the provider is spared until then`(value: String?, seconds: Int) async throws {
        let broker = try await Self.expired()
        var fields: Fields = [:]
        if let value { fields.append("Retry-After", value) }
        broker.transport.enqueue(
            .json(429, #"{"error": "slow_down"}"#, fields: fields), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", seconds))
        #expect(answer.json["error_code"] == .string("slow_down"))
        #expect(broker.time.slept == [])

        broker.time.advance(by: .seconds(seconds) - .milliseconds(1))
        let spared = await broker.get()
        #expect((spared.status, spared.code, spared.retryAfter) == (503, "retryable_error", 1))
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `a 429 with a Retry-After of nought spares nobody`() async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(
            .json(429, "", fields: ["Retry-After": "0"]), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.status, answer.retryAfter) == (503, 1))
        #expect(await broker.get().token == "a2")
    }

    @Test func `a pause holds for the client at its provider and for no other`() async throws {
        let broker = try await Self.expired()
        await broker.set("b1", refresh: "r2", lifetime: .zero, storageKey: "other")
        await broker.makeTenant("t2", #"{"client_id": "c2"}"#)
        await broker.set("x1", refresh: "r3", lifetime: .zero, tenant: "t2", clientID: "c2")
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "60"]))
        #expect(await broker.get().code == "retryable_error")
        #expect(await broker.get("storage_key=other").code == "retryable_error")
        #expect(broker.transport.seen.count == 1)
        broker.transport.enqueue(.json(200, BrokerHarness.token("x2")))
        #expect(await broker.get(tenant: "t2").token == "x2")
        // What is good needs no provider.
        await broker.set("b2", refresh: "r2", storageKey: "other")
        #expect(await broker.get("storage_key=other").token == "b2")
    }

    /// Two users of one client: the first one's refresh has failed and waits for its retry, when the second one's is
    /// answered 429.
    private static func pausedUnderRetry(
        _ failure: ScriptedTransport.Step = .json(503, ""), retryAfter: String
    ) async throws -> (broker: BrokerHarness, first: Task<BrokerHarness.Answer, Never>) {
        let broker = try await expired()
        await broker.set("b1", refresh: "r2", lifetime: .zero, storageKey: "other")
        broker.time.holdSleeps()
        broker.transport.enqueue(failure)
        let first = Task { await broker.get() }
        while !broker.time.slept.contains(.milliseconds(500)) { await Task.yield() }
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": retryAfter]))
        #expect(await broker.get("storage_key=other").code == "retryable_error")
        #expect(broker.transport.seen.count == 2)
        return (broker, first)
    }

    @Test func `a retry waits for the end of a pause that another call has met`() async throws {
        let (broker, first) = try await Self.pausedUnderRetry(.failure(.connectFailed), retryAfter: "10")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        broker.time.advance(by: .milliseconds(500))
        // What is left of the pause.
        while !broker.time.slept.contains(.milliseconds(9500)) { await Task.yield() }
        #expect(broker.transport.seen.count == 2)
        broker.time.advance(by: .milliseconds(9500))
        #expect(await first.value.token == "a2")
        #expect(broker.transport.seen.count == 3)
    }

    @Test(arguments: ["10", "31"])
    func `a refresh token that may be spent is tried again whatever another call has met`(retryAfter: String)
        async throws
    {
        let (broker, first) = try await Self.pausedUnderRetry(.json(503, ""), retryAfter: retryAfter)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        broker.time.advance(by: .milliseconds(500))
        #expect(await first.value.token == "a2")
        #expect(broker.transport.seen.count == 3)
    }

    @Test func `a retry is given up for a pause that lasts longer than a call waits`() async throws {
        let (broker, first) = try await Self.pausedUnderRetry(.failure(.connectFailed), retryAfter: "31")
        broker.time.advance(by: .milliseconds(500))
        let answer = await first.value
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 31))
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `client credentials that get 429 are retryable_error`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "7"]))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 7))
        #expect(await broker.get().code == "retryable_error")
        #expect(broker.transport.seen.count == 1)
    }

    // MARK: Logouts

    private static let logouts: [(Int, String)] = [
        (400, "unauthorized_client"), (400, "invalid_grant"), (400, "invalid_request"), (401, "access_denied"),
        (401, "invalid_client"), (401, "invalid_grant"),
    ]

    // T33
    // T34
    @Test(arguments: logouts)
    func `an answer that ends the session is a logout and gets the next lower level`(
        status: Int, error: String
    ) async throws {
        let broker = try await Self.expired()
        let before = await broker.get("policy=local")
        broker.transport.enqueue(.json(status, #"{"status": \#(status), "error": "\#(error)", "sub_status": 11101}"#))
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(answer.tag != before.tag)
        #expect(broker.transport.seen.count == 1)
        #expect(broker.time.slept == [])
        let state = await broker.call(.get, "/credentials/status", tenant: "t1")
        #expect(
            state.text == #"{"logged_in":false,"level":"basic","expires":null,"refreshable":false,"state":"ended"}"#)
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.count == 1)
    }

    // T33
    // T34
    @Test(arguments: logouts)
    func `a client with a secret gets client credentials after a logout`(status: Int, error: String) async throws {
        let broker = try await Self.expired(Self.withSecret)
        broker.transport.enqueue(
            .json(status, #"{"error": "\#(error)"}"#), .json(200, BrokerHarness.token("client-1")))
        let answer = await broker.get()
        #expect((answer.status, answer.level, answer.token) == (200, "client", "client-1"))
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["refresh_token", "client_credentials"])
    }

    @Test(arguments: [
        "policy=local_force_refresh", "api_error_sub_status=11003", "min_ttl=7200",
        "policy=create_if_needed&min_ttl=7200",
    ])
    func `a logout gets the next lower level whatever asked for the refresh`(query: String) async throws {
        for (tenant, level) in [(#"{"client_id": "c1"}"#, "basic"), (Self.withSecret, "client")] {
            let broker = try await BrokerHarness()
            await broker.makeTenant("t1", tenant)
            await broker.set("a1", refresh: "r1")
            broker.transport.enqueue(
                .json(400, #"{"error": "invalid_grant"}"#), .json(200, BrokerHarness.token("client-1")))
            let answer = await broker.get(query)
            #expect((answer.status, answer.level) == (200, level))
        }
    }

    @Test func `a logout is no answer to a caller who asks for a user`() async throws {
        let broker = try await Self.expired(Self.withSecret)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let answer = await broker.get("level=user")
        #expect((answer.status, answer.code) == (424, "level_not_available"))
        #expect(broker.transport.seen.count == 1)
    }

    // T70
    @Test(arguments: [
        (400, "invalid_client"), (400, "access_denied"), (400, "invalid_scope"), (400, "unsupported_grant_type"),
        (400, "INVALID_GRANT"), (400, ""), (401, "unauthorized_client"), (401, "invalid_request"), (401, ""),
        (403, "invalid_grant"), (404, "invalid_grant"), (408, "invalid_grant"), (409, "invalid_request"),
        (422, "invalid_client"), (451, "access_denied"), (499, "invalid_grant"),
    ])
    func `any other 4xx is unexpected_error after one call and keeps the session`(
        status: Int, error: String
    ) async throws {
        let broker = try await Self.expired(Self.withSecret)
        let tag = await broker.get("policy=local").tag
        broker.transport.enqueue(.json(status, #"{"error": "\#(error)", "sub_status": 1234}"#))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "unexpected_error"))
        #expect(answer.json["error_code"] == .string(error.isEmpty ? "1234" : error))
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("policy=local").tag == tag)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    /// A registration at a provider without an upgrade, in place of the one that obtained the credentials.
    private static func changed(_ client: String) -> String {
        #"{"provider": "oidc", "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"}, "#
            + #""previous_token_endpoints": ["https://auth.tidal.com/v1/oauth2/token"], "# + client + "}"
    }

    @Test(
        arguments: [
            (#""client_id": "c1", "scopes": ["more"]"#, 400, "invalid_grant", 200, "basic"),
            (#""client_id": "c1", "client_secret": "new""#, 400, "invalid_grant", 200, "client"),
            (#""client_id": "c1", "client_secret": "new""#, 401, "invalid_client", 424, nil),
            (#""client_id": "c1", "client_secret": "new""#, 400, "invalid_request", 502, nil),
        ] as [(String, Int, String, Int, String?)])
    func `a refusal that may be about a new secret ends no session`(
        client: String, refusal: Int, error: String, status: Int, level: String?
    ) async throws {
        let broker = try await Self.expired()
        await broker.makeTenant("t1", Self.changed(client))
        broker.transport.enqueue(.json(refusal, #"{"error": "\#(error)"}"#), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (status, level))
    }

    @Test func `another client does not use the refresh token`() async throws {
        let broker = try await Self.expired()
        await broker.makeTenant("t1", Self.changed(#""client_id": "c2""#))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `a 4xx whose body is no OAuth error keeps the session`() async throws {
        for body in ["", "<html>invalid_grant</html>", #"{"error": ["invalid_grant"]}"#, #"{"error": 5}"#, "[]"] {
            let broker = try await Self.expired()
            broker.transport.enqueue(.json(400, body))
            let answer = await broker.get()
            #expect((answer.status, answer.code) == (502, "unexpected_error"))
            #expect(answer.json["error_code"] == nil)
            #expect(await broker.get("policy=local").token == "a1")
        }
    }

    @Test(arguments: [
        #"{"error": "canary <b>"}"#, #"{"error": "\#(String(repeating: "e", count: 65))"}"#,
        #"{"error": "line\nbreak"}"#,
    ])
    func `an error code that is no code is not repeated`(body: String) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.json(418, body))
        let answer = await broker.get()
        #expect(answer.code == "unexpected_error")
        #expect(answer.json["error_code"] == nil)
    }

    // MARK: Client credentials

    @Test(arguments: [400, 401, 403, 404, 422])
    func `a 4xx for client credentials is illegal_configuration with the sub_status as its code`(
        status: Int
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(status, #"{"error": "invalid_client", "sub_status": 6001}"#))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(answer.json["error_code"] == .string("6001"))
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .seconds(30))
        broker.transport.enqueue(.json(status, #"{"error": "invalid_client"}"#))
        #expect(await broker.get().json["error_code"] == .string("invalid_client"))
    }

    @Test func `client credentials that the provider refuses leave the old ones where they are`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1", expiresIn: 100)), .json(400, #"{"error": "invalid_grant"}"#),
            .json(400, #"{"error": "invalid_grant"}"#))
        _ = await broker.get()
        broker.time.advance(by: .seconds(50))
        let answer = await broker.get()
        #expect((answer.token, answer.json["degraded"]?["code"]) == ("client-1", .string("illegal_configuration")))
        broker.time.advance(by: .seconds(50))
        #expect(await broker.get().code == "illegal_configuration")
        #expect(await broker.get("policy=local").token == "client-1")
    }

    // MARK: Trust and addresses

    @Test(arguments: [
        TransportError.UntrustedReason.chain, .expired, .notYetValid, .hostName, .purpose, .pin,
        .noCommonProtocol,
    ])
    func `a provider that is not trusted is provider_untrusted after one call`(
        reason: TransportError.UntrustedReason
    ) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.failure(.untrusted(reason)))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "provider_untrusted"))
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("policy=local").token == "a1")
    }

    @Test(arguments: [TransportError.insecureTarget, .forbiddenAddress, .invalidURL])
    func `an address that may not be called is illegal_configuration`(error: TransportError) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.failure(error))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(broker.transport.seen.count == 1)
    }

    // MARK: Changes meanwhile

    // T68
    @Test func `a logout during a refresh holds`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let refreshed = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        gate.open()
        let answer = await refreshed
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(await broker.get().level == "basic")
    }

    @Test func `a login during a refresh holds`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        let login = await broker.beginLogin()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))),
            .json(200, BrokerHarness.token("login-1", refresh: "login-r")))
        async let refreshed = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.get, "/login/callback?code=c&state=\(login.state)", key: nil).status == 200)
        gate.open()
        #expect(await refreshed.token == "login-1")
        #expect(await broker.get().token == "login-1")
    }

    // T53
    @Test func `credentials set during a refresh hold`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let refreshed = broker.get()
        await gate.arrivals()
        let tag = await broker.set("set-1")
        gate.open()
        let answer = await refreshed
        #expect((answer.token, answer.tag) == ("set-1", tag))
        #expect(await broker.get().tag == tag)
    }

    @Test(arguments: [(400, #"{"error": "invalid_grant"}"#), (200, #"{"access_token": "late", "expires_in": 3600}"#)])
    func `what a sibling has refreshed meanwhile is neither ended nor overwritten`(
        status: Int, body: String
    ) async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let sibling = try await BrokerHarness(store: store)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(status, body)))
        async let slow = broker.get()
        await gate.arrivals()
        sibling.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        let winner = await sibling.get()
        #expect(winner.token == "a2")
        gate.open()
        let answer = await slow
        #expect((answer.status, answer.token, answer.tag) == (200, "a2", winner.tag))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a tenant that is deleted during a refresh leaves nothing behind`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let refreshed = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        let answer = await refreshed
        #expect((answer.status, answer.code) == (404, "not_found"))
        #expect(await broker.get().status == 404)
        await broker.makeTenant()
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `a tenant that is deleted and made again during a refresh is the new one`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let refreshed = broker.get()
        await gate.arrivals()
        _ = await broker.call(.delete, "/tenants/t1")
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        let tag = await broker.set("new-1", clientID: "c2")
        gate.open()
        let answer = await refreshed
        #expect((answer.status, answer.token, answer.tag) == (200, "new-1", tag))
        #expect(await broker.get("policy=local").tag == tag)
    }

    @Test func `client credentials for a tenant that was deleted and made again are not the new one's`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("old-client"))))
        async let obtained = broker.get()
        await gate.arrivals()
        _ = await broker.call(.delete, "/tenants/t1")
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        gate.open()
        let answer = await obtained
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(answer.json["client_id"] == .string("c2"))
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `client credentials of a configuration that was replaced meanwhile are asked for anew`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("old-client"))))
        broker.transport.always(.json(200, BrokerHarness.token("new-client")))
        async let obtained = broker.get()
        await gate.arrivals()
        await broker.makeTenant("t1", #"{"client_id": "c2", "client_secret": "s2"}"#)
        gate.open()
        #expect(await obtained.token == "new-client")
        #expect(broker.transport.seen.map(\.form["client_id"]) == ["c1", "c2"])
    }

    // T38
    @Test func `a caller who leaves does not stop the renewal`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        let caller = Task { await broker.get() }
        await gate.arrivals()
        caller.cancel()
        #expect(await caller.value.status == 503)
        gate.open()
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `finishing waits for the renewal that is in flight`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        let caller = Task { await broker.get() }
        await gate.arrivals()
        caller.cancel()
        _ = await caller.value
        async let finished: Void = broker.broker.finish()
        gate.open()
        await finished
        let other = try await BrokerHarness(store: broker.store, time: broker.time)
        #expect(await other.get("policy=local").token == "a2")
    }
}
