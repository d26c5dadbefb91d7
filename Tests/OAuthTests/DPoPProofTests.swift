import Cryptography
import ExternalText
import JOSE
import JSON
import OAuth
import Testing

@Suite struct `Proofs of keys` {
    /// The access token of RFC 9449 §7.1.
    private static let token = SecretBytes(utf8: "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU")

    private static func claims(_ proof: DPoPProof) -> String { String(decoding: proof.claims, as: UTF8.self) }

    @Test func `have the claims of RFC 9449's example of a token request`() throws {
        let proof = try DPoPProof(
            "POST", "https://server.example.com/token", at: Timestamp(milliseconds: 1_562_262_616_000),
            identifier: "-BwC3ESc6acc2lTc")
        #expect(
            Self.claims(proof)
                == #"{"jti":"-BwC3ESc6acc2lTc","htm":"POST","htu":"https://server.example.com/token","iat":1562262616}"#
        )
    }

    @Test func `have the claims of RFC 9449's example of a request to an API, and its nonce`() throws {
        let proof = try DPoPProof(
            "GET", "https://resource.example.org/protectedresource", token: Self.token,
            nonce: "eyJ7S_zG.eyJH0-Z.HX4w-7v",
            at: Timestamp(milliseconds: 1_562_262_618_999), identifier: "e1j3V_bKic8-LAEB")
        #expect(
            Self.claims(proof) == #"""
                {"jti":"e1j3V_bKic8-LAEB","htm":"GET",\#
                "htu":"https://resource.example.org/protectedresource","iat":1562262618,\#
                "ath":"fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo","nonce":"eyJ7S_zG.eyJH0-Z.HX4w-7v"}
                """#)
    }

    @Test func `name the key of RFC 9449's example as it does`() throws {
        let key = try JSONWebKey(
            parsing: Array(
                #"""
                {"kty":"EC","crv":"P-256","x":"l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs",
                 "y":"9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA"}
                """#.utf8))
        #expect(Base64URL.encode(key.thumbprint) == "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I")
    }

    @Test(arguments: [
        ("https://a.example/b?c=d", "https://a.example/b"), ("https://a.example/b#c", "https://a.example/b"),
        ("https://a.example/b#c?d", "https://a.example/b"), ("https://a.example/b?c#d", "https://a.example/b"),
        ("https://a.example", "https://a.example"), ("https://a.example/?", "https://a.example/"),
    ])
    func `leave query and fragment out of the address`(_ uri: String, _ expected: String) throws {
        let proof = try DPoPProof("GET", WireText(uri), at: Timestamp(milliseconds: 0))
        let claims = try JSONValue(parsing: proof.claims)
        #expect(claims["htu"]?.string == WireText(expected))
    }

    @Test func `have an identifier of their own each`() throws {
        let now = Timestamp(milliseconds: 0)
        let identifiers = try (0..<100).map { _ in
            try #require(
                JSONValue(parsing: DPoPProof("GET", "https://a.example/", at: now).claims)["jti"]?.string)
        }
        #expect(Set(identifiers).count == 100)
        #expect(identifiers.allSatisfy { $0.count == 22 })
    }

    @Test func `are signed with the key that their header names`() throws {
        let key = try DPoPKey.generate()
        let proof = try key.sign(DPoPProof("GET", "https://a.example/", at: Timestamp(milliseconds: 0)))
        let read = try CompactJWS(
            parsing: proof, policy: JWSPolicy(algorithms: [.es256], types: ["dpop+jwt"], allowsEmbeddedKey: true))
        let embedded = try #require(read.header.embeddedKey)
        _ = try read.verified(with: embedded)
        #expect(Base64URL.encode(embedded.thumbprint) == (try key.thumbprint()))
    }

    @Test(arguments: [
        ("n", true), (String(repeating: "n", count: 1024), true), (String(repeating: "n", count: 1025), false),
        ("", false), ("a b", false), ("a\"", false), ("a\\", false), ("a\r", false), ("é", false), ("!#[]~", true),
    ])
    func `repeat a nonce that can be sent`(_ text: String, _ isNonce: Bool) {
        #expect(DPoPProof.isNonce(WireText(text)) == isNonce)
    }

    @Test func `show nothing of the key when it is printed`() throws {
        let key = try DPoPKey.generate()
        #expect("\(key)" == "<DPoP key>")
    }
}

@Suite struct `Answers to pushed requests` {
    @Test(arguments: [
        (#"{"request_uri": "urn:ietf:params:oauth:request_uri:6esc", "expires_in": 60}"#, Int64?(60)),
        (#"{"request_uri": "u", "expires_in": "90"}"#, 90), (#"{"request_uri": "u", "expires_in": 1}"#, 1),
        (#"{"request_uri": "u", "expires_in": 0}"#, nil), (#"{"request_uri": "u", "expires_in": -1}"#, nil),
        (#"{"request_uri": "u"}"#, nil), (#"{"request_uri": "", "expires_in": 60}"#, nil),
        (#"{"request_uri": "a b", "expires_in": 60}"#, nil), (#"{"request_uri": 7, "expires_in": 60}"#, nil),
        (#"{"request_uri": "u", "expires_in": 99999999999}"#, 315_360_000), ("{}", nil), ("[]", nil), ("", nil),
    ])
    func `are read where they have an address and a lifetime`(_ body: String, _ seconds: Int64?) {
        let response = PushedAuthorizationResponse(body: Array(body.utf8))
        #expect(response?.lifetime == seconds.map { .seconds($0) })
    }

    @Test func `have an address of 2048 bytes at most`() {
        for (count, isRead) in [(2048, true), (2049, false)] {
            let body = #"{"request_uri": "\#(String(repeating: "u", count: count))", "expires_in": 60}"#
            #expect((PushedAuthorizationResponse(body: Array(body.utf8)) != nil) == isRead)
        }
    }
}
