import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

@Suite struct `An ID token` {
    private static let now: Int64 = 1_700_000_000

    private static let good: [WireText: JSONValue] = [
        "iss": "https://a.example", "sub": "u", "aud": "client", "nonce": "n",
        "exp": .integer(now + 600), "iat": .integer(now),
    ]

    private static var expectations: IDTokenExpectations {
        IDTokenExpectations(
            issuer: "https://a.example", clientID: "client", algorithms: [.es256], nonce: .required("n"))
    }

    /// What a signed token with these claims is refused for; nil when it is accepted.
    private func rejection(
        _ changes: [WireText: JSONValue?] = [:], algorithm: SignatureAlgorithm = .es256, at seconds: Int64 = now,
        _ expect: (inout IDTokenExpectations) -> Void = { _ in }
    ) throws -> ClaimsRejection? {
        var members = Self.good
        for (name, value) in changes { members[name] = value }
        var writer = JSONWriter()
        writer.value(.object(members))
        return try rejection(payload: writer.bytes, algorithm: algorithm, at: seconds, expect)
    }

    private func rejection(
        payload: [UInt8], algorithm: SignatureAlgorithm = .es256, at seconds: Int64 = now,
        _ expect: (inout IDTokenExpectations) -> Void = { _ in }
    ) throws -> ClaimsRejection? {
        let key = SampleKeys.key(for: algorithm)
        let token = try TokenSigner(key, algorithm: algorithm).sign(payload)
        let verified = try CompactJWS(parsing: token, policy: everyAlgorithm).verified(with: key.publicJWK)
        var expectations = Self.expectations
        expect(&expectations)
        do throws(ClaimsRejection) {
            _ = try expectations.check(verified, now: NumericDate(seconds: seconds))
            return nil
        } catch {
            return error
        }
    }

    @Test func `that is as expected gives its claims`() throws {
        #expect(try rejection() == nil)
        let key = SampleKeys.p256
        var writer = JSONWriter()
        writer.value(.object(Self.good))
        let token = try CompactJWS(
            parsing: TokenSigner(key, algorithm: .es256).sign(writer.bytes), policy: everyAlgorithm
        ).verified(with: key.publicJWK)
        #expect(try Self.expectations.check(token, now: NumericDate(seconds: Self.now)).subject == "u")
    }

    // H043
    @Test(arguments: [
        ("iss", ClaimsRejection.missing(.iss)), ("sub", .missing(.sub)), ("aud", .missing(.aud)),
        ("exp", .missing(.exp)), ("iat", .missing(.iat)), ("nonce", .missing(.nonce)),
    ])
    func `must have every claim that Core requires`(claim: String, rejection: ClaimsRejection) throws {
        #expect(try self.rejection([WireText(claim): nil]) == rejection)
    }

    @Test func `whose payload is no claims set is refused`() throws {
        #expect(try rejection(payload: Array("x".utf8)) == .fault(.malformed))
        #expect(try rejection(payload: Array(#"{"sub":"u","sub":"v"}"#.utf8)) == .fault(.malformed))
        #expect(try rejection(["exp": "600"]) == .fault(.wrongType(.exp)))
        #expect(try rejection(["nonce": .integer(1)]) == .fault(.wrongType(.nonce)))
        #expect(try rejection(["azp": .null]) == .fault(.wrongType(.azp)))
        #expect(try rejection(["acr": .integer(0)]) == .fault(.wrongType(.acr)))
        #expect(try rejection(["at_hash": .null]) == .fault(.wrongType(.accessTokenHash)))
    }

    // H043
    @Test(arguments: ["https://a.example/", "https://A.example", "http://a.example", "", "https://a.example\u{301}"])
    func `of another issuer is refused`(issuer: String) throws {
        #expect(try rejection(["iss": .string(WireText(issuer))]) == .issuer)
    }

    private static let audiences: [(aud: JSONValue, azp: JSONValue?, trusted: Set<WireText>?, ClaimsRejection?)] = [
        ("client", nil, [], nil), (.array(["client"]), nil, [], nil), ("client", "client", [], nil),
        ("Client", nil, [], .audience), ("client ", nil, [], .audience), ("", nil, [], .audience),
        (.array(["other"]), "client", [], .audience), ("other", nil, ["other"], .audience),
        (.array(["client", "other"]), "client", [], .untrustedAudience),
        (.array(["client", "other"]), "client", ["other"], nil),
        (.array(["other", "client"]), "client", ["other"], nil),
        (.array(["client", "other"]), nil, ["other"], nil), (.array(["client", "client"]), nil, [], nil),
        (.array(["client", "client"]), "client", [], nil), (.array(["client", "client"]), nil, nil, nil),
        (.array(["client", "other"]), "client", nil, nil), (.array(["other", "client"]), "client", nil, nil),
        (.array(["client", "other"]), nil, nil, .untrustedAudience), (.array(["other"]), "client", nil, .audience),
        (.array(["client", "other"]), "other", nil, .authorizedParty), ("client", "other", nil, .authorizedParty),
        (.array(["client", "other", "third"]), "client", ["other"], .untrustedAudience),
        ("client", "other", [], .authorizedParty), ("client", "other", ["other"], .authorizedParty),
        ("client", "", [], .authorizedParty), (.array(["client", "other"]), "other", ["other"], .authorizedParty),
    ]

    // H043
    @Test(arguments: audiences.indices)
    func `is for this client, and for no other that is not trusted`(index: Int) throws {
        let (audience, party, trusted, rejection) = Self.audiences[index]
        let found = try self.rejection(["aud": audience, "azp": party]) { $0.trustedAudiences = trusted }
        #expect(found == rejection)
    }

    // H043
    @Test(arguments: SignatureAlgorithm.allCases)
    func `is signed by an algorithm of its provider`(algorithm: SignatureAlgorithm) throws {
        #expect(try rejection(algorithm: algorithm) == (algorithm == .es256 ? nil : .algorithm))
        #expect(try rejection(algorithm: algorithm) { $0.algorithms = [algorithm] } == nil)
        #expect(try rejection(algorithm: algorithm) { $0.algorithms = [] } == .algorithm)
    }

    // H043
    @Test(arguments: [
        (-1, 0, nil), (0, 0, ClaimsRejection.expired), (1, 0, .expired), (59, 60, nil), (60, 60, .expired),
        (61, 60, .expired),
    ])
    func `has expired at its exp and the tolerance`(after: Int64, leeway: Int, rejection: ClaimsRejection?) throws {
        #expect(try self.rejection(at: Self.now + 600 + after) { $0.leeway = .seconds(leeway) } == rejection)
    }

    @Test(arguments: [
        (-1, 0, nil), (0, 0, nil), (1, 0, ClaimsRejection.notYetValid), (59, 60, nil), (60, 60, nil),
        (61, 60, .notYetValid),
    ])
    func `is not valid before its nbf less the tolerance`(
        ahead: Int64, leeway: Int, rejection: ClaimsRejection?
    ) throws {
        #expect(try self.rejection(["nbf": .integer(Self.now + ahead)]) { $0.leeway = .seconds(leeway) } == rejection)
    }

    @Test(arguments: [
        (-1, 0, nil), (0, 0, nil), (1, 0, ClaimsRejection.issuedInFuture), (59, 60, nil), (60, 60, nil),
        (61, 60, .issuedInFuture),
    ])
    func `was not issued later than now and the tolerance`(
        ahead: Int64, leeway: Int, rejection: ClaimsRejection?
    ) throws {
        #expect(try self.rejection(["iat": .integer(Self.now + ahead)]) { $0.leeway = .seconds(leeway) } == rejection)
    }

    @Test(arguments: [
        (299, 0, nil), (300, 0, nil), (301, 0, ClaimsRejection.issuedTooLongAgo), (359, 60, nil), (360, 60, nil),
        (361, 60, .issuedTooLongAgo),
    ])
    func `is no older than the expectation permits`(age: Int64, leeway: Int, rejection: ClaimsRejection?) throws {
        let found = try self.rejection(["iat": .integer(Self.now - age)]) {
            $0.maximumTokenAge = .seconds(300)
            $0.leeway = .seconds(leeway)
        }
        #expect(found == rejection)
        #expect(try self.rejection(["iat": .integer(0)]) == nil)
    }

    @Test(
        arguments: [
            (60, nil, nil), (61, nil, ClaimsRejection.issuedInFuture), (600, 600, nil), (601, 600, .issuedInFuture),
            (1, 0, .issuedInFuture),
        ] as [(Int64, Int?, ClaimsRejection?)])
    func `may be as far ahead as the expectation permits`(ahead: Int64, lead: Int?, rejection: ClaimsRejection?) throws
    {
        let found = try self.rejection(["iat": .integer(Self.now + ahead)]) {
            $0.leeway = .seconds(60)
            $0.maximumLead = lead.map { .seconds($0) }
        }
        #expect(found == rejection)
    }

    private static let nonces: [(IDTokenExpectations.Nonce, JSONValue?, ClaimsRejection?)] = [
        (.required("n"), "n", nil), (.required("n"), "m", .nonce), (.required("n"), "", .nonce),
        (.required("n"), "n ", .nonce), (.required("n"), "N", .nonce), (.required("n"), nil, .missing(.nonce)),
        (.sameIfPresent("n"), "n", nil), (.sameIfPresent("n"), nil, nil), (.sameIfPresent("n"), "m", .nonce),
        (.absent, nil, nil), (.absent, "n", .nonce), (.absent, "", .nonce), (.unchecked, nil, nil),
        (.unchecked, "m", nil),
    ]

    // H043
    @Test(arguments: nonces.indices)
    func `belongs to this login by its nonce`(index: Int) throws {
        let (nonce, value, rejection) = Self.nonces[index]
        #expect(try self.rejection(["nonce": value]) { $0.nonce = nonce } == rejection)
    }

    @Test(
        arguments: [
            (nil, 60, 0, ClaimsRejection.missing(.authTime)), (59, 60, 0, nil), (60, 60, 0, nil),
            (61, 60, 0, .authenticationTime), (65, 60, 5, nil), (66, 60, 5, .authenticationTime), (0, 0, 0, nil),
            (1, 0, 0, .authenticationTime), (-1, 60, 0, .authenticationTime), (-5, 60, 5, nil),
            (-6, 60, 5, .authenticationTime),
        ] as [(Int64?, Int, Int, ClaimsRejection?)])
    func `tells of an authentication within max_age`(
        age: Int64?, maximum: Int, leeway: Int, rejection: ClaimsRejection?
    ) throws {
        let found = try self.rejection(["auth_time": age.map { .integer(Self.now - $0) }]) {
            $0.maximumAuthenticationAge = .seconds(maximum)
            $0.leeway = .seconds(leeway)
        }
        #expect(found == rejection)
    }

    @Test func `may tell of any authentication where no max_age was asked for`() throws {
        #expect(try rejection(["auth_time": .integer(0)]) == nil)
        #expect(try rejection(["auth_time": "now"]) == .fault(.wrongType(.authTime)))
    }

    @Test(
        arguments: [
            ([], nil, nil), ([], "x", nil), (["gold"], nil, ClaimsRejection.missing(.acr)), (["gold"], "gold", nil),
            (["gold", "silver"], "silver", nil), (["gold"], "silver", .authenticationContext),
            (["gold"], "", .authenticationContext),
        ] as [([String], String?, ClaimsRejection?)])
    func `tells of a way to authenticate that was asked for`(
        contexts: [String], acr: String?, rejection: ClaimsRejection?
    ) throws {
        let found = try self.rejection(["acr": acr.map { .string(WireText($0)) }]) {
            $0.authenticationContexts = Set(contexts.map { WireText($0) })
        }
        #expect(found == rejection)
    }

    /// The example of OpenID Connect Core §A.3 and §A.4.
    @Test func `has the hashes of the specification's example`() {
        #expect(
            IDTokenExpectations.hash(of: "jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y", .rs256)
                == "77QmUPtjPfzWtF2AnpK9RQ" as WireText)
        #expect(
            IDTokenExpectations.hash(of: "Qcb0Orv1zh30vL1MPRsbm-diHiMwcLyZvn1arpZv-Jxf_11jnpEX3Tgfvk", .rs256)
                == "LDktKdoQak3Pk0cnXxCltA" as WireText)
    }

    @Test(arguments: SignatureAlgorithm.allCases)
    func `has hashes of the length that its algorithm gives`(algorithm: SignatureAlgorithm) {
        let octets = Base64URL.decode(IDTokenExpectations.hash(of: "token", algorithm).text)?.count
        let expected: [SignatureAlgorithm: Int] = [.es256: 16, .rs256: 16, .ps256: 16, .es384: 24, .edDSA: 32]
        #expect(octets == expected[algorithm])
    }

    @Test(arguments: ["at_hash", "c_hash"], SignatureAlgorithm.allCases)
    func `belongs to the access token and the code that came with it`(
        claim: String, algorithm: SignatureAlgorithm
    ) throws {
        let own = IDTokenExpectations.hash(of: "token", algorithm)
        let name: Claim = claim == "at_hash" ? .accessTokenHash : .codeHash
        let mismatch: ClaimsRejection = claim == "at_hash" ? .accessTokenHash : .codeHash
        func found(_ value: WireText?, requiresHash: Bool, _ text: WireText = "token") throws -> ClaimsRejection? {
            try rejection([WireText(claim): value.map { .string($0) }], algorithm: algorithm) {
                $0.algorithms = [algorithm]
                let companion = IDTokenExpectations.Companion(text, requiresHash: requiresHash)
                if claim == "at_hash" { $0.accessToken = companion } else { $0.code = companion }
            }
        }
        for requiresHash in [false, true] {
            #expect(try found(own, requiresHash: requiresHash) == nil)
            #expect(try found(own, requiresHash: requiresHash, "Token") == mismatch)
            #expect(try found(WireText(own.text + "="), requiresHash: requiresHash) == mismatch)
            #expect(try found(own.prefix(own.count - 1), requiresHash: requiresHash) == mismatch)
            #expect(try found("", requiresHash: requiresHash) == mismatch)
        }
        #expect(try found(nil, requiresHash: false) == nil)
        #expect(try found(nil, requiresHash: true) == .missing(name))
        #expect(try rejection([WireText(claim): "whatever"]) == nil)
    }

    @Test(arguments: [
        ("", ClaimsRejection.malformedSubject), ("u", nil), (String(repeating: "u", count: 254), nil),
        (String(repeating: "u", count: 255), nil), (String(repeating: "u", count: 256), .malformedSubject),
        ("ü", .malformedSubject), ("\u{7f}", nil), ("\u{80}", .malformedSubject),
    ])
    func `has a subject of 1 to 255 characters of ASCII`(subject: String, rejection: ClaimsRejection?) throws {
        #expect(try self.rejection(["sub": .string(WireText(subject))]) == rejection)
    }

    @Test func `that a refresh brought is about the user of the login`() throws {
        #expect(try rejection { $0.subject = "u" } == nil)
        #expect(try rejection { $0.subject = "v" } == .subject)
        #expect(try rejection { $0.subject = "U" } == .subject)
    }
}
