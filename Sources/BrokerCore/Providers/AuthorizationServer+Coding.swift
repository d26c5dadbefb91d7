import Cryptography
import ExternalText
import JSON
import OAuth

/// The form in which a login's sealed record has the endpoints that were in use when the login began, and the login's key.
extension AuthorizationServer {
    func encode(to json: inout JSONWriter) {
        json.object { json in
            json.member("authorization", authorizationEndpoint)
            json.member("token", tokenEndpoint)
            json.memberIfPresent("revocation", revocationEndpoint)
            json.memberIfPresent("jwks", jwksURI)
            json.memberIfPresent("issuer", issuer)
            json.memberIfPresent("challenge", challengeEndpoint)
            json.member("announces_issuer", announcesIssuerInResponses)
            if !usesPKCE { json.member("pkce", false) }
            if let asked {
                json.name("asked")
                asked.encode(to: &json)
            }
            json.member("client_authentication", clientAuthentication.rawValue)
            json.member("revocation_authentication", revocationAuthentication.rawValue)
            json.memberIfPresent("alternative_authentication", alternativeAuthentication?.rawValue)
            json.memberIfPresent(
                "alternative_revocation_authentication", alternativeRevocationAuthentication?.rawValue)
            json.memberIfPresent("pushed_authorization_request", pushedAuthorization?.endpoint)
            if pushedAuthorization?.isRequired == true { json.member("requires_pushed_authorization", true) }
            json.memberIfPresent("dpop_key", proofKey?.pem.revealedText)
        }
    }

    /// - Parameter configuration: the tenant's configuration from the same record.
    init?(_ json: JSONValue, of configuration: TenantConfiguration) {
        guard let authorization = json["authorization"]?.string?.text, let token = json["token"]?.string?.text,
            let authentication = json["client_authentication"]?.string.flatMap(
                ProviderPreset.ClientAuthentication.init)
        else { return nil }
        self.init(
            preset: configuration.preset, authorizationEndpoint: authorization, tokenEndpoint: token,
            revocationEndpoint: json["revocation"]?.string?.text, jwksURI: json["jwks"]?.string?.text,
            issuer: json["issuer"]?.string?.text,
            announcesIssuerInResponses: json["announces_issuer"]?.bool ?? false,
            clientAuthentication: authentication, pinnedCertificates: configuration.effectivePins,
            defaultLifetime: configuration.effectiveDefaultLifetime,
            revocationAuthentication: json["revocation_authentication"]?.string.flatMap(
                ProviderPreset.ClientAuthentication.init))
        alternativeAuthentication = json["alternative_authentication"]?.string.flatMap(
            ProviderPreset.ClientAuthentication.init)
        alternativeRevocationAuthentication = json["alternative_revocation_authentication"]?.string.flatMap(
            ProviderPreset.ClientAuthentication.init)
        pushedAuthorization = (json["pushed_authorization_request"]?.string?.text).map {
            PushedAuthorization(endpoint: $0, isRequired: json["requires_pushed_authorization"]?.bool ?? false)
        }
        proofKey = (json["dpop_key"]?.string?.text).map { DPoPKey(pem: SecretBytes(utf8: $0)) }
        challengeEndpoint = json["challenge"]?.string?.text
        configuration.complete(&self)
        asked = json["asked"].flatMap { AskedGrant($0) }
        if json["pkce"]?.bool == false { usesPKCE = false }
    }
}
