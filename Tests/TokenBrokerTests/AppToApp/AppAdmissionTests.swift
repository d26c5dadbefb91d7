import AuthTesting
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

@Suite struct `Letting other apps in` {
    static let token = "https://op.example/oauth2/token"
    static let challenge = "https://op.example/oauth2/challenge"
    static let link =
        "https://a.example/authorize?client_id=b&redirect_uri=https%3A%2F%2Fb.example%2Fredirect%3Fold%3D1&code_challenge=ch&state=s1"

    private static func configuration(_ app2app: String = #"{"enabled": true}"#) -> String {
        """
        {"provider": "authgear", "client_id": "c1", "scopes": ["offline_access"], "endpoints": {"authorization": \
        "https://op.example/oauth2/authorize", "token": "\(token)", "challenge": "\(challenge)"}, "app2app": \(app2app)}
        """
    }

    private static func prepare(
        _ broker: BrokerHarness, _ app2app: String = #"{"enabled": true}"#
    ) async {
        await broker.makeTenant("t1", configuration(app2app))
        broker.transport.standing(
            at: challenge, .json(200, #"{"result":{"token":"CH1","expire_at":"2026-11-25T00:00:00Z"}}"#))
    }

    private static func broker(_ app2app: String = #"{"enabled": true}"#) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await prepare(broker, app2app)
        return broker
    }

    private static func approve(
        _ broker: BrokerHarness, _ members: String = "", link: String = link
    ) async -> BrokerHarness.Answer {
        await broker.call(.post, "/app2app/approve", tenant: "t1", body: #"{"uri": "\#(link)"\#(members)}"#)
    }

    private static func events(_ broker: BrokerHarness) async throws -> [String] {
        try await broker.events().map(\.kind.rawValue).filter { $0.hasPrefix("app2app") }
    }

    private static func claims(_ jwt: String?) throws -> JSONValue {
        let jwt = try #require(jwt)
        return .object(try #require(JSONWebToken.payload(of: WireText(jwt))))
    }

    private static func key(_ jwt: String?) throws -> JSONValue {
        let parts = JSONWebToken.parts(of: SecretBytes(utf8: try #require(jwt)))
        return try #require(parts?.header["jwk"])
    }

    // MARK: Logging in

    // L01
    @Test func `each login binds a key of its own, with which its session lets an app in`() async throws {
        let broker = try await Self.broker()
        var keys: [JSONValue] = []
        for number in 1...2 {
            await broker.logIn(token: BrokerHarness.token("access-\(number)", refresh: "refresh-\(number)"))
            let jwt = broker.transport.seen.last?.form["x_app2app_device_key_jwt"]
            #expect(try Self.claims(jwt)["challenge"]?.string == "CH1")
            keys.append(try Self.key(jwt))
        }
        #expect(keys[0] != keys[1])
        let asked = try #require(broker.transport.standingSeen.first)
        #expect(asked.method == .post && asked.fields["Content-Type"] == "application/json")

        broker.transport.enqueue(.json(200, #"{"code":"code-1"}"#))
        let answer = await Self.approve(broker)
        #expect(answer.status == 200 && answer.json["outcome"]?.text == "approved")
        #expect(answer.json["redirect_uri"]?.text == "https://b.example/redirect?code=code-1&state=s1")
        let form = try #require(broker.transport.seen.last?.form)
        #expect(form["grant_type"] == "urn:authgear:params:oauth:grant-type:app2app-request")
        #expect(form["client_id"] == "b" && form["refresh_token"] == "refresh-2")
        #expect(form["redirect_uri"] == "https://b.example/redirect?old=1")
        #expect(form["code_challenge"] == "ch" && form["code_challenge_method"] == "S256" && form.count == 7)
        #expect(try Self.key(form["jwt"]) == keys[1])
        #expect(try await Self.events(broker) == ["app2app.approved"])
        #expect(broker.transport.standingSeen.count == 3)
        // Nothing of it is in an answer or in the log.
        #expect(!broker.log.contains { $0.contains("PRIVATE") || $0.contains("refresh-2") || $0.contains("code-1") })
    }

    // L07
    @Test func `a login without app2app sends no key, and its session lets no app in`() async throws {
        let broker = try await Self.broker(#"{"enabled": false}"#)
        await broker.logIn()
        #expect(broker.transport.seen.last?.form["x_app2app_device_key_jwt"] == nil)
        #expect(await Self.approve(broker).code == "unauthenticated")
        #expect(await Self.approve(broker).status == 424)
        #expect(broker.transport.standingSeen.isEmpty && broker.transport.seen.count == 1)
    }

    // L07
    @Test func `where nothing is stored, or no refresh token, no app is let in`() async throws {
        let broker = try await Self.broker()
        #expect(await Self.approve(broker).code == "unauthenticated")
        await broker.logIn(token: BrokerHarness.token("access-1"))
        #expect(await Self.approve(broker).code == "unauthenticated")
        #expect(await Self.approve(broker, #", "storage_key": "other""#).code == "unauthenticated")
    }

    // L03
    @Test(arguments: [
        (ScriptedTransport.Step.failure(.connectFailed), "network_error"),
        (.json(503, ""), "retryable_error"), (.json(429, ""), "retryable_error"), (.json(200, "{}"), "network_error"),
        (.json(404, ""), "illegal_configuration"),
    ])
    func `without a challenge the code is not spent, and the login can be finished later`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let time = ManualTime(skipsSleeps: true)
        let broker = try await BrokerHarness(time: time)
        await Self.prepare(broker)
        let login = await broker.beginLogin()
        broker.transport.standing(at: Self.challenge, step)
        let answer = await broker.call(
            .get, "/login/callback?code=c-1&state=\(login.state)", key: nil, fields: ["Accept": "application/json"])
        #expect(answer.code == code)
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.progress(login.id).json["status"]?.text == "pending")
        broker.transport.standing(at: Self.challenge, .json(200, #"{"result":{"token":"CH2"}}"#))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1")))
        let later = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(later.status == 200)
        #expect(await broker.token() == "access-1")
    }

    // L03
    @Test func `a code exchange that is tried again brings a new challenge`() async throws {
        let time = ManualTime(skipsSleeps: true)
        let broker = try await BrokerHarness(time: time)
        await Self.prepare(broker)
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(503, ""), .json(200, BrokerHarness.token("access-1", refresh: "r")))
        #expect(await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil).status == 200)
        #expect(broker.transport.seen.count == 2 && broker.transport.standingSeen.count == 2)
    }

    // MARK: Beginning at another app

    // L04
    @Test func `a login begins at another app that is listed`() async throws {
        let other = "https://a.example/authorize"
        let broker = try await Self.broker(#"{"enabled": true, "authorization_endpoints": ["\#(other)"]}"#)
        let login = await broker.beginLogin(body: #"{"app2app": {"authorization_endpoint": "\#(other)"}}"#)
        #expect(login.uri.hasPrefix(other + "?"))
        let parameters = BrokerHarness.parameters(of: login.uri)
        #expect(
            Set(parameters.keys) == ["client_id", "redirect_uri", "code_challenge", "code_challenge_method", "state"])
        #expect(parameters["client_id"] == "c1" && parameters["code_challenge_method"] == "S256")
        #expect(parameters["redirect_uri"] == "https://broker.example/login/callback")
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1")))
        #expect(await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil).status == 200)
        let form = try #require(broker.transport.seen.last?.form)
        let verifier = try #require(form["code_verifier"])
        #expect(Base64URL.encode(SHA256.digest(Array(verifier.utf8))) == parameters["code_challenge"])
        #expect(form["x_app2app_device_key_jwt"] != nil)

        for body in [
            #"{"app2app": {"authorization_endpoint": "https://a.example/authorize/"}}"#,
            #"{"app2app": {"authorization_endpoint": "\#(other)"}, "login_config": {"language": "en"}}"#,
        ] {
            let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: body)
            #expect(answer.status == 422 && answer.code == "illegal_argument")
        }
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: #"{"app2app": {}}"#)
        #expect(answer.status == 400 && answer.pointers == ["/app2app/authorization_endpoint"])
    }

    @Test(arguments: ["false", "false, \"insecure_device_key_binding\": true"])
    func `no login begins at another app while app2app is not enabled`(_ members: String) async throws {
        let other = "https://a.example/authorize"
        let broker = try await Self.broker(#"{"enabled": \#(members), "authorization_endpoints": ["\#(other)"]}"#)
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1", body: #"{"app2app": {"authorization_endpoint": "\#(other)"}}"#)
        #expect((answer.status, answer.code) == (422, "illegal_argument"), "\(answer.text)")
        #expect(answer.text.contains("not enabled"))
        #expect(try await broker.count(.login) == 0)
    }

    // MARK: The tenant's configuration

    @Test(arguments: [
        (#"{"client_id": "c", "app2app": {"enabled": true}}"#, ["/app2app"]),
        (#"{"client_id": "c", "endpoints": {"challenge": "https://op.example/c"}}"#, ["/endpoints/challenge"]),
        (
            #"{"provider": "authgear", "client_id": "c", "issuer": "https://op.example", "app2app": {"authorization_endpoints": ["http://a.example"], "x": 1}}"#,
            ["/app2app/authorization_endpoints/0", "/app2app/x"]
        ),
        (
            #"{"provider": "authgear", "client_id": "c", "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t"}, "app2app": {"enabled": true}}"#,
            ["/app2app"]
        ),
        (
            #"{"provider": "authgear", "client_id": "c", "issuer": "https://op.example", "app2app": {"enabled": true}}"#,
            []
        ),
    ])
    func `app2app is for providers that have it, with addresses that can be used`(
        body: String, pointers: [String]
    ) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t9", body: body)
        #expect(answer.pointers == pointers)
        #expect(answer.status == (pointers.isEmpty ? 201 : 400))
        if pointers.isEmpty {
            let shown = await broker.call(.get, "/tenants/t9").json
            #expect(shown["app2app"]?["enabled"]?.bool == true)
            #expect(shown["scopes"]?.array?.count == 3)
        }
    }

    // L19
    @Test(arguments: ["https://op.example/realm", "https://op.example/realm/"])
    func `the challenge comes from below the issuer unless an address is configured`(issuer: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"provider": "authgear", "client_id": "c1", "scopes": ["offline_access"], "issuer": "\#(issuer)", "app2app": {"enabled": true}}"#
        )
        broker.transport.always(
            .json(
                200,
                #"{"issuer": "\#(issuer)", "authorization_endpoint": "https://op.example/a", "token_endpoint": "\#(Self.token)"}"#
            ))
        let login = await broker.beginLogin()
        let address = "https://op.example/realm/oauth2/challenge"
        broker.transport.standing(at: address, .json(200, #"{"result":{"token":"CH1"}}"#))
        broker.transport.always(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1")))
        #expect(await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil).status == 200)
        #expect(broker.transport.standingSeen.map(\.url) == [address])
    }

    // MARK: Requests of other apps

    // L05
    @Test func `a request is shown, and what is none is refused everywhere`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(.post, "/app2app/requests", tenant: "t1", body: #"{"uri": "\#(Self.link)"}"#)
        #expect(answer.status == 200)
        #expect(answer.json["client_id"]?.text == "b" && answer.json["state"]?.text == "s1")
        #expect(answer.json["redirect_uri"]?.text == "https://b.example/redirect?old=1")
        #expect(answer.json["code_challenge"]?.text == "ch")
        for path in ["requests", "approve", "reject"] {
            let answer = await broker.call(
                .post, "/app2app/\(path)", tenant: "t1", body: #"{"uri": "https://a.example/authorize?client_id=b"}"#)
            #expect(answer.status == 422 && answer.code == "illegal_argument")
        }
    }

    // L10
    @Test func `a rejection is told in the link and in an event`() async throws {
        let broker = try await Self.broker()
        for (members, query) in [
            ("", "error=x_app2app_rejected"),
            (
                #", "error": "access_denied", "error_description": "not now""#,
                "error=access_denied&error_description=not%20now"
            ),
        ] {
            let answer = await broker.call(
                .post, "/app2app/reject", tenant: "t1", body: #"{"uri": "\#(Self.link)"\#(members)}"#)
            #expect(answer.json["redirect_uri"]?.text == "https://b.example/redirect?\(query)&state=s1")
        }
        #expect(try await Self.events(broker) == ["app2app.rejected", "app2app.rejected"])
        let answer = await broker.call(
            .post, "/app2app/reject", tenant: "t1", body: #"{"uri": "\#(Self.link)", "error": "a b"}"#)
        #expect(answer.pointers == ["/error"])
    }

    @Test func `a key for other storage keys lets no app in`() async throws {
        let broker = try await Self.broker()
        await broker.logIn()
        let key = await broker.makeKey(
            "t1", #"{"name": "k", "permissions": ["login"], "storage_keys": ["other"]}"#)
        for path in ["approve", "reject"] {
            let answer = await broker.call(
                .post, "/app2app/\(path)", key: key, body: #"{"uri": "\#(Self.link)"}"#)
            #expect(answer.status == 403)
        }
        let reader = await broker.makeKey("t1", #"{"name": "r", "permissions": ["credentials:read"]}"#)
        for path in ["requests", "approve", "reject"] {
            #expect(
                await broker.call(.post, "/app2app/\(path)", key: reader, body: #"{"uri": "\#(Self.link)"}"#).status
                    == 403)
        }
    }

    // MARK: The provider's answers

    // L09
    @Test(arguments: [
        (
            400, #"{"error":"invalid_request","error_description":"redirect URI is not allowed"}"#,
            "error=invalid_request&error_description=redirect%20URI%20is%20not%20allowed"
        ),
        (401, #"{"error":"invalid_client"}"#, "error=invalid_client"), (400, "<html>", "error=unknown_error"),
        (
            400, #"{"error":"invalid_grant","error_description":"refresh-1 refresh-1 refresh-1"}"#,
            "error=invalid_grant&error_description=refresh-1%20refresh-1%20refresh-1"
        ),
    ])
    func `a refusal goes to the other app, and the session stays`(
        status: Int, body: String, query: String
    ) async throws {
        let broker = try await Self.broker()
        await broker.logIn(token: BrokerHarness.token("access-1", refresh: "the-refresh-token-of-this-session"))
        broker.transport.enqueue(.json(status, body))
        let answer = await Self.approve(broker)
        #expect(answer.status == 200 && answer.json["outcome"]?.text == "refused")
        #expect(answer.json["redirect_uri"]?.text == "https://b.example/redirect?\(query)&state=s1")
        #expect(try await Self.events(broker) == ["app2app.rejected"])
        #expect(await broker.token() == "access-1")
    }

    @Test func `a refusal that repeats the refresh token is told without it`() async throws {
        let broker = try await Self.broker()
        await broker.logIn(token: BrokerHarness.token("access-1", refresh: "the-refresh-token-of-this-session"))
        broker.transport.enqueue(
            .json(
                400,
                #"{"error":"the-refresh-token-of-this-session","error_description":"the-refresh-token-of-this-session"}"#
            ))
        let answer = await Self.approve(broker)
        #expect(answer.json["redirect_uri"]?.text == "https://b.example/redirect?error=withheld&state=s1")
    }

    // L11
    @Test(arguments: [
        (ScriptedTransport.Step.json(503, ""), 503, "retryable_error"),
        (.json(429, "", fields: ["Retry-After": "7"]), 503, "retryable_error"),
        (.failure(.connectionLost(requestSent: true)), 503, "network_error"),
        (.json(200, "{}"), 502, "token_response_error"),
    ])
    func `where the provider has not decided, the call can be made again`(
        step: ScriptedTransport.Step, status: Int, code: String
    ) async throws {
        let broker = try await Self.broker()
        await broker.logIn()
        broker.transport.enqueue(step)
        let answer = await Self.approve(broker)
        #expect(answer.status == status && answer.code == code)
        #expect(try await Self.events(broker).isEmpty)
        broker.time.advance(by: .seconds(7))
        broker.transport.enqueue(.json(200, #"{"code":"code-1"}"#))
        #expect(await Self.approve(broker).json["outcome"]?.text == "approved")
    }

    // MARK: Binding a key later

    // L12
    @Test func `a session without a key gets one where the tenant says so, and keeps it`() async throws {
        let broker = try await Self.broker(#"{"enabled": false, "insecure_device_key_binding": true}"#)
        await broker.logIn()
        // The provider may have bound the key although its answer was lost, so that the same key is tried again.
        broker.transport.enqueue(.failure(.connectionLost(requestSent: true)), .json(200, #"{"code":"code-1"}"#))
        #expect(await Self.approve(broker).code == "network_error")
        let first = try Self.key(broker.transport.seen.last?.form["jwt"])
        #expect(await Self.approve(broker).json["outcome"]?.text == "approved")
        #expect(try Self.key(broker.transport.seen.last?.form["jwt"]) == first)

        // A key that is bound is used without the permission, after a refresh, too.
        await broker.makeTenant("t1", Self.configuration(#"{"enabled": true}"#))
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("access-2", refresh: "refresh-2")), .json(200, #"{"code":"code-2"}"#))
        #expect(await broker.get("policy=local_force_refresh").token == "access-2")
        #expect(await Self.approve(broker).json["outcome"]?.text == "approved")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "refresh-2")
        #expect(try Self.key(broker.transport.seen.last?.form["jwt"]) == first)
        #expect(try await Self.events(broker) == ["app2app.approved", "app2app.approved"])
    }

    // L12
    @Test func `a key that the provider has not accepted is not used without the permission`() async throws {
        let broker = try await Self.broker(#"{"insecure_device_key_binding": true}"#)
        await broker.logIn()
        broker.transport.enqueue(
            .json(400, #"{"error":"invalid_grant","error_description":"app2app is not allowed in current session"}"#))
        #expect(await Self.approve(broker).json["outcome"]?.text == "refused")
        await broker.makeTenant("t1", Self.configuration(#"{"enabled": true}"#))
        #expect(await Self.approve(broker).code == "unauthenticated")
    }

    // MARK: Several replicas

    // L13
    @Test func `a refresh at another replica waits for an approval, and an approval for a refresh`() async throws {
        let (one, two) = try await BrokerHarness.replicas(
            cacheValidity: .seconds(5), time: ManualTime(skipsSleeps: false))
        await Self.prepare(one)
        await Self.prepare(two)
        await one.logIn(token: BrokerHarness.token("access-1", refresh: "refresh-1"))

        let gate = Gate()
        one.transport.enqueue(.after(gate, .json(200, #"{"code":"code-1"}"#)))
        async let approval = Self.approve(one)
        await gate.arrivals()
        two.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        async let refresh = two.get("policy=local_force_refresh")
        await two.time.sleepers(of: .seconds(1))
        #expect(two.transport.seen.isEmpty)
        gate.open()
        #expect(await approval.json["outcome"]?.text == "approved")
        two.time.advance(by: .seconds(1))
        #expect(await refresh.token == "access-2")

        let second = Gate()
        two.transport.enqueue(.after(second, .json(200, BrokerHarness.token("access-3", refresh: "refresh-3"))))
        async let later = two.get("policy=local_force_refresh")
        await second.arrivals()
        let asked = one.transport.seen.count
        one.transport.enqueue(.json(200, #"{"code":"code-2"}"#))
        async let next = Self.approve(one)
        await one.time.sleepers(of: .seconds(1))
        #expect(one.transport.seen.count == asked)
        second.open()
        #expect(await later.token == "access-3")
        one.time.advance(by: .seconds(1))
        #expect(await next.json["outcome"]?.text == "approved")
        #expect(one.transport.seen.last?.form["refresh_token"] == "refresh-3")
    }

    /// The replica that approves is held up, so that its lease runs out, as when it has died.
    // L14
    @Test func `a replica that ends during an approval holds up no refresh, and loses no key`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(5), time: time)
        let later = #"{"insecure_device_key_binding": true}"#
        await Self.prepare(one, later)
        await Self.prepare(two, later)
        await one.logIn(token: BrokerHarness.token("access-1", refresh: "refresh-1"))
        let gate = Gate()
        one.transport.enqueue(.after(gate, .json(200, #"{"code":"code-1"}"#)))
        async let approval = Self.approve(one)
        await gate.arrivals()
        let sent = try Self.key(one.transport.seen.last?.form["jwt"])
        time.holdTicks()
        time.advance(by: .seconds(60))

        two.transport.enqueue(
            .json(200, BrokerHarness.token("access-2", refresh: "refresh-2")), .json(200, #"{"code":"code-2"}"#))
        #expect(await two.get("policy=local_force_refresh").token == "access-2")
        #expect(await Self.approve(two).json["outcome"]?.text == "approved")
        #expect(two.transport.seen.last?.form["refresh_token"] == "refresh-2")
        // The provider may have bound the key that the first replica sent.
        #expect(try Self.key(two.transport.seen.last?.form["jwt"]) == sent)

        gate.open()
        #expect(await approval.json["outcome"]?.text == "approved")
        #expect(await two.token() == "access-2")
        #expect(try await Self.events(two) == ["app2app.approved", "app2app.approved"])
    }

    // L13
    @Test func `approvals in one process take turns`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await Self.prepare(broker)
        await broker.logIn()
        broker.transport.always(.json(200, #"{"code":"code-1"}"#))
        let outcomes = await withTaskGroup(of: String?.self) { group in
            for _ in 1...8 { group.addTask { await Self.approve(broker).json["outcome"]?.text } }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(outcomes == Array(repeating: "approved", count: 8))
        #expect(try await Self.events(broker).count == 8)
    }

    // MARK: Whose link it is

    private static let fingerprint = Array(repeating: "AB", count: 32).joined(separator: ":")
    private static let assetLinks = "https://b.example/.well-known/assetlinks.json"
    private static let appleLinks = "https://b.example/.well-known/apple-app-site-association"
    private static let statement = """
        [{"relation": ["delegate_permission/common.handle_all_urls"], "target": {"namespace": "android_app", \
        "package_name": "com.example.b", "sha256_cert_fingerprints": ["\(fingerprint)"]}}]
        """
    private static let android =
        #", "verify_app_link": {"package_name": "com.example.b", "sha256_cert_fingerprint": "\#(fingerprint)"}"#
    private static let apple = #", "verify_app_link": {"apple_app_id": "T.b"}"#

    // L08
    @Test(arguments: [
        (android, assetLinks, ScriptedTransport.Step.json(200, statement), true),
        (android, assetLinks, .json(200, "[]"), false), (android, assetLinks, .json(200, "{"), false),
        (android, assetLinks, .json(301, statement), false), (android, assetLinks, .failure(.connectFailed), false),
        (
            apple, appleLinks,
            .json(200, #"{"applinks": {"details": [{"appIDs": ["T.b"], "components": [{"/": "/redirect"}]}]}}"#), true
        ),
        (apple, appleLinks, .json(200, #"{"applinks": {"details": [{"appID": "T.b", "paths": ["/x"]}]}}"#), false),
    ])
    func `a code is asked for only where the link belongs to the app`(
        members: String, address: String, step: ScriptedTransport.Step, isAllowed: Bool
    ) async throws {
        let broker = try await Self.broker()
        await broker.logIn()
        broker.transport.standing(at: address, step)
        broker.transport.enqueue(.json(200, #"{"code":"code-1"}"#))
        let answer = await Self.approve(broker, members)
        #expect(answer.status == (isAllowed ? 200 : 422))
        #expect(answer.code == (isAllowed ? nil : "illegal_argument"))
        let asked = try #require(broker.transport.standingSeen.last { $0.url == address })
        #expect(asked.method == .get && asked.timeLimit == .seconds(5))
        #expect(asked.avoidsListedNetworks)
        #expect(broker.transport.seen.count == (isAllowed ? 2 : 1))
        #expect(broker.transport.standingSeen.count == (isAllowed ? 3 : 2))
    }

    // L18
    @Test(arguments: [
        ("max-age=60", 59, 1), ("max-age=60", 60, 2), ("public, MAX-AGE=86400", 3599, 1),
        ("max-age=86400", 3600, 2), ("no-store, max-age=60", 0, 2), ("no-cache", 0, 2), ("", 0, 2),
        ("max-age=x", 0, 2),
    ])
    func `what a host says is kept for as long as it allows`(
        control: String, later: Int, reads: Int
    ) async throws {
        let broker = try await Self.broker()
        await broker.logIn(token: BrokerHarness.token("a", refresh: "r", expiresIn: 90_000))
        broker.transport.standing(
            at: Self.assetLinks, .json(200, Self.statement, fields: ["Cache-Control": control]))
        broker.transport.always(.json(200, #"{"code":"code-1"}"#))
        #expect(await Self.approve(broker, Self.android).status == 200)
        broker.time.advance(by: .seconds(later))
        #expect(await Self.approve(broker, Self.android).status == 200)
        #expect(broker.transport.standingSeen.filter { $0.url == Self.assetLinks }.count == reads)
    }

    // L08
    @Test func `where plain HTTP is allowed, a link may be of it, with its port`() async throws {
        let broker = try await BrokerHarness { $0.core.providerTargets = .development }
        await Self.prepare(broker)
        await broker.logIn()
        broker.transport.standing(at: "http://b.example:8088/.well-known/assetlinks.json", .json(200, Self.statement))
        broker.transport.enqueue(.json(200, #"{"code":"code-1"}"#))
        let answer = await Self.approve(
            broker, Self.android,
            link: "https://a.example/?client_id=b&redirect_uri=http%3A%2F%2Fb.example%3A8088%2Fr&code_challenge=ch")
        #expect(answer.json["redirect_uri"]?.text == "http://b.example:8088/r?code=code-1")
    }

    // L08
    @Test func `a link of plain HTTP or of an own scheme belongs to no app`() async throws {
        let broker = try await Self.broker()
        await broker.logIn()
        for redirect in ["http%3A%2F%2Fb.example%2F", "com.example.b%3A%2Fr"] {
            let answer = await Self.approve(
                broker, Self.android,
                link: "https://a.example/?client_id=b&redirect_uri=\(redirect)&code_challenge=ch")
            #expect(answer.status == 422)
        }
        for members in [
            #", "verify_app_link": {}"#,
            #", "verify_app_link": {"package_name": "p", "sha256_cert_fingerprint": "00"}"#,
            #", "verify_app_link": {"apple_app_id": "T.b", "package_name": "p"}"#,
        ] {
            #expect(await Self.approve(broker, members).status == 400)
        }
    }
}
