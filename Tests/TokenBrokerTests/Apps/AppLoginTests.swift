import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// `/oauth2/authorize`: an app's login by its user's browser.
@Suite struct `Logins of apps` {
    private static func broker(_ client: String = Self.client, tenant: String = Self.tenant) async throws
        -> BrokerHarness
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        await broker.makeClient("app", of: "t1", client)
        return broker
    }

    private static let tenant = #"{"client_id": "c1", "display_name": "Acme"}"#
    private static let client =
        #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "name": "Player"}"#
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)

    @Test func `an app gets a code, its state and the issuer, and the code is worth an access token`() async throws {
        let broker = try await Self.broker()
        let (parameters, _) = await broker.logIn(app: BrokerHarness.authorization(), token: Self.granted)
        #expect(Set(parameters.keys) == ["code", "state", "iss"])
        #expect(parameters["state"] == "s-1")
        #expect(parameters["iss"] == "https://broker.example")
        let answer = await broker.exchange(parameters["code"] ?? "")
        #expect(answer.status == 200)
        #expect(answer.json["access_token"]?.text == "access-1")
        #expect(answer.json["token_type"]?.text == "Bearer")
        #expect(answer.json["expires_in"]?.integer == 3600)
        #expect(answer.json["scope"]?.text == "r_usr")
        #expect(answer.json["refresh_token"]?.text != nil)
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(answer.fields["Pragma"] == "no-cache")
        #expect(await broker.token() == "access-1")
        #expect(!answer.text.contains("refresh-1"))
    }

    @Test func `the user of a public client is asked on the broker's page, which names the app`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginAppLogin()
        let asked = await broker.bring(for: login)
        let confirming = try #require(BrokerHarness.cookie(asked))
        let page = await broker.call(
            .get, BrokerHarness.path(of: asked.fields["Location"]?.text ?? ""), key: nil,
            fields: ["Accept": BrokerHarness.browserAccept, "Cookie": "\(login.cookie); \(confirming)"])
        #expect(page.text.contains("The app <strong><bdi>Player</bdi></strong> asks for access"))
        #expect(page.text.contains("Acme"))
        #expect(broker.transport.requests.isEmpty)
    }

    @Test func `a user who says no is told to the app as access_denied`() async throws {
        let broker = try await Self.broker()
        let (parameters, _) = await broker.logIn(app: BrokerHarness.authorization(), token: nil, decision: "cancel")
        #expect(parameters["error"] == "access_denied")
        #expect(parameters["state"] == "s-1")
        #expect(parameters["iss"] == "https://broker.example")
        #expect(parameters["code"] == nil)
    }

    @Test func `a client with a secret is not asked for, and still bound to its browser`() async throws {
        let broker = try await Self.broker(
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "client_secret": "0123456789abcdef"}"#
        )
        let (parameters, answer) = await broker.logIn(app: BrokerHarness.authorization(), token: Self.granted)
        #expect(parameters["code"] != nil, "\(answer.text)")
        // Without the cookie, the code stays where it is.
        let state = await broker.beginAppLogin().state
        #expect(await broker.callback("code=c-2&state=\(state)", accept: "application/json").status == 403)
    }

    // H038
    @Test(
        arguments: [
            ("unknown client", ["client_id": "nobody"]), ("no client", ["client_id": nil]),
            ("other redirect URI", ["redirect_uri": "https://app.example/cb/"]),
            ("other port", ["redirect_uri": "https://app.example:444/cb"]),
            ("relative", ["redirect_uri": "/cb"]), ("empty client", ["client_id": ""]),
        ] as [(String, [String: String?])])
    func `what cannot be told to the app is a page, and no redirect`(_ name: String, _ changes: [String: String?])
        async throws
    {
        let broker = try await Self.broker()
        let answer = await broker.authorize(BrokerHarness.authorization(changes))
        #expect(answer.status == 400, "\(name)")
        #expect(answer.fields["Location"] == nil)
        #expect(answer.fields["Content-Type"]?.text.hasPrefix("text/html") == true)
    }

    @Test(
        arguments: [
            (["response_type": nil], "invalid_request"), (["response_type": "token"], "unsupported_response_type"),
            (["code_challenge": nil], "invalid_request"), (["code_challenge_method": nil], "invalid_request"),
            (["code_challenge_method": "plain"], "invalid_request"), (["code_challenge": "short"], "invalid_request"),
            (["response_mode": "fragment"], "invalid_request"),
            (["login_hint": String(repeating: "x", count: 321)], "invalid_request"),
        ] as [([String: String?], String)])
    func `other faults go to the redirect URI`(_ changes: [String: String?], _ error: String) async throws {
        let broker = try await Self.broker()
        let answer = await broker.authorize(BrokerHarness.authorization(changes))
        #expect(answer.status == 303)
        let location = try #require(answer.fields["Location"]?.text)
        #expect(location.hasPrefix("https://app.example/cb?error="))
        let parameters = BrokerHarness.parameters(of: location)
        #expect(parameters["error"] == error)
        #expect(parameters["state"] == "s-1")
        #expect(parameters["iss"] == "https://broker.example")
    }

    // H015
    @Test func `a repeated parameter is refused, at the redirect URI where that is certain`() async throws {
        let broker = try await Self.broker()
        let twice = await broker.authorize(BrokerHarness.authorization() + "&state=s-2")
        #expect(BrokerHarness.parameters(of: twice.fields["Location"]?.text ?? "")["error"] == "invalid_request")
        #expect(BrokerHarness.parameters(of: twice.fields["Location"]?.text ?? "")["state"] == nil)
        #expect(await broker.authorize(BrokerHarness.authorization() + "&client_id=app").status == 400)
        #expect(await broker.authorize(BrokerHarness.authorization() + "&unknown=1&unknown=2").status == 303)
    }

    // A04 H038
    @Test(arguments: [
        ("http://127.0.0.1/callback", "http://127.0.0.1:51234/callback", true),
        ("http://127.0.0.1/callback", "http://127.0.0.1/callback", true),
        ("http://[::1]/callback", "http://[::1]:80/callback", true),
        ("http://127.0.0.1/callback", "http://127.0.0.1:51234/other", false),
        ("http://127.0.0.1/callback", "http://127.0.0.1:/callback", false),
        ("http://127.0.0.1/callback", "http://127.0.0.1:123456/callback", false),
        ("http://127.0.0.1/callback", "http://127.0.0.1.evil.example/callback", false),
        ("http://127.0.0.1/callback", "http://127.0.0.1@evil.example/callback", false),
        ("http://127.0.0.1/callback", "http://localhost:51234/callback", false),
        ("http://localhost/callback", "http://localhost:51234/callback", true),
        ("com.example.app:/cb", "com.example.app:/cb", true), ("com.example.app:/cb", "com.example.app:/cb/", false),
    ])
    func `redirect URIs are compared as they are, loopback addresses without their port`(
        _ listed: String, _ given: String, _ isAllowed: Bool
    ) async throws {
        let broker = try await Self.broker(#"{"redirect_uris": ["\#(listed)"], "storage_key": "default"}"#)
        let answer = await broker.authorize(BrokerHarness.authorization(["redirect_uri": given]))
        #expect(answer.status == (isAllowed ? 303 : 400))
        guard isAllowed else { return }
        let (parameters, ended) = await broker.logIn(
            app: BrokerHarness.authorization(["redirect_uri": given]), token: Self.granted)
        #expect(parameters["code"] != nil)
        #expect(ended.text.contains(given.replacing("&", with: "&amp;")))
        let answered = await broker.exchange(parameters["code"] ?? "", ["redirect_uri": given])
        #expect(answered.status == 200, "\(answered.text)")
    }

    // A04
    @Test func `without a redirect URI the only one is meant, and the exchange need not name it`() async throws {
        let broker = try await Self.broker()
        let (parameters, _) = await broker.logIn(
            app: BrokerHarness.authorization(["redirect_uri": nil]), token: Self.granted)
        #expect(await broker.exchange(parameters["code"] ?? "", ["redirect_uri": nil]).status == 200)
        let several = try await Self.broker(#"{"redirect_uris": ["https://app.example/cb", "https://b.example"]}"#)
        #expect(await several.authorize(BrokerHarness.authorization(["redirect_uri": nil])).status == 400)
    }

    @Test func `ui_locales and login_hint go to the provider's page`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginAppLogin(
            BrokerHarness.authorization(["ui_locales": "de-CH fr", "login_hint": "a@example.com"]))
        let parameters = BrokerHarness.parameters(of: login.uri)
        #expect(parameters["lang"] == "de-CH")
        #expect(parameters["email"] == "a@example.com")
    }

    // MARK: The storage key

    /// A user may choose what a provider calls him: no identifier may be the storage key of a back end or of another user.
    @Test(arguments: [
        (#""user_id":42"#, "42"), (#""user_id":"billing""#, "billing"), (#""user_id":"with space""#, "with space"),
        (
            #""user_id":"u-1BMSqUcIXqh9xUsdE31bbUSk-CEnpX8Yf_vBvEh3GUI""#,
            "u-1BMSqUcIXqh9xUsdE31bbUSk-CEnpX8Yf_vBvEh3GUI"
        ),
    ])
    func `without a storage key it is made of issuer and user`(_ member: String, _ user: WireText) async throws {
        let broker = try await Self.broker(#"{"redirect_uris": ["https://app.example/cb"]}"#)
        await broker.set("of-a-back-end", storageKey: "billing")
        let token = #"{"access_token":"a","refresh_token":"r","expires_in":3600,"token_type":"Bearer",\#(member)}"#
        let (parameters, answer) = await broker.logIn(app: BrokerHarness.authorization(), token: token)
        #expect(parameters["code"] != nil, "\(answer.text)")
        let sessions = await broker.exchange(parameters["code"] ?? "")
        #expect(sessions.status == 200)
        let stored = await broker.sessions().first?["storage_key"]?.text
        // The provider of this tenant has no issuer.
        #expect(stored == StorageKey(user: user, of: "https://auth.tidal.com/v1/oauth2/token").description)
        #expect(await broker.token(storageKey: stored ?? "") == "a")
        #expect(await broker.token(storageKey: "billing") == "of-a-back-end")
        // Back ends read it and log its user out.
        #expect(await broker.logOut(storageKey: stored ?? "").status == 204)
    }

    private static let keyOfUser = StorageKey(user: "ada", of: "https://op.example").description

    @Test func `no caller writes under a storage key of a user`() async throws {
        let broker = try await Self.broker()
        let key = Self.keyOfUser
        let narrowed = await broker.makeKey(
            "t1",
            #"{"name": "k", "permissions": ["credentials:read", "credentials:write", "login"], "storage_keys": ["\#(key)"]}"#
        )
        let calls: [(Method, String, String)] = [
            (.put, "/credentials", #"{"storage_key": "\#(key)", "credentials": {"client_id": "c1", "token": "x"}}"#),
            (.post, "/login/initialize", #"{"storage_key": "\#(key)"}"#),
            (.post, "/device", #"{"storage_key": "\#(key)"}"#),
            (.post, "/credentials/activate", #"{"storage_key": "\#(key)", "platform_signature": "x"}"#),
        ]
        for (method, path, body) in calls {
            for answer in [
                await broker.call(method, path, tenant: "t1", body: body),
                await broker.call(method, path, key: narrowed, body: body),
            ] {
                #expect((answer.status, answer.code) == (422, "illegal_argument"), "\(path): \(answer.text)")
            }
        }
        let client = await broker.call(
            .put, "/tenants/t1/clients/other",
            body: #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "\#(key)"}"#)
        #expect((client.status, client.code) == (422, "illegal_argument"))
        for path in ["/credentials/status?storage_key=\(key)", "/tenants/t1/sessions?storage_key=\(key)"] {
            #expect(await broker.call(.get, path, tenant: "t1").status == 200)
        }
    }

    @Test func `no account is created under a storage key of a user`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "duckduckgo", "client_id": "c1"}"#)
        let answer = await broker.call(
            .get, "/credentials?policy=create_if_needed&storage_key=\(Self.keyOfUser)", tenant: "t1")
        #expect((answer.status, answer.code) == (422, "illegal_argument"), "\(answer.text)")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `a session under a storage key of an earlier build goes on, and the next login makes the new one`()
        async throws
    {
        let broker = try await Self.broker(#"{"redirect_uris": ["https://app.example/cb"], "storage_key": "42"}"#)
        let session = await broker.appSession()
        await broker.makeClient("app", of: "t1", #"{"redirect_uris": ["https://app.example/cb"]}"#)
        let next = await broker.appSession()
        #expect(await broker.refresh(session).json["access_token"]?.text == "access-1")
        #expect(await broker.refresh(next).status == 200)
        let keys = await broker.sessions().compactMap { $0["storage_key"]?.text }
        #expect(keys.contains("42") && keys.contains { $0.hasPrefix("u-") })
    }

    @Test func `a login that does not tell who the user is fails for a client without a storage key`() async throws {
        let broker = try await Self.broker(#"{"redirect_uris": ["https://app.example/cb"]}"#)
        let (parameters, _) = await broker.logIn(
            app: BrokerHarness.authorization(), token: BrokerHarness.token("a", refresh: "r"))
        #expect(parameters["error"] == "server_error")
        #expect(parameters["state"] == "s-1")
    }

    /// A tenant whose provider ends sessions.
    private static let revoking = #"""
        {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "https://op.example/a",
         "token": "https://op.example/t", "revocation": "https://op.example/revoke"}}
        """#

    // B05
    @Test func `a grant of a login that does not tell who the user is is revoked, after the login has failed`()
        async throws
    {
        let broker = try await Self.broker(#"{"redirect_uris": ["https://app.example/cb"]}"#, tenant: Self.revoking)
        let (parameters, _) = await broker.logIn(
            app: BrokerHarness.authorization(), token: BrokerHarness.token("a", refresh: "r"))
        #expect(parameters["error"] == "server_error")
        #expect(try await broker.count(.revocation) == 1)
        // The provider is away at first.
        broker.transport.enqueue(.json(503, ""))
        broker.time.advance(by: .milliseconds(1))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(try await broker.count(.revocation) == 1)
        broker.transport.enqueue(.json(200, ""))
        broker.time.advance(by: .milliseconds(5010))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(broker.transport.seen.filter { $0.url.hasSuffix("/revoke") }.map { $0.form["token"] } == ["r", "r"])
        #expect(try await broker.count(.revocation) == 0)
    }

    // MARK: What the provider says

    @Test(arguments: [
        ("error=access_denied", "access_denied"), ("error=temporarily_unavailable", "temporarily_unavailable"),
        ("error=login_required", "access_denied"),
    ])
    func `the provider's error goes to the app`(_ response: String, _ error: String) async throws {
        let broker = try await Self.broker()
        let (parameters, _) = await broker.logIn(
            app: BrokerHarness.authorization(), token: nil, response: response)
        #expect(parameters["error"] == error)
        #expect(parameters["code"] == nil)
    }

    @Test func `a provider that refuses the code is a server_error for the app`() async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(.json(400, #"{"error":"invalid_grant"}"#))
        let (parameters, _) = await broker.logIn(app: BrokerHarness.authorization(), token: nil)
        #expect(parameters["error"] == "server_error")
    }

    @Test func `a tenant that is gone is a server_error`() async throws {
        let broker = try await Self.broker()
        // A client goes with its tenant, so the browser sees the page.
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        #expect(await broker.authorize(BrokerHarness.authorization()).status == 400)
    }
}
