import Cryptography
import OAuth
import Testing

@Suite struct `Proof key` {
    @Test func `the challenge is that of RFC 7636, Appendix B`() {
        let key = PKCE(codeVerifier: SecretBytes(utf8: "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"))
        #expect(key.codeChallenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM")
    }

    @Test func `a new verifier has 43 unreserved characters`() throws {
        let verifier = try PKCE().codeVerifier.revealedText
        #expect(verifier.utf8.count == 43)
        #expect(
            verifier.utf8.allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "-_".utf8.contains($0)
            })
        #expect(Base64URL.decode(verifier)?.count == 32)
    }

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
