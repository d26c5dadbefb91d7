import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JOSE
import JSON
import OAuth
import Reactor
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `Keys of a provider` {
    private static let address = "https://op.example/keys"
    private static let first = key("first")
    private static let second = key("second")

    private let transport = ScriptedTransport()
    private let time = ManualTime()
    private let keys: ProviderKeys

    init() {
        keys = ProviderKeys(
            transport: transport,
            instruments: Instruments(
                time: time, log: Log(threshold: .error, time: time) { _ in }, metrics: Metrics()))
    }

    private static func key(_ name: WireText) -> PrivateJSONWebKey {
        guard let key = try? PrivateKey.generate(.elliptic(.p256)) else { fatalError("no key was made") }
        return PrivateJSONWebKey(key, keyID: name)
    }

    /// A token that is signed with `key`.
    private static func token(_ key: PrivateJSONWebKey, _ claims: String = "{}") throws -> CompactJWS {
        let algorithm: SignatureAlgorithm = key.publicJWK.misfit(for: .es256) == nil ? .es256 : .rs256
        return try CompactJWS(
            parsing: TokenSigner(key, algorithm: algorithm).sign(Array(claims.utf8)),
            policy: JWSPolicy(algorithms: [algorithm]))
    }

    /// An answer with a set of keys.
    private static func set(_ keys: PrivateJSONWebKey..., fields: Fields = [:]) -> ScriptedTransport.Step {
        .json(200, String(decoding: JSONWebKeySet(keys.map(\.publicJWK)).json, as: UTF8.self), fields: fields)
    }

    private static func configuration(pins: [String]? = nil) -> TenantConfiguration {
        var configuration = TenantConfiguration(
            preset: .oidc,
            client: ClientConfiguration(clientID: "c", clientSecret: nil, clientUniqueKey: nil, scopes: .empty))
        configuration.pinnedCertificates = pins
        return configuration
    }

    /// What verifying a token that is signed with `key` comes to; nil when it is verified.
    private func failure(
        _ key: PrivateJSONWebKey, _ claims: String = "{}", at address: String = address, pins: [String]? = nil
    ) async throws -> ProviderKeys.Failure? {
        let token = try Self.token(key, claims)
        do throws(ProviderKeys.Failure) {
            _ = try await keys.verified(token, at: address, for: Self.configuration(pins: pins))
            return nil
        } catch {
            return error
        }
    }

    private func code(_ failure: ProviderKeys.Failure?) -> BrokerError.Code? {
        if case .unavailable(let error)? = failure { error.code } else { nil }
    }

    private func retryAfter(_ failure: ProviderKeys.Failure?) -> Int? {
        if case .unavailable(let error)? = failure { error.retryAfter } else { nil }
    }

    // MARK: Keeping

    @Test func `are fetched for the first token, and kept for the next`() async throws {
        transport.enqueue(Self.set(Self.first, Self.second))
        #expect(try await failure(Self.first) == nil)
        #expect(try await failure(Self.second) == nil)
        let request = try #require(transport.seen.first)
        #expect(transport.seen.count == 1)
        #expect(request.method == .get)
        #expect(request.url == Self.address)
        #expect(request.fields["Accept"] == "application/jwk-set+json, application/json")
        #expect(!request.fields.contains("If-None-Match"))
        #expect(!request.fields.contains("If-Modified-Since"))
        #expect(request.timeLimit == .seconds(5))
    }

    @Test func `are kept apart by address and pins`() async throws {
        let pin = "sha256/" + Base64.encode([UInt8](repeating: 1, count: 32))
        transport.always(Self.set(Self.first))
        for _ in 0..<2 {
            #expect(try await failure(Self.first) == nil)
            #expect(try await failure(Self.first, pins: [pin]) == nil)
            #expect(try await failure(Self.first, at: "https://op.example/other") == nil)
        }
        #expect(transport.seen.map(\.isPinned) == [false, true, false])
    }

    /// Fields of an answer, and how many seconds it is believed for.
    private static let lifetimes: [(fields: Fields, seconds: Int)] = [
        ([:], 3600), (["Cache-Control": ""], 3600), (["Cache-Control": "public"], 3600),
        (["Cache-Control": "max-age=600"], 600), (["Cache-Control": "public, max-age=600, must-revalidate"], 600),
        (["Cache-Control": "MAX-AGE=600"], 600), (["Cache-Control": "max-age=\"600\""], 600),
        (["Cache-Control": "s-maxage=5,max-age=600"], 600), (["Cache-Control": "max-age=29"], 30),
        (["Cache-Control": "max-age=30"], 30), (["Cache-Control": "max-age=31"], 31),
        (["Cache-Control": "max-age=3599"], 3599), (["Cache-Control": "max-age=3600"], 3600),
        (["Cache-Control": "max-age=3601"], 3600), (["Cache-Control": "max-age=86400"], 3600),
        (["Cache-Control": "max-age=0"], 30), (["Cache-Control": "no-store"], 30),
        (["Cache-Control": "no-cache, max-age=600"], 30), (["Cache-Control": "max-age"], 30),
        (["Cache-Control": "max-age=x"], 30), (["Cache-Control": "max-age=-1"], 30),
        (["Cache-Control": "max-age=9999999999999999999"], 30),
        (["Cache-Control": "max-age=999999999999999999"], 3600),
        (["Cache-Control": "max-age=600", "cache-control": "max-age=500"], 500),
        (["Cache-Control": "max-age=600", "Age": "100"], 500), (["Cache-Control": "max-age=600", "Age": "599"], 30),
        (["Cache-Control": "max-age=600", "Age": "999999999999999999"], 30),
        (["Cache-Control": "max-age=600", "Age": "x"], 600), (["Age": "600"], 3000),
    ]

    @Test(arguments: lifetimes.indices)
    func `are believed for as long as the answer says, within bounds`(index: Int) async throws {
        let (fields, seconds) = Self.lifetimes[index]
        transport.enqueue(Self.set(Self.first, fields: fields))
        transport.always(Self.set(Self.first))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(seconds) - .milliseconds(1))
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 1, "\(fields)")
        time.advance(by: .milliseconds(1))
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 2, "\(fields)")
    }

    @Test func `are confirmed by a conditional request`() async throws {
        transport.enqueue(
            Self.set(
                Self.first,
                fields: [
                    "ETag": "\"v1\"", "Last-Modified": "Sat, 21 Nov 2026 08:00:00 GMT", "Cache-Control": "max-age=60",
                ]),
            .json(304, "", fields: ["Cache-Control": "max-age=120", "ETag": "\"v2\""]), .json(304, ""),
            Self.set(Self.second))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(60))
        #expect(try await failure(Self.first) == nil)
        try #require(transport.seen.count == 2)
        #expect(transport.seen[1].fields["If-None-Match"] == "\"v1\"")
        #expect(transport.seen[1].fields["If-Modified-Since"] == "Sat, 21 Nov 2026 08:00:00 GMT")
        time.advance(by: .seconds(119))
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 2)
        time.advance(by: .seconds(1))
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen[2].fields["If-None-Match"] == "\"v2\"")
        #expect(transport.seen[2].fields["If-Modified-Since"] == "Sat, 21 Nov 2026 08:00:00 GMT")
        time.advance(by: .seconds(3600))
        // What was replaced verifies nothing any more.
        #expect(try await failure(Self.first) == .refused(.unknownKey))
        #expect(try await failure(Self.second) == nil)
        #expect(transport.seen.count == 4)
    }

    @Test(arguments: ["\u{1}", "é", String(repeating: "v", count: 1025)])
    func `are fetched without a condition where the validator cannot be sent back`(tag: String) async throws {
        transport.always(Self.set(Self.first, fields: ["ETag": tag, "Cache-Control": "max-age=30"]))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(30))
        #expect(try await failure(Self.first) == nil)
        #expect(!transport.seen[1].fields.contains("If-None-Match"))
    }

    @Test func `are forgotten by the address that was asked the longest time ago, from the 1025th on`() async throws {
        transport.always(Self.set(Self.first))
        for number in 0...1024 {
            time.advance(by: .milliseconds(1))
            #expect(try await failure(Self.first, at: "https://op.example/\(number)") == nil)
        }
        #expect(transport.seen.count == 1025)
        #expect(try await failure(Self.first, at: "https://op.example/1") == nil)
        #expect(transport.seen.count == 1025)
        #expect(try await failure(Self.first, at: "https://op.example/0") == nil)
        #expect(transport.seen.count == 1026)
    }

    // MARK: Rotation

    @Test func `are fetched again once for a key that is not known`() async throws {
        transport.enqueue(Self.set(Self.first), Self.set(Self.first, Self.second))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(30))
        #expect(try await failure(Self.second) == nil)
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 2)
    }

    @Test func `are fetched for keys that are not known every 30 s at most, and the token is not refused meanwhile`()
        async throws
    {
        transport.always(Self.set(Self.first))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .milliseconds(29_999))
        let early = try await failure(Self.second)
        #expect(code(early) == .networkError)
        #expect(retryAfter(early) == 1)
        #expect(transport.seen.count == 1)
        time.advance(by: .milliseconds(1))
        #expect(try await failure(Self.second) == .refused(.unknownKey))
        #expect(transport.seen.count == 2)
        time.advance(by: .milliseconds(1))
        let again = try await failure(Self.second)
        #expect(code(again) == .networkError)
        #expect(retryAfter(again) == 29)
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 2)
    }

    @Test func `do not verify what another has signed, for which they are fetched every 30 s at most`() async throws {
        transport.always(Self.set(Self.first))
        #expect(try await failure(Self.first) == nil)
        for round in 1...2 {
            time.advance(by: .seconds(30))
            for _ in 0..<3 { #expect(try await failure(Self.key("first")) == .refused(.signature)) }
            #expect(transport.seen.count == 1 + round)
        }
    }

    @Test(arguments: [Self.key("first"), PrivateJSONWebKey(rsa, keyID: "first")])
    func `are fetched again once where one has been replaced under its name`(new: PrivateJSONWebKey) async throws {
        transport.enqueue(Self.set(Self.first), Self.set(new))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(30))
        #expect(try await failure(new) == nil)
        #expect(try await failure(new) == nil)
        #expect(transport.seen.count == 2)
    }

    /// RSA keys take long to make.
    private static let rsa: PrivateKey = {
        guard let key = try? PrivateKey.generate(.rsa(bits: 2048)) else { fatalError("no key was made") }
        return key
    }()

    /// When a token was signed, from when the keys were fetched, and whether a key of its name may have come since.
    @Test(arguments: [(-1, false), (0, false), (1, true), (20, true)] as [(Int64, Bool)])
    func `leave a token open that was signed after they were fetched, until they may be fetched again`(
        seconds: Int64, isOpen: Bool
    ) async throws {
        let new = Self.key("first")
        let claims = #"{"iat": \#(time.now.seconds + seconds)}"#
        transport.enqueue(Self.set(Self.first), Self.set(new))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(20))
        let early = try await failure(new, claims)
        #expect(isOpen ? retryAfter(early) == 10 : early == .refused(.signature))
        #expect(transport.seen.count == 1)
        time.advance(by: .seconds(10))
        #expect(try await failure(new, claims) == nil)
        #expect(transport.seen.count == 2)
    }

    @Test func `of one name are all tried`() async throws {
        let twin = Self.key("first")
        transport.enqueue(Self.set(Self.first, twin))
        #expect(try await failure(twin) == nil)
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 1)
    }

    @Test func `that cannot be used are named in the log, and those of other kinds are not`() async throws {
        let lines = Mutex<[String]>([])
        let keys = ProviderKeys(
            transport: transport,
            instruments: Instruments(
                time: time,
                log: Log(threshold: .warning, time: time) { line in
                    lines.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
                }, metrics: Metrics()))
        let good = String(decoding: Self.first.publicJWK.json, as: UTF8.self)
        transport.enqueue(
            .json(
                200,
                #"""
                {"keys": [\#(good), {"kid": "odd", "kty": "EC", "crv": "P-256", "x": "!", "y": "!"},
                          {"kid": "other", "kty": "oct", "k": "AQ"}, {"kty": "RSA", "n": "AQ"}]}
                """#))
        _ = try await keys.verified(try Self.token(Self.first), at: Self.address, for: Self.configuration())
        let told = lines.withLock { $0 }
        #expect(told.count == 2)
        #expect(told.allSatisfy { $0.contains("key_passed_over") && $0.contains(Self.address) })
        #expect(told.first?.contains(#""key_id":"odd","fault":"The JWK's x is not base64url.""#) == true)
        #expect(told.last?.contains(#""key_id":"-","fault":"The JWK has no e.""#) == true)
    }

    /// How some providers write the numbers of their keys.
    @Test(
        arguments: [
            { $0 + "=" }, { $0.replacing("-", with: "+").replacing("_", with: "/") },
            { $0.replacing("-", with: "+").replacing("_", with: "/") + "=" },
        ] as [@Sendable (String) -> String])
    func `are read that are padded, or written in the alphabet of Base 64`(odd: @Sendable (String) -> String)
        async throws
    {
        guard case .elliptic(_, let x, let y) = Self.first.publicJWK.publicKey.material else { return }
        let (oddX, oddY) = (odd(Base64URL.encode(x)), odd(Base64URL.encode(y)))
        transport.enqueue(
            .json(200, #"{"keys": [{"kty": "EC", "crv": "P-256", "kid": "first", "x": "\#(oddX)", "y": "\#(oddY)"}]}"#))
        #expect(try await failure(Self.first) == nil)
    }

    @Test func `are fetched for a token without a kid, as a provider with one key at a time needs it`() async throws {
        let old = PrivateJSONWebKey(Self.first.privateKey)
        let new = PrivateJSONWebKey(Self.second.privateKey)
        transport.enqueue(Self.set(old), Self.set(new), Self.set(new))
        #expect(try await failure(old) == nil)
        time.advance(by: .seconds(30))
        #expect(try await failure(new) == nil)
        time.advance(by: .seconds(30))
        #expect(try await failure(old) == .refused(.signature))
        #expect(transport.seen.count == 3)
    }

    // MARK: Outages

    /// What is no set of keys.
    private static let nothing: [ScriptedTransport.Step] = [
        .json(404, ""), .json(500, ""), .json(429, ""), .json(204, ""), .json(200, ""), .json(200, "{}"),
        .json(200, "<!DOCTYPE html><html></html>", fields: ["Content-Type": "text/html"]),
        .json(302, "", fields: ["Location": "https://evil.example/"]),
        .json(200, #"{"keys":["# + [String](repeating: "{}", count: 101).joined(separator: ",") + "]}"),
        .failure(.connectFailed), .failure(.connectionLost(requestSent: true)),
        .failure(.timedOut(.firstByte, requestSent: true)),
    ]

    @Test(arguments: nothing)
    func `are used on where the address does not answer with keys`(step: ScriptedTransport.Step) async throws {
        transport.enqueue(Self.set(Self.first, fields: ["Cache-Control": "max-age=60"]))
        transport.always(step)
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(60))
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 2)
        // The next request is made 30 s later, and a token of a new key is not refused in the meantime.
        time.advance(by: .milliseconds(29_999))
        #expect(try await failure(Self.first) == nil)
        #expect(code(try await failure(Self.second)) == .networkError)
        #expect(transport.seen.count == 2)
        time.advance(by: .milliseconds(1))
        #expect(code(try await failure(Self.second)) == .networkError)
        #expect(transport.seen.count == 3)
        transport.always(Self.set(Self.second))
        time.advance(by: .seconds(30))
        #expect(try await failure(Self.second) == nil)
        #expect(try await failure(Self.first) != nil)
    }

    @Test func `are used for a day after the provider confirmed them, and no longer`() async throws {
        transport.enqueue(Self.set(Self.first, fields: ["Cache-Control": "max-age=60"]))
        transport.always(.failure(.connectFailed))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(86_400) - .milliseconds(1))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .milliseconds(1))
        #expect(code(try await failure(Self.first)) == .networkError)
        transport.always(Self.set(Self.first))
        time.advance(by: .seconds(30))
        #expect(try await failure(Self.first) == nil)
    }

    @Test(arguments: nothing)
    func `that are not there make a token wait, and are asked for every 5 s at most`(
        step: ScriptedTransport.Step
    ) async throws {
        transport.enqueue(step)
        transport.always(Self.set(Self.first))
        let missing = try await failure(Self.first)
        #expect(code(missing) == .networkError)
        #expect(retryAfter(missing) == 5)
        time.advance(by: .milliseconds(4_999))
        #expect(try await failure(Self.first) == missing)
        #expect(transport.seen.count == 1)
        time.advance(by: .milliseconds(1))
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 2)
    }

    @Test func `are not confirmed by an answer that nothing was known for`() async throws {
        transport.enqueue(.json(304, ""))
        #expect(code(try await failure(Self.first)) == .networkError)
    }

    @Test(arguments: [
        (TransportError.untrusted(.chain), BrokerError.Code.providerUntrusted),
        (.insecureTarget, .illegalConfiguration), (.forbiddenAddress, .illegalConfiguration),
        (.certificateWithoutTLS, .illegalConfiguration),
    ])
    func `at an address that may not be trusted say so`(error: TransportError, code: BrokerError.Code) async throws {
        transport.enqueue(.failure(error))
        #expect(self.code(try await failure(Self.first)) == code)
    }

    @Test func `at an address that is none say so without a request`() async throws {
        #expect(code(try await failure(Self.first, at: "keys")) == .illegalConfiguration)
        #expect(transport.seen.isEmpty)
    }

    // MARK: Callers at once

    @Test func `are fetched once for any number of callers`() async throws {
        let gate = Gate()
        transport.enqueue(.after(gate, Self.set(Self.first)))
        let verified = try await withThrowingTaskGroup(of: Bool.self) { group in
            for _ in 0..<50 { group.addTask { try await failure(Self.first) == nil } }
            await gate.arrivals()
            gate.open()
            var count = 0
            for try await isVerified in group where isVerified { count += 1 }
            return count
        }
        #expect(verified == 50)
        #expect(transport.seen.count == 1)
    }

    @Test func `come for the others when the caller that asked for them leaves`() async throws {
        let gate = Gate()
        transport.enqueue(.after(gate, Self.set(Self.first)))
        let leaving = Task { try await failure(Self.first) }
        await gate.arrivals()
        leaving.cancel()
        #expect(code(try await leaving.value) == .retryableError)
        gate.open()
        #expect(try await failure(Self.first) == nil)
        #expect(transport.seen.count == 1)
    }

    @Test func `that were asked for before the token came do not refuse it`() async throws {
        let gate = Gate()
        transport.enqueue(Self.set(Self.first), .after(gate, Self.set(Self.first)))
        #expect(try await failure(Self.first) == nil)
        time.advance(by: .seconds(3600))
        let asking = Task { try await failure(Self.first) }
        await gate.arrivals()
        // Runs up to its wait for the request that is under way.
        let joining = Task.immediate { try await failure(Self.second) }
        gate.open()
        #expect(try await asking.value == nil)
        #expect(code(try await joining.value) == .networkError)
        #expect(transport.seen.count == 2)
    }
}
