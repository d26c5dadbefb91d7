import BrokerCore
import HTTPCodec
import HTTPServer
import JSON

/// What OAuth libraries look up of the broker: RFC 8414, and of OpenID Connect Discovery 1.0 what is true of a broker that issues no
/// ID tokens.
struct AppMetadataRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    static let paths = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]

    var all: [Route] {
        [
            Route(.get, "/.well-known/oauth-authorization-server", .open, metadata),
            Route(.get, "/.well-known/openid-configuration", .open, metadata),
            CrossOrigin.preflight(.get, "/.well-known/oauth-authorization-server"),
            CrossOrigin.preflight(.get, "/.well-known/openid-configuration"),
        ]
    }

    private func metadata(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let base = broker.logins.publicBaseURL
        return .json(.ok) { json in
            json.member("issuer", base)
            json.member("authorization_endpoint", base + "/oauth2/authorize")
            json.member("token_endpoint", base + "/oauth2/token")
            json.member("revocation_endpoint", base + "/oauth2/revoke")
            json.member("response_types_supported", ["code"])
            json.member("response_modes_supported", ["query"])
            json.member("grant_types_supported", AppTokenRoutes.GrantType.allCases.map(\.rawValue))
            let methods = ["none", "client_secret_basic", "client_secret_post"]
            json.member("token_endpoint_auth_methods_supported", methods)
            json.member("revocation_endpoint_auth_methods_supported", methods)
            json.member("code_challenge_methods_supported", ["S256"])
            json.member("authorization_response_iss_parameter_supported", true)
            // By OpenID Connect Discovery 1.0 §3, a client that does not find this may send its parameters by reference.
            json.member("request_parameter_supported", false)
            json.member("request_uri_parameter_supported", false)
        }
    }
}
