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

@Suite(.timeLimit(.minutes(1))) struct `Checking a tenant` {
    private static let names = ["address", "tls", "pins", "metadata", "jwks", "client_authentication"]
    private static let byIssuer = #"""
        {"provider": "oidc", "client_id": "c1", "client_secret": "canary-secret", "issuer": "https://op.example"}
        """#

    private static func metadata(_ members: String = "") -> String {
        #"""
        {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
         "token_endpoint": "https://op.example/t", "jwks_uri": "https://op.example/k"\#(members)}
        """#
    }

    /// A provider where everything is as it should be, but for what `change` says of an address.
    private static func provider(
        metadata: String = metadata(),
        _ change: @escaping @Sendable (ScriptedTransport.Seen) -> ScriptedTransport.Step? = { _ in nil }
    ) -> ScriptedTransport.Step {
        .decide { seen in
            if let step = change(seen) { return step }
            if seen.url.contains("/.well-known/") { return .json(200, metadata) }
            if seen.url.hasSuffix("/k") { return .json(200, usable[1]) }
            if seen.form["grant_type"] == "client_credentials" {
                return .json(200, BrokerHarness.token("canary-token"))
            }
            if seen.form["grant_type"] != nil { return .json(400, #"{"error": "invalid_grant"}"#) }
            return .json(404, "")
        }
    }

    private struct Checks {
        let answer: BrokerHarness.Answer

        var names: [String] { answer.json["checks"]?.array?.compactMap { $0["name"]?.text } ?? [] }
        /// Those that failed.
        var failed: [String] {
            answer.json["checks"]?.array?.filter { $0["ok"] == .bool(false) }.compactMap { $0["name"]?.text } ?? []
        }

        func detail(_ name: String) -> String {
            answer.json["checks"]?.array?.first { $0["name"]?.text == name }?["detail"]?.text ?? ""
        }
    }

    private static func check(
        _ tenant: String = byIssuer, at provider: ScriptedTransport.Step = provider(), time: ManualTime = ManualTime()
    ) async throws -> (checks: Checks, broker: BrokerHarness) {
        let broker = try await BrokerHarness(time: time)
        await broker.makeTenant("t1", tenant)
        broker.transport.always(provider)
        return (Checks(answer: await broker.call(.post, "/tenants/t1/check")), broker)
    }

    @Test func `says of each thing that it is well`() async throws {
        let (checks, broker) = try await Self.check()
        #expect(checks.answer.status == 200)
        #expect(checks.names == Self.names)
        #expect(checks.failed == [], "\(checks.answer.text)")
        #expect(checks.detail("address").contains("op.example"))
        #expect(checks.detail("metadata").contains("https://op.example/.well-known/"))
        #expect(checks.detail("jwks").contains("2 keys"))
        #expect(checks.detail("pins").contains("No certificate is pinned"))
        #expect(checks.answer.fields["Cache-Control"] == "no-store")
        for secret in ["canary-secret", "canary-token"] {
            #expect(!(checks.answer.text + broker.log.joined()).contains(secret))
        }
        // Nothing is stored of what the provider granted.
        #expect(try await broker.count(.credentials) == 0)
        #expect(try await broker.count(.login) == 0)
    }

    @Test(arguments: [
        (TransportError.nameNotFound, "address", "does not exist"), (.connectFailed, "address", "connection"),
        (.forbiddenAddress, "address", "TOKEN_BROKER_PROVIDER_NETWORKS"),
        (.timedOut(.connect, requestSent: false), "address", "time"), (.tlsFailed, "tls", "TLS"),
        (.untrusted(.expired), "tls", "expired"), (.untrusted(.hostName), "tls", "host"),
        (.untrusted(.chain), "tls", "TOKEN_BROKER_TRUSTED_CA_FILE"),
        (.untrusted(.noCommonProtocol), "tls", "TLS 1.2"), (.untrusted(.pin), "pins", "pinned_certificates"),
    ])
    func `names what keeps the provider from being called`(
        error: TransportError, name: String, words: String
    ) async throws {
        let pinned = #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://op.example",
             "pinned_certificates": ["sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI="]}
            """#
        let (checks, _) = try await Self.check(pinned, at: .failure(error))
        #expect(checks.failed.first == name, "\(checks.answer.text)")
        #expect(checks.detail(name).contains(words), "\(checks.answer.text)")
        // What was reached before that is well.
        let before = Self.names.prefix { $0 != name }
        #expect(before.allSatisfy { !checks.failed.contains($0) })
        #expect(checks.failed.contains("client_authentication"))
    }

    @Test func `names metadata that cannot be used, and what it would be`() async throws {
        let (checks, _) = try await Self.check(
            at: Self.provider(
                metadata: Self.metadata().replacing("\"https://op.example\"", with: "\"https://op.example/\"")))
        #expect(checks.failed.first == "metadata")
        #expect(checks.detail("metadata").contains("https://op.example/"))
    }

    @Test(arguments: [
        (ScriptedTransport.Step.json(404, ""), "404"), (.json(200, "<html>"), "keys"),
        (.json(200, #"{"keys": 7}"#), "keys"),
        (.failure(.connectFailed), "reached"),
    ])
    func `names keys that cannot be had`(step: ScriptedTransport.Step, words: String) async throws {
        let (checks, _) = try await Self.check(at: Self.provider { $0.url.hasSuffix("/k") ? step : nil })
        #expect(checks.failed == ["jwks"], "\(checks.answer.text)")
        #expect(checks.detail("jwks").contains(words))
    }

    private static let usable = [SigningProvider(), SigningProvider(keys: ["a", "b"])].map(\.keySet)
    private static let withOthers = usable[0].replacing(
        "]}", with: #", {"kty": "EC"}, {"kty": "oct", "k": "c2VjcmV0"}]}"#)

    @Test(arguments: [
        (usable[0], "One key is at https://op.example/k."), (usable[1], "2 keys are at https://op.example/k."),
        (
            withOthers,
            "One key is at https://op.example/k. The broker does not use 2 more, of other kinds or for other uses."
        ), (#"{"keys": []}"#, "The JWK set at https://op.example/k is empty: the provider signs nothing."),
    ])
    func `counts the keys that the broker can use`(set: String, words: String) async throws {
        let (checks, _) = try await Self.check(at: Self.provider { $0.url.hasSuffix("/k") ? .json(200, set) : nil })
        #expect(checks.detail("jwks") == words)
    }

    @Test func `tells an answer that cannot be used apart from none`() async throws {
        let (checks, _) = try await Self.check(
            at: Self.provider { $0.url.hasSuffix("/k") ? .failure(.responseTooLarge) : nil })
        #expect(checks.failed == ["jwks"])
        #expect(checks.detail("jwks") == "https://op.example/k cannot be used. The answer is too long.")
    }

    @Test func `takes an empty set of keys for what it is`() async throws {
        let (checks, _) = try await Self.check(
            at: Self.provider { $0.url.hasSuffix("/k") ? .json(200, #"{"keys": []}"#) : nil })
        #expect(checks.failed == [], "\(checks.answer.text)")
        #expect(checks.detail("jwks").contains("empty"))
    }

    struct Client: Sendable, CustomTestStringConvertible {
        let testDescription: String
        /// What a request for client credentials is answered.
        let credentials: ScriptedTransport.Step
        /// What one with a made-up code is answered.
        var code = ScriptedTransport.Step.json(400, #"{"error": "invalid_grant"}"#)
        let isWell: Bool
        let grants: [String]
        let words: String
    }

    private static func refusal(_ status: Int, _ error: String) -> ScriptedTransport.Step {
        .json(status, #"{"error": "\#(error)"}"#)
    }

    private static let clients: [Client] = [
        .init(
            testDescription: "granted", credentials: .json(200, BrokerHarness.token("x")), isWell: true,
            grants: ["client_credentials"], words: "client credentials"),
        .init(
            testDescription: "wrong secret", credentials: refusal(401, "invalid_client"), isWell: false,
            grants: ["client_credentials"], words: "client_secret"),
        .init(
            testDescription: "no such grant for the client", credentials: refusal(400, "unauthorized_client"),
            isWell: true, grants: ["client_credentials", "authorization_code"], words: "made-up code"),
        .init(
            testDescription: "no such grant at all", credentials: refusal(400, "unsupported_grant_type"), isWell: true,
            grants: ["client_credentials", "authorization_code"], words: "made-up code"),
        .init(
            testDescription: "no such grant, wrong secret", credentials: refusal(400, "unsupported_grant_type"),
            code: refusal(401, "invalid_client"), isWell: false, grants: ["client_credentials", "authorization_code"],
            words: "client_secret"),
        .init(
            testDescription: "neither grant", credentials: refusal(400, "unauthorized_client"),
            code: refusal(400, "unauthorized_client"), isWell: false,
            grants: ["client_credentials", "authorization_code"], words: "authorization code"),
        .init(
            testDescription: "Glewlwyd, right secret", credentials: refusal(400, "authorization_type_invalid"),
            code: refusal(403, "invalid_code"), isWell: true, grants: ["client_credentials", "authorization_code"],
            words: #""client_credentials": "off""#),
        .init(
            testDescription: "Glewlwyd, wrong secret", credentials: refusal(400, "authorization_type_invalid"),
            code: refusal(403, "unauthorized_client"), isWell: false,
            grants: ["client_credentials", "authorization_code"], words: "client_secret"),
        .init(
            testDescription: "no reason", credentials: .json(400, ""), isWell: false, grants: ["client_credentials"],
            words: "client_secret"),
        .init(
            testDescription: "a redirect", credentials: .json(302, ""), isWell: false, grants: ["client_credentials"],
            words: "endpoints"),
        .init(
            testDescription: "cannot be told", credentials: refusal(400, "unsupported_grant_type"),
            code: refusal(400, "invalid_request"), isWell: false, grants: ["client_credentials", "authorization_code"],
            words: "invalid_request"),
        .init(
            testDescription: "scopes", credentials: refusal(400, "invalid_scope"), isWell: false,
            grants: ["client_credentials"], words: "scopes"),
        .init(
            testDescription: "403", credentials: .json(403, ""), isWell: false, grants: ["client_credentials"],
            words: "allow"),
        .init(
            testDescription: "404", credentials: .json(404, "<html>"), isWell: false, grants: ["client_credentials"],
            words: "endpoints"),
        .init(
            testDescription: "a page", credentials: .json(400, "<html>"), isWell: false, grants: ["client_credentials"],
            words: "proxy"),
        .init(
            testDescription: "redirect URI", credentials: refusal(400, "unsupported_grant_type"),
            code: refusal(400, "redirect_uri_mismatch"), isWell: false,
            grants: ["client_credentials", "authorization_code"], words: "redirect URI"),
        .init(
            testDescription: "busy", credentials: .json(429, "{}"), isWell: false, grants: ["client_credentials"],
            words: "429"),
    ]

    @Test(arguments: clients)
    func `tries the client without a user`(row: Client) async throws {
        let (checks, broker) = try await Self.check(
            at: Self.provider { seen in
                switch seen.form["grant_type"] {
                case "client_credentials": row.credentials
                case nil: nil
                default: row.code
                }
            })
        #expect(checks.failed == (row.isWell ? [] : ["client_authentication"]), "\(checks.answer.text)")
        #expect(checks.detail("client_authentication").contains(row.words), "\(checks.answer.text)")
        #expect(broker.transport.seen.compactMap { $0.form["grant_type"] } == row.grants)
    }

    @Test func `asks a provider without the grant for nothing that it does not have`() async throws {
        let (checks, broker) = try await Self.check(
            at: Self.provider(metadata: Self.metadata(#", "grant_types_supported": ["authorization_code"]"#)))
        #expect(checks.failed == [], "\(checks.answer.text)")
        #expect(broker.transport.seen.compactMap { $0.form["grant_type"] } == ["authorization_code"])
    }

    @Test(arguments: [(403, true), (400, false)])
    func `says what to look at where a client's JWT is refused`(status: Int, isNamed: Bool) async throws {
        let (checks, _) = try await Self.check(
            #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://op.example", "client_credentials": "off",
             "private_key": \#(ClientKeys.jwk(ClientKeys.p256)), "token_endpoint_auth_method": "private_key_jwt"}
            """#,
            at: Self.provider { seen in
                seen.form["grant_type"].map { _ in
                    isNamed ? .json(status, "") : Self.refusal(status, "invalid_grant")
                }
            })
        #expect(checks.failed == (isNamed ? ["client_authentication"] : []), "\(checks.answer.text)")
        #expect(
            checks.detail("client_authentication").contains("client_assertion_audience") == isNamed,
            "\(checks.answer.text)")
    }

    @Test func `tries a public client by a made-up code`() async throws {
        let (checks, broker) = try await Self.check(
            #"{"provider": "oidc", "client_id": "c1", "issuer": "https://op.example"}"#)
        #expect(checks.failed == [], "\(checks.answer.text)")
        let request = try #require(broker.transport.seen.first { $0.form["grant_type"] != nil })
        #expect(request.form["grant_type"] == "authorization_code")
        #expect(request.form["client_id"] == "c1")
        #expect(request.form["redirect_uri"] == "https://broker.example/login/callback")
    }

    private static let authgear = #"""
        {"provider": "authgear", "client_id": "c1", "issuer": "https://op.example",
         "app2app": {"enabled": true, "authorization_endpoints": ["https://a.example/authorize"]}}
        """#

    @Test(
        arguments: [
            (
                .json(200, #"{"result": {"token": "canary-challenge", "expire_at": "2030-01-01T00:00:00Z"}}"#), true,
                "gave a challenge"
            ),
            (.json(404, "<html>"), false, "404"), (.json(200, "{}"), false, "no usable challenge"),
            (.json(503, ""), false, "Try again later"), (.failure(.connectFailed), false, "could not be reached"),
        ] as [(ScriptedTransport.Step, Bool, String)])
    func `tries the address of challenges of a tenant that takes part in logins between apps`(
        step: ScriptedTransport.Step, isWell: Bool, words: String
    ) async throws {
        let (checks, broker) = try await Self.check(
            Self.authgear, at: Self.provider { $0.url == "https://op.example/oauth2/challenge" ? step : nil })
        #expect(checks.names == Self.names + ["challenge"])
        #expect(checks.failed == (isWell ? [] : ["challenge"]), "\(checks.answer.text)")
        #expect(checks.detail("challenge").contains(words), "\(checks.answer.text)")
        #expect(checks.detail("challenge").contains("https://op.example/oauth2/challenge"))
        #expect(!checks.answer.text.contains("canary-challenge"))
        #expect(broker.transport.seen.count { $0.url.hasSuffix("/oauth2/challenge") } == 1)
    }

    @Test func `the host of challenges is one of those that must be reached`() async throws {
        let tenant = Self.authgear.replacing(
            #""app2app""#, with: #""endpoints": {"challenge": "https://challenges.example/c"}, "app2app""#)
        let (checks, _) = try await Self.check(
            tenant, at: Self.provider { $0.url.hasPrefix("https://challenges.") ? .failure(.nameNotFound) : nil })
        #expect(checks.failed == ["address", "challenge"], "\(checks.answer.text)")
        #expect(checks.detail("address").contains("challenges.example"))
    }

    @Test func `leaves a provider's metadata alone that is not needed`() async throws {
        let (checks, broker) = try await Self.check(
            #"{"client_id": "c1", "client_secret": "s1"}"#,
            at: Self.provider { $0.url.hasPrefix("https://auth.tidal.com/") ? nil : .failure(.nameNotFound) })
        #expect(checks.names == Self.names)
        #expect(checks.failed == [], "\(checks.answer.text)")
        #expect(checks.detail("metadata").hasPrefix("Not checked"))
        #expect(checks.detail("jwks").hasPrefix("Not checked"))
        #expect(checks.detail("pins").contains("4"))
        #expect(broker.transport.seen.allSatisfy { $0.isPinned })
    }

    /// How long the token endpoint takes, and what is said of it.
    @Test(
        arguments: [
            (1900, true, nil), (2000, true, "answered only after 2 s"), (4000, true, "answered only after 4 s"),
            (4250, true, "answered only after 4.2 s"), (9900, true, "answered only after 9.9 s"),
            (nil, false, "did not answer within 10 s"),
        ] as [(Int?, Bool, String?)])
    func `waits for the client's answer as long as a renewal does, and tells how long it took`(
        milliseconds: Int?, isWell: Bool, words: String?
    ) async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(time: time)
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        let gate = Gate()
        broker.transport.always(
            .decide { seen in
                if seen.form["grant_type"] == nil { return .json(404, "") }
                if seen.timeLimit != .seconds(10) { return .failure(.invalidRequest) }
                return milliseconds == nil ? .hang(time) : .after(gate, .json(200, BrokerHarness.token("x")))
            })
        async let answer = broker.call(.post, "/tenants/t1/check")
        if let milliseconds {
            await gate.arrivals()
            time.advance(by: .milliseconds(milliseconds))
            gate.open()
        } else {
            await time.sleepers(of: .seconds(10))
            time.advance(by: .seconds(10))
        }
        let checks = Checks(answer: await answer)
        let detail = checks.detail("client_authentication")
        #expect(checks.failed == (isWell ? [] : ["client_authentication"]), "\(checks.answer.text)")
        #expect(words.map(detail.contains) ?? !detail.contains(" s"), "\(detail)")
        if words != nil { #expect(detail.contains("TOKEN_BROKER_PROVIDER_TIMEOUT")) }
    }

    @Test func `tells of keys that come too late for how long they were waited for`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(time: time)
        await broker.makeTenant("t1", Self.byIssuer)
        broker.transport.always(Self.provider { $0.url.hasSuffix("/k") ? .hang(time) : nil })
        async let answer = broker.call(.post, "/tenants/t1/check")
        await time.sleepers(of: .seconds(10))
        time.advance(by: .seconds(10))
        let checks = Checks(answer: await answer)
        #expect(checks.failed == ["jwks"])
        #expect(checks.detail("jwks").contains("did not answer within 10 s"), "\(checks.answer.text)")
    }

    @Test func `ends within its limits at a provider that hangs`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(time: time)
        await broker.makeTenant("t1", Self.byIssuer)
        broker.transport.always(.hang(time))
        let start = time.now
        let clock = Task {
            while !Task.isCancelled {
                await time.sleeper()
                time.advance(by: .milliseconds(250))
            }
        }
        let checks = Checks(answer: await broker.call(.post, "/tenants/t1/check"))
        // Five seconds for the metadata, and one call beside it.
        #expect(start.duration(to: time.now) <= .seconds(16))
        clock.cancel()
        #expect(checks.answer.status == 200)
        #expect(checks.failed.contains("metadata") && checks.failed.contains("client_authentication"))
    }

    @Test func `is the admin's, takes no query, and needs a tenant`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.byIssuer)
        let key = await broker.makeKey()
        #expect(await broker.call(.post, "/tenants/t1/check", key: key).status == 403)
        #expect(await broker.call(.post, "/tenants/t1/check", key: nil).status == 401)
        #expect(await broker.call(.post, "/tenants/t9/check").status == 404)
        #expect(await broker.call(.post, "/tenants/t1/check?x=1").status == 400)
        #expect(await broker.call(.post, "/tenants/t1/check", body: #"{"x": 1}"#).status == 400)
        #expect(await broker.call(.get, "/tenants/t1/check").status == 405)
        #expect(broker.transport.seen.isEmpty)
    }
}
