import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import HTTPServer
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Errors` {
    // MARK: The table of the contract, section 6

    private static let statuses: [BrokerError.Code: Int] = [
        .authorizationError: 400, .tokenResponseError: 502, .unexpectedError: 502, .retryableError: 503,
        .networkError: 503, .illegalConfiguration: 424, .illegalArgument: 422, .missingTokenContainer: 404,
        .levelNotAvailable: 424, .invalidTokenRequest: 424, .unknownAccount: 424, .unauthenticated: 424,
        .invalidRequest: 400,
        .unauthorized: 401, .forbidden: 403, .notFound: 404,
        .methodNotAllowed: 405, .conflict: 409, .gone: 410, .preconditionFailed: 412, .payloadTooLarge: 413,
        .unsupportedMediaType: 415,
        .tooManyRequests: 429,
        .storageUnavailable: 503, .providerUntrusted: 502, .internalError: 500,
    ]

    @Test(arguments: BrokerError.Code.allCases)
    func `a code has the status of the contract and the form of RFC 9457`(code: BrokerError.Code) throws {
        let status = try #require(Self.statuses[code])
        let response = BrokerError(code, "What happened.").response
        #expect(response.status.code == status)
        #expect(response.fields["Content-Type"] == "application/problem+json")
        #expect(response.fields["Cache-Control"] == "no-store")
        #expect((response.fields["Retry-After"] != nil) == (status == 503 || status == 429))
        #expect((response.fields["WWW-Authenticate"] == "Bearer") == (status == 401))
        let json = try JSONValue(parsing: response.body)
        #expect(json["type"] == .string("urn:token-broker:problem:\(code.rawValue)"))
        #expect(json["title"] == .string(code.title))
        #expect(json["status"] == .integer(Int64(status)))
        #expect(json["detail"] == .string("What happened."))
        #expect(json["code"] == .string(code.rawValue))
        #expect(json["retry_after"]?.integer.map(String.init) == response.fields["Retry-After"]?.text)
        #expect(json["error_code"] == nil)
        #expect(json["errors"] == nil)
    }

    @Test func `the codes are spelt as in the contract`() {
        #expect(
            Set(BrokerError.Code.allCases.map(\.rawValue)).isSuperset(of: [
                "authorization_error", "token_response_error", "unexpected_error", "retryable_error", "network_error",
                "illegal_configuration", "illegal_argument", "missing_token_container", "level_not_available",
                "invalid_request", "unauthorized", "forbidden", "not_found", "method_not_allowed", "conflict", "gone",
                "payload_too_large", "unsupported_media_type", "too_many_requests", "storage_unavailable",
                "provider_untrusted", "invalid_token_request", "unknown_account",
            ]))
    }

    @Test func `error_code is text and retry_after stands in body and field`() throws {
        let response = BrokerError(.retryableError, "Later.", errorCode: "11003", retryAfter: 7).response
        let json = try JSONValue(parsing: response.body)
        #expect(json["error_code"] == .string("11003"))
        #expect(json["retry_after"] == .integer(7))
        #expect(response.fields["Retry-After"] == "7")
    }

    @Test func `faults stand in errors with their pointers`() throws {
        let response = BrokerError(
            .invalidRequest, "Two faults.", faults: [.init("/a", "is wrong"), .init("/b/0", "is \"odd\"")]
        ).response
        #expect(
            try JSONValue(parsing: response.body)["errors"]
                == .array([
                    .object(["pointer": .string("/a"), "detail": .string("is wrong")]),
                    .object(["pointer": .string("/b/0"), "detail": .string("is \"odd\"")]),
                ]))
    }

    // MARK: Routing

    @Test(arguments: [
        ("", 404), ("*", 404), ("/credentials/", 404), ("//credentials", 404), ("/Credentials", 404),
        ("/credentials/x", 404), ("/oauth2", 404), ("/%63redentials", 404),
    ])
    func `a path that does not exist is not_found, with a key or without`(path: String, status: Int) async throws {
        let broker = try await BrokerHarness()
        for key in [BrokerHarness.adminKey, nil] {
            let answer = await broker.call(.get, path, key: key)
            #expect((answer.status, answer.code) == (status, "not_found"))
            #expect(answer.fields["Cache-Control"] == "no-store")
        }
    }

    @Test(arguments: [
        ("/tenants", "GET, HEAD"), ("/tenants/t1", "GET, HEAD, PUT, PATCH, DELETE"),
        ("/providers", "GET, HEAD"), ("/providers/p1", "GET, HEAD, PUT, DELETE"),
        ("/tenants/t1/api-keys", "GET, HEAD, POST"), ("/tenants/t1/api-keys/x", "GET, HEAD, DELETE"),
        ("/tenants/t1/api-keys/x/rotate", "POST"),
        ("/credentials", "GET, HEAD, PUT, DELETE"), ("/credentials/status", "GET, HEAD"),
        ("/login/initialize", "POST"), ("/login/callback", "GET, POST"), ("/login/callback/t1", "GET, POST"),
        ("/login/start/t1/x", "GET, POST"), ("/login/confirm/t1/x", "GET, HEAD, POST"),
        ("/login/ended/gone", "GET, HEAD"), ("/login/ended/t1/x", "GET, HEAD"),
    ])
    func `a method that a path does not take is method_not_allowed with Allow`(
        path: String, allowed: String
    ) async throws {
        let broker = try await BrokerHarness()
        for method in [.patch, Method("TRACE"), .options, Method("get")] where !allowed.contains("\(method)") {
            let answer = await broker.call(method, path)
            #expect((answer.status, answer.code) == (405, "method_not_allowed"))
            #expect(answer.fields["Allow"] == allowed)
        }
    }

    // H055
    @Test func `every answer but the operational ones may be kept by no cache`() async throws {
        let broker = try await BrokerHarness()
        broker.time.holdSleeps()
        await broker.makeTenant()
        let operational = ["/livez", "/healthz", "/readyz", "/metrics", "/openapi.yaml", "/docs"]
        let operations = Service.operations(of: broker.broker).filter { $0.path != "/events" }
        for operation in operations where !operational.contains(operation.path) {
            let path = operation.path.replacing("{tenant}", with: "t1").replacing(/\{[a-z_]+\}/, with: "x")
            for key in [BrokerHarness.adminKey, nil] {
                let answer = await broker.call(Method(operation.method), path, key: key, tenant: "t1")
                #expect(answer.fields.values("Cache-Control") == ["no-store"], "\(operation)")
            }
        }
    }

    // MARK: Faults of HTTP itself

    // H058
    @Test(arguments: [
        (400, "invalid_request"), (408, "invalid_request"), (411, "invalid_request"), (413, "payload_too_large"),
        (414, "invalid_request"), (417, "invalid_request"), (431, "invalid_request"), (500, "internal_error"),
        (501, "invalid_request"), (503, "retryable_error"), (505, "invalid_request"),
    ])
    func `a request that HTTP refuses gets a problem with HTTP's status`(status: Int, code: String) async throws {
        let broker = try await BrokerHarness()
        let response = broker.service.response(toFault: Status(status), detail: "Plain words.")
        #expect(response.status.code == status)
        #expect(response.closesConnection)
        #expect(response.fields["Content-Type"] == "application/problem+json")
        #expect(response.fields["Cache-Control"] == "no-store")
        let json = try JSONValue(parsing: response.body)
        #expect(json["status"] == .integer(Int64(status)))
        #expect(json["code"] == .string(code))
        #expect(json["detail"] == .string("Plain words."))
        #expect((response.fields["Retry-After"] != nil) == (status == 503))
    }

    // MARK: Records that do not open

    // T78 H049 H058
    @Test func `a record that was altered is internal_error and tells nothing`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.set("canary-a1", refresh: "canary-r1")
        let id = RecordID(.credentials, try #require(TenantName("t1")), key: "default")
        var record = try #require(try await store.read(id))
        let version = record.version
        record.sealed[record.sealed.count - 1] ^= 1
        record.version += 1
        try await store.commit([.replace(record, version: version)])
        let restarted = try await BrokerHarness(store: store)
        let answer = await restarted.get()
        #expect((answer.status, answer.code) == (500, "internal_error"))
        #expect(!answer.text.contains("canary"))
        #expect(await restarted.get(tenant: "t1").status == 500)
        #expect(restarted.log.contains { $0.contains("store_failed") && $0.contains("damaged") })
    }

    // MARK: Canaries

    /// Everything secret bears this word, so that a leak is one search.
    private static let canary = "canary7f3a"

    // H055 H056 H061
    @Test func `no secret is in any answer, log line or metric`() async throws {
        let broker = try await BrokerHarness()
        var shown: [BrokerHarness.Answer] = []
        var minted: Set<String> = []
        func call(
            _ method: Method, _ target: String, key: String? = BrokerHarness.adminKey, body: String? = nil,
            fields: Fields = [:]
        ) async -> BrokerHarness.Answer {
            let answer = await broker.call(
                method, target, key: key, tenant: key == BrokerHarness.adminKey ? "t1" : nil, body: body,
                fields: fields)
            shown.append(answer)
            return answer
        }
        func token(_ number: Int, refresh: Int? = nil) -> String {
            BrokerHarness.token(
                "\(Self.canary)-access-\(number)", refresh: refresh.map { "\(Self.canary)-refresh-\($0)" },
                scope: "a", userID: 42)
        }
        /// `GET /credentials` may show the access token and nothing else.
        func read(_ query: String = "", key: String) async -> BrokerHarness.Answer {
            let answer = await broker.call(.get, "/credentials?\(query)", key: key)
            let rest = answer.json["token"]?.text.map { answer.text.replacing($0, with: "") } ?? answer.text
            #expect(!rest.contains(Self.canary))
            return answer
        }

        // A tenant, its keys and a login.
        _ = await call(
            .put, "/tenants/t1",
            body: """
                {"provider": "oidc", "client_id": "c1", "client_secret": "\(Self.canary)-client", "scopes": ["a"],
                 "token_endpoint_auth_method": "client_secret_post",
                 "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t",
                               "revocation": "https://op.example/r"},
                 "allowed_return_uris": ["https://app.example/done"]}
                """)
        _ = await call(.get, "/tenants/t1")
        _ = await call(.get, "/tenants")
        let key = await broker.makeKey()
        minted.insert(key)
        _ = await call(.get, "/tenants/t1/api-keys")
        let begun = await broker.beginLogin(body: #"{"return_to": "https://app.example/done"}"#)
        minted.insert(begun.state)
        broker.transport.enqueue(.json(200, token(1, refresh: 1)))
        _ = await call(
            .get, "/login/callback?code=\(Self.canary)-code&state=\(begun.state)", key: nil,
            fields: ["Accept": "application/json"])
        minted.insert(broker.transport.seen.last?.form["code_verifier"] ?? "")
        _ = await call(.get, "/login/callback?code=\(Self.canary)-code&state=\(begun.state)", key: nil)
        _ = await call(.get, "/login/callback?code=\(Self.canary)-code&state=\(Self.canary)-state", key: nil)
        _ = await call(
            .get, "/login/callback?error=\(Self.canary)%3Cb%3E&error_description=\(Self.canary)&state=x", key: nil)
        _ = await call(.get, "/login/\(begun.id)")
        _ = await call(
            .post, "/login/finalize", body: #"{"login_response_query": "code=\#(Self.canary)&state=\#(Self.canary)"}"#)

        // Every way in which a renewal can end.
        #expect(await read(key: key).token == "\(Self.canary)-access-1")
        let body =
            #"{"error": "\#(Self.canary) <b>", "error_description": "\#(Self.canary)", "#
            + #""access_token": "\#(Self.canary)", "sub_status": "\#(Self.canary) x"}"#
        for step: ScriptedTransport.Step in [
            .json(403, body), .json(429, body), .json(500, body), .json(200, "\(Self.canary)"),
            .json(200, #"{"access_token": "\#(Self.canary)\u0000"}"#),
            .json(302, body, fields: ["Location": Self.canary]),
            .failure(.connectionLost(requestSent: true)), .failure(.untrusted(.pin)), .failure(.malformedResponse),
            .failure(.forbiddenAddress), .json(200, token(2, refresh: 2)),
        ] {
            broker.transport.always(step)
            _ = await read("policy=local_force_refresh", key: key)
            broker.time.advance(by: .seconds(10))
        }
        _ = await read("api_error_sub_status=\(Self.canary)", key: key)
        broker.transport.always(.json(400, #"{"error": "invalid_grant", "error_description": "\#(Self.canary)"}"#))
        _ = await read("api_error_sub_status=11003", key: key)

        // Setting, looking, ending; and the same with everything wrong.
        let secrets = #""token": "\#(Self.canary)-set", "client_id": "c1""#
        let refresh = #""refresh_token": "\#(Self.canary)-set-refresh""#
        _ = await call(.put, "/credentials", body: #"{"credentials": {\#(secrets)}, \#(refresh)}"#)
        _ = await call(.get, "/credentials/status")
        _ = await call(.put, "/credentials", body: #"{"credentials": {\#(secrets), "level": "basic"}, \#(refresh)}"#)
        _ = await call(.put, "/credentials", body: #"{"credentials": {\#(secrets), \#(refresh)}, "storage_key": 5}"#)
        _ = await call(.put, "/credentials", body: #"{"credentials": {\#(secrets)}, \#(refresh), \#(refresh)}"#)
        _ = await call(.put, "/credentials", body: #"{"credentials": {\#(secrets)}, \#(refresh)"#)
        _ = await call(
            .put, "/credentials", body: #"{"credentials": {\#(secrets)}}"#, fields: ["Content-Type": "text/plain"])
        broker.transport.always(.json(400, body))
        _ = await call(.delete, "/credentials?revoke=true")
        _ = await call(.get, "/credentials", key: "\(Self.canary)-key")
        _ = await call(.get, "/credentials", key: nil, fields: ["Authorization": "Basic \(Self.canary)"])
        _ = await call(.get, "/credentials", key: nil, fields: ["Authorization": "Bearer \(Self.canary) x"])
        _ = await call(.put, "/tenants/t1", body: #"{"client_id": "c1", "client_secret": ["\#(Self.canary)"]}"#)
        _ = await call(.put, "/tenants/t1", body: #"{"client_id": "", "client_secret": "\#(Self.canary)"}"#)
        _ = await call(.delete, "/tenants/t1")

        let metrics = await broker.call(.get, "/metrics", key: nil).text
        let answers = shown.map { $0.text + $0.fields.all.map { "\($0.name): \($0.value)" }.joined(separator: "\n") }
        minted.formUnion([BrokerHarness.adminKey, BrokerHarness.masterKeys])
        #expect(minted.allSatisfy { $0.utf8.count >= 32 })
        let words = minted.union([Self.canary]).flatMap {
            [$0, Base64.encode(Array($0.utf8)), Hex.encode(Array($0.utf8))]
        }
        for text in answers + broker.log + [metrics] {
            for word in words { #expect(!text.contains(word), "\(text)") }
        }
        #expect(broker.transport.seen.count > 20)
        #expect(broker.log.count > 50)
    }
}
