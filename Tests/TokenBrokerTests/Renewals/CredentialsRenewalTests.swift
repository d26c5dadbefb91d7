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

@Suite struct `Renewing credentials` {
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1"}"#
    // MARK: What is sent

    @Test func `a refresh sends the refresh token and the scopes to the pinned token endpoint`() async throws {
        let broker = try await BrokerHarness.expired(
            #"{"client_id": "c1", "client_secret": "s1", "scopes": ["w_usr", "r_usr"]}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        let request = try #require(broker.transport.seen.first)
        #expect(request.method == .post)
        #expect(request.url == "https://auth.tidal.com/v1/oauth2/token")
        #expect(request.isPinned)
        #expect(
            request.form == [
                "grant_type": "refresh_token", "refresh_token": "r1", "scope": "r_usr w_usr", "client_id": "c1",
                "client_secret": "s1",
            ])
        #expect(request.fields["Content-Type"] == "application/x-www-form-urlencoded")
        #expect(request.fields["Accept"] == "application/json")
    }

    // Q15
    @Test func `a client that authenticates by HTTP Basic sends its secret in no form`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"provider": "oidc", "client_id": "c 1", "client_secret": "s:1", "endpoints": {"#
                + #""authorization": "https://op.example/auth", "token": "https://op.example/token"}}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        let answer = await broker.get()
        #expect(answer.level == "client", "\(answer.text)")
        let request = try #require(broker.transport.seen.first)
        // RFC 6749 §2.3.1: both halves form-encoded first. "c+1:s%3A1" or "c%201:s%3A1".
        #expect(
            ["Basic YysxOnMlM0Ex", "Basic YyUyMDE6cyUzQTE="].contains(request.fields["Authorization"]?.text ?? ""))
        #expect(request.form["client_secret"] == nil)
        #expect(!request.isPinned)
    }

    // MARK: Refresh tokens

    // T45 H079 Q21 Q22 Q29
    @Test func `a refresh token is kept until an answer brings another`() async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a2")), .json(200, BrokerHarness.token("a3", refresh: "r2")),
            .json(200, #"{"access_token": "a4", "refresh_token": null, "expires_in": 3600}"#),
            .json(200, #"{"access_token": "a5", "refresh_token": "", "expires_in": 3600}"#),
            .json(200, BrokerHarness.token("a6")))
        for expected in ["a2", "a3", "a4", "a5", "a6"] {
            #expect(await broker.get("policy=local_force_refresh").token == expected)
        }
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r1", "r2", "r2", "r2"])
    }

    // H096 Q06
    @Test(arguments: [
        "", "{}", "[]", "null", "<html>", #"{"access_token": ""}"#, #"{"access_token": 5}"#,
        #"{"access_token": null}"#, #"{"access_token": "a b"}"#, #"{"access_token": "a2", "token_type": "mac"}"#,
        #"{"access_token": "a2", "token_type": 5}"#,
        #"{"access_token": "a2"} x"#,
        #"{"access_token": "a2", "access_token": "a3"}"#, #"{"error": "invalid_grant"}"#,
        "{\"access_token\": \"a\\u0000\"}", #"{"token": "a2"}"#, "\u{feff}{\"access_token\": \"a2\"",
    ])
    func `a 2xx without a usable token is token_response_error and changes nothing`(body: String) async throws {
        let broker = try await BrokerHarness.expired()
        let tag = await broker.get("policy=local").tag
        // The provider may have spent the refresh token, and takes it again, since it does not replace refresh tokens.
        broker.transport.always(.json(200, body))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        #expect(broker.transport.seen.count == 6)
        #expect(broker.time.slept == RenewalWaits.design)
        #expect(await broker.get("policy=local").tag == tag)
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r1")
    }

    // H066
    @Test(arguments: [301, 302, 304, 307, 308])
    func `a redirect of the token endpoint is not followed`(status: Int) async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(.json(status, "", fields: ["Location": "https://other.example/token"]))
        #expect(await broker.get().code == "token_response_error")
        #expect(broker.transport.seen.count == 1)
    }

    @Test(arguments: [TransportError.malformedResponse, .responseTooLarge])
    func `an answer that is no HTTP is token_response_error`(error: TransportError) async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.always(.failure(error))
        #expect(await broker.get().code == "token_response_error")
        #expect(broker.transport.seen.count == 6)
    }

    @Test(arguments: [TransportError.malformedResponse, .connectionLost(requestSent: true)])
    func `an answer that cannot be read after a rotation costs nothing`(error: TransportError) async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(.failure(error), .json(200, "<html>"), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r1", "r1"])
    }

    // MARK: Logouts

    private static let logouts: [(Int, String)] = [
        (400, "unauthorized_client"), (400, "invalid_grant"), (400, "invalid_request"), (401, "access_denied"),
        (401, "invalid_client"), (401, "invalid_grant"),
    ]

    // T33 K36
    // T34 H080
    @Test(arguments: logouts)
    func `an answer that ends the session is a logout and gets the next lower level`(
        status: Int, error: String
    ) async throws {
        let broker = try await BrokerHarness.expired()
        let before = await broker.get("policy=local")
        broker.transport.enqueue(.json(status, #"{"status": \#(status), "error": "\#(error)", "sub_status": 11101}"#))
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(answer.tag != before.tag)
        #expect(broker.transport.seen.count == 1)
        #expect(broker.time.slept == [])
        let state = await broker.call(.get, "/credentials/status", tenant: "t1")
        #expect(
            state.text == #"{"logged_in":false,"level":"basic","expires":null,"refreshable":false,"state":"ended"}"#)
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.count == 1)
    }

    // T33
    // T34
    @Test(arguments: logouts)
    func `a client with a secret gets client credentials after a logout`(status: Int, error: String) async throws {
        let broker = try await BrokerHarness.expired(Self.withSecret)
        broker.transport.enqueue(
            .json(status, #"{"error": "\#(error)"}"#), .json(200, BrokerHarness.token("client-1")))
        let answer = await broker.get()
        #expect((answer.status, answer.level, answer.token) == (200, "client", "client-1"))
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["refresh_token", "client_credentials"])
    }

    @Test(arguments: [
        "policy=local_force_refresh", "api_error_sub_status=11003", "min_ttl=7200",
        "policy=create_if_needed&min_ttl=7200",
    ])
    func `a logout gets the next lower level whatever asked for the refresh`(query: String) async throws {
        for (tenant, level) in [(#"{"client_id": "c1"}"#, "basic"), (Self.withSecret, "client")] {
            let broker = try await BrokerHarness()
            await broker.makeTenant("t1", tenant)
            await broker.set("a1", refresh: "r1")
            broker.transport.enqueue(
                .json(400, #"{"error": "invalid_grant"}"#), .json(200, BrokerHarness.token("client-1")))
            let answer = await broker.get(query)
            #expect((answer.status, answer.level) == (200, level))
        }
    }

    @Test func `a logout is no answer to a caller who asks for a user`() async throws {
        let broker = try await BrokerHarness.expired(Self.withSecret)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let answer = await broker.get("level=user")
        #expect((answer.status, answer.code) == (424, "level_not_available"))
        #expect(broker.transport.seen.count == 1)
    }

    // T70 H080 Q52
    @Test(arguments: [
        (400, "invalid_client"), (400, "access_denied"), (400, "invalid_scope"), (400, "unsupported_grant_type"),
        (400, "INVALID_GRANT"), (400, ""), (401, "unauthorized_client"), (401, "invalid_request"), (401, ""),
        (403, "invalid_grant"), (404, "invalid_grant"), (407, "invalid_grant"), (409, "invalid_request"),
        (422, "invalid_client"), (451, "access_denied"), (499, "invalid_grant"),
    ])
    func `any other 4xx is unexpected_error after one call and keeps the session`(
        status: Int, error: String
    ) async throws {
        let broker = try await BrokerHarness.expired(Self.withSecret)
        let tag = await broker.get("policy=local").tag
        broker.transport.enqueue(.json(status, #"{"error": "\#(error)", "sub_status": 1234}"#))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "unexpected_error"))
        #expect(answer.json["error_code"] == .string(error.isEmpty ? "1234" : error))
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("policy=local").tag == tag)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    /// A registration at a provider without an upgrade, in place of the one that obtained the credentials.
    private static func changed(_ client: String) -> String {
        #"{"provider": "oidc", "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"}, "#
            + #""previous_token_endpoints": ["https://auth.tidal.com/v1/oauth2/token"], "# + client + "}"
    }

    @Test(
        arguments: [
            (#""client_id": "c1", "scopes": ["more"]"#, 400, "invalid_grant", 200, "basic"),
            (#""client_id": "c1", "client_secret": "new""#, 400, "invalid_grant", 200, "client"),
            (#""client_id": "c1", "client_secret": "new""#, 401, "invalid_client", 424, nil),
            (#""client_id": "c1", "client_secret": "new""#, 400, "invalid_request", 502, nil),
        ] as [(String, Int, String, Int, String?)])
    func `a refusal that may be about a new secret ends no session`(
        client: String, refusal: Int, error: String, status: Int, level: String?
    ) async throws {
        let broker = try await BrokerHarness.expired()
        await broker.makeTenant("t1", Self.changed(client))
        broker.transport.enqueue(.json(refusal, #"{"error": "\#(error)"}"#), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (status, level))
    }

    @Test func `another client does not use the refresh token`() async throws {
        let broker = try await BrokerHarness.expired()
        await broker.makeTenant("t1", Self.changed(#""client_id": "c2""#))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `a 4xx whose body is no OAuth error keeps the session`() async throws {
        for body in ["", "<html>invalid_grant</html>", #"{"error": ["invalid_grant"]}"#, #"{"error": 5}"#, "[]"] {
            let broker = try await BrokerHarness.expired()
            broker.transport.enqueue(.json(400, body))
            let answer = await broker.get()
            #expect((answer.status, answer.code) == (502, "unexpected_error"))
            #expect(answer.json["error_code"] == nil)
            #expect(await broker.get("policy=local").token == "a1")
        }
    }

    @Test(arguments: [
        #"{"error": "canary <b>"}"#, #"{"error": "\#(String(repeating: "e", count: 65))"}"#,
        #"{"error": "line\nbreak"}"#,
    ])
    func `an error code that is no code is not repeated`(body: String) async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(.json(418, body))
        let answer = await broker.get()
        #expect(answer.code == "unexpected_error")
        #expect(answer.json["error_code"] == nil)
    }

    // MARK: Client credentials

    @Test(arguments: [400, 401, 403, 404, 422])
    func `a 4xx for client credentials is illegal_configuration with the sub_status as its code`(
        status: Int
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(status, #"{"error": "invalid_client", "sub_status": 6001}"#))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(answer.json["error_code"] == .string("6001"))
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .seconds(30))
        broker.transport.enqueue(.json(status, #"{"error": "invalid_client"}"#))
        #expect(await broker.get().json["error_code"] == .string("invalid_client"))
    }

    @Test func `client credentials that the provider refuses leave the old ones where they are`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1", expiresIn: 100)), .json(400, #"{"error": "invalid_grant"}"#),
            .json(400, #"{"error": "invalid_grant"}"#))
        _ = await broker.get()
        broker.time.advance(by: .seconds(50))
        let answer = await broker.get()
        #expect((answer.token, answer.json["degraded"]?["code"]) == ("client-1", .string("illegal_configuration")))
        broker.time.advance(by: .seconds(50))
        #expect(await broker.get().code == "illegal_configuration")
        #expect(await broker.get("policy=local").token == "client-1")
    }

    // MARK: Trust and addresses

    @Test(arguments: [
        TransportError.UntrustedReason.chain, .expired, .notYetValid, .hostName, .purpose, .pin,
        .noCommonProtocol,
    ])
    func `a provider that is not trusted is provider_untrusted after one call`(
        reason: TransportError.UntrustedReason
    ) async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(.failure(.untrusted(reason)))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "provider_untrusted"))
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("policy=local").token == "a1")
    }

    @Test(arguments: [TransportError.insecureTarget, .forbiddenAddress, .invalidURL])
    func `an address that may not be called is illegal_configuration`(error: TransportError) async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(.failure(error))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(broker.transport.seen.count == 1)
    }
}
