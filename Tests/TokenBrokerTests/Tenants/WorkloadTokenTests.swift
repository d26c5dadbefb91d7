import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// Callers that prove who they are by a token of an issuer that the operator has configured.
@Suite(.timeLimit(.minutes(2))) struct `A workload's token` {
    private static let issuer = SigningProvider.issuer
    private static let audience = "token-broker"
    private static let cart = "system:serviceaccount:shop:cart"
    private static let metadata = issuer + "/.well-known/openid-configuration"

    /// A broker that accepts the tokens of `provider`, whose keys answer.
    private static func broker(
        _ provider: SigningProvider, keys: String? = SigningProvider.keysAddress, time: ManualTime = ManualTime()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(time: time) { settings in
            settings.core.workloadIssuers = [
                WorkloadIssuer(issuer: WireText(issuer), audience: WireText(audience), keys: keys)
            ]
        }
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        await broker.makeTenant()
        return broker
    }

    /// Makes a key for that subject, and returns its identifier.
    @discardableResult private static func makeKey(
        _ broker: BrokerHarness, _ subject: String = cart, issuer: String = issuer, _ members: String = ""
    ) async throws -> String {
        let made = await broker.call(
            .post, "/tenants/t1/api-keys",
            body: """
                {"name": "k", "identity": "jwt:\(issuer)#\(subject)", "permissions": ["credentials:read"]\(members)}
                """)
        #expect(made.status == 201, "\(made.text)")
        return try #require(made.json["id"]?.text)
    }

    /// The claims of a good token that lives for an hour; those of `changes` replace them, and nil leaves them out.
    private static func claims(at now: Timestamp, _ changes: [String: String?] = [:]) -> String {
        var claims: [String: String?] = [
            "iss": "\"\(issuer)\"", "aud": "[\"\(audience)\"]", "sub": "\"\(cart)\"", "iat": "\(now.seconds)",
            "nbf": "\(now.seconds)", "exp": "\(now.seconds + 3600)",
        ]
        for (name, value) in changes { claims[name] = value }
        return "{" + claims.compactMap { name, value in value.map { "\"\(name)\": \($0)" } }.joined(separator: ", ")
            + "}"
    }

    private static func status(_ broker: BrokerHarness, _ token: String) async -> Int {
        await broker.call(.get, "/credentials", key: token).status
    }

    // MARK: Claims

    // The leeway is 60 seconds.
    private static let tables: [(changes: [String: String?], status: Int)] = [
        ([:], 200),
        (["exp": "NOW+1"], 200), (["exp": "NOW"], 200), (["exp": "NOW-59"], 200), (["exp": "NOW-60"], 401),
        (["exp": "NOW-61"], 401), (["exp": nil], 401), (["exp": "\"NOW\""], 401), (["exp": "null"], 401),
        (["nbf": "NOW+59"], 200), (["nbf": "NOW+60"], 200), (["nbf": "NOW+61"], 401), (["nbf": nil], 200),
        (["iat": "NOW+59"], 200), (["iat": "NOW+60"], 200), (["iat": "NOW+61"], 401), (["iat": nil], 200),
        (["aud": "\"token-broker\""], 200), (["aud": "[\"other\", \"token-broker\"]"], 200),
        (["aud": "\"other\""], 401),
        (["aud": "[]"], 401), (["aud": nil], 401), (["aud": "\"token-broke\""], 401),
        (["aud": "\"Token-Broker\""], 401),
        (["sub": nil], 401), (["sub": "\"\""], 401), (["sub": "5"], 401), (["sub": "\"other\""], 401),
        (["sub": "\"\(String(repeating: "a", count: 512))\""], 401), (["sub": "\"\u{e9}\""], 401),
        (["iss": "\"https://other.example\""], 401), (["iss": "\"https://op.example/\""], 401), (["iss": nil], 401),
        (["iss": "\"https://OP.example\""], 401),
    ]

    @Test func `stands for the key of its subject while all of its claims are good`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        try await Self.makeKey(broker)
        let now = broker.time.now
        for (changes, status) in Self.tables {
            let written = changes.mapValues { value in
                value.map { text in
                    guard text.hasPrefix("NOW") else { return text }
                    return "\(now.seconds + (Int64(text.dropFirst(3)) ?? 0))"
                }
            }
            let token = provider.token(Self.claims(at: now, written))
            // Twice, since the second time it is known.
            for _ in 0..<2 { #expect(await Self.status(broker, token) == status, "\(changes)") }
        }
        #expect(!broker.log.joined().contains("eyJ"))
    }

    @Test func `ends at its expiry also where it was accepted before`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        try await Self.makeKey(broker)
        let token = provider.token(Self.claims(at: broker.time.now, ["exp": "\(broker.time.now.seconds + 100)"]))
        #expect(await Self.status(broker, token) == 200)
        broker.time.advance(by: .milliseconds(159_999))
        #expect(await Self.status(broker, token) == 200)
        broker.time.advance(by: .milliseconds(1))
        let expired = await broker.call(.get, "/credentials", key: token)
        #expect((expired.status, expired.code) == (401, "unauthorized"))
        #expect(expired.text.contains("The token has expired."))
    }

    /// Headers, and whether a token with it is accepted.
    @Test(arguments: ["none", "None", "HS256", "ES512", ""])
    func `is signed by an asymmetric algorithm`(algorithm: String) async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        try await Self.makeKey(broker)
        let good = provider.token(Self.claims(at: broker.time.now))
        #expect(await Self.status(broker, good) == 200)
        let header = Base64URL.encode(Array(#"{"alg": "\#(algorithm)", "kid": "k1"}"#.utf8))
        let parts = good.split(separator: ".")
        for signature in ["", String(parts[2])] {
            #expect(await Self.status(broker, "\(header).\(parts[1]).\(signature)") == 401)
        }
    }

    @Test func `that was changed, or is no token, is refused`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        try await Self.makeKey(broker)
        let good = provider.token(Self.claims(at: broker.time.now))
        let other = provider.token(Self.claims(at: broker.time.now, ["sub": "\"other\""]))
        let (parts, others) = (good.split(separator: "."), other.split(separator: "."))
        for token in [
            "\(parts[0]).\(others[1]).\(parts[2])", "\(parts[0]).\(parts[1]).\(others[2])", "\(parts[0]).\(parts[1])",
            good + ".", good + "." + parts[2], "a.b.c", "..", "\(parts[0])..\(parts[2])", good + "=",
            SigningProvider(keys: ["k1"]).token(Self.claims(at: broker.time.now)),
        ] {
            #expect(await Self.status(broker, token) == 401, "\(token)")
        }
        #expect(await Self.status(broker, good) == 200)
        // The text of the identity is no token.
        #expect(await Self.status(broker, "jwt:\(Self.issuer)#\(Self.cart)") == 401)
    }

    @Test func `of another subject is another caller`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        await broker.set("a1", storageKey: "a")
        await broker.set("b1", storageKey: "b")
        for name in ["a", "b"] { try await Self.makeKey(broker, name, #", "storage_keys": ["\#(name)"]"#) }
        for name in ["a", "b"] {
            let token = provider.token(Self.claims(at: broker.time.now, ["sub": "\"\(name)\""]))
            for (other, status) in [("a", name == "a" ? 200 : 403), ("b", name == "b" ? 200 : 403)] {
                for _ in 0..<2 {
                    let answer = await broker.call(.get, "/credentials?storage_key=\(other)", key: token)
                    #expect(answer.status == status)
                }
            }
            #expect(await broker.call(.get, "/events", key: token).status == 403)
        }
    }

    // H026
    @Test func `is refused at once when its key is deleted, and accepted with another one`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        let token = provider.token(Self.claims(at: broker.time.now))
        let unknown = await broker.call(.get, "/credentials", key: token)
        #expect((unknown.status, unknown.code) == (401, "unauthorized"))
        #expect(unknown.text.contains("create an API key"))
        for _ in 0..<2 {
            let id = try await Self.makeKey(broker)
            #expect(await Self.status(broker, token) == 200)
            #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
            #expect(await Self.status(broker, token) == 401)
        }
    }

    /// So many bytes of a token, and whether its issuer's keys are asked for.
    @Test(arguments: [(8191, true), (8192, true), (8193, false), (1 << 20, false)])
    func `is read up to a length, and a longer one costs nothing`(count: Int, isRead: Bool) async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        try await Self.makeKey(broker)
        var (token, padding) = ("", 0)
        while token.utf8.count < count {
            padding += max(1, (count - token.utf8.count) / 4)
            let text = "\"" + String(repeating: "a", count: padding) + "\""
            token = provider.token(Self.claims(at: broker.time.now, ["x": text]))
        }
        // Base64url has no texts of some lengths, so that the signature is cut. It is wrong in any case.
        token = String(token.prefix(count - 4)) + "AAAA"
        #expect(token.utf8.count == count && token.split(separator: ".").count == 3)
        let answer = await broker.call(.get, "/credentials", key: token)
        #expect(answer.status == 401)
        #expect(answer.text.contains("The token that names the issuer") == isRead, "\(answer.text)")
    }

    // MARK: Keys

    @Test func `with a key that is not known has the keys asked for, at most every thirty seconds`() async throws {
        let (first, second) = (SigningProvider(keys: ["k1"]), SigningProvider(keys: ["k2"]))
        let broker = try await Self.broker(first)
        try await Self.makeKey(broker)
        func token(_ provider: SigningProvider) -> String { provider.token(Self.claims(at: broker.time.now)) }
        #expect(await Self.status(broker, token(first)) == 200)
        #expect(broker.transport.standingSeen.count == 1)
        // A stranger's key: nothing is asked for while it was only just.
        let early = await broker.call(.get, "/credentials", key: token(second))
        #expect((early.status, early.code) == (503, "retryable_error"))
        #expect(early.fields["Retry-After"] == "30")
        #expect(broker.transport.standingSeen.count == 1)
        broker.time.advance(by: .seconds(30))
        #expect(await Self.status(broker, token(second)) == 401)
        #expect(broker.transport.standingSeen.count == 2)
        // The issuer changes its keys.
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, second.keySet))
        broker.time.advance(by: .seconds(30))
        #expect(await Self.status(broker, token(second)) == 200)
        #expect(broker.transport.standingSeen.count == 3)
        #expect(await Self.status(broker, token(first)) == 503)
        broker.time.advance(by: .seconds(30))
        #expect(await Self.status(broker, token(first)) == 401)
    }

    @Test func `is believed for an hour at most without another look at the keys`() async throws {
        let (first, second) = (SigningProvider(keys: ["k1"]), SigningProvider(keys: ["k2"]))
        let broker = try await Self.broker(first)
        try await Self.makeKey(broker)
        let token = first.token(Self.claims(at: broker.time.now, ["exp": "\(broker.time.now.seconds + 86_400)"]))
        #expect(await Self.status(broker, token) == 200)
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, second.keySet))
        broker.time.advance(by: WorkloadTokens.longestKnown - .milliseconds(1))
        #expect(await Self.status(broker, token) == 200)
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.status(broker, token) == 401)
    }

    @Test(arguments: [SigningProvider.keysAddress, nil] as [String?])
    func `is neither accepted nor refused while its issuer cannot be reached`(keys: String?) async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider, keys: keys)
        try await Self.makeKey(broker)
        let document = #"{"issuer": "\#(Self.issuer)", "jwks_uri": "\#(SigningProvider.keysAddress)"}"#
        func setReachable(_ isReachable: Bool) {
            let failure = ScriptedTransport.Step.failure(.connectFailed)
            broker.transport.standing(at: Self.metadata, isReachable ? .json(200, document) : failure)
            broker.transport.standing(
                at: SigningProvider.keysAddress, isReachable ? .json(200, provider.keySet) : failure)
        }
        setReachable(false)
        let token = provider.token(Self.claims(at: broker.time.now))
        for _ in 0..<3 {
            let answer = await broker.call(.get, "/credentials", key: token)
            #expect((answer.status, answer.code) == (503, "retryable_error"))
            #expect(answer.fields["Retry-After"] == "5")
        }
        let metrics = await broker.call(.get, "/metrics", key: nil).text
        #expect(metrics.contains("token_broker_workload_tokens_unverified_total 3\n"))
        // One that has expired is refused in any case.
        let expired = provider.token(Self.claims(at: broker.time.now, ["exp": "\(broker.time.now.seconds - 60)"]))
        #expect(await Self.status(broker, expired) == 401)
        // It was asked once.
        #expect(broker.transport.standingSeen.count == 1)
        broker.time.advance(by: .seconds(5))
        setReachable(true)
        #expect(await Self.status(broker, token) == 200)
        // What is known serves on, also for tokens that were never seen.
        setReachable(false)
        broker.time.advance(by: .seconds(7200))
        let later = provider.token(Self.claims(at: broker.time.now))
        for _ in 0..<2 { #expect(await Self.status(broker, later) == 200) }
    }

    @Test(arguments: [
        #"{"issuer": "https://op.example/", "jwks_uri": "https://op.example/keys"}"#,
        #"{"issuer": "https://op.example"}"#,
        #"{"jwks_uri": "https://op.example/keys"}"#, #"{"issuer": "https://op.example", "jwks_uri": "keys"}"#, "[]",
        "no",
    ])
    func `is not verified with the keys of metadata that do not fit`(document: String) async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider, keys: nil)
        try await Self.makeKey(broker)
        broker.transport.standing(at: Self.metadata, .json(200, document))
        #expect(await Self.status(broker, provider.token(Self.claims(at: broker.time.now))) == 503)
        #expect(broker.log.contains { $0.contains("workload_issuer_unusable") })
    }

    @Test func `is verified once by any number of requests at once`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        try await Self.makeKey(broker)
        let gate = Gate()
        broker.transport.standing(at: SigningProvider.keysAddress, .after(gate, .json(200, provider.keySet)))
        let token = provider.token(Self.claims(at: broker.time.now))
        await withTaskGroup(of: Int.self) { group in
            for _ in 0..<50 { group.addTask { await Self.status(broker, token) } }
            await gate.arrivals()
            gate.open()
            for await status in group { #expect(status == 200) }
        }
        #expect(broker.transport.standingSeen.count == 1)
    }

    @Test func `that nothing can verify is delayed like one that is refused`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider, time: ManualTime(skipsSleeps: false))
        broker.transport.standing(at: SigningProvider.keysAddress, .failure(.connectFailed))
        let token = provider.token(Self.claims(at: broker.time.now))
        let stranger = try NetworkSource(#require(NetworkAddress(parsing: Array("192.0.2.1".utf8)[...])))
        @Sendable func status() async -> Int {
            await broker.call(.get, "/credentials", key: token, source: stranger).status
        }
        for _ in 0..<20 { #expect(await status() == 503) }
        async let delayed = status()
        await broker.time.sleepers(of: .milliseconds(50))
        broker.time.advance(by: .milliseconds(50))
        #expect(await delayed == 503)
    }

    @Test func `is kept for a caller that has a key, and for no other`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider)
        let token = provider.token(Self.claims(at: broker.time.now))
        let digest = SHA256.words(Array(token.utf8).span)
        let workloads = try #require(broker.broker.core.workloads)
        #expect(await Self.status(broker, token) == 401)
        #expect(workloads.known(digest, at: broker.time.now) == nil)
        try await Self.makeKey(broker)
        #expect(await Self.status(broker, token) == 200)
        #expect(workloads.known(digest, at: broker.time.now) != nil)
    }

    @Test func `lets its caller listen on while nothing can verify it, until it expires`() async throws {
        let provider = SigningProvider()
        let broker = try await Self.broker(provider, time: ManualTime(skipsSleeps: false))
        let made = await broker.call(
            .post, "/tenants/t1/api-keys",
            body: #"{"name": "k", "identity": "jwt:\#(Self.issuer)#\#(Self.cart)", "permissions": ["events"]}"#)
        #expect(made.status == 201, "\(made.text)")
        let expiry = broker.time.now.advanced(by: .seconds(200_000))
        let token = provider.token(Self.claims(at: broker.time.now, ["exp": "\(expiry.seconds)"]))
        let listener = await broker.listen(key: token)
        broker.transport.standing(at: SigningProvider.keysAddress, .failure(.connectFailed))
        await broker.time.sleepers(of: .seconds(1))
        broker.time.advance(by: .seconds(100_000))
        #expect(await listener.comments(1) == ["heartbeat"])
        #expect(await Self.status(broker, token) == 503)
        #expect(!listener.isOver)
        await broker.time.sleepers(of: .seconds(1))
        broker.time.advance(by: .seconds(100_060))
        await listener.end()
    }

    // MARK: Reads

    @Test func `answers warm reads at once, until its key is deleted or it expires`() async throws {
        let provider = SigningProvider()
        try await withWarmServer { settings in
            settings.core.workloadIssuers = [
                WorkloadIssuer(
                    issuer: WireText(Self.issuer), audience: WireText(Self.audience), keys: SigningProvider.keysAddress)
            ]
        } _: { server in
            let broker = server.harness
            broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
            let id = try await Self.makeKey(broker)
            // One whose fields are too long to be kept, and one that is kept with them.
            for padding in [3000, 1] {
                let token = provider.token(
                    Self.claims(at: broker.time.now, ["x": "\"" + String(repeating: "a", count: padding) + "\""]))
                func read() async throws -> Int {
                    try await server.client.send(server.head(key: token))
                    return try await server.answer().status
                }
                #expect(try await read() == 200)
                let usual = server.usual()
                for _ in 0..<5 { #expect(try await read() == 200) }
                #expect(server.usual() == usual)
                if padding > 1 { continue }
                #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
                #expect(try await read() == 401)
                try await Self.makeKey(broker)
                #expect(try await read() == 200)
                broker.time.advance(by: .seconds(3660))
                #expect(try await read() == 401)
            }
        }
    }

    @Test func `is no token where no issuer is configured`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        try await Self.makeKey(broker)
        let token = SigningProvider().token(Self.claims(at: broker.time.now))
        #expect(await Self.status(broker, token) == 401)
        #expect(broker.transport.seen.isEmpty && broker.transport.standingSeen.isEmpty)
    }
}
