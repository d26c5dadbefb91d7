import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

/// Access tokens and refresh tokens of a provider like DuckDuckGo.
@Suite struct `The claims of an access token` {
    private static let now: Int64 = 1_700_000_000

    private static let good: [WireText: JSONValue] = [
        "iss": "https://quack.example", "aud": "PrivacyPro", "sub": "u", "scope": "privacypro", "api": "v2",
        "jti": "j", "iat": .integer(now), "exp": .integer(now + 14_400),
    ]

    private static let expectations = TokenExpectations(
        issuer: "https://quack.example", audience: "PrivacyPro", scopes: ["privacypro"], required: [.sub, .iat])

    private func rejection(
        changing changes: [WireText: JSONValue?] = [:], expecting expectations: TokenExpectations = expectations,
        at milliseconds: Int64 = now * 1000
    ) throws -> ClaimsRejection? {
        var members = Self.good
        for (name, value) in changes { members[name] = value }
        var writer = JSONWriter()
        writer.value(.object(members))
        let token = try TokenSigner(SampleKeys.p256, algorithm: .es256).sign(writer.bytes)
        let verified = try CompactJWS(parsing: token, policy: everyAlgorithm).verified(with: SampleKeys.p256.publicJWK)
        do throws(ClaimsRejection) {
            _ = try expectations.check(verified, now: NumericDate(sinceEpoch: .milliseconds(milliseconds)))
            return nil
        } catch {
            return error
        }
    }

    // D23
    @Test func `are accepted when they are those that are expected`() throws {
        #expect(try rejection() == nil)
        let refresh = TokenExpectations(issuer: "https://quack.example", audience: "Auth", scopes: ["refresh"])
        #expect(try rejection(changing: ["aud": "Auth", "scope": "refresh"], expecting: refresh) == nil)
    }

    // D21
    @Test(arguments: [
        (-1, 0, nil), (0, 0, ClaimsRejection.expired), (1, 0, .expired), (29_999, 30, nil), (30_000, 30, .expired),
        (30_001, 30, .expired), (299_999, 300, nil), (300_000, 300, .expired),
    ])
    func `are refused from the moment of their expiry and the tolerance on`(
        millisecondsAfter: Int64, leeway: Int, rejection: ClaimsRejection?
    ) throws {
        var expectations = Self.expectations
        expectations.leeway = .seconds(leeway)
        let time = (Self.now + 14_400) * 1000 + millisecondsAfter
        #expect(try self.rejection(expecting: expectations, at: time) == rejection)
    }

    @Test(arguments: [
        ("nbf", 0, 0, nil), ("nbf", 1, 0, ClaimsRejection.notYetValid), ("nbf", -1, 0, nil), ("nbf", 30, 30, nil),
        ("nbf", 31, 30, .notYetValid), ("nbf", 29, 30, nil), ("iat", 0, 0, nil), ("iat", 1, 0, .issuedInFuture),
        ("iat", -1, 0, nil), ("iat", 30, 30, nil), ("iat", 31, 30, .issuedInFuture), ("iat", 29, 30, nil),
    ])
    func `are refused before their time less the tolerance`(
        claim: String, secondsAhead: Int64, leeway: Int, rejection: ClaimsRejection?
    ) throws {
        var expectations = Self.expectations
        expectations.leeway = .seconds(leeway)
        let changes: [WireText: JSONValue?] = [WireText(claim): .integer(Self.now + secondsAhead)]
        #expect(try self.rejection(changing: changes, expecting: expectations) == rejection)
    }

    @Test func `count fractions of a second`() throws {
        let end = Double(Self.now) + 0.5
        #expect(try rejection(changing: ["exp": .number(end)], at: Self.now * 1000 + 499) == nil)
        #expect(try rejection(changing: ["exp": .number(end)], at: Self.now * 1000 + 500) == .expired)
    }

    // D22
    @Test(arguments: [
        ("privacypro", nil), ("privacypro other", nil), ("other privacypro", nil), ("refresh", ClaimsRejection.scope),
        ("", .scope), ("privacypr", .scope), ("privacyproo", .scope), ("PrivacyPro", .scope), ("privacypro\tx", .scope),
    ])
    func `are refused without their scope`(scope: String, rejection: ClaimsRejection?) throws {
        #expect(try self.rejection(changing: ["scope": .string(WireText(scope))]) == rejection)
    }

    // D22
    @Test func `of a refresh token need the scope of refreshing`() throws {
        let refresh = TokenExpectations(scopes: ["refresh"])
        #expect(try rejection(expecting: refresh) == .scope)
        #expect(try rejection(changing: ["scope": "refresh"], expecting: refresh) == nil)
        let both = TokenExpectations(scopes: ["a", "b"])
        #expect(try rejection(changing: ["scope": "b a"], expecting: both) == nil)
        #expect(try rejection(changing: ["scope": "a"], expecting: both) == .scope)
    }

    @Test(
        arguments: [
            ("iss", nil, ClaimsRejection.missing(.iss)), ("iss", "https://quack.example/", .issuer),
            ("iss", "https://QUACK.example", .issuer), ("iss", "", .issuer), ("aud", nil, .missing(.aud)),
            ("aud", "privacypro", .audience), ("aud", "", .audience), ("exp", nil, .missing(.exp)),
            ("sub", nil, .missing(.sub)), ("iat", nil, .missing(.iat)), ("scope", nil, .missing(.scope)),
        ] as [(String, String?, ClaimsRejection)])
    func `are refused when one is missing or another's`(
        claim: String, value: String?, rejection: ClaimsRejection
    ) throws {
        let changes: [WireText: JSONValue?] = [WireText(claim): value.map { .string(WireText($0)) }]
        #expect(try self.rejection(changing: changes) == rejection)
    }

    @Test func `may name the audience among others`() throws {
        #expect(try rejection(changing: ["aud": .array(["x", "PrivacyPro"])]) == nil)
        #expect(try rejection(changing: ["aud": .array(["x", "y"])]) == .audience)
    }

    @Test func `with a scope that is no text are refused`() throws {
        #expect(try rejection(changing: ["scope": .array(["privacypro"])]) == .fault(.wrongType(.scope)))
    }

    @Test func `need only an expiry where nothing is expected`() throws {
        let nothing = TokenExpectations()
        let none: [WireText: JSONValue?] = ["iss": nil, "aud": nil, "scope": nil, "sub": nil, "iat": nil]
        #expect(try rejection(changing: none, expecting: nothing) == nil)
        #expect(try rejection(changing: ["exp": nil], expecting: nothing) == .missing(.exp))
    }
}
