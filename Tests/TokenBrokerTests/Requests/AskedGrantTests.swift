import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Scopes, resources and audiences of single logins.
@Suite(.timeLimit(.minutes(1))) struct `What a login asks for` {
    private static let api = "https://api.example/v1"

    /// A tenant with the scopes a, b and c, whose refreshes repeat the scopes.
    private static func tenant(_ more: String = "") -> String {
        #"""
        {"provider": "oidc", "client_id": "c1", "client_secret": "s1", "scopes": ["a", "b", "c"], "repeat_scope": true\#(more),
         "token_endpoint_auth_method": "client_secret_post",
         "endpoints": {"authorization": "https://op.example/auth", "token": "https://op.example/token",
                       "device_authorization": "https://op.example/device"}}
        """#
    }

    private static func broker(_ more: String = "") async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant(more))
        return broker
    }

    /// A whole login.
    /// - Parameter scope: what the provider says it has granted; nil where it says nothing.
    /// - Returns: the address that the browser was sent to.
    private static func logIn(
        _ broker: BrokerHarness, _ body: String, access: String = "access-1", refresh: String? = "refresh-1",
        scope: String? = nil
    ) async -> String {
        let login = await broker.beginLogin(body: body)
        broker.transport.enqueue(.json(200, BrokerHarness.token(access, refresh: refresh, scope: scope, userID: 42)))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        return login.uri
    }

    /// The values of a parameter of a query.
    private static func values(_ name: String, of uri: String) throws -> [String] {
        let query = uri.split(separator: "?", maxSplits: 1).last.map(String.init) ?? ""
        return try FormEncoding.decode(query).filter { $0.name == WireText(name) }.map(\.value.text)
    }

    private static func values(_ name: String, of request: ScriptedTransport.Seen?) -> [String] {
        (request?.parameters ?? []).filter { $0.name == name }.map(\.value)
    }

    /// The refresh that a caller brings about after the token's end.
    private static func refresh(_ broker: BrokerHarness, scope: String? = nil) async -> ScriptedTransport.Seen? {
        broker.time.advance(by: .seconds(3601))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", scope: scope)))
        #expect(await broker.get().token == "access-2")
        return broker.transport.seen.last
    }

    // MARK: What is sent

    struct Row: Sendable, CustomTestStringConvertible {
        let tenant: String
        let login: String
        let scope: String
        var resources: [String] = []
        var audience: [String] = []

        var testDescription: String { tenant + login }
    }

    // Q33 Q46
    @Test(arguments: [
        Row(tenant: "", login: "{}", scope: "a b c"),
        Row(tenant: "", login: #"{"scopes": ["b"]}"#, scope: "b"),
        Row(tenant: "", login: #"{"scopes": ["c", "a", "c"]}"#, scope: "a c"),
        Row(tenant: "", login: #"{"resource": "\#(api)"}"#, scope: "a b c", resources: [api]),
        Row(
            tenant: "", login: #"{"resource": ["urn:x:2", "urn:x:1"]}"#, scope: "a b c",
            resources: ["urn:x:2", "urn:x:1"]),
        Row(tenant: "", login: #"{"audience": "my api"}"#, scope: "a b c", audience: ["my api"]),
        Row(tenant: #", "resource": "\#(api)""#, login: "{}", scope: "a b c", resources: [api]),
        Row(
            tenant: #", "resource": ["\#(api)"], "audience": "x""#, login: #"{"resource": "urn:y", "scopes": ["a"]}"#,
            scope: "a", resources: ["urn:y"], audience: ["x"]),
        Row(
            tenant: #", "authorize_parameters": {"audience": "p"}, "token_parameters": {"audience": "p"}"#,
            login: #"{"audience": "l"}"#, scope: "a b c", audience: ["l"]),
    ])
    func `goes to the login page, with the code and with each refresh`(row: Row) async throws {
        let broker = try await Self.broker(row.tenant)
        let uri = await Self.logIn(broker, row.login)
        let exchange = broker.transport.seen.last
        let refresh = await Self.refresh(broker)
        #expect(try Self.values("scope", of: uri) == [row.scope])
        #expect(try Self.values("resource", of: uri) == row.resources)
        #expect(try Self.values("audience", of: uri) == row.audience)
        for request in [exchange, refresh] {
            #expect(Self.values("scope", of: request) == [row.scope])
            #expect(Self.values("resource", of: request) == row.resources)
            #expect(Self.values("audience", of: request) == row.audience)
        }
    }

    @Test func `stays with a set whose tenant asks for something else by now`() async throws {
        let broker = try await Self.broker(#", "resource": "\#(Self.api)""#)
        _ = await Self.logIn(broker, #"{"scopes": ["a"]}"#)
        await broker.makeTenant("t1", Self.tenant(#", "resource": "urn:other""#))
        let refresh = await Self.refresh(broker)
        #expect(Self.values("resource", of: refresh) == [Self.api])
        #expect(Self.values("scope", of: refresh) == ["a"])
        // And it stays after a refresh.
        broker.time.advance(by: .seconds(3601))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-3")))
        #expect(await broker.get().token == "access-3")
        #expect(Self.values("resource", of: broker.transport.seen.last) == [Self.api])
    }

    @Test func `is what was granted, where the provider names no scopes`() async throws {
        let broker = try await Self.broker()
        _ = await Self.logIn(broker, #"{"scopes": ["b"]}"#)
        #expect(await broker.get().text.contains(#""granted_scopes":["b"]"#))
    }

    @Test func `goes with the refreshes of a set that a caller has brought`() async throws {
        let broker = try await Self.broker(#", "resource": "https://api.example/v1""#)
        await broker.set("brought", refresh: "r-0")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-1", refresh: "r-1")))
        #expect(await broker.get("policy=local_force_refresh").json["token"]?.text == "a-1")
        #expect(broker.transport.seen.last?.form["resource"] == Self.api)
    }

    @Test func `goes with the presentation of a set that is imported`() async throws {
        let broker = try await Self.broker(#", "resource": "https://api.example/v1""#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-1", refresh: "r-1")))
        let answer = await broker.importing(#"{"storage_key": "alice", "refresh_token": "r-0"}"#, query: "verify=true")
        #expect(answer.outcomes == ["1 alice imported"])
        #expect(broker.transport.seen.last?.form["resource"] == Self.api)
    }

    @Test func `goes with a device login and its polls`() async throws {
        let broker = try await Self.broker()
        let device = DeviceScript(broker.time)
        broker.transport.always(device.step)
        let begun = await broker.call(
            .post, "/device", tenant: "t1", body: #"{"scopes": ["b"], "resource": "\#(Self.api)", "audience": "x"}"#)
        #expect(begun.status == 201, "\(begun.text)")
        let request = broker.transport.seen.last
        #expect(Self.values("scope", of: request) == ["b"])
        #expect(Self.values("resource", of: request) == [Self.api])
        #expect(Self.values("audience", of: request) == ["x"])
        let refused = await broker.call(.post, "/device", tenant: "t1", body: #"{"scopes": ["d"]}"#)
        #expect(refused.status == 422 && refused.text.contains(#""pointer":"/scopes/0""#))
    }

    @Test func `has client credentials with the tenant's audience`() async throws {
        let broker = try await Self.broker(#", "audience": "x", "resource": "\#(Self.api)""#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        #expect(Self.values("audience", of: broker.transport.seen.last) == ["x"])
        #expect(Self.values("resource", of: broker.transport.seen.last) == [Self.api])
    }

    // MARK: Step-up

    @Test(arguments: [
        ("a", #"["b"]"#, "a b"), ("a", #"["a"]"#, "a"), ("a b", #"["c"]"#, "a b c"),
        // A scope that the tenant does not have is not asked for again.
        ("a other", #"["b"]"#, "a b"),
    ])
    func `are the old scopes and the new ones, and the old token serves meanwhile`(
        granted: String, wanted: String, asked: String
    ) async throws {
        let broker = try await Self.broker()
        _ = await Self.logIn(broker, #"{"scopes": ["a"], "audience": "x"}"#, scope: granted)
        let login = await broker.beginLogin(body: #"{"scopes": \#(wanted), "upgrade": true}"#)
        #expect(try Self.values("scope", of: login.uri) == [asked])
        #expect(try Self.values("audience", of: login.uri) == ["x"])
        #expect(await broker.get().token == "access-1")
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("access-9", refresh: "refresh-9", scope: asked, userID: 42)))
        #expect(await broker.callback("code=c-2&state=\(login.state)").status == 200)
        #expect(await broker.get().token == "access-9")
        let refresh = await Self.refresh(broker)
        #expect(Self.values("scope", of: refresh) == [asked])
        #expect(Self.values("refresh_token", of: refresh) == ["refresh-9"])
    }

    @Test func `are the new scopes alone where nothing is stored`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin(body: #"{"scopes": ["c"], "upgrade": true}"#)
        #expect(try Self.values("scope", of: login.uri) == ["c"])
    }

    @Test func `leave the stored credentials as they are where the user says no`() async throws {
        let broker = try await Self.broker()
        _ = await Self.logIn(broker, #"{"scopes": ["a"]}"#)
        let login = await broker.beginLogin(body: #"{"scopes": ["b"], "upgrade": true}"#)
        _ = await broker.callback("error=access_denied&state=\(login.state)")
        #expect(await broker.get().token == "access-1")
        #expect(Self.values("scope", of: await Self.refresh(broker)) == ["a"])
    }

    // MARK: Faults

    @Test(arguments: [
        (#"{"scopes": ["a", "d"]}"#, 422, "/scopes/1"), (#"{"scopes": ["d", "e"]}"#, 422, "/scopes/1"),
        (#"{"scopes": []}"#, 400, "/scopes"), (#"{"scopes": "a"}"#, 400, "/scopes"),
        (#"{"scopes": ["a b"]}"#, 400, "/scopes/0"), (#"{"upgrade": true}"#, 422, "/upgrade"),
        (#"{"upgrade": "yes", "scopes": ["a"]}"#, 400, "/upgrade"), (#"{"resource": "api"}"#, 400, "/resource"),
        (#"{"resource": "/api"}"#, 400, "/resource"), (#"{"resource": "https://api.example/#a"}"#, 400, "/resource"),
        (#"{"resource": "https:"}"#, 400, "/resource"), (#"{"resource": "1s://a"}"#, 400, "/resource"),
        (#"{"resource": "https://a b"}"#, 400, "/resource"), (#"{"resource": "https://ä.example"}"#, 400, "/resource"),
        (#"{"resource": ["urn:a", ""]}"#, 400, "/resource/1"), (#"{"resource": []}"#, 400, "/resource"),
        (#"{"resource": ["u:1","u:2","u:3","u:4","u:5","u:6","u:7","u:8","u:9"]}"#, 400, "/resource"),
        (#"{"audience": ""}"#, 400, "/audience"), (#"{"audience": ["a"]}"#, 400, "/audience"),
    ])
    func `is refused with its place`(body: String, status: Int, pointer: String) async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: body)
        #expect(answer.status == status, "\(answer.text)")
        #expect(answer.code == (status == 422 ? "illegal_argument" : "invalid_request"))
        #expect(answer.text.contains(#""pointer":"\#(pointer)""#), "\(answer.text)")
    }

    @Test(arguments: [
        #""resource": "api""#, #""resource": ["urn:a", "b"]"#, #""nonce": "yes""#, #""omit_empty": "on""#,
    ])
    func `is refused of a tenant, too`(member: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: Self.tenant(", " + member))
        #expect(answer.status == 400, "\(answer.text)")
    }

    @Test func `is one audience and not two`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"audience": "a", "login_config": {"custom_parameters": {"audience": "b"}}}"#)
        #expect(answer.status == 422, "\(answer.text)")
    }

    @Test func `is shown of a tenant as it was configured`() async throws {
        let broker = try await Self.broker(
            #", "resource": "urn:a", "audience": "x", "nonce": "off", "omit_empty": false"#)
        let shown = await broker.call(.get, "/tenants/t1").text
        for member in [
            #""resource":["urn:a"]"#, #""audience":"x""#, #""nonce":"off""#, #""omit_empty":false"#,
            #""repeat_scope":true"#,
        ] {
            #expect(shown.contains(member), "\(shown)")
        }
    }

    // MARK: Nonce and empty parameters

    @Test(
        arguments: [
            (nil, #"["openid"]"#, true), (nil, #"["a"]"#, false), ("on", #"["a"]"#, true),
            ("off", #"["openid"]"#, false),
        ] as [(String?, String, Bool)])
    func `has a nonce as the tenant says`(nonce: String?, scopes: String, isSent: Bool) async throws {
        let broker = try await BrokerHarness()
        let member = nonce.map { #", "nonce": "\#($0)""# } ?? ""
        await broker.makeTenant("t1", Self.tenant(member).replacing(#"["a", "b", "c"]"#, with: #"["a", "openid"]"#))
        let login = await broker.beginLogin(body: #"{"scopes": \#(scopes)}"#)
        #expect(try Self.values("nonce", of: login.uri).isEmpty != isSent)
    }

    // Q42
    @Test(arguments: [true, false])
    func `leaves out parameters without a value where that is said`(omits: Bool) async throws {
        let broker = try await Self.broker(
            #", "omit_empty": \#(omits), "authorize_parameters": {"prompt": ""}, "token_parameters": {"x": ""}"#)
        let uri = await Self.logIn(broker, "{}")
        #expect(try Self.values("prompt", of: uri) == (omits ? [] : [""]))
        #expect(Self.values("x", of: broker.transport.seen.last) == (omits ? [] : [""]))
    }

    @Test(arguments: [(nil, "basic"), ("off", "basic"), ("on", "client")] as [(String?, String)])
    func `has client credentials where the profile says no and the tenant says yes`(
        member: String?, level: String
    ) async throws {
        let broker = try await BrokerHarness()
        let choice = member.map { #", "client_credentials": "\#($0)""# } ?? ""
        await broker.makeTenant("t1", #"{"provider": "atlassian", "client_id": "c1", "client_secret": "s1"\#(choice)}"#)
        broker.transport.always(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().json["level"]?.text == level)
    }
}
