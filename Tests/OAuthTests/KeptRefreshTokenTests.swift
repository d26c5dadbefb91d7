import Cryptography
import ExternalText
import Testing

@testable import OAuth

@Suite struct `Kept refresh tokens` {
    private static let provider = AcceptedProviders(issuer: "https://id.example", tokenEndpoint: "https://id.example/t")

    private static func held(
        _ refresh: String?, of user: WireText? = "42", client: WireText = "c1",
        by provider: GrantingProvider? = GrantingProvider(
            issuer: "https://id.example", tokenEndpoint: "https://id.example/t"),
        level: CredentialsLevel = .user
    ) -> HeldCredentials {
        var held = HeldCredentials(
            level: level, accessToken: SecretBytes(utf8: "a"), refreshToken: refresh.map { SecretBytes(utf8: $0) },
            expires: Timestamp(seconds: 1000), grantedScopes: .empty, userID: user,
            obtainedWith: ClientFingerprint(
                clientID: client, scopes: .empty, clientUniqueKey: nil, clientSecretDigest: nil),
            grantedBy: provider)
        held.identity = UserIdentity(userID: user)
        return held
    }

    @Test func `a login keeps the refresh token, and what belongs to it`() {
        var earlier = Self.held("r1")
        earlier.refreshableFrom = Timestamp(seconds: 5)
        earlier.proof.refreshToken = true
        guard case .kept(let kept) = Self.held(nil).keepingRefreshToken(of: earlier, at: Self.provider) else {
            Issue.record("nothing is kept")
            return
        }
        #expect(kept.refreshToken == earlier.refreshToken)
        #expect((kept.refreshableFrom, kept.proof.refreshToken) == (Timestamp(seconds: 5), true))
    }

    @Test func `nothing is kept where there is nothing to keep or no need`() {
        #expect(Self.held(nil).keepingRefreshToken(of: nil, at: Self.provider) == .none)
        #expect(Self.held(nil).keepingRefreshToken(of: Self.held(nil), at: Self.provider) == .none)
        #expect(Self.held("r2").keepingRefreshToken(of: Self.held("r1"), at: Self.provider) == .none)
        #expect(
            Self.held(nil).keepingRefreshToken(of: Self.held("r1", level: .client), at: Self.provider) == .none)
        #expect(Self.held(nil, level: .client).keepingRefreshToken(of: Self.held("r1"), at: Self.provider) == .none)
    }

    @Test func `what is not known to be the same is dropped, with the reason`() {
        let moved = GrantingProvider(issuer: "https://other.example", tokenEndpoint: "https://id.example/t")
        let table: [(HeldCredentials, HeldCredentials.NotKept)] = [
            (Self.held("r1", of: "43"), .otherUser), (Self.held("r1", of: nil), .unknownUser),
            (Self.held("r1", client: "c2"), .otherClient), (Self.held("r1", by: moved), .otherProvider),
        ]
        for (earlier, reason) in table {
            #expect(Self.held(nil).keepingRefreshToken(of: earlier, at: Self.provider) == .dropped(reason))
        }
        var accepting = Self.provider
        accepting.previousIssuers = ["https://other.example"]
        #expect(
            Self.held(nil).keepingRefreshToken(of: Self.held("r1", by: moved), at: accepting)
                == .kept(Self.held("r1")))
        // An earlier build did not store the provider, so that it counts as the configured one.
        #expect(
            Self.held(nil).keepingRefreshToken(of: Self.held("r1", by: nil), at: Self.provider)
                == .kept(Self.held("r1")))
    }

    @Test func `a grant that nothing uses may be that of a session with a refresh token`() {
        #expect(Self.held(nil).mayShareGrant(with: Self.held("r1")))
        #expect(Self.held(nil, of: nil).mayShareGrant(with: Self.held("r1")))
        #expect(Self.held("r1").mayShareGrant(with: Self.held("r1")))
        #expect(!Self.held("r2").mayShareGrant(with: Self.held("r1")))
        #expect(!Self.held(nil, of: "43").mayShareGrant(with: Self.held("r1")))
        #expect(!Self.held(nil, client: "c2").mayShareGrant(with: Self.held("r1")))
        #expect(!Self.held(nil).mayShareGrant(with: Self.held(nil)))
        #expect(!Self.held(nil).mayShareGrant(with: nil))
    }
}
