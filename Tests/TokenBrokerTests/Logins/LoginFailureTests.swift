import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// What a caller, an operator and a browser are told of a login that failed.
@Suite(.timeLimit(.minutes(5))) struct `Why a login failed` {
    private static let tenant = #"""
        {"provider": "oidc", "client_id": "c1", "client_secret": "canary-secret", "scopes": ["openid"],
         "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t",
                       "device_authorization": "https://op.example/d"}}
        """#

    struct Row: Sendable, CustomTestStringConvertible {
        let testDescription: String
        /// The response that the browser brings.
        var response = "code=canary-code"
        var step: ScriptedTransport.Step?
        let error: String
        let errorCode: String?
        /// What the sentence names.
        let names: [String]
        /// Whether there is nothing to say about what to change.
        var isWithoutAdvice = false
    }

    private static func refused(_ status: Int, _ error: String, _ names: String...) -> Row {
        Row(
            testDescription: "\(status) \(error)", step: .json(status, #"{"error": "\#(error)"}"#),
            error: "unexpected_error", errorCode: error, names: names)
    }

    private static let rows: [Row] = [
        refused(401, "invalid_client", "client_secret", "token_endpoint_auth_method"),
        refused(400, "invalid_client", "client_secret"),
        refused(400, "unauthorized_client", "authorization code", "client_secret"),
        refused(400, "invalid_grant", "redirect URI"), refused(400, "invalid_scope", "scopes"),
        refused(400, "unsupported_grant_type", "authorization code"), refused(400, "invalid_request", "provider"),
        refused(400, "redirect_uri_mismatch", "redirect URI", "register"),
        refused(403, "forbidden_client", "403", "allow"), refused(400, "invalid_dpop_proof", "dpop", "clocks"),
        refused(400, "use_dpop_nonce", "dpop", "true"),
        Row(
            testDescription: "403 without an error", step: .json(403, ""), error: "unexpected_error", errorCode: nil,
            names: ["403", "allow", "registration"]),
        Row(
            testDescription: "404", step: .json(404, ""), error: "unexpected_error", errorCode: nil,
            names: ["404", "endpoints", "address"]),
        Row(
            testDescription: "404 with a page", step: .json(404, "<html>"), error: "unexpected_error", errorCode: nil,
            names: ["404", "endpoints", "address"]),
        Row(
            testDescription: "400 with a page", step: .json(400, "<html>"), error: "unexpected_error", errorCode: nil,
            names: ["400", "proxy", "endpoints"]),
        Row(
            testDescription: "400 with an error that is none", step: .json(400, #"{"error": "no code"}"#),
            error: "unexpected_error", errorCode: nil, names: ["400"], isWithoutAdvice: true),
        Row(
            testDescription: "400 with nothing", step: .json(400, ""), error: "unexpected_error", errorCode: nil,
            names: ["400", "client_secret"]),
        Row(
            testDescription: "redirect_uri_mismatch from the login service", response: "error=redirect_uri_mismatch",
            error: "authorization_error", errorCode: "redirect_uri_mismatch", names: ["redirect URI", "register"]),
        Row(
            testDescription: "no token", step: .json(200, "{}"), error: "token_response_error", errorCode: nil,
            names: ["token"]),
        Row(
            testDescription: "pin", step: .failure(.untrusted(.pin)), error: "provider_untrusted", errorCode: nil,
            names: ["pin"]),
        Row(
            testDescription: "http", step: .failure(.insecureTarget), error: "illegal_configuration", errorCode: nil,
            names: ["TOKEN_BROKER_ALLOW_HTTP_PROVIDERS"]),
        Row(
            testDescription: "lost", step: .failure(.connectionLost(requestSent: true)), error: "network_error",
            errorCode: nil, names: ["reached"]),
        Row(
            testDescription: "access_denied", response: "error=access_denied", error: "authorization_error",
            errorCode: "access_denied", names: ["user"]),
        Row(
            testDescription: "invalid_scope", response: "error=invalid_scope", error: "authorization_error",
            errorCode: "invalid_scope", names: ["scopes"]),
        Row(
            testDescription: "unauthorized_client", response: "error=unauthorized_client",
            error: "authorization_error", errorCode: "unauthorized_client", names: ["registration"]),
        Row(
            testDescription: "temporarily_unavailable", response: "error=temporarily_unavailable",
            error: "authorization_error", errorCode: "temporarily_unavailable", names: ["again"]),
    ]

    @Test(arguments: rows)
    func `is told by the login, the log and the page`(row: Row) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        if let step = row.step { broker.transport.enqueue(step) }
        let page = await broker.callback("\(row.response)&state=\(login.state)")
        let told = await broker.progress(login.id)
        let detail = try #require(told.json["detail"]?.text)
        #expect(told.json["status"]?.text == "failed")
        #expect(told.json["error"]?.text == row.error)
        #expect(told.json["error_code"]?.text == row.errorCode)
        for name in row.names { #expect(detail.contains(name), "\(detail)") }
        if row.isWithoutAdvice { #expect(detail.hasSuffix("status 400.")) }
        // A replica that did not finish it says the same.
        let other = try await BrokerHarness(store: broker.store, time: broker.time)
        #expect(await other.progress(login.id).text == told.text)

        let line = try #require(broker.log.last { $0.contains(#""event":"login_failed""#) })
        #expect(line.contains(#""code":"\#(row.error)""#))
        if let code = row.errorCode { #expect(line.contains(#""provider_error":"\#(code)""#)) }
        #expect(line.contains(#""detail":""#))
        for name in row.names { #expect(line.contains(name), "\(line)") }

        #expect(page.text.contains(row.error))
        if let code = row.errorCode { #expect(page.text.contains(code)) }
        for name in row.names { #expect(page.text.contains(name), "\(page.text)") }
        for secret in ["canary-secret", "canary-code", login.state] {
            #expect(!(page.text + told.text + broker.log.joined()).contains(secret))
        }
    }

    @Test(arguments: [
        ("invalid_client", "token_response_error", "client_secret"),
        ("unauthorized_client", "token_response_error", "device"), ("access_denied", "authorization_error", "user"),
        ("invalid_scope", "token_response_error", "scopes"),
    ])
    func `is told of a device login, too`(errorCode: String, error: String, name: String) async throws {
        let time = ManualTime(skipsSleeps: false)
        let (broker, script) = try await BrokerHarness.devices(time: time, tenant: Self.tenant)
        let handle = await broker.beginDevice()
        script.enqueue(.json(400, #"{"error": "\#(errorCode)"}"#))
        time.advance(by: .seconds(5))
        let told = await broker.deviceProgress(handle, query: "?wait=60")
        #expect(told.json["status"]?.text == "failed")
        #expect(told.json["error"]?.text == error)
        #expect(told.json["error_code"]?.text == errorCode)
        #expect(told.json["detail"]?.text?.contains(name) == true, "\(told.text)")
        // The end is stored, so that callers see it, before it is logged.
        let line = await broker.logLine { $0.contains(#""event":"login_failed""#) }
        #expect(line.contains(#""provider_error":"\#(errorCode)""#) && line.contains(name))
    }

    // H041
    @Test func `is no markup on the page`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        let page = await broker.callback("error=%3Cscript%3E&state=\(login.state)")
        #expect(page.status == 400)
        #expect(!page.text.contains("<script"))
    }

    @Test func `is not told of a login that an earlier build ended, beyond its code`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        _ = await broker.callback("error=access_denied&state=\(login.state)")
        try await broker.rewriteLogin(login.id, leavingOut: ["error_code", "detail"])
        #expect(await broker.progress(login.id).text == #"{"status":"failed","error":"authorization_error"}"#)
        let page = await broker.callback("error=access_denied&state=\(login.state)")
        #expect(page.status == 409)
    }
}

/// What is told of an issuer whose metadata cannot be used.
@Suite struct `Metadata that cannot be used` {
    private static func tenant(_ issuer: String) -> String {
        #"{"provider": "oidc", "client_id": "c1", "issuer": "\#(issuer)"}"#
    }

    private static func begin(_ broker: BrokerHarness) async -> String {
        await broker.call(.post, "/login/initialize", tenant: "t1").json["detail"]?.text ?? ""
    }

    @Test(arguments: [
        ("https://op.example/", "https://op.example"), ("https://op.example", "https://op.example/"),
        ("https://op.example/k", "https://op.example/k/"),
    ])
    func `names the issuer that it is of`(configured: String, found: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(configured))
        broker.transport.always(
            .json(
                200,
                #"""
                {"issuer": "\#(found)", "authorization_endpoint": "https://op.example/a",
                 "token_endpoint": "https://op.example/t"}
                """#))
        let detail = await Self.begin(broker)
        #expect(detail.contains("\"\(found)\""), "\(detail)")
        #expect(detail.contains("\"\(configured)\""), "\(detail)")
        let line = try #require(broker.log.last { $0.contains("metadata_refused") })
        #expect(line.contains(#""tenant":"t1""#) && line.contains(#""issuer":"\#(configured)""#), "\(line)")
    }

    @Test(arguments: ["<script>", "https://op.example/#\\u0007", "https://op.example/?q", "javascript:alert(1)"])
    func `does not repeat an issuer that is none`(found: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("https://op.example"))
        broker.transport.always(
            .json(200, #"{"issuer": "\#(found)", "authorization_endpoint": "x", "token_endpoint": "y"}"#))
        let detail = await Self.begin(broker)
        #expect(detail.contains("another issuer"), "\(detail)")
        #expect(!detail.contains("script") && !detail.contains("?q"))
    }

    @Test(
        arguments: [
            (404, ""), (200, "<html>"), (200, #"{"issuer": "https://other.example"}"#),
            (200, #"{"issuer": "https://op.example"}"#),
        ] as [(Int, String)])
    func `is what the title of the problem says`(status: Int, body: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("https://op.example"))
        broker.transport.always(.json(status, body))
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1")
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(answer.json["title"]?.text == "The provider's metadata cannot be used")
        #expect(answer.json["type"]?.text == "urn:token-broker:problem:illegal_configuration")
    }

    @Test func `is not what the title says where the configuration is at fault otherwise`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(.json(401, #"{"error": "invalid_client"}"#))
        let title = await broker.get().json["title"]?.text
        #expect(title == "The tenant's configuration does not fit the provider")
    }

    @Test func `that is not there is looked for at addresses that are named`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("https://op.example/k"))
        broker.transport.always(.json(404, ""))
        let detail = await Self.begin(broker)
        for address in [
            "https://op.example/.well-known/oauth-authorization-server/k",
            "https://op.example/k/.well-known/openid-configuration",
        ] { #expect(detail.contains(address), "\(detail)") }
        let line = try #require(broker.log.last { $0.contains(#""event":"metadata_"#) })
        #expect(line.contains(#""tenant":"t1""#) && line.contains(#""issuer":"https://op.example/k""#), "\(line)")
    }

    /// What each of the two addresses answers, and what the error says of that.
    @Test(
        arguments: [
            (.json(404, ""), ["answered with status 404"]),
            (.json(401, ""), ["answered with status 401"]),
            (
                .json(200, "<html>", fields: ["Content-Type": "Text/HTML; charset=utf-8"]),
                ["200 and a page (text/html)"]
            ),
            (
                .json(200, "{}", fields: ["Content-Type": "application/json"]),
                ["200 and application/json, and the content is no metadata"]
            ),
            (.json(200, "", fields: ["Content-Type": "<script>"]), ["status 200 and without a usable Content-Type"]),
            (.json(200, "", fields: ["Content-Type": "a/canary-secret-canary"]), ["without a usable Content-Type"]),
            (
                .json(302, "", fields: ["Location": "https://sso.example:8443/login?token=hidden#part"]),
                ["302, a redirect to https://sso.example:8443, and the broker follows none"]
            ),
            (.json(307, "", fields: ["Location": "/login?token=hidden"]), ["307, a redirect, and the broker"]),
            (.json(301, ""), ["301, a redirect, and the broker"]),
            (.json(302, "", fields: ["Location": "https://hidden@sso.example/"]), ["302, a redirect, and the broker"]),
            (.json(302, "", fields: ["Location": "https://canary-secret-canary.example/"]), ["302, a redirect, and"]),
        ] as [(ScriptedTransport.Step, [String])])
    func `is told with what was received, and with what to change`(
        step: ScriptedTransport.Step, words: [String]
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"provider": "oidc", "client_id": "c1", "issuer": "https://op.example", "client_secret": "canary-secret-canary"}"#
        )
        broker.transport.always(step)
        let checked = await broker.call(.post, "/tenants/t1/check").json["checks"]?.array?
            .first { $0["name"]?.text == "metadata" }
        for detail in [await Self.begin(broker), checked?["detail"]?.text ?? ""] {
            for address in ["oauth-authorization-server", "openid-configuration"] {
                for words in words {
                    #expect(detail.contains("https://op.example/.well-known/\(address) "), "\(detail)")
                    #expect(detail.contains(words), "\(detail)")
                }
            }
            #expect(detail.contains("endpoints.token"), "\(detail)")
            for secret in ["hidden", "canary", "script"] { #expect(!detail.contains(secret), "\(detail)") }
        }
        #expect(!broker.log.contains { $0.contains("canary-secret") || $0.contains("hidden") })
    }

    @Test func `is told with its tenant and issuer where it cannot be reached`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("https://op.example"))
        broker.transport.always(.failure(.nameNotFound))
        #expect(await Self.begin(broker).contains("op.example"))
        let line = try #require(broker.log.last { $0.contains("metadata_request_failed") })
        #expect(line.contains(#""tenant":"t1""#) && line.contains(#""issuer":"https://op.example""#), "\(line)")
    }

    @Test func `names a client secret without the client credentials grant as what it is`() async throws {
        for error in ["unauthorized_client", "unsupported_grant_type"] {
            let broker = try await BrokerHarness()
            await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
            broker.transport.enqueue(.json(400, #"{"error": "\#(error)"}"#))
            let answer = await broker.get()
            #expect((answer.status, answer.code) == (424, "illegal_configuration"))
            #expect(answer.json["error_code"]?.text == error)
            let detail = answer.json["detail"]?.text ?? ""
            #expect(detail.contains("client credentials grant"), "\(detail)")
        }
    }
}
