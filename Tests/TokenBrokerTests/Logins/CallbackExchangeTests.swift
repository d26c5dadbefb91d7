import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Redeeming a code` {
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)
    private static let schedule: [Duration] = [
        .milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8),
    ]

    /// What a login came to: the answer as JSON and its state.
    private static func finish(_ broker: BrokerHarness) async -> (answer: BrokerHarness.Answer, id: String) {
        let login = await broker.beginLogin()
        broker.time.forgetSleeps()
        return (await broker.callback("code=c-1&state=\(login.state)", accept: "application/json"), login.id)
    }

    // MARK: The request

    // T62
    @Test func `TIDAL gets the form of its clients`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "client_unique_key": "k1", "scopes": ["w_usr", "r_usr"]}"#)
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        let request = try #require(broker.transport.seen.first)
        #expect(request.method == .post)
        #expect(request.url == "https://auth.tidal.com/v1/oauth2/token")
        #expect(request.isPinned)
        #expect(request.fields["Content-Type"] == "application/x-www-form-urlencoded")
        #expect(request.fields["Accept"] == "application/json")
        #expect(request.fields["Authorization"] == nil)
        let verifier = try #require(request.form["code_verifier"])
        #expect(
            request.form == [
                "grant_type": "authorization_code", "code": "c-1", "code_verifier": verifier, "client_id": "c1",
                "redirect_uri": "https://broker.example/login/callback", "scope": "r_usr w_usr",
                "client_unique_key": "k1",
            ])
        #expect(verifier.utf8.count == 43)
        let challenge = BrokerHarness.parameters(of: login.uri)["code_challenge"]
        #expect(Base64URL.encode(SHA256.digest(Array(verifier.utf8))) == challenge)
        #expect(!broker.log.joined().contains(verifier))
    }

    // T62
    @Test func `what is not configured is not sent`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1", "scopes": ["r_usr"]}"#)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await Self.finish(broker).answer.status == 200)
        let request = try #require(broker.transport.seen.first)
        #expect(request.form["client_unique_key"] == nil)
        #expect(request.form["client_secret"] == "s1")
    }

    @Test func `an OpenID provider gets RFC 6749's form and HTTP Basic`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c:1", "client_secret": "s%1", "client_unique_key": "k1", "scopes": ["openid"],
             "endpoints": {"authorization": "https://op.example/auth", "token": "https://op.example/token"}}
            """#)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await Self.finish(broker).answer.status == 200)
        let request = try #require(broker.transport.seen.first)
        #expect(request.url == "https://op.example/token")
        #expect(!request.isPinned)
        #expect(request.fields.values("Authorization") == ["Basic " + Base64.encode(Array("c%3A1:s%251".utf8))])
        let verifier = try #require(request.form["code_verifier"])
        #expect(
            request.form == [
                "grant_type": "authorization_code", "code": "c-1", "code_verifier": verifier,
                "redirect_uri": "https://broker.example/login/callback", "client_id": "c:1",
            ])
    }

    @Test func `a public client names itself in the form`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1",
             "endpoints": {"authorization": "https://op.example/auth", "token": "https://op.example/token"}}
            """#)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await Self.finish(broker).answer.status == 200)
        let request = try #require(broker.transport.seen.first)
        #expect(request.fields["Authorization"] == nil)
        #expect(request.form["client_id"] == "c1")
    }

    // MARK: Refusals

    // T11 T57 T63
    @Test(arguments: [
        (400, "invalid_grant"), (400, "invalid_request"), (400, "unauthorized_client"), (401, "invalid_client"),
        (401, "invalid_grant"), (403, "access_denied"), (404, "not_found"), (408, "timeout"), (499, "x"),
    ])
    func `a 4xx is an unexpected error after one call`(status: Int, error: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.always(.json(status, #"{"error": "\#(error)", "sub_status": 11001}"#))
        let (answer, id) = await Self.finish(broker)
        #expect(answer.status == 502)
        #expect(answer.code == "unexpected_error")
        #expect(answer.json["error_code"]?.string == error)
        #expect(broker.transport.seen.count == 1)
        #expect(broker.time.slept.isEmpty)
        let progress = await broker.progress(id).json
        #expect(progress["status"]?.string == "failed")
        #expect(progress["error"]?.string == "unexpected_error")
    }

    @Test(arguments: ["", "<html>", #"{"error": "<script>alert(1)</script>"}"#, #"{"error": 7}"#, "[]"])
    func `an error without a name is not given one`(body: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.enqueue(.json(400, body))
        let (answer, _) = await Self.finish(broker)
        #expect(answer.code == "unexpected_error")
        #expect(answer.json["error_code"] == nil)
        #expect(!answer.text.contains("script"))
    }

    // MARK: Trying again

    // T10 T12 T57 T63 T76
    @Test(arguments: [500, 502, 503, 599])
    func `a 5xx is tried five times more`(status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.always(.json(status, #"{"error": "server_error"}"#))
        let (answer, id) = await Self.finish(broker)
        #expect(answer.status == 503)
        #expect(answer.code == "retryable_error")
        #expect(answer.json["error_code"]?.string == "server_error")
        #expect(answer.fields["Retry-After"] == "5")
        #expect(answer.json["retry_after"]?.integer == 5)
        #expect(broker.transport.seen.count == 6)
        #expect(Set(broker.transport.seen.map(\.form)).count == 1)
        #expect(broker.time.slept == Self.schedule)
        #expect(await broker.progress(id).json["error"]?.string == "retryable_error")
    }

    @Test func `a provider that recovers has its answer taken`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.enqueue(
            .json(503, ""), .json(500, ""), .json(429, ""), .failure(.connectFailed), .json(502, ""),
            .json(200, Self.granted))
        #expect(await Self.finish(broker).answer.status == 200)
        #expect(broker.time.slept == Self.schedule)
        #expect(await broker.token() == "access-1")
    }

    @Test(arguments: [
        ("0", schedule), ("1", [.seconds(1), .seconds(1), .seconds(2), .seconds(4), .seconds(8)]),
        ("3", [.seconds(3), .seconds(3), .seconds(3), .seconds(4), .seconds(8)]),
        ("5", [.seconds(5), .seconds(5), .seconds(5), .seconds(5), .seconds(8)]),
        // For half a minute in all.
        ("6", [.seconds(6), .seconds(6), .seconds(6), .seconds(6)]),
        ("10", [.seconds(10), .seconds(10), .seconds(10)]),
        ("30", [.seconds(30)]), ("31", []), ("soon", schedule),
    ])
    func `a 429 is tried again no sooner than it says`(retryAfter: String, sleeps: [Duration]) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.always(.json(429, #"{"error": "slow"}"#, fields: ["Retry-After": retryAfter]))
        let (answer, _) = await Self.finish(broker)
        #expect(answer.status == 503)
        #expect(answer.code == "retryable_error")
        #expect(answer.fields["Retry-After"] != nil)
        if sleeps.isEmpty { #expect(answer.fields["Retry-After"] == "31") }
        #expect(broker.time.slept == sleeps)
        #expect(broker.transport.seen.count == sleeps.count + 1)
    }

    // T13
    @Test(arguments: [
        TransportError.connectFailed, .tlsFailed, .nameNotFound, .nameResolutionFailed,
        .timedOut(.connect, requestSent: false), .timedOut(.sendRequest, requestSent: false),
        .connectionLost(requestSent: false),
    ])
    func `a connection lost before the request was sent is made again`(error: TransportError) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.enqueue(.failure(error), .json(200, Self.granted))
        #expect(await Self.finish(broker).answer.status == 200)
        #expect(broker.transport.seen.count == 2)
        broker.transport.always(.failure(error))
        let (answer, id) = await Self.finish(broker)
        #expect(answer.status == 503)
        #expect(answer.code == "network_error")
        #expect(answer.fields["Retry-After"] != nil)
        #expect(broker.transport.seen.count == 8)
        #expect(broker.time.slept == Self.schedule)
        #expect(await broker.progress(id).json["error"]?.string == "network_error")
    }

    // T13 H097
    @Test(arguments: [
        TransportError.connectionLost(requestSent: true), .timedOut(.firstByte, requestSent: true),
        .timedOut(.response, requestSent: true),
    ])
    func `a connection lost after it is the end, since the code may be spent`(error: TransportError) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.always(.failure(error))
        let (answer, _) = await Self.finish(broker)
        #expect(answer.status == 503)
        #expect(answer.code == "network_error")
        #expect(answer.fields["Retry-After"] != nil)
        #expect(broker.transport.seen.count == 1)
        #expect(broker.time.slept.isEmpty)
    }

    @Test(arguments: [
        (TransportError.untrusted(.chain), 502, "provider_untrusted"), (.untrusted(.pin), 502, "provider_untrusted"),
        (.untrusted(.hostName), 502, "provider_untrusted"), (.forbiddenAddress, 424, "illegal_configuration"),
        (.insecureTarget, 424, "illegal_configuration"), (.malformedResponse, 502, "token_response_error"),
        (.responseTooLarge, 502, "token_response_error"),
    ])
    func `what a repetition cannot mend is not repeated`(
        error: TransportError, status: Int, code: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.always(.failure(error))
        let (answer, _) = await Self.finish(broker)
        #expect(answer.status == status)
        #expect(answer.code == code)
        #expect(broker.transport.seen.count == 1)
    }

    // H096
    @Test(arguments: [
        (200, ""), (200, "{}"), (200, "[]"), (200, "<html></html>"), (200, #"{"access_token": ""}"#),
        (200, #"{"access_token": 7}"#), (200, #"{"access_token": "a b"}"#),
        (200, #"{"access_token": "a", "token_type": "mac"}"#), (200, #"{"access_token": "a", "refresh_token": 5}"#),
        (204, ""), (201, "{}"), (302, ""), (200, #"{"error": null}"#),
    ])
    func `an answer without a usable token is a token response error`(status: Int, body: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.always(.json(status, body))
        let (answer, id) = await Self.finish(broker)
        #expect(answer.status == 502)
        #expect(answer.code == "token_response_error")
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.progress(id).json["error"]?.string == "token_response_error")
    }

    @Test(arguments: [
        ("https://new.example/token?a=b", " to https://new.example"), ("/v2/token", ""),
        ("https://new.example/\u{1}", ""), (nil, ""),
    ])
    func `an endpoint that redirects is told of, with what to set`(location: String?, target: String) async throws {
        let fields: Fields = location.map { ["Location": $0] } ?? [:]
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        broker.transport.always(.json(307, "", fields: fields))
        let words =
            "answered with status 307, a redirect\(target), and the broker follows none: name in endpoints.token"
        let (answer, _) = await Self.finish(broker)
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        #expect(answer.json["detail"]?.text?.contains(words) == true, "\(answer.text)")
        await broker.set("a1", refresh: "r1")
        let refresh = await broker.get("policy=local_force_refresh")
        #expect((refresh.status, refresh.code) == (502, "token_response_error"))
        #expect(refresh.json["detail"]?.text?.contains(words) == true, "\(refresh.text)")
        #expect(broker.transport.seen.count == 2)
    }

    // H096
    @Test(arguments: [
        ScriptedTransport.Step.json(400, #"{"error": "invalid_grant"}"#), .json(200, "{}"), .json(500, ""),
        .failure(.connectionLost(requestSent: true)),
    ])
    func `a failed login leaves what is stored as it was`(step: ScriptedTransport.Step) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn(token: Self.granted)
        broker.transport.always(step)
        let (answer, _) = await Self.finish(broker)
        #expect(answer.status >= 500)
        #expect(await broker.token() == "access-1")
        broker.transport.always(nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2")))
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.token() == "access-2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "refresh-1")
    }

    // MARK: The answer

    @Test func `an answer that names little is completed by what was asked for`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["w_usr", "r_usr"]}"#)
        broker.transport.enqueue(.json(200, #"{"access_token": "access-1"}"#))
        #expect(await Self.finish(broker).answer.status == 200)
        let answer = await broker.call(.get, "/credentials", tenant: "t1").json
        #expect(answer["level"]?.string == "user")
        #expect(answer["granted_scopes"]?.array?.compactMap(\.text) == ["r_usr", "w_usr"])
        // Nothing can renew it, so that it is good until it is refused.
        #expect(answer["expires_in"] == .null)
        #expect(answer["user_id"] == .null)
    }
}
