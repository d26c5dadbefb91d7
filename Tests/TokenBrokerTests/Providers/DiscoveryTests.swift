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

@Suite struct `Finding a provider by its issuer` {
    private static let tenant = #"{"provider": "oidc", "client_id": "c1", "issuer": "https://op.example/K"}"#
    private static let oauth = "https://op.example/.well-known/oauth-authorization-server/K"
    private static let openID = "https://op.example/K/.well-known/openid-configuration"

    /// A metadata document, with some members in place of the usual ones; an empty value leaves one out.
    private static func metadata(_ changes: [String: String] = [:]) -> ScriptedTransport.Step {
        var members = [
            "issuer": #""https://op.example/K""#, "authorization_endpoint": #""https://op.example/auth""#,
            "token_endpoint": #""https://op.example/token""#,
        ]
        for (name, value) in changes { members[name] = value }
        let text = members.sorted { $0.key < $1.key }.filter { !$0.value.isEmpty }
            .map { "\"\($0.key)\": \($0.value)" }.joined(separator: ", ")
        return .json(200, "{\(text)}")
    }

    private static func begin(_ broker: BrokerHarness, tenant: String = "t1") async -> BrokerHarness.Answer {
        await broker.call(.post, "/login/initialize", tenant: tenant)
    }

    // MARK: Where it is looked for

    @Test func `the metadata is fetched when a login begins and not before`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(Self.metadata())
        let answer = await Self.begin(broker)
        #expect(answer.status == 201)
        #expect(answer.json["login_uri"]?.text?.hasPrefix("https://op.example/auth?response_type=code&") == true)
        let request = try #require(broker.transport.seen.first)
        #expect(broker.transport.seen.count == 1)
        #expect(request.method == .get)
        #expect(request.url == Self.oauth)
        #expect(request.fields["Accept"] == "application/json")
    }

    @Test(arguments: [
        (
            "https://op.example", "https://op.example/.well-known/oauth-authorization-server",
            "https://op.example/.well-known/openid-configuration"
        ),
        (
            "https://op.example/", "https://op.example/.well-known/oauth-authorization-server",
            "https://op.example/.well-known/openid-configuration"
        ),
        (
            "https://op.example:8443/a/b/", "https://op.example:8443/.well-known/oauth-authorization-server/a/b",
            "https://op.example:8443/a/b/.well-known/openid-configuration"
        ),
    ])
    func `RFC 8414's address is asked first, then OpenID's`(
        issuer: String, first: String, second: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "oidc", "client_id": "c1", "issuer": "\#(issuer)"}"#)
        broker.transport.enqueue(.json(404, ""), Self.metadata(["issuer": "\"\(issuer)\""]))
        #expect(await Self.begin(broker).status == 201)
        #expect(broker.transport.seen.map(\.url) == [first, second])
    }

    @Test(arguments: [
        ScriptedTransport.Step.json(200, "<!DOCTYPE html><html></html>", fields: ["Content-Type": "text/html"]),
        .json(404, ""), .json(500, ""), .json(302, "", fields: ["Location": "https://evil.example/"]), .json(200, "{}"),
        .json(200, "[]"), .failure(.connectionLost(requestSent: true)),
        metadata(["issuer": #""https://evil.example""#]), metadata(["token_endpoint": ""]),
    ])
    func `what is no metadata leads on to the second address`(step: ScriptedTransport.Step) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(step, Self.metadata())
        #expect(await Self.begin(broker).status == 201)
        #expect(broker.transport.seen.map(\.url) == [Self.oauth, Self.openID])
    }

    @Test(arguments: [
        ScriptedTransport.Step.json(404, ""), .json(200, "<!DOCTYPE html>"), .json(500, ""),
        metadata(["token_endpoint": ""]),
    ])
    func `what one address lacks is no problem where the other has it`(step: ScriptedTransport.Step) async throws {
        func problems(_ broker: BrokerHarness) -> [String] {
            broker.log.filter { $0.contains("metadata_") && !$0.contains(#""level":"debug""#) }
        }
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(step, Self.metadata())
        #expect(await Self.begin(broker).status == 201)
        #expect(problems(broker).isEmpty)
        // Where neither has it, both are told.
        let other = try await BrokerHarness()
        await other.makeTenant("t1", Self.tenant)
        other.transport.always(step)
        #expect(await Self.begin(other).status >= 400)
        #expect(problems(other).count == 2)
    }

    // MARK: What is not believed

    // H037
    @Test(arguments: [
        "https://evil.example", "https://op.example/K/", "https://OP.example/K", "https://op.example/k",
        "https://op.example", "https://op.example:443/K", "https://op.example/\u{212A}",
    ])
    func `metadata of another issuer is refused`(issuer: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(Self.metadata(["issuer": "\"\(issuer)\""]))
        let answer = await Self.begin(broker)
        #expect(answer.status == 424)
        #expect(answer.code == "illegal_configuration")
        #expect(try await broker.count(.login) == 0)
        #expect(broker.log.contains { $0.contains("metadata_refused") })
    }

    /// Entra's metadata for all of its directories have such an issuer.
    @Test(arguments: [
        ("https://login.microsoftonline.com/{tenantid}/v2.0", "https://login.microsoftonline.com/<tenant id>/v2.0"),
        ("https://{region}.op.example/{realm}", "https://<region>.op.example/<realm>"),
    ])
    func `metadata of a template of issuers tell what the issuer is to be`(template: String, issuer: String)
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(Self.metadata(["issuer": "\"\(template)\""]))
        let answer = await Self.begin(broker)
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        let detail = try #require(answer.json["detail"]?.text)
        #expect(detail.contains("The metadata's issuer is a template, \(template)"))
        #expect(detail.hasSuffix("set issuer to \(issuer)."))
        #expect(detail.contains(Self.openID))
    }

    @Test(arguments: ["https://op.example/{", "https://op.example/}{", "{}", "https://op.example/{a}?b", "{a} <b>"])
    func `metadata of what is no template of issuers are of another issuer`(issuer: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(Self.metadata(["issuer": "\"\(issuer)\""]))
        let detail = await Self.begin(broker).json["detail"]?.text ?? ""
        #expect(detail.contains("another issuer than the tenant's") && !detail.contains(issuer))
    }

    // H067 H073
    @Test(
        arguments: ["authorization_endpoint", "token_endpoint"],
        [
            "", "7", #""http://op.example/x""#, #""https://u@op.example/x""#, #""https://op.example/x#f""#,
            #""https://127.0.0.1/x""#, #""https://10.0.0.1/x""#, #""https://169.254.169.254/x""#, #""https://[::1]/x""#,
            #""https://[::ffff:10.0.0.1]/x""#, #""https://127.1/x""#, #""https://op.example:22/x""#,
            #""file:///etc/passwd""#,
            #""javascript:alert(1)""#, #""/x""#,
        ])
    func `an endpoint that could not be configured cannot be learnt either`(
        name: String, value: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(Self.metadata([name: value]))
        let answer = await Self.begin(broker)
        #expect(answer.status == 424)
        #expect(answer.code == "illegal_configuration")
    }

    @Test func `with insecure providers allowed, plain addresses are learnt too`() async throws {
        let broker = try await BrokerHarness { $0.core.providerTargets = .everything }
        await broker.makeTenant(
            "t1", #"{"provider": "oidc", "client_id": "c1", "issuer": "http://127.0.0.1:9999"}"#)
        broker.transport.enqueue(
            Self.metadata([
                "issuer": #""http://127.0.0.1:9999""#, "authorization_endpoint": #""http://127.0.0.1:9999/auth""#,
                "token_endpoint": #""http://127.0.0.1:9999/token""#,
            ]))
        let login = await broker.beginLogin()
        #expect(login.uri.hasPrefix("http://127.0.0.1:9999/auth?"))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(broker.transport.seen.last?.url == "http://127.0.0.1:9999/token")
    }

    @Test(arguments: ["https://op.example/K?a=1", "https://op.example/K?", "https://op.example/K#f"])
    func `an issuer with a query or a fragment is none`(issuer: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"provider": "oidc", "client_id": "c1", "issuer": "\#(issuer)"}"#)
        #expect(answer.status == 400)
        #expect(answer.json["errors"]?.array?.first?["pointer"]?.string == "/issuer")
    }

    @Test(arguments: ["login_service_base_uri", "auth_service_base_uri"])
    func `a base URI with a query is none`(name: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1", "\#(name)": "https://a.example/v1?x=1"}"#)
        #expect(answer.status == 400)
        #expect(answer.json["errors"]?.array?.first?["pointer"]?.string == "/\(name)")
    }

    // MARK: When it cannot be had

    @Test(arguments: [
        (ScriptedTransport.Step.failure(.connectFailed), 503, "network_error"),
        (.failure(.timedOut(.firstByte, requestSent: true)), 503, "network_error"),
        (.failure(.nameNotFound), 503, "network_error"), (.json(503, ""), 503, "retryable_error"),
        (.json(429, ""), 503, "retryable_error"),
        (.failure(.untrusted(.chain)), 502, "provider_untrusted"),
        (.failure(.forbiddenAddress), 424, "illegal_configuration"),
        (.failure(.insecureTarget), 424, "illegal_configuration"), (.json(404, ""), 424, "illegal_configuration"),
    ])
    func `an issuer that does not answer is told as what it is`(
        step: ScriptedTransport.Step, status: Int, code: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(step)
        let answer = await Self.begin(broker)
        #expect(answer.status == status)
        #expect(answer.code == code)
        #expect((answer.fields["Retry-After"] != nil) == (status == 503))
        #expect(try await broker.count(.login) == 0)
        broker.transport.always(Self.metadata())
        #expect(await Self.begin(broker).status == 201)
    }

    // MARK: How long it is kept

    @Test(arguments: [(3_599_999, 1), (3_600_000, 2)])
    func `metadata is kept for an hour`(milliseconds: Int64, requests: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(Self.metadata())
        for _ in 0..<3 { #expect(await Self.begin(broker).status == 201) }
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(milliseconds))
        for _ in 0..<3 { #expect(await Self.begin(broker).status == 201) }
        #expect(broker.transport.seen.count == requests)
    }

    @Test(arguments: [ScriptedTransport.Step.failure(.connectFailed), .json(500, ""), .json(200, "<html>")])
    func `an issuer that is down leaves its metadata in use and is asked again a minute later`(
        step: ScriptedTransport.Step
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(Self.metadata())
        #expect(await Self.begin(broker).status == 201)
        broker.time.advance(by: .seconds(3600))
        broker.transport.always(step)
        for _ in 0..<3 { #expect(await Self.begin(broker).status == 201) }
        #expect(broker.transport.seen.count == 3)
        broker.time.advance(by: .milliseconds(59_999))
        #expect(await Self.begin(broker).status == 201)
        #expect(broker.transport.seen.count == 3)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.always(Self.metadata(["authorization_endpoint": #""https://op.example/new""#]))
        let login = await broker.beginLogin()
        #expect(login.uri.hasPrefix("https://op.example/new?"))
        #expect(broker.transport.seen.count == 4)
    }

    // MARK: When it hangs

    private static func passed(_ broker: BrokerHarness, since start: MonotonicInstant) -> Duration {
        start.duration(to: broker.time.monotonic)
    }

    @Test func `an issuer that hangs holds a login up for five seconds, and the next ones not at all`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(.hang(broker.time))
        let start = broker.time.monotonic
        for _ in 0..<3 {
            let answer = await Self.begin(broker)
            #expect((answer.status, answer.code, answer.retryAfter) == (503, "network_error", 5))
        }
        #expect(Self.passed(broker, since: start) == .seconds(5))
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(4999))
        #expect(await Self.begin(broker).status == 503)
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.always(Self.metadata())
        #expect(await Self.begin(broker).status == 201)
    }

    /// What the first address takes before it answers that there is nothing, and what is left for the second one.
    @Test(arguments: [(0, 5000), (3000, 2000), (4999, 1), (5000, nil), (6000, nil)] as [(Int, Int?)])
    func `both addresses have five seconds together`(first: Int, left: Int?) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let time = broker.time
        broker.transport.enqueue(
            .decide { _ in
                time.advance(by: .milliseconds(first))
                return .json(404, "")
            })
        broker.transport.always(.hang(time))
        let start = time.monotonic
        _ = await Self.begin(broker)
        #expect(Self.passed(broker, since: start) == .milliseconds(max(first, 5000)))
        let limits: [Duration?] = [.seconds(5)] + (left.map { [.milliseconds($0)] } ?? [])
        #expect(broker.transport.seen.map(\.timeLimit) == limits)
    }

    @Test func `what was known before is used on when the issuer hangs`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(Self.metadata())
        #expect(await Self.begin(broker).status == 201)
        broker.time.advance(by: .seconds(3600))
        broker.transport.always(.hang(broker.time))
        let start = broker.time.monotonic
        for _ in 0..<3 { #expect(await Self.begin(broker).status == 201) }
        #expect(Self.passed(broker, since: start) == .seconds(5))
        broker.time.advance(by: .milliseconds(59_999))
        #expect(await Self.begin(broker).status == 201)
        #expect(broker.transport.seen.count == 2)
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.begin(broker).status == 201)
        #expect(broker.transport.seen.count == 3)
    }

    @Test(arguments: ["policy=local_force_refresh", "", "api_error_sub_status=11003"])
    func `a refresh is held up by an issuer that hangs for five seconds in all`(query: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", Self.tenant.replacing(#""client_id""#, with: #""client_secret": "s1", "client_id""#))
        await broker.set("old", refresh: "r1", lifetime: .zero)
        broker.time.advance(by: .seconds(2))
        broker.transport.always(.hang(broker.time))
        let start = broker.time.monotonic
        let answer = await broker.get(query)
        #expect((answer.status, answer.code) == (503, "network_error"))
        #expect(Self.passed(broker, since: start) <= .seconds(5))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `callers share one request that hangs, and all of them are let go at once`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(.hang(broker.time))
        await withTaskGroup(of: Int.self) { group in
            for _ in 0..<20 { group.addTask { await Self.begin(broker).status } }
            await broker.time.sleepers(of: .seconds(5))
            broker.time.advance(by: .seconds(5))
            for await status in group { #expect(status == 503) }
        }
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `logins that begin at once share one request`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.metadata()))
        let statuses = await withTaskGroup(of: Int.self) { group in
            for _ in 0..<20 { group.addTask { await Self.begin(broker).status } }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(statuses == Array(repeating: 201, count: 20))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `what was learnt without pins serves no tenant that has some`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let pin = "sha256/" + Base64.encode([UInt8](repeating: 7, count: 32))
        await broker.makeTenant(
            "t2",
            #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://op.example/K", "pinned_certificates": ["\#(pin)"]}
            """#)
        broker.transport.always(Self.metadata())
        #expect(await Self.begin(broker, tenant: "t1").status == 201)
        #expect(await Self.begin(broker, tenant: "t2").status == 201)
        #expect(broker.transport.seen.map(\.isPinned) == [false, true])
    }

    // MARK: What is made of it

    @Test func `configured endpoints come before learnt ones, and both leave nothing to learn`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://op.example/K",
             "endpoints": {"token": "https://op.example/mine"}}
            """#)
        broker.transport.enqueue(Self.metadata())
        let login = await broker.beginLogin()
        #expect(login.uri.hasPrefix("https://op.example/auth?"))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(broker.transport.seen.last?.url == "https://op.example/mine")
        await broker.makeTenant(
            "t2",
            #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://other.example",
             "endpoints": {"authorization": "https://other.example/a", "token": "https://other.example/t"}}
            """#)
        let count = broker.transport.seen.count
        #expect(await Self.begin(broker, tenant: "t2").status == 201)
        #expect(broker.transport.seen.count == count)
    }

    @Test(arguments: [
        (#"["client_secret_post"]"#, "", "client_secret_post"),
        (#"["private_key_jwt", "client_secret_post"]"#, "", "client_secret_post"),
        (#"["client_secret_post", "client_secret_basic"]"#, "", "client_secret_post"),
        (#"["private_key_jwt"]"#, "", "client_secret_basic"), ("", "", "client_secret_basic"),
        (#"["client_secret_basic"]"#, "client_secret_post", "client_secret_post"),
    ])
    func `the client shows who it is in a way that the provider takes`(
        supported: String, configured: String, method: String
    ) async throws {
        let broker = try await BrokerHarness()
        let choice = configured.isEmpty ? "" : #", "token_endpoint_auth_method": "\#(configured)""#
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "client_secret": "s1", "issuer": "https://op.example/K"\#(choice)}
            """#)
        broker.transport.enqueue(Self.metadata(["token_endpoint_auth_methods_supported": supported]))
        await broker.logIn(token: BrokerHarness.token("access-1"))
        let request = try #require(broker.transport.seen.last)
        #expect((request.fields["Authorization"] != nil) == (method == "client_secret_basic"))
        #expect((request.form["client_secret"] != nil) == (method == "client_secret_post"))
    }

    // H034
    @Test(arguments: ["", #"["plain"]"#, "[]"])
    func `a provider that does not speak of S256 gets it all the same`(methods: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(Self.metadata(["code_challenge_methods_supported": methods]))
        let parameters = BrokerHarness.parameters(of: await broker.beginLogin().uri)
        #expect(parameters["code_challenge_method"] == "S256")
        #expect(parameters["code_challenge"]?.utf8.count == 43)
    }

    // H036
    @Test func `the endpoints of the moment when the login began redeem the code`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(Self.metadata())
        let login = await broker.beginLogin()
        broker.time.advance(by: .seconds(590))
        await broker.makeTenant("t1", Self.tenant.replacing("op.example/K", with: "new.example"))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(broker.transport.seen.map(\.url) == [Self.oauth, "https://op.example/token"])
    }
}
