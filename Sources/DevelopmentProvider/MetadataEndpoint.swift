import HTTPCodec
import HTTPServer
import JOSE
import JSON

/// Authorization server metadata (RFC 8414 §2), at the well-known paths of RFC 8414 and of OpenID Connect Discovery.
enum MetadataEndpoint {
    static func respond(_ issuer: borrowing TokenIssuer) -> EndpointResult {
        let configuration = issuer.configuration
        let base = configuration.baseURL.description
        let hasKeys = configuration.clients.contains { $0.publicKeys != nil }
        let methods =
            configuration.translation?.authenticationMethods
            ?? ["client_secret_basic", "client_secret_post", "none"] + (hasKeys ? ["private_key_jwt"] : [])
        return EndpointResult(
            .json(.ok) { writer in
                writer.member("issuer", base)
                for (name, endpoint) in [
                    ("authorization_endpoint", Endpoint.authorize), ("token_endpoint", .token),
                    ("device_authorization_endpoint", .deviceAuthorization), ("revocation_endpoint", .revoke),
                    ("challenge_endpoint", .challenge), ("userinfo_endpoint", .userInfo),
                ] {
                    writer.memberIfPresent(name, configuration.path(of: endpoint).map { base + $0 })
                }
                if configuration.pushedRequests != .off {
                    writer.memberIfPresent(
                        "pushed_authorization_request_endpoint",
                        configuration.path(of: .pushedAuthorization).map { base + $0 })
                    writer.member("require_pushed_authorization_requests", configuration.pushedRequests == .required)
                }
                if configuration.boundTokens != .off { writer.member("dpop_signing_alg_values_supported", ["ES256"]) }
                writer.member("response_types_supported", ["code"])
                writer.member("response_modes_supported", ["query"])
                writer.member(
                    "grant_types_supported",
                    configuration.grants.map(\.rawValue))
                writer.member("code_challenge_methods_supported", ["S256"])
                writer.member("token_endpoint_auth_methods_supported", methods)
                writer.member("revocation_endpoint_auth_methods_supported", methods)
                writer.member("authorization_response_iss_parameter_supported", configuration.announcesResponseIssuer)
                // OpenID Connect Discovery §3 requires these three members.
                writer.memberIfPresent("jwks_uri", configuration.path(of: .keys).map { base + $0 })
                writer.member("subject_types_supported", ["public"])
                writer.member("id_token_signing_alg_values_supported", [configuration.signingAlgorithm.rawValue])
            })
    }

    /// The metadata of the resource that the tokens are for (RFC 9728 §2), which is everything below the base URL.
    static func resource(_ configuration: ProviderConfiguration) -> Response {
        .json(.ok) { writer in
            writer.member("resource", configuration.baseURL.description)
            writer.member("authorization_servers", [configuration.baseURL.description])
        }
    }

    /// The key set (RFC 7517 §5), which may be cached for an hour.
    static func keys(_ issuer: inout TokenIssuer) -> EndpointResult {
        let keys = JSONWebKeySet(issuer.minter.publishedKeys(issuer.configuration).map(\.key))
        return EndpointResult(
            Response(
                .ok, fields: ["Content-Type": "application/jwk-set+json", "Cache-Control": "max-age=3600"],
                body: keys.json))
    }
}
