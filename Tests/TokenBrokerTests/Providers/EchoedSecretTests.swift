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

/// A provider whose error repeats a secret of the request that it answers.
@Suite struct `A secret in a provider's error` {
    private static let secret = "Canary-secret.0123456789"

    private static func tenant(_ method: String, secret: String = secret) -> String {
        #"""
        {"provider": "oidc", "client_id": "c1", "client_secret": "\#(secret)",
         "token_endpoint_auth_method": "\#(method)", "client_credentials": "off",
         "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t",
                       "device_authorization": "https://op.example/d"}}
        """#
    }

    private static func error(_ text: String, _ status: Int = 400) -> ScriptedTransport.Step {
        .json(status, #"{"error": "\#(text)", "error_description": "\#(text)", "sub_status": "\#(text)"}"#)
    }

    private static func basic(_ seen: ScriptedTransport.Seen) -> String {
        String(seen.fields["Authorization"]?.text.dropFirst("Basic ".count).prefix { $0 != "=" } ?? "")
    }

    /// What the provider makes its `error` of.
    struct Echo: Sendable, CustomTestStringConvertible {
        let testDescription: String
        var method = "client_secret_post"
        let text: @Sendable (ScriptedTransport.Seen) -> String
    }

    private static let echoes: [Echo] = [
        Echo(testDescription: "the client secret") { $0.form["client_secret"] ?? "" },
        Echo(testDescription: "the client secret with words around it") { "bad_\($0.form["client_secret"] ?? "")_" },
        Echo(testDescription: "the client secret in base64") { Base64Text.encode($0.form["client_secret"] ?? "") },
        Echo(testDescription: "the client's Basic credentials", method: "client_secret_basic", text: basic),
        Echo(testDescription: "the client secret of Basic credentials", method: "client_secret_basic") { _ in secret },
        Echo(testDescription: "the end of the code") { String($0.form["code"]?.suffix(64) ?? "") },
        Echo(testDescription: "the code verifier") { $0.form["code_verifier"] ?? "" },
        Echo(testDescription: "the beginning of the code") { String($0.form["code"]?.prefix(64) ?? "") },
        Echo(testDescription: "a part of the code verifier") {
            String($0.form["code_verifier"]?.dropFirst(9).prefix(12) ?? "")
        },
    ]

    // H075 Q55
    @Test(arguments: echoes, [400, 401, 503])
    func `is shown by no answer, log or page of a login`(echo: Echo, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(echo.method))
        let login = await broker.beginLogin()
        broker.transport.always(.decide { Self.error(echo.text($0), status) })
        let code = String(repeating: "Canary-code.0123456789", count: 8)
        let page = await broker.callback("code=\(code)&state=\(login.state)")
        let request = try #require(broker.transport.seen.last)
        let text = echo.text(request)
        #expect(text.count >= 12)
        let told = await broker.progress(login.id)
        #expect(told.json["error_code"]?.text == "withheld")
        let events = try await broker.events().map { "\($0.data)" }
        let shown = page.text + told.text + broker.log.joined() + events.joined()
        #expect(!shown.contains(text), "\(text)")
        #expect(page.text.contains("withheld"))
        let line = try #require(broker.log.last { $0.contains(#""event":"login_failed""#) })
        #expect(line.contains(#""provider_error":"withheld""#))
    }

    @Test(arguments: [
        ("s3", "s3"), ("s3", "a.s3.b"), ("Canary12345", "Canary12345"), ("Canary12345", "x-Canary12345"),
        ("Canary-12345", "Canary-12345"), ("p%41 s", "p-41"),
    ])
    func `is found however short it is`(secret: String, text: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("client_secret_post", secret: secret))
        let login = await broker.beginLogin()
        broker.transport.enqueue(Self.error(text))
        _ = await broker.callback("code=c&state=\(login.state)")
        let told = await broker.progress(login.id)
        #expect(told.json["error_code"]?.text == (text.contains(secret) ? "withheld" : text))
    }

    @Test(arguments: ["invalid_client", "invalid_grant", "unauthorized_client", "invalid_scope"])
    func `is no reason to hide an error that the protocol names`(error: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("client_secret_post", secret: "i"))
        let login = await broker.beginLogin()
        broker.transport.enqueue(Self.error(error))
        _ = await broker.callback("code=i&state=\(login.state)")
        #expect(await broker.progress(login.id).json["error_code"]?.text == error)
    }

    // H075
    @Test func `is shown by no answer to a refresh, and by no event of it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("client_secret_basic"))
        await broker.set("a1", refresh: "Canary-refresh.0123456789", lifetime: .zero)
        broker.transport.always(.decide { Self.error($0.form["refresh_token"] ?? "?") })
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "unexpected_error"))
        #expect(answer.json["error_code"]?.text == "withheld")
        let list = await broker.call(.get, "/credentials/list", tenant: "t1")
        #expect(list.text.contains("withheld"))
        let events = try await broker.events().map { "\($0.data)" }
        for text in [answer.text, list.text, events.joined(), broker.log.joined()] {
            #expect(!text.contains("Canary-refresh"), "\(text)")
        }
    }

    @Test func `changes nothing about what an error means`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("client_secret_post", secret: "invalid_grant"))
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get().level == "basic")
    }

    @Test func `is shown neither of a device login nor of its beginning`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let (broker, script) = try await BrokerHarness.devices(time: time, tenant: Self.tenant("client_secret_post"))
        let handle = await broker.beginDevice()
        script.enqueue(Self.error("the-provider-s-code"), Self.error("x"))
        script.setCodes(
            #"{"device_code": "Canary-device.0123456789", "user_code": "A", "verification_uri": "https://p.example"}"#)
        let second = await broker.beginDevice(storageKey: "second")
        broker.transport.always(.decide { seen in Self.error(seen.form["device_code"] ?? Self.secret) })
        time.advance(by: .seconds(5))
        let told = await broker.deviceProgress(second, query: "?wait=60")
        #expect(told.json["error_code"]?.text == "withheld")
        _ = await broker.deviceProgress(handle, query: "?wait=60")
        let begun = await broker.call(.post, "/device", tenant: "t1", body: #"{"storage_key": "third"}"#)
        #expect((begun.status, begun.json["error_code"]?.text) == (502, "withheld"))
        for text in [told.text, begun.text, broker.log.joined()] { #expect(!text.contains("Canary"), "\(text)") }
    }

    @Test(arguments: ["state", "code"])
    func `is shown of no response that a browser brings`(name: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("client_secret_post"))
        let login = await broker.beginLogin()
        let code = "Canary-code.0123456789"
        let text = name == "state" ? login.state : code
        let page = await broker.callback("error=\(text)&code=\(code)&state=\(login.state)")
        let told = await broker.progress(login.id)
        #expect(told.json["error_code"]?.text == "withheld")
        #expect(!(page.text + told.text + broker.log.joined()).contains(text))
    }

    @Test func `is shown neither by a check nor of an issuer's metadata`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("client_secret_basic"))
        broker.transport.always(.decide { Self.error(Self.basic($0)) })
        let check = await broker.call(.post, "/tenants/t1/check")
        let basic = Self.basic(try #require(broker.transport.seen.last { $0.form["grant_type"] != nil }))
        #expect(basic.count > 12 && !(check.text + broker.log.joined()).contains(basic))
        #expect(check.text.contains("withheld"))

        await broker.makeTenant(
            "t2",
            #"{"provider": "oidc", "client_id": "c1", "client_secret": "\#(Self.secret)", "issuer": "https://op.example"}"#
        )
        broker.transport.always(.json(200, #"{"issuer": "https://op.example/\#(Self.secret)"}"#))
        let begun = await broker.call(.post, "/login/initialize", tenant: "t2")
        #expect(begun.json["detail"]?.text?.contains("another issuer") == true, "\(begun.text)")
        #expect(!(begun.text + broker.log.joined()).contains(Self.secret))
    }
}
