import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Reactor
import Testing
import TokenBroker

/// Logins whose parameters the provider gets from the broker (RFC 9126).
@Suite(.timeLimit(.minutes(1))) struct `Pushed authorization requests` {
    private static let endpoint = "https://id.example/par"

    private static func tenant(_ members: String = "", client: String = #""client_id": "c1""#) -> String {
        #"""
        {"provider": "oidc", "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t",
         "pushed_authorization_request": "\#(endpoint)"}, \#(members)\#(client)}
        """#
    }

    private static let required = #""pushed_authorization_requests": "required", "#

    private static func pushed(_ name: String = "r-1", lifetime: Int = 90) -> ScriptedTransport.Step {
        .json(201, #"{"request_uri": "urn:ietf:params:oauth:request_uri:\#(name)", "expires_in": \#(lifetime)}"#)
    }

    private static func granted() -> ScriptedTransport.Step {
        .json(200, BrokerHarness.token("access-1", refresh: "refresh-1"))
    }

    private static func begin(_ broker: BrokerHarness, _ body: String = "{}") async -> BrokerHarness.Answer {
        await broker.call(.post, "/login/initialize", tenant: "t1", body: body)
    }

    /// The parameters of the last request to the endpoint.
    private static func form(_ broker: BrokerHarness) throws -> [String: String] {
        let last = try #require(broker.transport.seen.last { $0.url == endpoint })
        #expect(last.method == .post)
        return last.form
    }

    private static func location(_ answer: BrokerHarness.Answer) -> String { answer.fields["Location"]?.text ?? "" }

    // MARK: What is sent

    @Test func `leave the browser two parameters`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.pushed())
        let answer = await Self.begin(
            broker, #"{"login_config": {"language": "sv", "custom_parameters": {"prompt": "consent"}}}"#)
        #expect(answer.status == 201, "\(answer.text)")
        let uri = try #require(answer.json["login_uri"]?.text)
        #expect(uri.hasPrefix("https://id.example/a?"))
        #expect(
            BrokerHarness.parameters(of: uri) == [
                "client_id": "c1", "request_uri": "urn:ietf:params:oauth:request_uri:r-1",
            ])
        #expect(answer.json["expires_in"]?.integer == 90)
        let form = try Self.form(broker)
        #expect(form["response_type"] == "code")
        #expect(form["redirect_uri"] == "https://broker.example/login/callback")
        #expect(form["client_id"] == "c1")
        #expect(form["code_challenge_method"] == "S256")
        #expect(form["code_challenge"]?.utf8.count == 43)
        #expect(form["prompt"] == "consent")
        let state = try #require(form["state"])
        #expect(!broker.log.joined().contains(state))
        // Its code is redeemed like that of any login.
        broker.transport.enqueue(Self.granted())
        #expect(await broker.callback("code=c-1&state=\(state)").status == 200)
        #expect(await broker.get().token == "access-1")
    }

    @Test(arguments: [
        (#""token_endpoint_auth_method": "client_secret_basic", "client_id_in_body": false, "#, true, false),
        (#""token_endpoint_auth_method": "client_secret_post", "#, false, true),
    ])
    func `show the client as at the token endpoint`(_ members: String, _ isBasic: Bool, _ isPosted: Bool) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", Self.tenant(members, client: #""client_id": "c1", "client_secret": "secret-1""#))
        broker.transport.enqueue(Self.pushed())
        #expect(await Self.begin(broker).status == 201)
        let seen = try #require(broker.transport.seen.last)
        #expect((seen.fields["Authorization"]?.text == "Basic " + Base64.encode(Array("c1:secret-1".utf8))) == isBasic)
        #expect((seen.form["client_secret"] == "secret-1") == isPosted)
        // RFC 9126 §2.1: one of the parameters, and once.
        #expect(seen.parameters.filter { $0.name == "client_id" }.map(\.value) == ["c1"])
    }

    @Test(arguments: [(60, 60), (599, 599), (600, 600), (601, 600), (86_400, 600)])
    func `can be used for as long as the provider keeps them, and as the login lasts`(
        _ lifetime: Int, _ expected: Int
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.pushed(lifetime: lifetime))
        #expect(await Self.begin(broker).json["expires_in"]?.integer == Int64(expected))
    }

    // MARK: Where they must be pushed

    @Test(arguments: [
        (ScriptedTransport.Step.json(400, #"{"error": "invalid_redirect_uri"}"#), 502, "unexpected_error", 1),
        (.json(401, #"{"error": "invalid_client"}"#), 502, "unexpected_error", 1),
        (.json(404, "no"), 502, "unexpected_error", 1), (.json(200, "{}"), 502, "token_response_error", 1),
        (.json(503, "{}"), 503, "retryable_error", 6), (.json(500, "{}"), 503, "retryable_error", 6),
        (.failure(.connectFailed), 503, "network_error", 6),
        (.failure(.connectionLost(requestSent: true)), 503, "network_error", 6),
        (.failure(.untrusted(.pin)), 502, "provider_untrusted", 1),
        (.failure(.insecureTarget), 424, "illegal_configuration", 1),
    ])
    func `let no login begin that was refused`(
        _ step: ScriptedTransport.Step, _ status: Int, _ code: String, _ calls: Int
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.required))
        broker.transport.always(step)
        let answer = await Self.begin(broker)
        #expect((answer.status, answer.code) == (status, code))
        #expect(broker.transport.seen.count == calls)
        if case .json(400, _, _) = step { #expect(answer.json["error_code"]?.text == "invalid_redirect_uri") }
        #expect(try await broker.count(.login) == 0)
    }

    @Test func `are sent again after a failure that passes`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.required))
        broker.transport.enqueue(.json(503, "{}"), .failure(.connectionLost(requestSent: true)), Self.pushed())
        #expect(await Self.begin(broker).status == 201)
        #expect(broker.transport.seen.count == 3)
    }

    @Test func `need an endpoint where they are required`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: "{" + BrokerHarness.oidc + Self.required + #""client_id": "c1"}"#)
        #expect(answer.status == 400)
        #expect(answer.pointers == ["/pushed_authorization_requests"])
    }

    // MARK: Where they need not be pushed

    @Test(arguments: [
        ScriptedTransport.Step.json(400, #"{"error": "invalid_request"}"#), .json(404, "no"), .json(405, "no"),
        .json(401, #"{"error": "invalid_client"}"#), .json(500, "{}"), .json(429, "{}"), .json(200, "{}"),
        .failure(.connectFailed), .failure(.timedOut(.firstByte, requestSent: true)),
    ])
    func `prevent no login by their endpoint's failure`(_ step: ScriptedTransport.Step) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(step)
        let login = await broker.beginLogin()
        #expect(BrokerHarness.parameters(of: login.uri)["redirect_uri"] == "https://broker.example/login/callback")
        #expect(!login.state.isEmpty)
        #expect(broker.transport.seen.count == 1)
        // No further login waits for that endpoint within a minute.
        broker.time.advance(by: .seconds(59))
        #expect(!(await broker.beginLogin()).state.isEmpty)
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .seconds(1))
        broker.transport.enqueue(Self.pushed())
        #expect((await broker.beginLogin()).state.isEmpty)
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `have five seconds there`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.pushed())
        #expect(await Self.begin(broker).status == 201)
        let limit = try #require(broker.transport.seen.last?.timeLimit)
        #expect(limit <= .seconds(5))
    }

    @Test(arguments: [(false, 201), (true, 502)])
    func `are required where the provider's metadata say so`(_ isRequired: Bool, _ status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "provider": "oidc", "issuer": "https://id.example"}"#)
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "https://id.example", "authorization_endpoint": "https://id.example/a",
                 "token_endpoint": "https://id.example/t", "pushed_authorization_request_endpoint": "\#(Self.endpoint)",
                 "require_pushed_authorization_requests": \#(isRequired)}
                """#),
            .json(400, #"{"error": "invalid_request"}"#))
        #expect(await Self.begin(broker).status == status)
        #expect(broker.transport.seen.last?.url == Self.endpoint)
    }

    // MARK: The start address

    @Test func `are pushed anew each time that the start address is opened, at any replica`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(2))
        await one.makeTenant("t1", Self.tenant(Self.required + #""browser_binding": "required", "#))
        let login = await one.beginLogin()
        #expect(login.uri == login.startURI)
        #expect(one.transport.seen.isEmpty)

        one.transport.enqueue(Self.pushed("r-1"))
        let first = await one.start(login)
        #expect(first.status == 303)
        let cookie = try #require(BrokerHarness.cookie(first))
        one.time.advance(by: .seconds(300))
        two.transport.enqueue(Self.pushed("r-2"))
        let second = await two.start(login, cookie: cookie)
        #expect(second.status == 303)
        #expect(
            [first, second].map { BrokerHarness.parameters(of: Self.location($0))["request_uri"] } == [
                "urn:ietf:params:oauth:request_uri:r-1", "urn:ietf:params:oauth:request_uri:r-2",
            ])
        let (sent, again) = (try Self.form(one), try Self.form(two))
        #expect(sent == again)

        one.transport.enqueue(Self.granted())
        let state = try #require(again["state"])
        #expect(await one.callback("code=c-1&state=\(state)", cookie: cookie).status == 200)
    }

    @Test(arguments: [
        (ScriptedTransport.Step.json(400, #"{"error": "invalid_request"}"#), 424), (.json(503, "{}"), 503),
    ])
    func `can be sent once more by the start address after they have failed there`(
        _ step: ScriptedTransport.Step, _ status: Int
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.required + #""browser_binding": "required", "#))
        let login = await broker.beginLogin()
        broker.transport.always(step)
        #expect(await broker.start(login).status == status)
        broker.transport.always(Self.pushed())
        // The browser has no cookie, so that its user is asked.
        let path = BrokerHarness.path(of: login.startURI)
        #expect(await broker.press(at: path).status == 200)
    }

    // MARK: Apps' logins

    @Test func `carry apps' logins as well`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.required))
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "client_secret": "0123456789abcdef"}"#
        )
        broker.transport.enqueue(Self.pushed())
        let begun = await broker.authorize(BrokerHarness.authorization())
        #expect(begun.status == 303)
        #expect(Set(BrokerHarness.parameters(of: Self.location(begun)).keys) == ["client_id", "request_uri"])
        let state = try #require(try Self.form(broker)["state"])
        broker.transport.enqueue(Self.granted())
        let ended = await broker.callback(
            "code=c-1&state=\(state)", cookie: BrokerHarness.cookie(begun), followsToEnd: false)
        #expect(BrokerHarness.parameters(of: Self.location(ended))["code"] != nil)
    }

    @Test func `go with the browser where strangers begin too many logins`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        await broker.makeClient()
        broker.transport.always(Self.pushed())
        for _ in 0..<100 { #expect(await broker.authorize(BrokerHarness.authorization()).status == 303) }
        #expect(broker.transport.seen.count == 100)
        let begun = await broker.authorize(BrokerHarness.authorization())
        #expect(BrokerHarness.parameters(of: Self.location(begun))["redirect_uri"] != nil)
        #expect(broker.transport.seen.count == 100)
        broker.time.advance(by: .seconds(1))
        #expect(await broker.authorize(BrokerHarness.authorization()).status == 303)
        #expect(broker.transport.seen.count == 101)
    }
}
