import Cryptography
import ExternalText
import GroundTesting
import OAuth
import Testing

@Suite struct Redaction {
    static let canary = "canary-8c1f"

    static let configuration = Sample.client(secret: canary)
    static let held = Sample.held(token: canary, refreshToken: canary)

    static let values: [any Sendable] = [
        configuration, held, CredentialRecord(held: held),
        QuarantinedCredentials(credentials: held, until: .latest),
        PKCE(codeVerifier: SecretBytes(utf8: canary)),
        TokenRequest.authorizationCode(
            code: SecretBytes(utf8: canary), redirectURI: "https://app.example/",
            codeVerifier: SecretBytes(utf8: canary)),
        TokenRequest.refresh(SecretBytes(utf8: canary)),
        TokenRequest.upgrade(SecretBytes(utf8: canary), grantType: "update_client"),
        TokenRequest.deviceCode(SecretBytes(utf8: canary)),
        DeviceAuthorizationResponse(
            body: Array(
                #"""
                {"device_code":"\#(canary)","user_code":"\#(canary)","verification_uri":"https://id.example/device",
                "verification_uri_complete":"https://id.example/device?user_code=\#(canary)"}
                """#.utf8)),
        TokenResponse(
            body: Array(#"{"access_token":"\#(canary)","refresh_token":"\#(canary)"}"#.utf8), askedAt: Sample.now,
            from: .oidc),
        try? AuthorizationResponse(query: "code=\(canary)&state=\(canary)"),
        AuthorizationResponse.Outcome.code(WireText(canary)),
        AuthorizationRequest(
            redirectURI: "https://app.example/", state: canary, codeChallenge: "ch",
            customParameters: ["a": "b"]),
    ]

    @Test(arguments: values.indices)
    func `printing a value does not show its secrets`(index: Int) {
        let value = Self.values[index]
        var dumped = ""
        dump(value, to: &dumped)
        for text in ["\(value)", String(describing: value), String(reflecting: value), dumped, "\([value])"] {
            #expect(!text.contains(Self.canary))
        }
    }

    @Test func `the digest of a secret is not shown either`() throws {
        let fingerprint = Self.configuration.fingerprint
        let digest = try #require(fingerprint.clientSecretDigest)
        var dumped = ""
        dump(fingerprint, to: &dumped)
        for text in ["\(fingerprint)", String(reflecting: fingerprint), "\(Self.held)", dumped] {
            #expect(!text.contains("\(digest[0]), \(digest[1]), \(digest[2])"))
            #expect(!text.contains("- \(digest[0])\n"))
        }
    }

    @Test func `printing a value shows its other members`() throws {
        #expect("\(try AuthorizationResponse(query: "error=access_denied&state=s"))".contains("access_denied"))
        #expect("\(try AuthorizationResponse(query: "state=s"))".contains("incomplete"))
    }

    @Test func `a fault does not contain the value`() {
        #expect(throws: AuthorizationResponse.Fault.repeatedParameter("code")) {
            try AuthorizationResponse(query: "code=\(Self.canary)&code=\(Self.canary)")
        }
    }
}
