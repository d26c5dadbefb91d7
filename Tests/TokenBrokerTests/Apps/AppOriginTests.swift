import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Reactor
import Testing
import TokenBroker

/// What apps in browsers and OAuth libraries meet at the broker's own endpoints.
@Suite struct `Endpoints of apps for scripts and libraries` {
    private static let metadata = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]

    @Test(arguments: metadata)
    func `the metadata tells what the broker does, also of OpenID Connect Discovery`(path: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.get, path, key: nil)
        #expect(answer.status == 200)
        #expect(answer.json["issuer"]?.text == "https://broker.example")
        #expect(answer.json["authorization_endpoint"]?.text == "https://broker.example/oauth2/authorize")
        #expect(answer.json["response_types_supported"]?.array?.map(\.text) == ["code"])
        #expect(
            answer.json["token_endpoint_auth_methods_supported"]?.array?.map(\.text)
                == ["none", "client_secret_basic", "client_secret_post"])
        #expect(answer.json["request_uri_parameter_supported"]?.bool == false)
        // The broker issues no ID tokens.
        for name in ["jwks_uri", "id_token_signing_alg_values_supported", "userinfo_endpoint", "scopes_supported"] {
            #expect(answer.json[name] == nil)
        }
        #expect(answer.fields["Access-Control-Allow-Origin"] == "*")
        #expect(answer.fields["Access-Control-Allow-Credentials"] == nil)
        #expect(await broker.call(.head, path, key: nil).status == 200)
    }

    @Test(arguments: [
        ("/oauth2/token", "POST"), ("/oauth2/revoke", "POST"), ("/.well-known/oauth-authorization-server", "GET"),
        ("/.well-known/openid-configuration", "GET"),
    ])
    func `a browser is told that scripts of any origin may ask`(path: String, method: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .options, path, key: nil,
            fields: [
                "Origin": "https://app.example", "Access-Control-Request-Method": method,
                "Access-Control-Request-Headers": "authorization, mcp-protocol-version",
            ])
        #expect(answer.status == 204)
        #expect(answer.fields["Access-Control-Allow-Origin"] == "*")
        #expect(answer.fields["Access-Control-Allow-Methods"] == WireText(method))
        #expect(answer.fields["Access-Control-Allow-Headers"] == "Authorization, Content-Type, *")
        #expect(answer.fields["Access-Control-Max-Age"] == "7200")
        #expect(answer.fields["Access-Control-Allow-Credentials"] == nil)
    }

    @Test func `scripts may read answers and errors, and when to come again`() async throws {
        let broker = try await BrokerHarness { $0.core.appRequests.perAddress = 3 }
        var answers: [BrokerHarness.Answer] = []
        let here = NetworkSource(NetworkAddress(parsing: Array("192.0.2.1".utf8)[...])!)
        for _ in 0..<4 {
            answers.append(
                await broker.app(
                    "/oauth2/token", [("grant_type", "refresh_token")], authorization: "Basic eDp5", source: here))
        }
        answers.append(await broker.call(.post, "/oauth2/revoke", key: nil, body: "{}"))
        answers.append(await broker.call(.put, "/oauth2/token", key: nil))
        #expect(answers.map(\.status) == [401, 401, 401, 429, 415, 405])
        #expect(answers[0].fields["WWW-Authenticate"] != nil && answers[3].fields["Retry-After"] != nil)
        for answer in answers {
            #expect(answer.fields.values("Access-Control-Allow-Origin") == ["*"], "\(answer.status)")
            #expect(answer.fields["Access-Control-Expose-Headers"] == "Retry-After, WWW-Authenticate")
        }
    }

    @Test(arguments: ["/oauth2/authorize", "/credentials", "/oauth2/token/x", "/login/initialize"])
    func `scripts of other origins may call nothing else`(path: String) async throws {
        let broker = try await BrokerHarness()
        for method in [Method.get, .options] {
            #expect(await broker.call(method, path, key: nil).fields["Access-Control-Allow-Origin"] == nil)
        }
    }

    // MARK: Redirect URIs

    @Test(arguments: [
        ("http://localhost/cb", "http://localhost:49152/cb", true),
        ("http://localhost:3000/cb", "http://localhost/cb", true),
        ("http://localhost/cb", "http://localhost:49152/other", false),
        ("http://localhost/cb", "https://localhost:1/cb", false),
        ("http://localhost/cb", "http://localhost.evil.example/cb", false),
        ("http://localhost/cb", "http://localhost:1@evil.example/cb", false),
        ("http://localhost/cb", "http://localhost:123456/cb", false),
        ("http://localhost/cb", "http://127.0.0.1/cb", false),
        ("http://127.0.0.1/cb", "http://localhost/cb", false),
    ])
    func `localhost is a redirect URI at any port`(listed: String, given: String, isAllowed: Bool) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", #"{"redirect_uris": ["\#(listed)"], "storage_key": "default"}"#)
        let answer = await broker.authorize(BrokerHarness.authorization(["redirect_uri": given]))
        #expect(answer.status == (isAllowed ? 303 : 400), "\(answer.text)")
    }

    // MARK: Errors of the server itself

    @Test(arguments: ["/oauth2/token", "/oauth2/revoke", "/oauth2/challenge", "/oauth2/what"])
    func `an error below the apps' path has the form of RFC 6749`(path: String) async throws {
        let broker = try await BrokerHarness()
        var answers: [(Int, BrokerHarness.Answer)] = [400, 408, 413, 414, 417, 431, 500, 501, 503, 505].map {
            ($0, .init(broker.service.response(toFault: Status($0), detail: "Say \"less\".", path: path)))
        }
        let overload = try #require(broker.service.response(to: .overload, path: path))
        answers.append((503, .init(overload)))
        let isThere = path != "/oauth2/what"
        answers.append((isThere ? 405 : 404, await broker.call(.put, path, key: nil)))
        if isThere {
            answers.append(
                (path.hasSuffix("challenge") ? 400 : 415, await broker.call(.post, path, key: nil, body: "{}")))
        }
        for (status, answer) in answers {
            #expect(answer.status == status)
            #expect(answer.fields["Content-Type"] == "application/json")
            #expect(answer.fields["Cache-Control"] == "no-store")
            #expect(answer.fields["Pragma"] == "no-cache")
            #expect(answer.json["error"]?.text != nil && answer.json["error_description"]?.text != nil)
            #expect(answer.json["error_description"]?.text?.contains("\"") == false)
            #expect((answer.fields["Retry-After"] != nil) == (status == 503))
        }
    }

    @Test func `errors at other paths are problems as before`() async throws {
        let broker = try await BrokerHarness()
        let response = broker.service.response(toFault: .contentTooLarge, detail: "Less.", path: "/credentials")
        #expect(response.fields["Content-Type"] == "application/problem+json")
        #expect(broker.service.response(to: .overload, path: "/credentials") == nil)
    }

    @Test(
        arguments: [
            (Method.get, "/credentials", false), (.head, "/login/callback", false), (.options, "/oauth2/token", false),
            (.get, "/login/callback", true), (.get, "/login/callback/t1", true), (.get, "/login/start/t1/x", true),
            (.get, "/oauth2/authorize", true), (.get, "/login/ended/t1/x", false),
            (.get, "/login/reconnect/t1/x", true), (.post, "/oauth2/token", true),
            (.put, "/credentials", true), (.delete, "/credentials", true), (Method("PATCH"), "/credentials", true),
        ] as [(Method, String, Bool)])
    func `a request that may change something is known by its method and path`(
        method: Method, path: String, mayChange: Bool
    ) async throws {
        #expect(try await BrokerHarness().service.mayChange(method, path) == mayChange)
    }
}
