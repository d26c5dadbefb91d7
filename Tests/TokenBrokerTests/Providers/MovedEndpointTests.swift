import AuthTesting
import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Providers whose metadata name another token endpoint, or other ways to authenticate, than they did when they were last read.
@Suite struct `A token endpoint that has moved` {
    private static let issuer = "https://op.example"
    private static let address = "https://op.example/.well-known/oauth-authorization-server"
    private static let old = "https://op.example/token"
    private static let new = "https://op.example/v2/token"
    private static let unknownClient = ScriptedTransport.Step.json(401, #"{"error": "invalid_client"}"#)

    private static func metadata(_ token: String, _ members: String = "") -> ScriptedTransport.Step {
        .json(
            200,
            #"""
            {"issuer": "\#(issuer)", "authorization_endpoint": "https://op.example/auth", "token_endpoint": "\#(token)"\#(members)}
            """#)
    }

    private static func granted(_ name: String) -> ScriptedTransport.Step {
        .json(200, BrokerHarness.token("a-\(name)", refresh: "r-\(name)"))
    }

    private static func requests(_ broker: BrokerHarness, to address: String) -> [ScriptedTransport.Seen] {
        broker.transport.standingSeen.filter { $0.url == address }
    }

    /// A broker whose metadata are read, with a session whose access token has expired.
    private static func broker(_ members: String = "", users: Int = 1) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "client_secret": "s1", "client_credentials": "off",
             "issuer": "\#(issuer)"\#(members)}
            """#)
        broker.transport.standing(at: address, metadata(old))
        for user in 1...users {
            broker.transport.standing(
                at: old, .json(200, BrokerHarness.token("a-\(user)", refresh: "r-\(user)", expiresIn: 60)))
            let login = await broker.beginLogin(body: #"{"storage_key": "u\#(user)"}"#)
            #expect(await broker.callback("code=c&state=\(login.state)").status == 200)
        }
        broker.time.advance(by: .seconds(61))
        return broker
    }

    @Test(arguments: [
        (404, ""), (404, "<html>"), (404, #"{"error": "not_found"}"#), (401, #"{"error": "invalid_client"}"#),
        (400, #"{"error": "invalid_client"}"#),
    ])
    func `is asked where the metadata name it now, in the same renewal`(status: Int, text: String) async throws {
        let broker = try await Self.broker()
        broker.transport.standing(at: Self.address, Self.metadata(Self.new))
        broker.transport.standing(at: Self.old, .json(status, text))
        broker.transport.standing(at: Self.new, Self.granted("2"))
        #expect(await broker.token(storageKey: "u1") == "a-2")
        #expect(Self.requests(broker, to: Self.old).count == 2)
        #expect(Self.requests(broker, to: Self.new).map { $0.form["refresh_token"] } == ["r-1"])
        #expect(Self.requests(broker, to: Self.address).count == 2)
        #expect(await broker.status(storageKey: "u1").json["state"]?.text == "active")
        #expect(broker.log.contains { $0.contains("token_endpoint_moved") })
        #expect(!broker.log.contains { $0.contains("client_refused") })
    }

    @Test(arguments: [
        (400, #"{"error": "invalid_grant"}"#), (400, #"{"error": "invalid_request"}"#), (403, ""), (401, ""),
        (410, ""), (500, ""), (503, #"{"error": "invalid_client"}"#), (429, ""),
    ])
    func `is not looked for after another answer`(status: Int, text: String) async throws {
        let broker = try await Self.broker()
        broker.transport.standing(at: Self.address, Self.metadata(Self.new))
        broker.transport.standing(at: Self.old, .json(status, text))
        #expect(await broker.token(storageKey: "u1") == nil)
        #expect(Self.requests(broker, to: Self.address).count == 1)
        #expect(Self.requests(broker, to: Self.new).isEmpty)
    }

    @Test func `is followed once in a renewal`() async throws {
        let broker = try await Self.broker()
        let third = "https://op.example/v3/token"
        broker.transport.standing(at: Self.address, Self.metadata(Self.new))
        broker.transport.standing(at: Self.old, .json(404, ""))
        broker.transport.standing(at: Self.new, .json(404, ""))
        broker.transport.standing(at: third, Self.granted("2"))
        #expect(await broker.token(storageKey: "u1") == nil)
        #expect(Self.requests(broker, to: Self.new).count == 1)
        #expect(await broker.status(storageKey: "u1").json["logged_in"] == .bool(true))
        // The next one follows it on.
        broker.transport.standing(at: Self.address, Self.metadata(third))
        broker.time.advance(by: .seconds(61))
        #expect(await broker.token(storageKey: "u1") == "a-2")
    }

    @Test func `is looked for once a minute, whatever the answer`() async throws {
        let broker = try await Self.broker()
        broker.transport.standing(at: Self.old, Self.unknownClient)
        for _ in 1...3 {
            let answer = await broker.get("storage_key=u1")
            #expect((answer.status, answer.code) == (424, "illegal_configuration"))
            // Half a minute is the pause after each refusal of the client.
            broker.time.advance(by: .seconds(31))
        }
        #expect(Self.requests(broker, to: Self.old).count == 4)
        #expect(Self.requests(broker, to: Self.address).count == 3)
        #expect(await broker.status(storageKey: "u1").json["logged_in"] == .bool(true))
    }

    @Test(arguments: [
        ScriptedTransport.Step.json(404, ""), .json(500, ""), .json(200, "{}"), .failure(.connectFailed),
        .json(
            200,
            #"""
            {"issuer": "https://evil.example", "authorization_endpoint": "https://evil.example/a",
             "token_endpoint": "https://evil.example/t"}
            """#),
    ])
    func `is where it was while the metadata cannot be had`(step: ScriptedTransport.Step) async throws {
        let broker = try await Self.broker()
        broker.transport.standing(at: Self.address, step)
        broker.transport.always(.json(404, ""))
        broker.transport.standing(at: Self.old, .json(404, ""))
        #expect(await broker.token(storageKey: "u1") == nil)
        broker.transport.standing(at: Self.old, Self.granted("2"))
        #expect(await broker.token(storageKey: "u1") == "a-2")
    }

    @Test func `is looked for once for all users that are refused together`() async throws {
        let broker = try await Self.broker(users: 4)
        let read = Self.requests(broker, to: Self.address).count
        let gate = Gate()
        broker.transport.standing(at: Self.address, .after(gate, Self.metadata(Self.new)))
        broker.transport.standing(at: Self.old, .json(404, ""))
        broker.transport.standing(at: Self.new, .decide { Self.granted("of-" + ($0.form["refresh_token"] ?? "")) })
        async let first = broker.token(storageKey: "u1")
        await gate.arrivals()
        async let second = broker.token(storageKey: "u2")
        async let third = broker.token(storageKey: "u3")
        async let fourth = broker.token(storageKey: "u4")
        gate.open()
        #expect(await [first, second, third, fourth] == ["a-of-r-1", "a-of-r-2", "a-of-r-3", "a-of-r-4"])
        #expect(Self.requests(broker, to: Self.address).count == read + 1)
    }

    @Test func `is asked in another way where the metadata name that now`() async throws {
        let broker = try await Self.broker()
        let methods = #", "token_endpoint_auth_methods_supported": ["client_secret_post"]"#
        broker.transport.standing(at: Self.address, Self.metadata(Self.old, methods))
        broker.transport.standing(
            at: Self.old, .decide { $0.form["client_secret"] == "s1" ? Self.granted("2") : Self.unknownClient })
        #expect(await broker.token(storageKey: "u1") == "a-2")
    }

    @Test func `is not looked for where the tenant names it`() async throws {
        let broker = try await Self.broker(
            #", "endpoints": {"authorization": "https://op.example/auth", "token": "https://op.example/token"}"#)
        broker.transport.standing(at: Self.old, .json(404, ""))
        #expect(await broker.token(storageKey: "u1") == nil)
        #expect(Self.requests(broker, to: Self.address).isEmpty)
    }

    @Test(arguments: [
        (404, "", 200), (401, #"{"error": "invalid_client"}"#, 200), (400, #"{"error": "invalid_grant"}"#, 502),
    ])
    func `redeems the code of a login that was begun before`(status: Int, text: String, expected: Int) async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        broker.transport.standing(at: Self.address, Self.metadata(Self.new))
        broker.transport.standing(at: Self.old, .json(status, text))
        broker.transport.standing(at: Self.new, Self.granted("2"))
        #expect(await broker.callback("code=c-9&state=\(login.state)").status == expected)
        #expect(
            Self.requests(broker, to: Self.new).map { $0.form["code"] } == (expected == 200 ? ["c-9"] : []))
        guard expected == 200 else { return }
        #expect(await broker.token() == "a-2")
    }

    @Test func `is found for client credentials, too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"provider": "oidc", "client_id": "c1", "client_secret": "s1", "issuer": "\#(Self.issuer)"}"#)
        broker.transport.standing(at: Self.address, Self.metadata(Self.old))
        _ = await broker.beginLogin()
        broker.transport.standing(at: Self.address, Self.metadata(Self.new))
        broker.transport.standing(at: Self.old, .json(404, ""))
        broker.transport.standing(at: Self.new, .json(200, BrokerHarness.token("app-1")))
        #expect(await broker.token() == "app-1")
    }
}
