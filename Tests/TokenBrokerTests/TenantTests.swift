internal import BrokerCore
internal import BrokerTesting
internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import OAuth
internal import Testing
internal import TokenBroker

/// A JSON list of so many equal texts.
private func list(_ text: String, count: Int) -> String {
    "[" + Array(repeating: "\"\(text)\"", count: count).joined(separator: ",") + "]"
}

@Suite struct `Tenants` {
    private static let pin = "sha256/AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

    // MARK: PUT

    @Test func `a tenant is created and then replaced`() async throws {
        let broker = try await BrokerHarness()
        let created = await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#)
        #expect(created.status == 201)
        #expect(created.json["tenant"] == .string("t1"))
        #expect(created.fields["Cache-Control"] == "no-store")
        let replaced = await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c2"}"#)
        #expect(replaced.status == 200)
        #expect(await broker.call(.get, "/tenants/t1").json["client_id"] == .string("c2"))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `the answer shows the whole configuration and never the secret`() async throws {
        let broker = try await BrokerHarness()
        let body = """
            {"provider": "tidal", "client_id": "c1", "client_secret": "canary-secret", "client_unique_key": "u1",
             "scopes": ["w_usr", "r_usr", "w_usr"], "login_service_base_uri": "https://login.example",
             "auth_service_base_uri": "https://auth.example/v1", "certificate_pinning": true,
             "pinned_certificates": ["\(Self.pin)"], "issuer": "https://issuer.example",
             "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t",
                           "device_authorization": "https://op.example/d", "revocation": "https://op.example/r",
                           "jwks": "https://op.example/j"},
             "token_endpoint_auth_method": "client_secret_basic",
             "allowed_redirect_uris": ["https://app.example/cb", "app.example:/cb"],
             "allowed_return_uris": ["https://app.example/done"], "browser_binding": "confirm",
             "callback_uri": "per_tenant", "display_name": "Müller & Söhne"}
            """
        let put = await broker.call(.put, "/tenants/t1", body: body)
        #expect(put.status == 201)
        let get = await broker.call(.get, "/tenants/t1")
        #expect(get.status == 200)
        #expect(get.text == put.text)
        var expected = try JSONValue(parsing: Array(body.utf8)).object ?? [:]
        expected["client_secret"] = nil
        expected["client_secret_set"] = .bool(true)
        expected["tenant"] = .string("t1")
        expected["scopes"] = .array([.string("r_usr"), .string("w_usr")])
        #expect(get.json == .object(expected))
        let list = await broker.call(.get, "/tenants")
        #expect(list.json["tenants"] == .array([get.json]))
        #expect(!(put.text + get.text + list.text + broker.log.joined()).contains("canary-secret"))
        // What was taken can be read by another process.
        let other = try await BrokerHarness(store: broker.store)
        #expect(await other.call(.get, "/tenants/t1").text == get.text)
    }

    @Test func `replacing unsets every field that is left out, the secret too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            """
            {"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["a"],
             "certificate_pinning": false, "allowed_redirect_uris": ["https://app.example/cb"],
             "allowed_return_uris": ["https://app.example/done"], "browser_binding": "off",
             "token_endpoint_auth_method": "none", "provider": "oidc", "issuer": "https://issuer.example",
             "callback_uri": "per_tenant", "display_name": "A"}
            """)
        await broker.makeTenant("t2")
        await broker.makeTenant("t1")
        let replaced = await broker.call(.get, "/tenants/t1").text
        #expect(replaced == (await broker.call(.get, "/tenants/t2").text).replacing(#""t2""#, with: #""t1""#))
        #expect(replaced.contains(#""client_secret_set":false"#))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `null unsets like leaving out`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1",
            body: #"{"client_id": "c1", "client_secret": null, "scopes": null, "endpoints": null, "issuer": null}"#)
        #expect(answer.status == 201)
        #expect(answer.json["client_secret_set"] == .bool(false))
    }

    @Test func `replacing keeps keys and credentials`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey()
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "off"}"#)
        #expect(await broker.call(.get, "/credentials", key: key).token == "a1")
    }

    // MARK: Names

    @Test(arguments: [
        ("a", true), ("0", true), ("a-", true), ("a--b", true), (String(repeating: "a", count: 62), true),
        (String(repeating: "a", count: 63), true), (String(repeating: "a", count: 64), false), ("-a", false),
        ("-", false), ("A", false), ("a_b", false), ("a.b", false), ("a%20b", false), ("%C3%A4", false),
        ("a%2Fb", false), ("a%00", false), ("%61", true),
    ])
    func `a tenant's name is of the contract's form`(name: String, isName: Bool) async throws {
        let broker = try await BrokerHarness()
        let put = await broker.call(.put, "/tenants/\(name)", body: #"{"client_id": "c1"}"#)
        #expect(put.status == (isName ? 201 : 400))
        #expect(await broker.call(.get, "/tenants/\(name)").status == (isName ? 200 : 404))
        #expect(await broker.call(.get, "/tenants/\(name)/api-keys").status == (isName ? 200 : 404))
        #expect(await broker.call(.delete, "/tenants/\(name)").status == (isName ? 204 : 404))
    }

    @Test(arguments: ["/tenants/", "/tenants/t1/", "/tenants//api-keys", "/tenants/%zz", "/tenants/t1/x"])
    func `a path that is not of the contract is not found`(path: String) async throws {
        let broker = try await BrokerHarness()
        #expect(await broker.call(.get, path).status == 404)
    }

    // MARK: Faults

    @Test(arguments: [
        ("client_id", "null", "/client_id"), ("client_id", #""""#, "/client_id"), ("client_id", "5", "/client_id"),
        ("client_id", "[]", "/client_id"), ("client_id", #""\#(String(repeating: "c", count: 513))""#, "/client_id"),
        ("client_id", #""a\u0000b""#, "/client_id"), ("client_id", #""a\nb""#, "/client_id"),
        ("provider", #""spotify2""#, "/provider"), ("provider", #""TIDAL""#, "/provider"),
        ("provider", #""""#, "/provider"), ("provider", "1", "/provider"),
        ("client_secret", #""""#, "/client_secret"), ("client_secret", "7", "/client_secret"),
        ("client_unique_key", #""""#, "/client_unique_key"), ("client_unique_key", "{}", "/client_unique_key"),
        ("scopes", #""a b""#, "/scopes"), ("scopes", #"["a b"]"#, "/scopes/0"), ("scopes", #"["a", ""]"#, "/scopes/1"),
        ("scopes", #"["a", "\""]"#, "/scopes/1"), ("scopes", #"["a", "\\"]"#, "/scopes/1"),
        ("scopes", #"["ä"]"#, "/scopes/0"), ("scopes", "[1]", "/scopes/0"), ("scopes", "{}", "/scopes"),
        ("login_service_base_uri", #""login.example""#, "/login_service_base_uri"),
        ("login_service_base_uri", #""ftp://login.example""#, "/login_service_base_uri"),
        ("auth_service_base_uri", #""https://a@b.example""#, "/auth_service_base_uri"),
        ("auth_service_base_uri", #""https://b.example:22""#, "/auth_service_base_uri"),
        ("auth_service_base_uri", #""https://b.example/#f""#, "/auth_service_base_uri"),
        ("auth_service_base_uri", #""https://127.1/""#, "/auth_service_base_uri"),
        ("auth_service_base_uri", #""https://0x7f.1/""#, "/auth_service_base_uri"),
        ("auth_service_base_uri", #""file:///etc/passwd""#, "/auth_service_base_uri"),
        ("certificate_pinning", #""yes""#, "/certificate_pinning"),
        ("certificate_pinning", "1", "/certificate_pinning"),
        ("pinned_certificates", #"["sha1/AAAA"]"#, "/pinned_certificates/0"),
        ("pinned_certificates", #"["\#(pin)", "sha256/AAAA"]"#, "/pinned_certificates/1"),
        ("pinned_certificates", #""\#(pin)""#, "/pinned_certificates"),
        ("pinned_certificates", "[]", "/pinned_certificates"),
        ("issuer", #""issuer""#, "/issuer"), ("issuer", "true", "/issuer"),
        ("endpoints", "[]", "/endpoints"), ("endpoints", #"{"token": 1}"#, "/endpoints/token"),
        ("endpoints", #"{"authorization": "gopher://op.example"}"#, "/endpoints/authorization"),
        ("endpoints", #"{"revocation": "x"}"#, "/endpoints/revocation"),
        ("endpoints", #"{"jwks": "x"}"#, "/endpoints/jwks"),
        ("endpoints", #"{"device_authorization": "x"}"#, "/endpoints/device_authorization"),
        ("endpoints", #"{"tokens": "https://op.example/t"}"#, "/endpoints/tokens"),
        ("token_endpoint_auth_method", #""private_key_jwt""#, "/token_endpoint_auth_method"),
        ("allowed_redirect_uris", #"["/cb"]"#, "/allowed_redirect_uris/0"),
        ("allowed_redirect_uris", #"["javascript:alert(1)"]"#, "/allowed_redirect_uris/0"),
        ("allowed_redirect_uris", #"["https://a.example/#f"]"#, "/allowed_redirect_uris/0"),
        ("allowed_redirect_uris", #"["https://a.example/ b"]"#, "/allowed_redirect_uris/0"),
        ("allowed_redirect_uris", #"[5]"#, "/allowed_redirect_uris/0"),
        ("allowed_return_uris", #"["app:/done"]"#, "/allowed_return_uris/0"),
        ("allowed_return_uris", #"["https://a.example", "//b.example"]"#, "/allowed_return_uris/1"),
        ("allowed_return_uris", #""https://a.example""#, "/allowed_return_uris"),
        ("browser_binding", #""on""#, "/browser_binding"), ("browser_binding", "true", "/browser_binding"),
        ("callback_uri", #""https://a.example/cb""#, "/callback_uri"), ("callback_uri", "1", "/callback_uri"),
        ("display_name", "5", "/display_name"), ("display_name", #""""#, "/display_name"),
        ("display_name", #"" ""#, "/display_name"), ("display_name", #""a\nb""#, "/display_name"),
        ("display_name", #""a\u0085b""#, "/display_name"), ("display_name", #""a\u202eb""#, "/display_name"),
        ("display_name", #""a\u2028b""#, "/display_name"),
        ("display_name", #""\#(String(repeating: "ä", count: 101))""#, "/display_name"),
        // The client secret would go to the provider that the preset knows.
        ("issuer", #""https://issuer.example""#, "/issuer"),
        ("session_ending_answers", "{}", "/session_ending_answers"),
        ("session_ending_answers", "[{}]", "/session_ending_answers/0/status"),
        ("session_ending_answers", #"[{"status": null}]"#, "/session_ending_answers/0/status"),
        ("session_ending_answers", #"[{"status": "400"}]"#, "/session_ending_answers/0/status"),
        ("session_ending_answers", #"[{"status": 399}]"#, "/session_ending_answers/0/status"),
        ("session_ending_answers", #"[{"status": 500}]"#, "/session_ending_answers/0/status"),
        ("session_ending_answers", #"[{"status": 400}, {"status": 408}]"#, "/session_ending_answers/1/status"),
        ("session_ending_answers", #"[{"status": 429, "error": "e"}]"#, "/session_ending_answers/0/status"),
        ("session_ending_answers", #"[{"status": 400, "error": ""}]"#, "/session_ending_answers/0/error"),
        ("session_ending_answers", #"[{"status": 400, "error": 5}]"#, "/session_ending_answers/0/error"),
        ("session_ending_answers", #"[{"status": 400, "error": "a b"}]"#, "/session_ending_answers/0/error"),
        (
            "session_ending_answers", #"[{"status": 400, "error": "\#(String(repeating: "e", count: 65))"}]"#,
            "/session_ending_answers/0/error"
        ),
        ("session_ending_answers", #"[{"status": 400, "code": 1}]"#, "/session_ending_answers/0/code"),
        (
            "session_ending_answers",
            "[" + Array(repeating: #"{"status": 400}"#, count: 33).joined(separator: ",") + "]",
            "/session_ending_answers"
        ),
        ("previous_issuers", #""https://a.example""#, "/previous_issuers"),
        ("previous_issuers", #"["https://a.example", 5]"#, "/previous_issuers/1"),
        ("previous_issuers", #"["https://a.example/?q"]"#, "/previous_issuers/0"),
        ("previous_issuers", #"["http://a.example"]"#, "/previous_issuers/0"),
        ("previous_issuers", #"[""]"#, "/previous_issuers/0"),
        ("previous_issuers", list("https://a.example", count: 11), "/previous_issuers"),
        ("previous_token_endpoints", "{}", "/previous_token_endpoints"),
        ("previous_token_endpoints", #"["http://a.example/t"]"#, "/previous_token_endpoints/0"),
        ("previous_token_endpoints", #"["https://u@a.example/t"]"#, "/previous_token_endpoints/0"),
        ("previous_token_endpoints", #"["https://a.example/t#f"]"#, "/previous_token_endpoints/0"),
        ("previous_token_endpoints", #"["https://a.example/t\u0000"]"#, "/previous_token_endpoints/0"),
        (
            "previous_token_endpoints", #"["https://a.example/\#(String(repeating: "t", count: 2048))"]"#,
            "/previous_token_endpoints/0"
        ),
        ("previous_token_endpoints", list("https://a.example/t", count: 11), "/previous_token_endpoints"),
        ("refresh_lead_time", "-1", "/refresh_lead_time"), ("refresh_lead_time", "86401", "/refresh_lead_time"),
        ("refresh_lead_time", "1.5", "/refresh_lead_time"), ("refresh_lead_time", #""60""#, "/refresh_lead_time"),
        ("proactive_refresh", "59", "/proactive_refresh"), ("proactive_refresh", "86401", "/proactive_refresh"),
        ("proactive_refresh", "0", "/proactive_refresh"), ("proactive_refresh", "true", "/proactive_refresh"),
        ("redirect_uris", "[]", "/redirect_uris"), ("a/b~c", "1", "/a~1b~0c"),
        ("client_secret_set", "true", "/client_secret_set"),
    ])
    func `a field that is wrong is refused with its pointer`(
        name: String, value: String, pointer: String
    ) async throws {
        let broker = try await BrokerHarness()
        let clientID = name == "client_id" ? "" : #""client_id": "c1", "#
        let answer = await broker.call(.put, "/tenants/t1", body: #"{\#(clientID)"\#(name)": \#(value)}"#)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == [pointer])
        #expect(answer.json["errors"]?.array?.allSatisfy { $0["detail"]?.text?.isEmpty == false } == true)
        #expect(await broker.call(.get, "/tenants/t1").status == 404)
    }

    @Test(
        arguments: [
            (#""refresh_lead_time": 0"#, nil), (#""refresh_lead_time": 86400"#, nil),
            (#""proactive_refresh": 60"#, nil), (#""proactive_refresh": 86400"#, nil),
            (#""session_ending_answers": [{"status": 400}, {"status": 499, "error": "a.b_c:d-1"}]"#, nil),
            (#""session_ending_answers": [{"status": 407, "error": "\#(String(repeating: "e", count: 64))"}]"#, nil),
            (#""session_ending_answers": [{"status": 400}, {"status": 400}]"#, nil),
            (
                #""session_ending_answers": [{"status": 400, "error": null}]"#,
                #""session_ending_answers": [{"status": 400}]"#
            ),
            (#""previous_issuers": ["https://a.example", "https://a.example/b/"]"#, nil),
            (#""previous_issuers": \#(list("https://a.example", count: 10))"#, nil),
            (#""previous_token_endpoints": ["https://a.example/t?tenant=7"]"#, nil),
            (#""previous_issuers": [], "previous_token_endpoints": null"#, ""),
            (#""session_ending_answers": []"#, ""), (#""session_ending_answers": null"#, ""),
            (#""refresh_lead_time": null"#, ""), (#""proactive_refresh": null"#, ""),
        ] as [(String, String?)])
    func `the renewal's fields are shown as they were given, and kept`(given: String, shown: String?) async throws {
        let broker = try await BrokerHarness()
        let put = await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1", \#(given)}"#)
        #expect(put.status == 201)
        var expected = try #require(
            try JSONValue(parsing: Array("{\(shown ?? given)}".utf8)).object)
        let get = await broker.call(.get, "/tenants/t1")
        #expect(get.text == put.text)
        expected = expected.filter { get.json[$0.key] != $0.value }
        #expect(expected.isEmpty)
        if shown == "" {
            #expect(get.json["session_ending_answers"] == nil)
            #expect(get.json["previous_issuers"] == nil)
            #expect(get.json["previous_token_endpoints"] == nil)
            #expect(get.json["refresh_lead_time"] == nil)
            #expect(get.json["proactive_refresh"] == nil)
        }
        // What was taken can be read by another process.
        let other = try await BrokerHarness(store: broker.store)
        #expect(await other.call(.get, "/tenants/t1").text == get.text)
        // What is left out is unset.
        await broker.makeTenant()
        #expect(await broker.call(.get, "/tenants/t1").json["session_ending_answers"] == nil)
        #expect(await broker.call(.get, "/tenants/t1").json["previous_issuers"] == nil)
        #expect(await broker.call(.get, "/tenants/t1").json["refresh_lead_time"] == nil)
        #expect(await broker.call(.get, "/tenants/t1").json["proactive_refresh"] == nil)
    }

    @Test func `a session ending answer that is no object is refused`() async throws {
        let broker = try await BrokerHarness()
        for value in [#""400""#, "400", "null", "[]"] {
            let answer = await broker.call(
                .put, "/tenants/t1", body: #"{"client_id": "c1", "session_ending_answers": [\#(value)]}"#)
            #expect(answer.status == 400)
            #expect(answer.pointers.contains("/session_ending_answers/0"))
        }
    }

    @Test func `all faults are told together`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1",
            body: #"{"provider": "x", "scopes": ["a b", 5], "endpoints": {"what": 1, "token": "x"}, "browser": 1}"#)
        #expect(answer.status == 400)
        #expect(
            answer.pointers == [
                "/browser", "/client_id", "/endpoints/token", "/endpoints/what", "/provider", "/scopes/0", "/scopes/1",
            ])
    }

    @Test func `addresses that are wrong are not missing as well`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1",
            body: #"{"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "no", "token": "no"}}"#)
        #expect(answer.pointers == ["/endpoints/authorization", "/endpoints/token"])
    }

    @Test func `faults beyond a hundred are counted and not listed`() async throws {
        let broker = try await BrokerHarness()
        let names = (0..<5000).map { #""x\#($0)": 1"# }
        let answer = await broker.call(.put, "/tenants/t1", body: "{" + names.joined(separator: ",") + "}")
        #expect(answer.status == 400)
        #expect(answer.pointers.count == 100)
        #expect(answer.json["detail"]?.text?.contains("5001") == true)
        let long = String(repeating: "n", count: 100_000)
        let second = await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c", "\#(long)": 1}"#)
        #expect(second.status == 400)
        #expect(second.body.count < 2000)
    }

    @Test(
        arguments: [
            ("{", nil), ("", nil), ("{} {}", nil), ("[]", ""), ("5", ""), ("null", ""), ("\u{feff}{}", nil),
            (#"{"client_id": "c1",}"#, nil), (#"{'client_id': 'c1'}"#, nil),
            (String(repeating: "[", count: 100_000), nil),
        ] as [(String, String?)])
    func `a body that is no JSON object is refused`(body: String, pointer: String?) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: body)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        if pointer == "" { #expect(answer.pointers.contains("")) }
    }

    @Test func `an empty body is an empty object`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1")
        #expect(answer.status == 400)
        #expect(answer.pointers == ["/client_id"])
    }

    @Test func `a member that occurs twice is refused with its pointer`() async throws {
        let broker = try await BrokerHarness()
        for (body, pointer) in [
            (#"{"client_id": "c1", "client_id": "c1"}"#, "/client_id"),
            (#"{"client_id": "c1", "\u0063lient_id": "c2"}"#, "/client_id"),
            (#"{"client_id": "c1", "endpoints": {"token": "x", "token": "y"}}"#, "/endpoints/token"),
        ] {
            let answer = await broker.call(.put, "/tenants/t1", body: body)
            #expect((answer.status, answer.code) == (400, "invalid_request"))
            #expect(answer.pointers == [pointer])
        }
    }

    @Test(arguments: [
        ("application/json", 201), ("APPLICATION/JSON", 201), ("application/json; charset=utf-8", 201),
        ("application/json;charset=\"UTF-8\"", 201), ("application/json; charset=latin1", 415),
        ("application/json; x=y", 415), ("text/json", 415), ("text/plain", 415), ("", 415), ("application/jsonp", 415),
        ("application/problem+json", 415), ("application/x-www-form-urlencoded", 415), ("*/*", 415),
    ])
    func `a body is JSON in UTF-8 or 415`(type: String, status: Int) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1"}"#, fields: ["Content-Type": type])
        #expect(answer.status == status)
        if status == 415 { #expect(answer.code == "unsupported_media_type") }
    }

    @Test func `two media types are 415`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1"}"#,
            fields: ["Content-Type": "application/json", "content-type": "text/plain"])
        #expect(answer.status == 415)
    }

    // MARK: Addresses

    @Test(arguments: [
        ("login_service_base_uri", "http://login.example"), ("auth_service_base_uri", "http://127.0.0.1:8081/v1"),
        ("issuer", "http://issuer.example"),
    ])
    func `http is refused unless the configuration allows it`(name: String, uri: String) async throws {
        let body = #"{"endpoints": \#(Self.named), "client_id": "c1", "\#(name)": "\#(uri)"}"#
        let strict = try await BrokerHarness()
        let refused = await strict.call(.put, "/tenants/t1", body: body)
        #expect(refused.status == 400)
        #expect(refused.pointers == ["/\(name)"])
        let lenient = try await BrokerHarness { $0.providerTargets = .everything }
        let taken = await lenient.call(.put, "/tenants/t1", body: body)
        #expect(taken.status == 201)
        #expect(taken.json[name] == .string(uri))
    }

    @Test func `http endpoints are refused each by its pointer`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1",
            body: """
                {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "http://a.example",
                 "token": "http://a.example", "revocation": "http://a.example", "jwks": "http://a.example",
                 "device_authorization": "http://a.example"}, "issuer": "https://a.example"}
                """)
        #expect(
            answer.pointers == [
                "/endpoints/authorization", "/endpoints/device_authorization", "/endpoints/jwks",
                "/endpoints/revocation", "/endpoints/token",
            ])
    }

    @Test func `a base address may end in a slash`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "client_secret": "s1", "auth_service_base_uri": "https://auth.example/v1/"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().level == "client")
        #expect(broker.transport.seen.map(\.url) == ["https://auth.example/v1/oauth2/token"])
    }

    // MARK: Providers and pins

    @Test(arguments: [
        (#""provider": "tidal""#, 201, true), (#""x": 1"#, 400, true),
        (#""certificate_pinning": true"#, 201, true), (#""certificate_pinning": false"#, 201, false),
        (#""certificate_pinning": false, "pinned_certificates": ["\#(pin)"]"#, 201, false),
        (#""pinned_certificates": ["\#(pin)"]"#, 201, true),
    ])
    func `pinning is on with tidal unless it is turned off`(members: String, status: Int, isPinned: Bool) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1", "client_secret": "s1", \#(members)}"#)
        #expect(answer.status == status)
        guard status == 201 else { return }
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        _ = await broker.get()
        #expect(broker.transport.seen.map(\.isPinned) == [isPinned])
        #expect(broker.log.joined().contains("certificate_pinning_disabled") == !isPinned)
    }

    @Test(arguments: [
        (#""issuer": "https://op.example""#, []),
        (#""endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t"}"#, []),
        (#""endpoints": {"token": "https://op.example/t"}"#, ["/issuer"]),
        (#""endpoints": {"authorization": "https://op.example/a"}"#, ["/issuer"]),
        (#""scopes": ["openid"]"#, ["/issuer"]),
        (#""issuer": "https://op.example", "certificate_pinning": true"#, ["/certificate_pinning"]),
        (#""issuer": "https://op.example", "certificate_pinning": true, "pinned_certificates": ["\#(pin)"]"#, []),
        (
            #""issuer": "https://op.example", "login_service_base_uri": "https://l.example""#,
            ["/login_service_base_uri"]
        ),
        (#""issuer": "https://op.example", "auth_service_base_uri": "https://l.example""#, ["/auth_service_base_uri"]),
    ])
    func `an oidc provider is named by its issuer or by its endpoints`(
        members: String, pointers: [String]
    ) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"provider": "oidc", "client_id": "c1", \#(members)}"#)
        #expect(answer.status == (pointers.isEmpty ? 201 : 400))
        #expect(answer.pointers == pointers)
    }

    private static let named = #"{"authorization": "https://op.example/a", "token": "https://op.example/t"}"#

    @Test(arguments: [
        ("", false), (#""provider": null, "#, false), (#""provider": "tidal", "#, false),
        (#""provider": "spotify", "#, false), (#""provider": "oidc", "#, true), (#""provider": "authgear", "#, true),
        // The issuer is for the comparison of iss alone then: both legs of a login are where the tenant says.
        (#""endpoints": \#(named), "#, true), (#""provider": "spotify", "endpoints": \#(named), "#, true),
        (#""endpoints": {"token": "https://op.example/t"}, "#, false),
        (#""endpoints": {"authorization": "https://op.example/a"}, "#, false),
        (#""auth_service_base_uri": "https://op.example", "#, false),
        (#""login_service_base_uri": "https://a.example", "auth_service_base_uri": "https://b.example", "#, true),
    ])
    func `an issuer is taken only where nothing goes to another provider`(members: String, isTaken: Bool) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1",
            body: #"{\#(members)"client_id": "c1", "client_secret": "s", "issuer": "https://op.example"}"#)
        #expect(answer.status == (isTaken ? 201 : 400))
        #expect(answer.pointers == (isTaken ? [] : ["/issuer"]))
        if !isTaken { #expect(answer.json["detail"]?.text?.contains(#""provider": "oidc""#) == true) }
    }

    @Test func `an issuer that an earlier version has stored is kept`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let id = RecordID(.tenant, TenantName("t1")!)
        let record = try #require(try await broker.vault.read(id))
        let text = record.content.revealedText.dropLast() + #","issuer":"https://issuer.example"}"#
        try await broker.vault.commit([
            .replace(
                OpenRecord(id: id, version: record.version + 1, content: SecretBytes(utf8: String(text))),
                version: record.version)
        ])
        let restarted = try await BrokerHarness(store: broker.store)
        let answer = await restarted.call(.get, "/tenants/t1")
        #expect(answer.status == 200)
        #expect(answer.json["issuer"]?.string == "https://issuer.example")
    }

    @Test func `what is at its default is not in the record, so that the version before can read it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "callback_uri": "shared", "display_name": null}"#)
        let record = try #require(try await broker.vault.read(RecordID(.tenant, TenantName("t1")!)))
        for member in ["callback_uri", "display_name"] { #expect(!record.content.revealedText.contains(member)) }
        #expect(await broker.call(.get, "/tenants/t1").json["callback_uri"] == nil)
    }

    @Test(arguments: [
        String(repeating: "ä", count: 100), "a", "<b>&\"'", "日本語", "👩‍👩‍👧",
    ])
    func `a display name is up to a hundred characters`(name: String) async throws {
        let broker = try await BrokerHarness()
        let body = JSONWriter.object { json in
            json.member("client_id", "c1")
            json.member("display_name", name)
        }
        let answer = await broker.call(.put, "/tenants/t1", body: String(decoding: body, as: UTF8.self))
        #expect(answer.status == 201)
        #expect(answer.json["display_name"]?.string == name)
    }

    @Test(arguments: ["client_secret_basic", "client_secret_post", "none"])
    func `the client authenticates as configured`(method: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "client_secret": "s1", "token_endpoint_auth_method": "\#(method)"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().level == "client")
        let request = try #require(broker.transport.seen.first)
        #expect((request.fields["Authorization"] != nil) == (method == "client_secret_basic"))
        #expect((request.form["client_secret"] != nil) == (method == "client_secret_post"))
        #expect((request.form["client_id"] != nil) == (method != "client_secret_basic"))
    }

    // MARK: Lists

    @Test func `a list pages in the order of the names`() async throws {
        let broker = try await BrokerHarness()
        for name in ["b", "a0", "a", "c", "a-"] { await broker.makeTenant(name) }
        var names: [String] = []
        var cursor: String?
        var pages = 0
        repeat {
            let answer = await broker.call(.get, "/tenants?limit=2" + (cursor.map { "&cursor=\($0)" } ?? ""))
            #expect(answer.status == 200)
            let tenants = answer.json["tenants"]?.array ?? []
            names += tenants.compactMap { $0["tenant"]?.text }
            cursor = answer.json["next_cursor"]?.text
            #expect(tenants.count == (cursor == nil ? 1 : 2))
            pages += 1
        } while cursor != nil
        #expect(names == ["a", "a-", "a0", "b", "c"])
        #expect(pages == 3)
    }

    @Test(arguments: [(0, 1), (1, 1), (2, 1), (3, 2)])
    func `the last page has no cursor`(tenants: Int, pages: Int) async throws {
        let broker = try await BrokerHarness()
        for index in 0..<tenants { await broker.makeTenant("t\(index)") }
        let first = await broker.call(.get, "/tenants?limit=2")
        #expect(first.json["tenants"]?.array?.count == min(tenants, 2))
        #expect((first.json["next_cursor"] == nil) == (pages == 1))
        if let cursor = first.json["next_cursor"]?.text {
            let second = await broker.call(.get, "/tenants?limit=2&cursor=\(cursor)")
            #expect(second.json["tenants"]?.array?.count == 1)
            #expect(second.json["next_cursor"] == nil)
        }
    }

    @Test func `a page goes on where its cursor stands, whatever was deleted`() async throws {
        let broker = try await BrokerHarness()
        for name in ["a", "b", "c"] { await broker.makeTenant(name) }
        let cursor = await broker.call(.get, "/tenants?limit=1").json["next_cursor"]?.text ?? ""
        _ = await broker.call(.delete, "/tenants/a")
        let next = await broker.call(.get, "/tenants?cursor=\(cursor)")
        #expect(next.json["tenants"]?.array?.compactMap { $0["tenant"]?.text } == ["b", "c"])
    }

    @Test(arguments: [
        ("limit=0", "limit"), ("limit=1001", "limit"), ("limit=-1", "limit"), ("limit=x", "limit"),
        ("limit=", "limit"), ("limit=1&limit=2", "limit"), ("cursor=%21", "cursor"), ("cursor=", "cursor"),
        ("cursor=Qk9C", "cursor"), ("offset=5", "offset"),
    ])
    func `a list takes a limit of 1 to 1000 and cursors that it gave`(query: String, name: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.get, "/tenants?\(query)")
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == [name])
    }

    @Test(arguments: ["limit=1", "limit=1000"])
    func `limits at the bounds are taken`(query: String) async throws {
        let broker = try await BrokerHarness()
        #expect(await broker.call(.get, "/tenants?\(query)").status == 200)
    }

    @Test(arguments: [Method.get, .put, .delete])
    func `one tenant takes no query parameters`(method: Method) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let body = method == .put ? #"{"client_id": "c1"}"# : nil
        let answer = await broker.call(method, "/tenants/t1?force=true", body: body)
        #expect((answer.status, answer.pointers) == (400, ["force"]))
        #expect(await broker.call(.get, "/tenants/t1").status == 200)
    }

    // MARK: DELETE

    @Test func `deleting a tenant removes its keys, logins and credentials at once`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let (key, other) = (await broker.makeKey("t1"), await broker.makeKey("t2"))
        await broker.set("a1", refresh: "r1", tenant: "t1")
        await broker.set("b1", refresh: "r2", tenant: "t2")
        let login = await broker.beginLogin(tenant: "t1")
        #expect(await broker.call(.get, "/credentials", key: key).token == "a1")

        let answer = await broker.call(.delete, "/tenants/t1")
        #expect(answer.status == 204)
        #expect(answer.body.isEmpty)
        #expect(await broker.call(.get, "/credentials", key: key).status == 401)
        #expect(await broker.get(tenant: "t1").code == "not_found")
        #expect(await broker.call(.get, "/tenants/t1").code == "not_found")
        #expect(await broker.call(.get, "/tenants/t1/api-keys").code == "not_found")
        #expect(await broker.call(.get, "/login/callback?code=c&state=\(login.state)", key: nil).status == 410)
        #expect(await broker.call(.delete, "/tenants/t1").status == 404)
        for kind in RecordKind.allCases where kind != .keyCheck {
            let left = try await broker.store.list(kind, tenant: TenantName("t1"), after: nil, limit: 10)
            #expect(left.isEmpty, "\(kind)")
        }
        #expect(await broker.call(.get, "/credentials", key: other).token == "b1")

        // Neither does the next tenant of that name inherit anything.
        await broker.makeTenant("t1")
        #expect(await broker.call(.get, "/credentials", key: key).status == 401)
        #expect(await broker.get("policy=local", tenant: "t1").code == "missing_token_container")
        #expect(await broker.call(.get, "/login/\(login.id)", tenant: "t1").status == 404)
        #expect(await broker.call(.get, "/tenants/t1/api-keys").json["api_keys"] == .array([]))
    }

    @Test func `versions rise over a deletion`() async throws {
        let broker = try await BrokerHarness()
        var last: Int64 = 0
        for round in 0..<5 {
            await broker.makeTenant()
            for access in ["a1", "a2", "a3"] {
                await broker.set(access, refresh: "r1")
                let version = await broker.get().version
                #expect(version > last)
                last = version
            }
            _ = await broker.call(.delete, "/tenants/t1")
            // Two of the rounds pass within one tick of the clock, and in one it steps back.
            broker.time.advance(by: .milliseconds([0, 1, 0, -500, 10][round]))
        }
    }

    @Test func `the tag of basic credentials does not come back with a tenant's name`() async throws {
        let broker = try await BrokerHarness()
        var tags: Set<String> = []
        for _ in 0..<3 {
            await broker.makeTenant()
            tags.insert(await broker.get().tag)
            _ = await broker.call(.delete, "/tenants/t1")
        }
        #expect(tags.count == 3)
    }

    @Test func `a deletion whose answer was lost is seen at once`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let key = await broker.makeKey()
        await broker.set("a1", refresh: "r1")
        store.onCommit(of: .tenant, .loseAnswer)
        #expect(await broker.call(.delete, "/tenants/t1").code == "storage_unavailable")
        #expect(await broker.call(.get, "/credentials", key: key).status == 401)
        #expect(await broker.get().status == 404)
        await broker.makeTenant()
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `a configuration whose answer was lost is seen at once`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        store.onCommit(of: .tenant, .loseAnswer)
        #expect(await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c2"}"#).status == 503)
        #expect(await broker.get().json["client_id"] == .string("c2"))
    }

    @Test func `a configuration whose answer comes after the deletion does not bring the tenant back`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let gate = Gate()
        store.onCommit(of: .tenant, .holdAnswer(gate))
        async let put = broker.call(.put, "/tenants/t1", body: #"{"client_id": "c2"}"#)
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        #expect(await put.status == 200)
        #expect(await broker.get().status == 404)
        #expect(await broker.call(.get, "/tenants/t1").status == 404)
    }

    @Test func `many writers of one tenant all succeed`() async throws {
        let broker = try await BrokerHarness()
        let statuses = await withTaskGroup(of: Int.self) { group in
            for index in 0..<20 {
                group.addTask {
                    await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c\#(index)"}"#).status
                }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(statuses.filter { $0 == 201 }.count == 1)
        #expect(statuses.filter { $0 == 200 }.count == 19)
    }

    @Test func `a tenant whose record does not open can still be deleted`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let id = RecordID(.tenant, TenantName("t1")!)
        var record = try #require(try await store.read(id))
        record.version += 1
        record.sealed[record.sealed.count - 1] ^= 1
        try await store.commit([.replace(record, version: record.version - 1)])
        let restarted = try await BrokerHarness(store: store)
        #expect(await restarted.call(.get, "/tenants/t1").status == 500)
        #expect(await restarted.call(.delete, "/tenants/t1").status == 204)
        #expect(await restarted.call(.get, "/tenants/t1").status == 404)
    }
}

@Suite struct `Configured endpoints` {
    private func server(_ members: String) throws -> AuthorizationServer? {
        let json = try JSONValue(parsing: Array(#"{"client_id": "c1", \#(members)}"#.utf8))
        return try TenantConfiguration(json, rules: TargetPolicy()).configuredServer
    }

    @Test(arguments: [
        (#""provider": "tidal""#, "https://auth.tidal.com/v1/oauth2/device_authorization"),
        (#""auth_service_base_uri": "https://auth.example/v2""#, "https://auth.example/v2/oauth2/device_authorization"),
        (
            #""auth_service_base_uri": "https://auth.example/v2/""#,
            "https://auth.example/v2/oauth2/device_authorization"
        ),
        (#""endpoints": {"device_authorization": "https://id.example/d"}"#, "https://id.example/d"),
    ])
    func `tidal's device login is under its auth service unless it is named`(members: String, endpoint: String) throws {
        #expect(try server(members)?.deviceAuthorizationEndpoint == endpoint)
    }

    @Test func `spotify needs none, and those that are named go before its own`() throws {
        let fixed = try #require(try server(#""provider": "spotify""#))
        #expect(fixed.authorizationEndpoint == "https://accounts.spotify.com/authorize")
        #expect(fixed.tokenEndpoint == "https://accounts.spotify.com/api/token")
        #expect(fixed.deviceAuthorizationEndpoint == nil)
        #expect(fixed.clientAuthentication == .clientSecretBasic)
        let named = try #require(
            try server(
                #""provider": "spotify", "endpoints": {"authorization": "https://s.example/a", "token": "https://s.example/t"}"#
            ))
        #expect(named.authorizationEndpoint == "https://s.example/a")
        #expect(named.tokenEndpoint == "https://s.example/t")
    }

    @Test func `authgear is asked for them by its issuer, without which it is refused`() throws {
        #expect(try server(#""provider": "authgear", "issuer": "https://app.authgear.example""#) == nil)
        #expect(throws: BrokerError.self) { try server(#""provider": "authgear""#) }
    }
}
