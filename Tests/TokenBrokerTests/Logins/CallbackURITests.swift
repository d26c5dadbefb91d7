import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// RFC 9700 §4.4: a provider that one tenant trusts must not get the code that another tenant's provider gave.
@Suite struct `The callback of a response` {
    private static let shared = "/login/callback"
    private static let own = #"{"client_id": "c1", "callback_uri": "per_tenant"}"#

    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("plain")
        await broker.makeTenant("a", own)
        await broker.makeTenant("b", own)
        return broker
    }

    @Test func `is the tenant's own where its configuration says so`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin(tenant: "a")
        let uri = "https://broker.example/login/callback/a"
        #expect(BrokerHarness.parameters(of: login.uri)["redirect_uri"] == uri)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)", at: "/login/callback/a").status == 200)
        #expect(broker.transport.seen.map { $0.form["redirect_uri"] } == [uri])
        #expect(await broker.token(tenant: "a") == "access-1")
        let plain = await broker.beginLogin(tenant: "plain")
        #expect(
            BrokerHarness.parameters(of: plain.uri)["redirect_uri"] == "https://broker.example/login/callback")
    }

    // H035
    @Test(arguments: [
        ("a", shared), ("a", "/login/callback/b"), ("a", "/login/callback/plain"), ("a", "/login/callback/nobody"),
        ("a", "/login/callback/A"), ("a", "/login/callback/%61%00"), ("plain", "/login/callback/plain"),
        ("plain", "/login/callback/a"),
    ])
    func `is not another one, and the state stays usable`(tenant: String, path: String) async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin(tenant: tenant)
        for outcome in ["code=c-1", "error=access_denied"] {
            let query = "\(outcome)&state=\(login.state)"
            let json = await broker.callback(query, at: path, accept: "application/json")
            #expect((json.status, json.code) == (400, "invalid_request"))
            #expect(await broker.callback(query, at: path, accept: nil).status == 400)
            #expect(await broker.callback(query, at: path).status == 400)
            #expect(await broker.formPost(query, at: path).status == 400)
        }
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.progress(login.id, tenant: tenant).json["status"]?.string == "pending")
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        let right = tenant == "plain" ? Self.shared : "/login/callback/\(tenant)"
        #expect(await broker.callback("code=c-1&state=\(login.state)", at: right).status == 200)
    }

    @Test func `is not the broker's where the caller named a redirect_uri of its own`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "allowed_redirect_uris": ["https://app.example/cb"]}"#)
        let login = await broker.beginLogin(body: #"{"redirect_uri": "https://app.example/cb"}"#)
        for path in [Self.shared, "/login/callback/t1"] {
            #expect(await broker.callback("code=c-1&state=\(login.state)", at: path).status == 400)
        }
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.progress(login.id).json["status"]?.string == "pending")
    }

    @Test(arguments: [
        (#"{"client_id": "c2"}"#, own, "/login/callback"), (own, #"{"client_id": "c2"}"#, "/login/callback/t1"),
    ])
    func `is that of the login's beginning, whatever the tenant becomes`(
        first: String, second: String, path: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", first)
        let login = await broker.beginLogin()
        await broker.makeTenant("t1", second)
        let other = path == Self.shared ? "/login/callback/t1" : Self.shared
        #expect(await broker.callback("code=c-1&state=\(login.state)", at: other).status == 400)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)", at: path).status == 200)
        #expect(broker.transport.seen.map { $0.form["redirect_uri"] } == ["https://broker.example\(path)"])
    }

    @Test(arguments: [
        ("plain", "https://broker.example/login/callback/plain"), ("a", "https://broker.example/login/callback"),
        ("a", "https://broker.example/login/callback/b"), ("plain", "https://broker.example/login/callback/a"),
    ])
    func `of another tenant is no redirect_uri, listed or not`(tenant: String, uri: String) async throws {
        let broker = try await BrokerHarness()
        for name in ["plain", "a"] {
            await broker.makeTenant(
                name,
                #"""
                {"client_id": "c1", "callback_uri": "\#(name == "a" ? "per_tenant" : "shared")",
                 "allowed_redirect_uris": ["\#(uri)", "https://broker.example/login/callbacks"]}
                """#)
        }
        let refused = await broker.call(
            .post, "/login/initialize", tenant: tenant, body: #"{"redirect_uri": "\#(uri)"}"#)
        #expect((refused.status, refused.code) == (422, "illegal_argument"))
        let other = await broker.call(
            .post, "/login/initialize", tenant: tenant,
            body: #"{"redirect_uri": "https://broker.example/login/callbacks"}"#)
        #expect(other.status == 201)
    }

    @Test func `of a bound login that is posted is the one that it goes round to`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin(tenant: "a")
        let cookie = BrokerHarness.cookie(await broker.start(login))
        let posted = await broker.formPost("code=c-1&state=\(login.state)", at: "/login/callback/a")
        let location = try #require(posted.fields["Location"]?.text)
        #expect(location == "https://broker.example/login/callback/a?code=c-1&state=\(login.state)")
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        let query = try #require(location.split(separator: "?").last)
        #expect(await broker.callback(String(query), at: "/login/callback/a", cookie: cookie).status == 200)
    }

    @Test func `of a login that an earlier version began is the shared one`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        try await broker.rewriteLogin(login.id, leavingOut: ["callback", "started"])
        #expect(await broker.callback("code=c-1&state=\(login.state)", at: "/login/callback/t1").status == 400)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
    }

    @Test func `HEAD redeems nothing there either`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin(tenant: "a")
        let answer = await broker.call(.head, "/login/callback/a?code=c-1&state=\(login.state)", key: nil)
        #expect((answer.status, answer.fields["Allow"]) == (405, "GET, POST"))
        #expect(broker.transport.seen.isEmpty)
    }
}
