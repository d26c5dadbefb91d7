import Cryptography
import ExternalText
import Testing

@testable import OAuth

@Suite struct `Keys of tokens` {
    private static func key(_ text: String, bindsToken: Bool = true, refreshes other: String? = nil) -> DPoPKey {
        DPoPKey(
            pem: SecretBytes(utf8: text), bindsToken: bindsToken, refreshPEM: other.map { SecretBytes(utf8: $0) })
    }

    private static func held(_ key: DPoPKey?, refresh: String? = "r1") -> HeldCredentials {
        var held = HeldCredentials(
            level: .user, accessToken: SecretBytes(utf8: "a"), refreshToken: refresh.map { SecretBytes(utf8: $0) },
            expires: Timestamp(seconds: 1000), grantedScopes: .empty, userID: "42",
            obtainedWith: ClientFingerprint(
                clientID: "c1", scopes: .empty, clientUniqueKey: nil, clientSecretDigest: nil),
            grantedBy: nil)
        held.proofKey = key
        return held
    }

    private static let keys: [DPoPKey?] = [
        nil, key("a"), key("a", bindsToken: false), key("a", refreshes: "b"),
        key("a", bindsToken: false, refreshes: "b"),
    ]

    @Test(arguments: keys)
    func `are stored with their tokens`(_ key: DPoPKey?) throws {
        let held = Self.held(key)
        #expect(try #require(CredentialRecord(decoding: CredentialRecord(held: held).encoded)).held == held)
        let quarantined = QuarantinedCredentials(credentials: held, until: Timestamp(seconds: 1))
        #expect(try #require(QuarantinedCredentials(decoding: quarantined.encoded)).credentials == held)
        let pending = PendingRevocation(
            storageKey: .default, credentials: held, loggedOut: Timestamp(seconds: 1))
        #expect(try #require(PendingRevocation(decoding: pending.encoded)).credentials == held)
    }

    @Test func `are kept with a code that is being redeemed`() throws {
        for key in [nil, Self.key("a", bindsToken: false)] {
            let code = UnsettledCode(
                storageKey: .default, code: SecretBytes(utf8: "c"), redirectURI: "https://b.example/",
                codeVerifier: SecretBytes(utf8: "v"), tokenEndpoint: "https://id.example/t",
                begun: Timestamp(seconds: 1), proofKey: key)
            #expect(UnsettledCode(decoding: code.encoded) == code)
        }
    }

    // The login's own key, that of the refresh token which it keeps, and what becomes of the two.
    @Test(arguments: [
        (DPoPKey?.none, DPoPKey?.none, DPoPKey?.none), (key("a"), nil, key("a")),
        (nil, key("b"), key("b", bindsToken: false)), (key("a"), key("b"), key("a", refreshes: "b")),
        (key("a"), key("b", refreshes: "c"), key("a", refreshes: "c")), (key("a"), key("a"), key("a")),
        (nil, key("b", refreshes: "c"), key("c", bindsToken: false)),
    ])
    func `stay with the refresh token that a login keeps`(_ own: DPoPKey?, _ other: DPoPKey?, _ expected: DPoPKey?) {
        let kept = Self.held(own, refresh: nil).havingRefreshToken(of: Self.held(other))
        #expect(kept.proofKey == expected)
        #expect(kept.tokenType == (own == nil ? "Bearer" : "DPoP"))
        if let other { #expect(kept.proofKey?.ofRefreshes.pem == other.ofRefreshes.pem) }
    }

    @Test(arguments: [("DPoP", true, true), ("dpop", true, true), ("Bearer", true, false)])
    func `bind the tokens of which the provider says so`(_ type: String, _ isRead: Bool, _ bindsToken: Bool) throws {
        let body = Array(#"{"access_token": "t", "token_type": "\#(type)"}"#.utf8)
        let now = Timestamp(seconds: 1)
        let proven = TokenResponse(body: body, askedAt: now, from: .shipped("oidc"), provenBy: Self.key("a"))
        #expect((proven != nil) == isRead)
        #expect(proven?.proofKey?.bindsToken == bindsToken)
        let unproven = TokenResponse(body: body, askedAt: now, from: .shipped("oidc"))
        #expect((unproven != nil) == !bindsToken)
        #expect(unproven?.proofKey == nil)
    }
}
