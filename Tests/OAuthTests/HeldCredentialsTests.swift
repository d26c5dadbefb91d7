import Cryptography
import ExternalText
import GroundTesting
import OAuth
import Testing

@Suite struct `Held credentials` {
    private func response(_ members: String = "") -> TokenResponse {
        TokenResponse(body: Array((#"{"access_token":"at-2""# + members + "}").utf8), askedAt: Sample.now, from: .oidc)!
    }

    private func granted(
        _ members: String = "", level: CredentialsLevel = .user, to client: ClientConfiguration = Sample.client(),
        replacing previous: HeldCredentials? = nil
    ) -> HeldCredentials {
        HeldCredentials(
            granted: response(members), level: level, to: client, by: Sample.tidal, replacing: previous,
            now: Sample.now)
    }

    /// For the held credentials and their successor: the user ID and the identifiers of known kind. Then whether they are
    /// different users, and whether they are known to be one user.
    private static let names: [(String, UserIdentity, String, UserIdentity, Bool, Bool)] = [
        ("ada", UserIdentity(), "bob", UserIdentity(), false, false),
        ("ada", UserIdentity(), "ada", UserIdentity(), false, true),
        ("ada", UserIdentity(), "bob", UserIdentity(userID: "bob"), true, false),
        ("ada", UserIdentity(), "ada", UserIdentity(userID: "ada"), false, true),
        ("ada", UserIdentity(userID: "ada"), "bob", UserIdentity(), true, false),
        ("ada", UserIdentity(), "bob", UserIdentity(subject: "bob"), false, false),
        ("ada", UserIdentity(subject: "ada"), "bob", UserIdentity(), false, false),
        ("ada", UserIdentity(userID: "ada"), "bob", UserIdentity(userID: "bob"), true, false),
        ("ada", UserIdentity(subject: "ada"), "bob", UserIdentity(subject: "bob"), true, false),
        ("ada", UserIdentity(userID: "ada"), "bob", UserIdentity(subject: "bob"), false, false),
        ("7", UserIdentity(userID: "7", subject: "ada"), "8", UserIdentity(userID: "8", subject: "ada"), false, true),
        ("7", UserIdentity(userID: "7", subject: "ada"), "7", UserIdentity(userID: "7", subject: "bob"), true, false),
        ("ada", UserIdentity(subject: "ada"), "ada", UserIdentity(userID: "ada"), false, false),
        ("ada", UserIdentity(), "ada", UserIdentity(subject: "ada"), false, true),
    ]

    @Test(arguments: names.indices)
    func `are another user's when identifiers of one known kind differ`(index: Int) {
        let (own, identity, other, otherIdentity, isOther, _) = Self.names[index]
        var (held, successor) = (Sample.held(userID: own), Sample.held(userID: other))
        (held.identity, successor.identity) = (identity, otherIdentity)
        #expect(held.isOfOtherUser(than: successor) == isOther)
    }

    @Test(arguments: names.indices)
    func `are known to be one user's when an identifier is equal and may be compared`(index: Int) {
        let (own, identity, other, otherIdentity, _, isSame) = Self.names[index]
        var (held, successor) = (Sample.held(userID: own), Sample.held(userID: other))
        (held.identity, successor.identity) = (identity, otherIdentity)
        #expect(held.isKnownToBeSameUser(as: successor) == isSame)
        #expect(successor.isKnownToBeSameUser(as: held) == isSame)
        held.userID = nil
        held.identity = UserIdentity()
        #expect(!held.isKnownToBeSameUser(as: successor))
        #expect(!held.isKnownToBeSameUser(as: held))
    }

    @Test func `a grant's own words hold`() {
        let held = granted(
            #","refresh_token":"rt-2","expires_in":60,"scope":"x","user_id":7"#, replacing: Sample.held())
        var expected = HeldCredentials(
            level: .user, accessToken: SecretBytes(utf8: "at-2"), refreshToken: SecretBytes(utf8: "rt-2"),
            expires: Sample.now.advanced(by: .seconds(60)), grantedScopes: ScopeSet(["x"])!, userID: "7",
            obtainedWith: Sample.client().fingerprint, grantedBy: GrantingProvider(Sample.tidal))
        expected.identity = UserIdentity(userID: "7")
        #expect(held == expected)
    }

    @Test func `the provider of the grant is recorded, not the earlier one`() throws {
        var server = Sample.oidc
        let earlier = try #require(
            GrantingProvider(issuer: "https://old.example", tokenEndpoint: "https://old.example/t"))
        for issuer in [nil, "https://new.example"] {
            server.issuer = issuer
            let held = HeldCredentials(
                granted: response(), level: .user, to: Sample.client(), by: server,
                replacing: Sample.held(grantedBy: earlier), now: Sample.now)
            #expect(held.refreshToken?.revealedText == "refresh-1")
            #expect(
                held.grantedBy
                    == GrantingProvider(
                        issuer: issuer.map { WireText($0) }, tokenEndpoint: "https://auth.example/v1/oauth2/token"))
        }
    }

    // T45
    @Test func `values that a refresh omits are kept`() {
        let held = granted(replacing: Sample.held(scopes: ["s"], userID: "42"))
        #expect(held.accessToken.revealedText == "at-2")
        #expect(held.refreshToken?.revealedText == "refresh-1")
        #expect(held.grantedScopes.values == ["s"])
        #expect(held.userID == "42")
    }

    // X03 X04
    @Test func `each of three refreshes keeps or replaces the refresh token`() {
        var held = Sample.held(refreshToken: "rt-1")
        held = granted(replacing: held)
        #expect(held.refreshToken?.revealedText == "rt-1")
        held = granted(#","refresh_token":"rt-2""#, replacing: held)
        #expect(held.refreshToken?.revealedText == "rt-2")
        held = granted(#","refresh_token":null"#, replacing: held)
        #expect(held.refreshToken?.revealedText == "rt-2")
    }

    @Test func `a login takes nothing from earlier credentials`() {
        let held = granted()
        #expect(held.refreshToken == nil)
        #expect(held.userID == nil)
        #expect(held.grantedScopes.values == ["a", "b"])
    }

    @Test func `a grant without a lifetime has the default lifetime, and none where nothing can renew it`() {
        #expect(granted(#","refresh_token":"r""#).expires == Sample.now.advanced(by: .seconds(3600)))
        #expect(granted().expires == .never)
        #expect(granted(#","expires_in":0"#).expires == Sample.now)
    }

    @Test func `client credentials have neither user nor refresh token`() {
        let held = granted(#","refresh_token":"rt-2","user_id":7"#, level: .client)
        #expect(held.level == .client)
        #expect(held.refreshToken == nil)
        #expect(held.userID == nil)
    }

    @Test func `client credentials take nothing from the user's credentials`() {
        let held = granted(level: .client, replacing: Sample.held(.user, scopes: ["users-own"]))
        #expect(held.refreshToken == nil)
        #expect(held.userID == nil)
        #expect(held.grantedScopes.values == ["a", "b"])
    }

    @Test func `a user's credentials take nothing from client credentials`() {
        let held = granted(replacing: Sample.held(.client, refreshToken: nil, scopes: ["clients-own"], userID: nil))
        #expect(held.grantedScopes.values == ["a", "b"])
    }

    @Test func `the client of the grant is recorded, not the earlier one`() {
        let client = Sample.client(id: "client-2", secret: "secret-2", uniqueKey: "k", scopes: ["c"])
        let held = granted(to: client, replacing: Sample.held())
        #expect(held.obtainedWith == client.fingerprint)
    }

    // T47
    @Test func `values that an upgrade omits are kept, and the new registration is recorded`() {
        let old = Sample.held(refreshToken: "rt-1", scopes: ["s"], userID: "42")
        let client = Sample.client(id: "client-2", scopes: ["s", "t"])
        let kept = granted(#","refresh_token":"","user_id":"""#, to: client, replacing: old)
        #expect(kept.refreshToken?.revealedText == "rt-1")
        #expect(kept.grantedScopes.values == ["s"])
        #expect(kept.userID == "42")
        #expect(kept.obtainedWith == client.fingerprint)
        let replaced = granted(#","refresh_token":"rt-2","scope":"s t","user_id":43"#, to: client, replacing: old)
        #expect(replaced.refreshToken?.revealedText == "rt-2")
        #expect(replaced.grantedScopes.values == ["s", "t"])
        #expect(replaced.userID == "43")
    }

    @Test func `an empty refresh token does not replace the held one`() {
        let held = granted(#","refresh_token":"""#, replacing: Sample.held(refreshToken: "rt-1"))
        #expect(held.refreshToken?.revealedText == "rt-1")
    }

    static let endings = ["unauthorized_client", "invalid_grant", "invalid_request", "access_denied", "invalid_client"]

    @Test(arguments: endings + [nil, "session_revoked"])
    func `a refusal of the client that logged the user in ends the session`(error: String?) {
        let answer = TokenErrorResponse(error: error, subStatus: nil)
        for client in [
            Sample.client(), Sample.client(uniqueKey: "k"), Sample.client(scopes: []),
            Sample.client(uniqueKey: "k", scopes: ["c"]),
        ] {
            #expect(Sample.held().isEnded(by: answer, refreshedBy: client.fingerprint))
        }
    }

    @Test(arguments: endings + [nil, "session_revoked"])
    func `after a change of the secret only invalid_grant ends the session`(error: String?) {
        let answer = TokenErrorResponse(error: error, subStatus: nil)
        for (then, now) in [("secret-1", "secret-2"), ("secret-1", nil), (nil, "secret-1")] as [(String?, String?)] {
            let held = Sample.held(obtainedWith: Sample.client(secret: then).fingerprint)
            let isEnded = held.isEnded(by: answer, refreshedBy: Sample.client(secret: now).fingerprint)
            #expect(isEnded == (error == "invalid_grant"))
        }
    }

    @Test(arguments: endings + [nil, "session_revoked"])
    func `a refusal of another client does not end the session`(error: String?) {
        let answer = TokenErrorResponse(error: error, subStatus: nil)
        for secret in ["secret-1", "secret-2", nil] {
            let client = Sample.client(id: "client-2", secret: secret)
            #expect(!Sample.held().isEnded(by: answer, refreshedBy: client.fingerprint))
        }
    }

    @Test func `the digest of the refresh token is its SHA-256`() {
        #expect(
            Sample.held(refreshToken: "abc").refreshTokenDigest.map(Hex.encode)
                == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        #expect(Sample.held(refreshToken: nil).refreshTokenDigest == nil)
    }
}
