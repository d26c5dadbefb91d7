import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// Each code of the contract as a caller meets it: how it comes about, and the whole of the problem.
@Suite struct `Taxonomy of errors` {
    /// Whatever is secret bears this word, and so does whatever a provider says in its own words.
    private static let canary = "canary5e1d"

    /// How a provider may spell its second code: the token endpoint's way and the API's.
    private static let spellings = ["sub_status", "subStatus"]

    /// One way to an error.
    struct Situation: Sendable, CustomTestStringConvertible {
        let code: BrokerError.Code
        let status: Int
        let how: String
        var errorCode: String?
        var retryAfter: Int?
        var pointers: [String] = []
        /// Whether it tells of a session that is over.
        var tellsOfSession = false
        /// Fields that this answer has beside the usual ones.
        var fields: Fields = [:]
        let bring: @Sendable () async throws -> (broker: BrokerHarness, answer: BrokerHarness.Answer)

        var testDescription: String { "\(code.rawValue): \(how)" }
    }

    // MARK: Ways there

    private static let secrets =
        #""client_secret": "\#(canary)-secret", "allowed_redirect_uris": ["https://app.example/cb"]"#

    /// A broker with a tenant that has a secret.
    private static func made(store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", #"{"client_id": "c1", \#(secrets)}"#)
        return broker
    }

    /// The answer of a provider that refuses: with a code of its own, and with text that must not be shown.
    private static func refusal(_ code: String) -> String {
        #"{"status": 418, \#(code), "error_description": "\#(canary) description", "userMessage": "\#(canary)", "#
            + #""error_uri": "https://\#(canary).example/", "access_token": "\#(canary)", "debug": ["\#(canary)"]}"#
    }

    /// A login that comes back with a code, to which the provider answers so.
    private static func exchange(_ steps: ScriptedTransport.Step) async throws -> (BrokerHarness, BrokerHarness.Answer)
    {
        let broker = try await made()
        let login = await broker.beginLogin()
        broker.transport.always(steps)
        return (
            broker,
            await broker.callback("code=\(canary)-code&state=\(login.state)", accept: "application/json")
        )
    }

    /// A read of a user's expired token, to whose refresh the provider answers so.
    private static func refresh(_ step: ScriptedTransport.Step) async throws -> (BrokerHarness, BrokerHarness.Answer) {
        let broker = try await made()
        await broker.set("\(canary)-access", refresh: "\(canary)-refresh", lifetime: .zero)
        broker.transport.always(step)
        return (broker, await broker.get())
    }

    /// The same at a provider that names the end of a session.
    private static func accountRefresh(_ members: String) async throws -> (BrokerHarness, BrokerHarness.Answer) {
        let (broker, _) = try await BrokerHarness.accounts()
        _ = await broker.get("policy=create_if_needed")
        broker.time.advance(by: .seconds(14_400))
        broker.transport.always(.json(400, refusal(members)))
        return (broker, await broker.get())
    }

    /// A read where only the client itself can have a token, to whose request the provider answers so.
    private static func client(_ step: ScriptedTransport.Step) async throws -> (BrokerHarness, BrokerHarness.Answer) {
        let broker = try await made()
        broker.transport.always(step)
        return (broker, await broker.get())
    }

    private static func call(
        _ method: Method, _ target: String, key: String? = BrokerHarness.adminKey, body: String? = nil,
        fields: Fields = [:]
    ) async throws -> (BrokerHarness, BrokerHarness.Answer) {
        let broker = try await made()
        let tenant = key == BrokerHarness.adminKey ? "t1" : nil
        return (broker, await broker.call(method, target, key: key, tenant: tenant, body: body, fields: fields))
    }

    private static let ofLogins: [Situation] = [
        Situation(
            code: .authorizationError, status: 400, how: "the user says no", errorCode: "access_denied",
            bring: {
                let broker = try await made()
                let login = await broker.beginLogin()
                let query = "error=access_denied&error_description=\(canary)&code=\(canary)&state=\(login.state)"
                return (broker, await broker.callback(query, accept: "application/json"))
            }),
        Situation(
            code: .authorizationError, status: 400, how: "an error that is no code",
            bring: {
                let broker = try await made()
                let login = await broker.beginLogin()
                let query = "error=%3C\(canary)%3E&state=\(login.state)"
                return (broker, await broker.callback(query, accept: "application/json"))
            }),
        Situation(
            code: .conflict, status: 409, how: "a state that was used",
            bring: {
                let broker = try await made()
                let login = await broker.beginLogin()
                _ = await broker.callback("error=access_denied&state=\(login.state)")
                return (
                    broker,
                    await broker.callback("code=\(canary)&state=\(login.state)", accept: "application/json")
                )
            }),
        Situation(
            code: .gone, status: 410, how: "a state that nobody knows",
            bring: {
                try await call(
                    .get, "/login/callback?code=\(canary)&state=\(canary)", key: nil,
                    fields: ["Accept": "application/json"])
            }),
        Situation(
            code: .illegalArgument, status: 422, how: "a redirect_uri that is not listed",
            bring: {
                try await call(
                    .post, "/login/initialize", body: #"{"redirect_uri": "https://app.example/\#(canary)"}"#)
            }),
        Situation(
            code: .illegalArgument, status: 422, how: "a custom parameter of the protocol",
            bring: {
                try await call(
                    .post, "/login/initialize",
                    body: #"{"login_config": {"custom_parameters": {"client_id": "\#(canary)"}}}"#)
            }),
    ]

    private static let ofProviders: [Situation] =
        [
            Situation(
                code: .unexpectedError, status: 502, how: "the code is refused", errorCode: "invalid_grant",
                bring: { try await exchange(.json(400, refusal(#""error": "invalid_grant", "sub_status": 11101"#))) }),
            Situation(
                code: .tokenResponseError, status: 502, how: "the code brings no token",
                bring: { try await exchange(.json(200, #"{"token": "\#(canary)"}"#)) }),
            Situation(
                code: .tokenResponseError, status: 502, how: "a refresh brings no token",
                bring: { try await refresh(.json(200, "<html>\(canary)")) }),
            Situation(
                code: .tokenResponseError, status: 502, how: "a refresh is sent elsewhere",
                bring: {
                    try await refresh(
                        .json(302, canary, fields: ["Location": "https://sso.example/\(canary)?\(canary)"]))
                }),
            Situation(
                code: .retryableError, status: 503, how: "the provider fails", errorCode: "server_error", retryAfter: 5,
                bring: { try await refresh(.json(500, refusal(#""error": "server_error", "sub_status": 999"#))) }),
            Situation(
                code: .retryableError, status: 503, how: "the provider limits the rate", errorCode: "slow_down",
                retryAfter: 7,
                bring: {
                    try await refresh(.json(429, refusal(#""error": "slow_down""#), fields: ["Retry-After": "7"]))
                }),
            Situation(
                code: .retryableError, status: 503, how: "the provider wants more patience than a call has",
                retryAfter: 45,
                bring: { try await refresh(.json(503, canary, fields: ["Retry-After": "45"])) }),
            Situation(
                code: .networkError, status: 503, how: "the provider cannot be reached", retryAfter: 5,
                bring: { try await refresh(.failure(.connectFailed)) }),
            Situation(
                code: .networkError, status: 503, how: "the code's answer is lost", retryAfter: 5,
                bring: { try await exchange(.failure(.connectionLost(requestSent: true))) }),
            Situation(
                code: .illegalConfiguration, status: 424, how: "the client is refused by name",
                errorCode: "invalid_client", retryAfter: 30,
                bring: { try await client(.json(401, refusal(#""error": "invalid_client""#))) }),
            Situation(
                code: .illegalConfiguration, status: 424, how: "the provider's address may not be called",
                bring: { try await client(.failure(.forbiddenAddress)) }),
            Situation(
                code: .providerUntrusted, status: 502, how: "a pin does not fit",
                bring: { try await refresh(.failure(.untrusted(.pin))) }),
            Situation(
                code: .providerUntrusted, status: 502, how: "the host name does not fit",
                bring: { try await exchange(.failure(.untrusted(.hostName))) }),
        ]
        + spellings.flatMap { spelling in
            [
                Situation(
                    code: .illegalConfiguration, status: 424, how: "the client is refused with \(spelling)",
                    errorCode: "1005", retryAfter: 30,
                    bring: {
                        try await client(.json(401, refusal(#""error": "invalid_client", "\#(spelling)": 1005"#)))
                    }),
                Situation(
                    code: .unexpectedError, status: 502, how: "the code is refused with \(spelling) alone",
                    errorCode: "4005",
                    bring: { try await exchange(.json(401, refusal(#""\#(spelling)": 4005"#))) }),
                Situation(
                    code: .unexpectedError, status: 502, how: "a refresh is refused with \(spelling) alone",
                    errorCode: "4005",
                    bring: { try await refresh(.json(403, refusal(#""\#(spelling)": 4005"#))) }),
                Situation(
                    code: .retryableError, status: 503, how: "the provider fails with \(spelling) alone",
                    errorCode: "999", retryAfter: 5,
                    bring: { try await refresh(.json(503, refusal(#""\#(spelling)": "999""#))) }),
                Situation(
                    code: .unexpectedError, status: 502, how: "a refresh is refused with a \(spelling) that is no code",
                    bring: { try await refresh(.json(403, refusal(#""\#(spelling)": "\#(canary) <b>""#))) }),
            ]
        }

    private static let ofCredentials: [Situation] = [
        Situation(
            code: .missingTokenContainer, status: 404, how: "nothing is stored",
            bring: { try await call(.get, "/credentials?policy=local") }),
        Situation(
            code: .invalidTokenRequest, status: 424, how: "the provider refuses the refresh token by name",
            errorCode: "reused"
        ) { try await accountRefresh(#""error": "invalid_token_request", "error_code": 2"#) },
        Situation(
            code: .unknownAccount, status: 424, how: "the account is gone", errorCode: "unknown_account"
        ) { try await accountRefresh(#""error": "unknown_account""#) },
        Situation(
            code: .unauthenticated, status: 424, how: "another app is to be let in, and nobody is logged in",
            bring: {
                let uri =
                    "https://a.example/x?client_id=b&redirect_uri=https%3A%2F%2Fb.example%2Fr&code_challenge=\(canary)"
                return try await call(.post, "/app2app/approve", body: #"{"uri": "\#(uri)"}"#)
            }),
        Situation(
            code: .levelNotAvailable, status: 424, how: "nobody is logged in",
            bring: { try await call(.get, "/credentials?level=user") }),
        Situation(
            code: .levelNotAvailable, status: 424, how: "the session has ended meanwhile", tellsOfSession: true,
            bring: {
                let broker = try await made()
                await broker.set("\(canary)-access", refresh: "\(canary)-refresh", lifetime: .zero)
                broker.transport.always(.json(400, refusal(#""error": "invalid_grant""#)))
                return (broker, await broker.get("level=user"))
            }),
        Situation(
            code: .retryableError, status: 503, how: "the caller has no patience", retryAfter: 1,
            bring: {
                let broker = try await made()
                await broker.set("\(canary)-access", refresh: "\(canary)-refresh", lifetime: .zero)
                let gate = Gate()
                broker.transport.always(.after(gate, .json(200, BrokerHarness.token("\(canary)-new"))))
                let answer = await broker.get(fields: ["Prefer": "wait=0"])
                gate.open()
                await broker.broker.core.finish()
                return (broker, answer)
            }),
        Situation(
            code: .illegalArgument, status: 422, how: "another client's credentials are set",
            bring: {
                try await call(
                    .put, "/credentials",
                    body: #"{"credentials": {"client_id": "\#(canary)", "token": "\#(canary)-token"}}"#)
            }),
        Situation(
            code: .storageUnavailable, status: 503, how: "the store is away", retryAfter: 1,
            bring: {
                let store = BrokerFaultyStore()
                let broker = try await made(store: store)
                store.isAway = true
                return (broker, await broker.get())
            }),
        Situation(
            code: .internalError, status: 500, how: "a record does not open",
            bring: {
                let store = MemoryRecordStore()
                let broker = try await made(store: store)
                await broker.set("\(canary)-access", refresh: "\(canary)-refresh")
                let id = RecordID(.credentials, try #require(TenantName("t1")), key: "default")
                var record = try #require(try await store.read(id))
                let version = record.version
                record.sealed[0] ^= 1
                record.version += 1
                try await store.commit([.replace(record, version: version)])
                let restarted = try await BrokerHarness(store: store)
                return (restarted, await restarted.get())
            }),
    ]

    private static let ofRequests: [Situation] = [
        Situation(
            code: .invalidRequest, status: 400, how: "a body that is no JSON", pointers: [""],
            bring: { try await call(.put, "/credentials", body: #"{"refresh_token": "\#(canary)"#) }),
        Situation(
            code: .invalidRequest, status: 400, how: "a body that is nested too deep", pointers: [""],
            bring: { try await call(.put, "/credentials", body: String(repeating: "[", count: 1000) + canary) }),
        Situation(
            code: .invalidRequest, status: 400, how: "a member that occurs twice", pointers: ["/storage_key"],
            bring: { try await call(.put, "/credentials", body: #"{"storage_key": "a", "storage_key": "\#(canary)"}"#) }
        ),
        Situation(
            code: .invalidRequest, status: 400, how: "a member that is unknown and one that is wrong",
            pointers: ["/refresh_tokn", "/storage_key"],
            bring: {
                try await call(
                    .put, "/credentials",
                    body: #"{"credentials": {"client_id": "c1", "token": "\#(canary)"}, "refresh_tokn": "\#(canary)", "#
                        + #""storage_key": ["\#(canary)"]}"#)
            }),
        Situation(
            code: .invalidRequest, status: 400, how: "a query parameter that is unknown", pointers: ["tokn"],
            bring: { try await call(.get, "/credentials?tokn=\(canary)") }),
        Situation(
            code: .unauthorized, status: 401, how: "no key", fields: ["WWW-Authenticate": "Bearer"],
            bring: { try await call(.get, "/credentials", key: nil) }),
        Situation(
            code: .unauthorized, status: 401, how: "a key that nobody knows", fields: ["WWW-Authenticate": "Bearer"],
            bring: { try await call(.get, "/credentials", key: "\(canary)-key") }),
        Situation(
            code: .forbidden, status: 403, how: "a permission that the key lacks",
            bring: {
                let broker = try await made()
                let key = await broker.makeKey("t1", #"{"name": "k", "permissions": ["login"]}"#)
                return (broker, await broker.call(.get, "/credentials", key: key))
            }),
        Situation(
            code: .forbidden, status: 403, how: "another tenant",
            bring: {
                let broker = try await made()
                return (broker, await broker.call(.get, "/credentials", key: await broker.makeKey(), tenant: canary))
            }),
        Situation(
            code: .notFound, status: 404, how: "a tenant that does not exist",
            bring: {
                let broker = try await made()
                return (broker, await broker.get(tenant: canary))
            }),
        Situation(
            code: .notFound, status: 404, how: "a path that does not exist",
            bring: { try await call(.get, "/\(canary)") }),
        Situation(
            code: .methodNotAllowed, status: 405, how: "a method that the path does not take",
            fields: ["Allow": "GET, HEAD, PUT, DELETE"],
            bring: { try await call(.post, "/credentials", body: #"{"token": "\#(canary)"}"#) }),
        Situation(
            code: .unsupportedMediaType, status: 415, how: "a body that is said to be no JSON",
            bring: {
                try await call(.put, "/credentials", body: canary, fields: ["Content-Type": "text/\(canary)"])
            }),
        Situation(
            code: .tooManyRequests, status: 429, how: "more listeners than there are places", retryAfter: 10,
            bring: {
                let broker = try await BrokerHarness { $0.core.listenersPerTenant = 1 }
                broker.time.holdSleeps()
                await broker.makeTenant("t1", #"{"client_id": "c1", \#(secrets)}"#)
                let listener = await broker.listen(tenant: "t1")
                let answer = await broker.call(.get, "/events", tenant: "t1")
                await listener.close()
                return (broker, answer)
            }),
        Situation(
            code: .preconditionFailed, status: 412, how: "a tenant that was changed meanwhile",
            bring: {
                let broker = try await made()
                let answer = await broker.call(
                    .put, "/tenants/t1", body: #"{"client_id": "c1"}"#, fields: ["If-Match": #""1""#])
                return (broker, answer)
            }),
        Situation(
            code: .preconditionFailed, status: 412, how: "a tenant that was changed before it is deleted",
            bring: {
                let broker = try await made()
                return (broker, await broker.call(.delete, "/tenants/t1", fields: ["If-Match": #""1""#]))
            }),
        Situation(
            code: .preconditionFailed, status: 412, how: "a tenant that is there already",
            bring: {
                let broker = try await made()
                let answer = await broker.call(
                    .put, "/tenants/t1", body: #"{"client_id": "c1"}"#, fields: ["If-None-Match": "*"])
                return (broker, answer)
            }),
        Situation(
            code: .payloadTooLarge, status: 413, how: "a body that the server stops reading",
            bring: {
                let broker = try await made()
                return (
                    broker,
                    BrokerHarness.Answer(
                        broker.service.response(
                            toFault: .contentTooLarge, detail: "The body is larger than the server takes."))
                )
            }),
    ]

    private static let situations = ofLogins + ofProviders + ofCredentials + ofRequests

    // MARK: The table

    // H058
    @Test(arguments: situations)
    func `a problem has its code, its status and nothing that is secret`(situation: Situation) async throws {
        let (broker, answer) = try await situation.bring()
        #expect(answer.status == situation.status)
        #expect(answer.fields.values("Content-Type") == ["application/problem+json"])
        #expect(answer.fields.values("Cache-Control") == ["no-store"])

        let problem = try #require(answer.json.object)
        let code = situation.code.rawValue
        #expect(problem["type"] == .string("urn:token-broker:problem:\(code)"))
        #expect(problem["title"] == .string(situation.code.title))
        #expect(problem["status"] == .integer(Int64(situation.status)))
        #expect(problem["code"] == .string(code))
        let detail = try #require(problem["detail"]?.text)
        #expect(detail.hasSuffix(".") && detail != situation.code.title)
        #expect(problem["error_code"]?.string == situation.errorCode)
        #expect(problem["retry_after"]?.integer.map(Int.init) == situation.retryAfter)
        #expect(answer.fields.values("Retry-After") == (situation.retryAfter.map { ["\($0)"] } ?? []))
        #expect(answer.pointers == situation.pointers)
        var members: Set<WireText> = ["type", "title", "status", "detail", "code"]
        if situation.errorCode != nil { members.insert("error_code") }
        if situation.retryAfter != nil { members.insert("retry_after") }
        if !situation.pointers.isEmpty { members.insert("errors") }
        if situation.tellsOfSession { members.insert("session") }
        #expect(Set(problem.keys) == members)
        for field in ["WWW-Authenticate", "Allow"] {
            #expect(answer.fields.values(field) == situation.fields.values(field))
        }

        let shown = answer.text + answer.fields.all.map { "\($0.name): \($0.value)" }.joined(separator: "\n")
        #expect(!shown.contains(Self.canary))
        #expect(!broker.log.joined().contains(Self.canary))
    }

    @Test func `every code that a call can be answered with is in the table`() {
        #expect(Set(BrokerError.Code.allCases) == Set(Self.situations.map(\.code)))
        #expect(Set(Self.situations.map(\.how)).count == Self.situations.count)
    }

    // H007 H014
    @Test(arguments: [(1 << 20, 415, "unsupported_media_type"), ((1 << 20) + 1, 413, "payload_too_large")])
    func `a body over a mebibyte is payload_too_large before it was sent`(
        count: Int, status: Int, code: String
    ) async throws {
        let directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, ["DATA_DIR": directory.path])
        let client = try HTTPRawClient(SocketAddress(ip: .v4([127, 0, 0, 1]), port: port))
        try await client.send(
            "PUT /tenants/t1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(BrokerHarness.adminKey)\r\n"
                + "Content-Type: text/plain\r\nContent-Length: \(count)\r\n\r\n")
        if status != 413 { try await client.send([UInt8](repeating: UInt8(ascii: "x"), count: count)) }
        let response = try await client.response(to: .put)
        #expect(response.status.code == status)
        let problem = try JSONValue(parsing: response.body)
        #expect(problem["code"] == .string(code))
        #expect(problem["status"] == .integer(Int64(status)))
        #expect(await process.terminate() == 0)
    }
}
