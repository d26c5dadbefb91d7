import Cryptography
import ExternalText
import OAuth
import Testing

@Suite struct `Proof key` {
    // K11
    @Test func `the challenge is that of RFC 7636, Appendix B`() {
        let key = PKCE(codeVerifier: SecretBytes(utf8: "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"))
        #expect(key.codeChallenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM")
    }

    // K12 H033
    @Test func `a new verifier has 43 unreserved characters`() throws {
        let verifier = try PKCE().codeVerifier.revealedText
        #expect(verifier.utf8.count == 43)
        #expect(
            verifier.utf8.allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "-_".utf8.contains($0)
            })
        #expect(Base64URL.decode(verifier)?.count == 32)
    }

    // H033
    @Test func `no two verifiers are the same`() throws {
        let verifiers = try Set((0..<64).map { _ in try PKCE().codeVerifier.revealedText })
        #expect(verifiers.count == 64)
    }

    @Test func `the challenge has 43 characters and does not show the verifier`() throws {
        let key = try PKCE()
        #expect(key.codeChallenge.utf8.count == 43)
        #expect(key.codeChallenge != key.codeVerifier.revealedText)
    }
}

@Suite struct `Code challenge` {
    private static let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"

    @Test func `is the digest of the method S256`() throws {
        let challenge = WireText(Self.challenge)
        #expect(try CodeChallenge.read(challenge, method: "S256") == challenge)
    }

    @Test(
        arguments: [
            (nil, "S256", .missing), (nil, nil, .missing),
            (challenge, nil, .otherMethod), (challenge, "plain", .otherMethod), (challenge, "s256", .otherMethod),
            ("", "S256", .malformed), (String(challenge.dropLast()), "S256", .malformed),
            (challenge + "A", "S256", .malformed), (challenge + "=", "S256", .malformed),
            (challenge.replacing("-", with: "+"), "S256", .malformed),
            // Two more bits than a digest has.
            (String(challenge.dropLast()) + "N", "S256", .malformed),
        ] as [(String?, String?, CodeChallenge.Fault)])
    func `is refused in another form`(challenge: String?, method: String?, fault: CodeChallenge.Fault) {
        #expect(throws: fault) {
            try CodeChallenge.read(challenge.map { WireText($0) }, method: method.map { WireText($0) })
        }
    }

    @Test func `is refused where it has a megabyte`() {
        let long = WireText(String(repeating: "A", count: 1 << 20))
        #expect(throws: CodeChallenge.Fault.malformed) { try CodeChallenge.read(long, method: "S256") }
    }
}
