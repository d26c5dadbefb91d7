import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing

/// `/tenants/{tenant}/clients`.
@Suite struct `Registrations of apps` {
    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        return broker
    }

    private static let least = #"{"redirect_uris": ["https://app.example/cb"]}"#

    @Test func `a client is created, answered without its secret, replaced, listed and deleted`() async throws {
        let broker = try await Self.broker()
        let path = "/tenants/t1/clients/app"
        let created = await broker.call(.put, path, body: Self.least)
        #expect(created.status == 201)
        #expect(
            created.text
                == #"{"client_id":"app","client_secret_set":false,"redirect_uris":["https://app.example/cb"],"#
                + #""refresh_token_rotation":true,"session_days":365,"session_idle_days":30,"x_app2app_enabled":false,"#
                + #""x_app2app_insecure_device_key_binding_enabled":false,"x_app2app_biometric_protection_required":false,"#
                + #""biometric_enabled":false,"android_apps":[],"apple_apps":[]}"#)
        let replaced = await broker.call(
            .put, path,
            body: #"""
                {"redirect_uris": ["http://127.0.0.1/cb", "com.example:/x"], "client_secret": "hush-hush-hush-hush", "name": "Player",
                 "storage_key": "k:1", "refresh_token_rotation": false, "session_days": 1, "session_idle_days": 3650,
                 "android_apps": [{"package_name": "com.example.player", "sha256_cert_fingerprints": ["\#(Self.fingerprint)"]}],
                 "apple_apps": ["ABCDE12345.com.example.player"]}
                """#)
        #expect(replaced.status == 200, "\(replaced.text)")
        #expect(replaced.json["client_secret_set"]?.bool == true)
        #expect(!replaced.text.contains("hush"))
        #expect(
            replaced.json["android_apps"]?.array?.first?["sha256_cert_fingerprints"]?.array?.first?.text
                == Self.fingerprint.uppercased())
        #expect(await broker.call(.get, path).text == replaced.text)
        await broker.makeClient("other")
        let list = await broker.call(.get, "/tenants/t1/clients?limit=1")
        #expect(list.json["clients"]?.array?.map { $0["client_id"]?.text } == ["app"])
        let next = await broker.call(.get, "/tenants/t1/clients?cursor=\(list.json["next_cursor"]?.text ?? "")")
        #expect(next.json["clients"]?.array?.map { $0["client_id"]?.text } == ["other"])
        #expect(next.json["next_cursor"] == nil)
        // What is left out is unset, but for the secret.
        let kept = await broker.call(.put, path, body: Self.least)
        #expect(kept.json["client_secret_set"]?.bool == true)
        #expect(kept.json["name"] == nil)
        let removed = await broker.call(
            .put, path, body: #"{"redirect_uris": ["https://app.example/cb"], "client_secret": null}"#)
        #expect(removed.json["client_secret_set"]?.bool == false)
        #expect(await broker.call(.put, path, body: Self.least).json["client_secret_set"]?.bool == false)
        #expect(await broker.call(.delete, path).status == 204)
        #expect(await broker.call(.delete, path).status == 404)
        #expect(await broker.call(.get, path).status == 404)
    }

    private static let fingerprint = Array(repeating: "aB", count: 32).joined(separator: ":")

    // H023
    @Test func `an identifier belongs to one tenant of the broker`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant("t2")
        await broker.makeClient("app")
        let other = await broker.call(.put, "/tenants/t2/clients/app", body: Self.least)
        #expect(other.status == 409)
        #expect(other.code == "conflict")
        #expect(await broker.call(.get, "/tenants/t2/clients/app").status == 404)
        #expect(await broker.call(.delete, "/tenants/t2/clients/app").status == 404)
        // It is free again with its tenant.
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        #expect(await broker.call(.put, "/tenants/t2/clients/app", body: Self.least).status == 201)
    }

    @Test(arguments: [
        ("a", 201), (String(repeating: "a", count: 200), 201), (String(repeating: "a", count: 201), 400),
        ("A.z_0~-", 201), ("a:b", 400), ("a@b", 400), ("a%20b", 400), ("%C3%A9", 400),
    ])
    func `an identifier is 1 to 200 characters`(_ id: String, _ status: Int) async throws {
        let broker = try await Self.broker()
        #expect(await broker.call(.put, "/tenants/t1/clients/\(id)", body: Self.least).status == status)
    }

    @Test(arguments: [
        (#"{}"#, "/redirect_uris"), (#"{"redirect_uris": []}"#, "/redirect_uris"),
        (#"{"redirect_uris": ["/cb"]}"#, "/redirect_uris/0"),
        (#"{"redirect_uris": ["https://a/#x"]}"#, "/redirect_uris/0"),
        (#"{"redirect_uris": ["javascript:alert(1)"]}"#, "/redirect_uris/0"),
        (#"{"redirect_uris": ["JavaScript:alert(1)"]}"#, "/redirect_uris/0"),
        (#"{"redirect_uris": ["https://a b"]}"#, "/redirect_uris/0"),
        (#"{"redirect_uris": ["https://a"], "session_days": 0}"#, "/session_days"),
        (#"{"redirect_uris": ["https://a"], "session_days": 3651}"#, "/session_days"),
        (#"{"redirect_uris": ["https://a"], "session_idle_days": 0}"#, "/session_idle_days"),
        (#"{"redirect_uris": ["https://a"], "storage_key": "a b"}"#, "/storage_key"),
        (#"{"redirect_uris": ["https://a"], "x_app2app": true}"#, "/x_app2app"),
        (#"{"redirect_uris": ["https://a"], "client_secret": ""}"#, "/client_secret"),
        (#"{"redirect_uris": ["https://a"], "client_secret": "s"}"#, "/client_secret"),
        (#"{"redirect_uris": ["https://a"], "client_secret": "15-bytes-are-fe"}"#, "/client_secret"),
        (
            #"{"redirect_uris": ["https://a"], "android_apps": [{"package_name": "player", "sha256_cert_fingerprints": ["1"]}]}"#,
            "/android_apps/0/package_name"
        ),
        (#"{"redirect_uris": ["https://a"], "apple_apps": ["com.example"]}"#, "/apple_apps/0"),
    ])
    func `a fault is told with its place`(_ body: String, _ pointer: String) async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(.put, "/tenants/t1/clients/app", body: body)
        #expect(answer.status == 400)
        #expect(answer.json["errors"]?.array?.contains { $0["pointer"]?.text == pointer } == true, "\(answer.text)")
    }

    @Test func `clients and sessions are the operator's`() async throws {
        let broker = try await Self.broker()
        let key = await broker.makeKey()
        for (method, path) in [
            (Method.get, "/tenants/t1/clients"), (.put, "/tenants/t1/clients/app"), (.get, "/tenants/t1/clients/app"),
            (.delete, "/tenants/t1/clients/app"), (.get, "/tenants/t1/sessions"), (.delete, "/tenants/t1/sessions/x"),
        ] {
            #expect(await broker.call(method, path, key: key).status == 403)
            #expect(await broker.call(method, path, key: nil).status == 401)
            #expect(await broker.call(method, path.replacing("t1", with: "t9")).status == 404 || method == .put)
        }
    }

    @Test func `a replica learns of another one's change`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(60))
        await one.makeTenant()
        func put(_ secret: String) async {
            await one.makeClient(
                "app", of: "t1", #"{"redirect_uris": ["https://app.example/cb"], "client_secret": "\#(secret)"}"#)
        }
        let (old, new) = ("old-0123456789ab", "new-0123456789ab")
        await put(old)
        func status(_ broker: BrokerHarness, _ secret: String) async -> Int {
            await broker.app(
                "/oauth2/revoke", [("client_id", "app"), ("client_secret", secret), ("token", "x")]
            ).status
        }
        #expect(await status(two, old) == 200)
        await put(new)
        #expect(await status(one, old) == 401)
        one.time.advance(by: .seconds(61))
        #expect(await status(two, old) == 401)
        #expect(await status(two, new) == 200)
    }

    @Test(arguments: [
        ("https://app.example/cb", true), ("https://app.example:444/cb?x=1", true), ("HTTPS://app.example", true),
        ("com.example.app:/cb", true), ("com.example.app://cb", true), ("http://127.0.0.1/cb", true),
        ("http://127.0.0.1:8080/cb", true), ("http://[::1]:1/cb", true), ("http://localhost/cb", true),
        ("http://LOCALHOST:3000", true), ("http://app.example/cb", false), ("http://127.0.0.2/cb", false),
        ("http://127.0.0.1.example/cb", false), ("http://127.0.0.1:x/cb", false), ("http://[::1/cb", false),
        ("http://localhost@evil.example/cb", false), ("http://user@localhost/cb", false),
        ("https://user:word@app.example/cb", false), ("https://app.example\\\\@evil.example/cb", false),
        ("https:app.example/cb", false), ("https:///cb", false), ("https://:443/cb", false),
    ])
    func `a redirect URI is https, http on the device itself, or of the app's own scheme`(
        _ uri: String, _ isTaken: Bool
    ) async throws {
        let broker = try await Self.broker()
        let client = await broker.call(
            .put, "/tenants/t1/clients/app", body: #"{"redirect_uris": ["\#(uri)"]}"#)
        #expect(client.status == (isTaken ? 201 : 400), "\(client.text)")
        let tenant = await broker.call(
            .put, "/tenants/t2", body: #"{"client_id": "c1", "allowed_redirect_uris": ["\#(uri)"]}"#)
        #expect(tenant.status == (isTaken ? 201 : 400), "\(tenant.text)")
        if isTaken { return }
        let returning = await broker.call(
            .put, "/tenants/t3", body: #"{"client_id": "c1", "allowed_return_uris": ["\#(uri)"]}"#)
        #expect(returning.status == 400, "\(returning.text)")
    }

    @Test func `a client keeps its secret until it gets another one or none`() async throws {
        let broker = try await Self.broker()
        func put(_ members: String) async { await broker.makeClient("app", of: "t1", "{\(members)}") }
        func status(_ secret: String?) async -> Int {
            await broker.app(
                "/oauth2/revoke",
                [("client_id", "app"), ("token", "x")] + (secret.map { [("client_secret", $0)] } ?? [])
            ).status
        }
        let uris = #""redirect_uris": ["https://app.example/cb"]"#
        await put(uris + #", "client_secret": "0123456789abcdef""#)
        await put(uris + #", "name": "Player""#)
        #expect(await status(nil) == 401)
        #expect(await status("0123456789abcdef") == 200)
        await put(uris + #", "client_secret": "fedcba9876543210""#)
        #expect(await status("0123456789abcdef") == 401)
        await put(uris + #", "client_secret": null"#)
        #expect(await status(nil) == 200)
    }
}
