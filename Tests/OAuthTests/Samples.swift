import Cryptography
import ExternalText
import GroundTesting
import OAuth

/// Values that several suites use.
enum Sample {
    /// 2026-11-21T09:00:00Z.
    static let now = Timestamp(seconds: 1_795_251_600)

    static let tidal = server(.tidal)
    static let oidc = server(.oidc)

    static func server(
        _ preset: ProviderPreset, authorizationEndpoint: String? = nil,
        authentication: ProviderPreset.ClientAuthentication? = nil
    ) -> AuthorizationServer {
        AuthorizationServer(
            preset: preset,
            authorizationEndpoint: authorizationEndpoint ?? "https://login.example/authorize",
            tokenEndpoint: "https://auth.example/v1/oauth2/token", revocationEndpoint: nil, issuer: nil,
            announcesIssuerInResponses: false, clientAuthentication: authentication ?? preset.clientAuthentication,
            pinnedCertificates: preset.pinnedCertificates)
    }

    static func client(
        id: String = "client-1", secret: String? = "secret-1", uniqueKey: String? = nil, scopes: [String] = ["b", "a"]
    ) -> ClientConfiguration {
        ClientConfiguration(
            clientID: WireText(id), clientSecret: secret.map(SecretBytes.init(utf8:)),
            clientUniqueKey: uniqueKey.map { WireText($0) },
            scopes: ScopeSet(scopes)!)
    }

    static func held(
        _ level: CredentialsLevel = .user, token: String = "access-1", refreshToken: String? = "refresh-1",
        expires: Timestamp = now.advanced(by: .seconds(3600)), scopes: [String] = ["a"], userID: String? = "42",
        obtainedWith: ClientFingerprint = client().fingerprint, grantedBy: GrantingProvider? = nil
    ) -> HeldCredentials {
        HeldCredentials(
            level: level, accessToken: SecretBytes(utf8: token),
            refreshToken: refreshToken.map(SecretBytes.init(utf8:)),
            expires: expires, grantedScopes: ScopeSet(scopes)!, userID: userID.map { WireText($0) },
            obtainedWith: obtainedWith, grantedBy: grantedBy)
    }

    /// A JWT of which only the payload has a meaning.
    static func jsonWebToken(_ payload: String) -> String {
        let header = Base64URL.encode(Array(#"{"alg":"none"}"#.utf8))
        return header + "." + Base64URL.encode(Array(payload.utf8)) + ".c2ln"
    }
}
