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

/// A JSON list of `count` equal texts.
private func list(_ text: String, count: Int) -> String {
    "[" + Array(repeating: "\"\(text)\"", count: count).joined(separator: ",") + "]"
}

@Suite struct `Faults of a tenant's configuration` {
    private static let pin = "sha256/AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

    // H070
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
        ("token_endpoint_auth_method", #""client_secret""#, "/token_endpoint_auth_method"),
        ("client_id_in_body", #""no""#, "/client_id_in_body"), ("trusted_audiences", #""a""#, "/trusted_audiences"),
        ("trusted_audiences", #"["a", ""]"#, "/trusted_audiences/1"),
        ("trusted_audiences", #"["\#(String(repeating: "a", count: 2049))"]"#, "/trusted_audiences/0"),
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
            body: #"{"provider": "nobody", "scopes": ["a b", 5], "endpoints": {"what": 1, "token": "x"}, "browser": 1}"#
        )
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

    // H014
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

    // H015
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

    // H014
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

    // H014
    @Test func `two media types are 415`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1"}"#,
            fields: ["Content-Type": "application/json", "content-type": "text/plain"])
        #expect(answer.status == 415)
    }
}
