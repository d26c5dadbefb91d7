import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import HTTPServer
import JSON
import OAuth
import Testing
import TokenBroker

/// The broker as an app at an Authgear server. The server is another broker, which keeps the same rules for its own apps.
@Suite struct `A broker as an app of another broker` {
    /// The server and the broker that is an app of it.
    private struct World {
        let server: BrokerHarness
        let broker: BrokerHarness

        static let issuer = "https://authgear.example"

        init(
            app members: String = #""enabled": true"#, client: String = #""x_app2app_enabled": true"#,
            store: (any RecordStore)? = nil
        ) async throws {
            server = try await BrokerHarness(publicBaseURL: Self.issuer)
            await server.makeTenant("s1")
            await server.makeClient(
                "app", of: "s1",
                #"{"redirect_uris": ["https://broker.example/login/callback"], "client_secret": "0123456789abcdef", "storage_key": "default", \#(client)}"#
            )
            await server.makeClient(
                "other", of: "s1", #"{"redirect_uris": ["https://other.example/cb"], "storage_key": "default"}"#)
            broker = try await BrokerHarness(store: store)
            broker.transport.always(.forward(Self.forwarding(to: server)))
            await broker.makeTenant("t1", Self.tenant(members))
        }

        static func tenant(_ members: String) -> String {
            #"""
            {"provider": "authgear", "client_id": "app", "client_secret": "0123456789abcdef", "issuer": "\#(issuer)",
             "endpoints": {"authorization": "\#(issuer)/oauth2/authorize", "token": "\#(issuer)/oauth2/token"},
             "app2app": {\#(members), "authorization_endpoints": ["https://a.example/authorize"]}}
            """#
        }

        static func forwarding(
            to server: BrokerHarness
        ) -> @Sendable (ClientRequest) async throws(TransportError) -> ClientResponse {
            { request async throws(TransportError) in
                let parts = WireText(request.url.pathAndQuery).split(at: "?", limit: 2)
                let response = await server.service.respond(
                    to: Request(
                        method: request.method, path: parts[0].text, query: parts.count > 1 ? parts[1].text : nil,
                        fields: request.fields, body: request.body))
                return ClientResponse(status: response.status, fields: response.fields, body: response.body)
            }
        }

        /// A login of the broker's user at the server.
        func logIn(_ user: Int = 42) async throws {
            let login = await broker.beginLogin()
            let (parameters, answer) = await server.logIn(
                app: BrokerHarness.path(of: login.uri),
                token: BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: user))
            let code = try #require(parameters["code"], "\(answer.text)")
            let ended = await broker.call(
                .get, "/login/callback?code=\(code)&state=\(login.state)&iss=https%3A%2F%2Fauthgear.example", key: nil)
            #expect(ended.status == 200, "\(ended.text)")
        }

        /// The link of the other app.
        static func link(_ changes: [String: String?] = [:]) -> String {
            var parameters: [String: String?] = [
                "client_id": "other", "redirect_uri": "https://other.example/cb",
                "code_challenge": BrokerHarness.appChallenge, "code_challenge_method": "S256", "state": "s 1",
            ]
            for (name, value) in changes { parameters.updateValue(value, forKey: name) }
            let pairs = parameters.sorted { $0.key < $1.key }.compactMap { name, value in
                value.map { FormEncoding.Pair(name, $0) }
            }
            return "https://broker-app.example/authorize?" + FormEncoding.encode(pairs)
        }

        func approve(_ link: String = Self.link(), more: String = "") async -> BrokerHarness.Answer {
            await broker.call(.post, "/app2app/approve", tenant: "t1", body: #"{"uri": "\#(link)"\#(more)}"#)
        }
    }

    @Test func `a login binds a device key, and lets another app in`() async throws {
        let world = try await World()
        try await world.logIn()
        #expect(await world.server.sessions(of: "s1", query: "?client_id=app").first?["device_key"] != .null)
        let answer = await world.approve()
        #expect(answer.status == 200, "\(answer.text)")
        #expect(answer.json["outcome"]?.text == "approved")
        let uri = try #require(answer.json["redirect_uri"]?.text)
        #expect(uri.hasPrefix("https://other.example/cb?code="))
        let parameters = BrokerHarness.parameters(of: uri)
        #expect(parameters["state"] == "s 1")
        let exchanged = await world.server.exchange(
            parameters["code"] ?? "", client: "other", ["redirect_uri": "https://other.example/cb"])
        #expect(exchanged.status == 200, "\(exchanged.text)")
        let tenant = try #require(TenantName("t1"))
        #expect(
            try await world.broker.events(named: "app2app.approved", of: tenant).first?["client_id"]?.text == "other")
        // The key is nowhere in the clear, and outlives a refresh.
        #expect(!world.broker.log.contains { $0.contains("PRIVATE KEY") })
        let refreshed = await world.broker.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1")
        #expect(refreshed.status == 200, "\(refreshed.text)")
        #expect(await world.approve().json["outcome"]?.text == "approved")
    }

    @Test func `each login has a key of its own`() async throws {
        let world = try await World()
        try await world.logIn()
        try await world.logIn()
        let keys = await world.server.sessions(of: "s1").compactMap { $0["device_key"]?.text }
        #expect(Set(keys).count == 2)
    }

    @Test func `a tenant that takes no part sends no key, and lets no app in`() async throws {
        let world = try await World(app: #""enabled": false"#)
        try await world.logIn()
        #expect(await world.server.sessions(of: "s1").first?["device_key"] == .null)
        let answer = await world.approve()
        #expect((answer.status, answer.code) == (424, "unauthenticated"))
    }

    @Test func `without a user no app is let in`() async throws {
        let world = try await World()
        let answer = await world.approve()
        #expect((answer.status, answer.code) == (424, "unauthenticated"))
    }

    @Test func `a login without a key binds one where both sides allow it`() async throws {
        let world = try await World(
            app: #""enabled": false, "insecure_device_key_binding": true"#,
            client: #""x_app2app_enabled": true, "x_app2app_insecure_device_key_binding_enabled": true"#)
        try await world.logIn()
        #expect(await world.approve().json["outcome"]?.text == "approved")
        #expect(await world.server.sessions(of: "s1", query: "?client_id=app").first?["device_key"] != .null)
        #expect(await world.approve().json["outcome"]?.text == "approved")
    }

    // B07
    @Test func `the first binding without a key at the login changes the entity tag of the credentials once`()
        async throws
    {
        let world = try await World(
            app: #""enabled": false, "insecure_device_key_binding": true"#,
            client: #""x_app2app_enabled": true, "x_app2app_insecure_device_key_binding_enabled": true"#)
        try await world.logIn()
        let tag = await world.broker.call(.get, "/credentials", tenant: "t1").fields["ETag"]?.text
        // The key is stored before the server hears of it, which shows in no answer.
        world.broker.transport.always(.failure(.connectFailed))
        #expect(await world.approve().status == 503)
        #expect(await world.broker.call(.get, "/credentials", tenant: "t1").fields["ETag"]?.text == tag)
        #expect(await world.broker.call(.get, "/credentials/status", tenant: "t1").status == 200)
        world.broker.transport.always(.forward(World.forwarding(to: world.server)))
        #expect(await world.approve().json["outcome"]?.text == "approved")
        let bound = await world.broker.call(.get, "/credentials", tenant: "t1").fields["ETag"]?.text
        #expect(bound != tag)
        #expect(await world.approve().json["outcome"]?.text == "approved")
        #expect(await world.broker.call(.get, "/credentials", tenant: "t1").fields["ETag"]?.text == bound)
        // What changes an answer changes its tag.
        let refreshed = await world.broker.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1")
        #expect(refreshed.fields["ETag"]?.text != bound)
    }

    @Test func `a refresh after a key was stored that the server does not know has a tag of its own`() async throws {
        let world = try await World(
            app: #""enabled": false, "insecure_device_key_binding": true"#,
            client: #""x_app2app_enabled": true"#)
        try await world.logIn()
        let tag = await world.broker.call(.get, "/credentials", tenant: "t1").fields["ETag"]?.text
        #expect(await world.approve().json["outcome"]?.text == "refused")
        let kept = await world.broker.call(.get, "/credentials", tenant: "t1", fields: ["If-None-Match": tag ?? ""])
        #expect(kept.status == 304)
        let refreshed = await world.broker.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1")
        #expect(refreshed.status == 200)
        #expect(refreshed.fields["ETag"]?.text != tag)
    }

    @Test func `the server's refusal goes to the other app`() async throws {
        let world = try await World(
            app: #""enabled": false, "insecure_device_key_binding": true"#)
        try await world.logIn()
        let answer = await world.approve()
        #expect(answer.status == 200)
        #expect(answer.json["outcome"]?.text == "refused")
        let parameters = BrokerHarness.parameters(of: answer.json["redirect_uri"]?.text ?? "")
        #expect(parameters["error"] == "invalid_grant")
        #expect(parameters["state"] == "s 1")
        #expect(parameters["code"] == nil)
        let tenant = try #require(TenantName("t1"))
        #expect(try await world.broker.events(named: "app2app.rejected", of: tenant).count == 1)
    }

    @Test func `a server that is away is no refusal`() async throws {
        let world = try await World()
        try await world.logIn()
        for (step, code) in [
            (ScriptedTransport.Step.json(503, "{}"), "retryable_error"),
            (.json(429, "{}", fields: ["Retry-After": "7"]), "retryable_error"),
            (.failure(.connectFailed), "network_error"),
        ] {
            world.broker.transport.always(step)
            let answer = await world.approve()
            #expect((answer.status, answer.code) == (503, code))
            #expect(answer.fields["Retry-After"] != nil)
        }
        world.broker.transport.always(.forward(World.forwarding(to: world.server)))
        #expect(await world.approve().json["outcome"]?.text == "approved")
    }

    @Test func `a rejection tells the other app why`() async throws {
        let world = try await World()
        let link = World.link()
        let plain = await world.broker.call(.post, "/app2app/reject", tenant: "t1", body: #"{"uri": "\#(link)"}"#)
        #expect(plain.status == 200)
        #expect(
            BrokerHarness.parameters(of: plain.json["redirect_uri"]?.text ?? "") == [
                "error": "x_app2app_rejected", "state": "s 1",
            ])
        let why = await world.broker.call(
            .post, "/app2app/reject", tenant: "t1",
            body: #"{"uri": "\#(link)", "error": "access_denied", "error_description": "not now"}"#)
        #expect(
            BrokerHarness.parameters(of: why.json["redirect_uri"]?.text ?? "")
                == ["error": "access_denied", "error_description": "not now", "state": "s 1"])
    }

    @Test(
        arguments: [
            ([:], true), (["state": nil], true), (["code_challenge_method": nil], true), (["client_id": nil], false),
            (["redirect_uri": nil], false), (["code_challenge": nil], false), (["redirect_uri": "/cb"], false),
            (["redirect_uri": "https://other.example/cb#x"], false), (["client_id": ""], false),
        ] as [([String: String?], Bool)])
    func `a link is read or refused`(_ changes: [String: String?], _ isRequest: Bool) async throws {
        let world = try await World()
        let link = World.link(changes)
        let answer = await world.broker.call(.post, "/app2app/requests", tenant: "t1", body: #"{"uri": "\#(link)"}"#)
        #expect(answer.status == (isRequest ? 200 : 422), "\(answer.text)")
        guard isRequest else { return #expect(answer.code == "illegal_argument") }
        #expect(answer.json["client_id"]?.text == "other")
        #expect(answer.json["redirect_uri"]?.text == "https://other.example/cb")
        #expect(answer.json["code_challenge"]?.text == BrokerHarness.appChallenge)
        #expect(answer.json["state"]?.text == (changes.keys.contains("state") ? nil : "s 1"))
    }

    @Test func `what is no link at all is refused, and a redirect URI's own query is replaced`() async throws {
        let world = try await World()
        for link in ["x", "https://a.example", "https://a.example/?client_id=a&client_id=b"] {
            let answer = await world.broker.call(
                .post, "/app2app/requests", tenant: "t1", body: #"{"uri": "\#(link)"}"#)
            #expect(answer.status == 422)
        }
        let link = World.link(["redirect_uri": "https://other.example/cb?old=1", "state": nil])
        let answer = await world.broker.call(.post, "/app2app/reject", tenant: "t1", body: #"{"uri": "\#(link)"}"#)
        #expect(answer.json["redirect_uri"]?.text == "https://other.example/cb?error=x_app2app_rejected")
    }

    // MARK: Logins through another app

    @Test func `a login begins by the link of another app, and ends like any other`() async throws {
        let world = try await World()
        let begun = await world.broker.beginLogin(
            body: #"{"app2app": {"authorization_endpoint": "https://a.example/authorize"}}"#)
        let parameters = BrokerHarness.parameters(of: begun.uri)
        #expect(begun.uri.hasPrefix("https://a.example/authorize?"))
        #expect(
            Set(parameters.keys) == ["client_id", "redirect_uri", "code_challenge", "code_challenge_method", "state"])
        // The other app has a session, and lets this one in. Its answer has no iss.
        let key = try AppKey()
        let proof = try key.proof(await world.server.challenge(), now: world.server.time.now)
        await world.server.makeClient(
            "a", of: "s1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}"#)
        let code = await world.server.appCode(client: "a")
        let session = await world.server.exchange(code, client: "a", ["x_app2app_device_key_jwt": proof])
        let approved = await world.server.approve(
            session.json["refresh_token"]?.text ?? "",
            try key.proof(await world.server.challenge(), now: world.server.time.now), target: "app",
            ["redirect_uri": parameters["redirect_uri"], "code_challenge": parameters["code_challenge"]])
        let given = try #require(approved.json["code"]?.text, "\(approved.text)")
        let ended = await world.broker.call(.get, "/login/callback?code=\(given)&state=\(begun.state)", key: nil)
        #expect(ended.status == 200, "\(ended.text)")
        #expect(await world.broker.token() == "access-1")
        let other = await world.broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"app2app": {"authorization_endpoint": "https://a.example/other"}}"#)
        #expect((other.status, other.code) == (422, "illegal_argument"))
    }

    // MARK: Links

    private static let fingerprint = Array(repeating: "AB", count: 32).joined(separator: ":")

    private static func statements(
        _ package: String, _ fingerprint: String, relation: String = "delegate_permission/common.handle_all_urls"
    ) -> String {
        #"[{"relation": ["\#(relation)"], "target": {"namespace": "android_app", "package_name": "\#(package)", "sha256_cert_fingerprints": ["\#(fingerprint)"]}}]"#
    }

    @Test(arguments: [
        (statements("com.example.other", fingerprint), true),
        (statements("com.example.other", fingerprint.lowercased()), true),
        (statements("com.example.evil", fingerprint), false),
        (statements("com.example.other", Array(repeating: "AC", count: 32).joined(separator: ":")), false),
        (statements("com.example.other", fingerprint, relation: "delegate_permission/common.get_login_creds"), false),
        ("[]", false), ("{}", false), ("no JSON", false),
    ])
    func `Android's file must name the app`(_ file: String, _ isNamed: Bool) async throws {
        let world = try await World()
        try await world.logIn()
        let address = "https://other.example/.well-known/assetlinks.json"
        world.broker.transport.standing(at: address, .json(200, file, fields: ["Cache-Control": "max-age=60"]))
        let check =
            #", "verify_app_link": {"package_name": "com.example.other", "sha256_cert_fingerprint": "\#(Self.fingerprint)"}"#
        let answer = await world.approve(more: check)
        #expect(answer.status == (isNamed ? 200 : 422), "\(answer.text)")
        if !isNamed { #expect(try await world.server.count(.usedChallenge) == 1) }
        // The file is used for as long as it says.
        guard isNamed else { return }
        world.broker.transport.standing(at: address, .json(404, ""))
        #expect(await world.approve(more: check).status == 200)
        world.broker.time.advance(by: .seconds(61))
        #expect(await world.approve(more: check).status == 422)
    }

    @Test(arguments: [
        (#"{"applinks": {"details": [{"appID": "TEAM123456.com.example", "paths": ["/cb"]}]}}"#, true),
        (#"{"applinks": {"details": [{"appID": "TEAM123456.com.example", "paths": ["NOT /cb", "*"]}]}}"#, false),
        (#"{"applinks": {"details": [{"appIDs": ["TEAM123456.com.example"], "components": [{"/": "/c?"}]}]}}"#, true),
        (
            #"{"applinks": {"details": [{"appIDs": ["TEAM123456.com.example"], "components": [{"/": "/cb", "exclude": true}, {"/": "*"}]}]}}"#,
            false
        ),
        (#"{"applinks": {"details": [{"appIDs": ["TEAM123456.com.example"], "components": [{"/": "/x/*"}]}]}}"#, false),
        (#"{"applinks": {"details": [{"appID": "TEAM123456.com.evil", "paths": ["*"]}]}}"#, false),
        (#"{"applinks": {"details": []}}"#, false),
    ])
    func `Apple's file must name the app for the path`(_ file: String, _ isNamed: Bool) async throws {
        let world = try await World()
        try await world.logIn()
        world.broker.transport.standing(
            at: "https://other.example/.well-known/apple-app-site-association", .json(200, file))
        let answer = await world.approve(more: #", "verify_app_link": {"apple_app_id": "TEAM123456.com.example"}"#)
        #expect(answer.status == (isNamed ? 200 : 422), "\(answer.text)")
    }

    @Test(arguments: [
        #", "verify_app_link": {}"#, #", "verify_app_link": {"package_name": "a.b"}"#,
        #", "verify_app_link": {"package_name": "a.b", "sha256_cert_fingerprint": "x", "apple_app_id": "y"}"#,
    ])
    func `a check names one app`(_ more: String) async throws {
        let world = try await World()
        let answer = await world.approve(more: more)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
    }

    // MARK: Tenants

    @Test(arguments: [
        (#"{"provider": "tidal", "client_id": "a", "app2app": {}}"#, "/app2app"),
        (
            #"{"provider": "authgear", "client_id": "a", "issuer": "https://a.example", "app2app": {"authorization_endpoints": ["http://a.example"]}}"#,
            "/app2app/authorization_endpoints/0"
        ),
        (
            #"{"provider": "authgear", "client_id": "a", "issuer": "https://a.example", "app2app": {"on": true}}"#,
            "/app2app/on"
        ),
        (#"{"client_id": "a", "endpoints": {"challenge": "https://a.example"}}"#, "/endpoints/challenge"),
    ])
    func `a tenant's app2app is checked`(_ body: String, _ pointer: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: body)
        #expect(answer.status == 400)
        #expect(answer.json["errors"]?.array?.contains { $0["pointer"]?.text == pointer } == true, "\(answer.text)")
    }

    // MARK: Refreshes

    @Test func `an approval and a refresh of one login exclude each other, over two replicas`() async throws {
        let records = MemoryRecordStore()
        let world = try await World(store: FaultyStore(records, revalidateAfter: .seconds(60)))
        try await world.logIn()
        let second = try await BrokerHarness(
            store: FaultyStore(records, revalidateAfter: .seconds(60)), time: world.broker.time)
        second.transport.always(.forward(World.forwarding(to: world.server)))
        let gate = Gate()
        let forward = World.forwarding(to: world.server)
        world.broker.transport.always(
            .forward { request async throws(TransportError) in
                // The call that asks for the code waits.
                if String(decoding: request.body, as: UTF8.self).contains("app2app-request") {
                    gate.arrive()
                    await gate.opened()
                }
                return try await forward(request)
            })
        let approval = Task { await world.approve() }
        await gate.arrivals()
        world.broker.time.holdSleeps()
        let refresh = Task {
            await second.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1")
        }
        // The other replica waits for the lease, and asks the server nothing meanwhile.
        await world.broker.time.sleepers(of: [.seconds(1)])
        #expect(second.transport.requests.isEmpty)
        gate.open()
        #expect(await approval.value.json["outcome"]?.text == "approved")
        world.broker.time.advance(by: .seconds(1))
        #expect(await refresh.value.status == 200)
        #expect(second.transport.requests.count == 1)
    }
}
