internal import BrokerCore
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import OAuth

/// `/oauth2/token`, `/oauth2/revoke` and the metadata document, for apps: they are OAuth clients of the broker, and need no API
/// key.
struct AppTokenRoutes {
    private let broker: Broker
    private var apps: AppGrants { broker.core.apps }

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.post, "/oauth2/token", .open, token),
            Route(.post, "/oauth2/revoke", .open, revoke),
            Route(.get, "/.well-known/oauth-authorization-server", .open, metadata),
        ]
    }

    private enum GrantType: String, CaseIterable {
        case authorizationCode = "authorization_code"
        case refreshToken = "refresh_token"
    }

    private func token(_ call: Call) async throws(BrokerError) -> Response {
        await answer(call, isCounted: true) { form, authentication throws(AppError) in
            let client = try await authentication.client(in: apps.clients)
            guard let name = form["grant_type"] else { throw AppError(.invalidRequest, "grant_type is required") }
            guard let type = GrantType(name) else {
                throw AppError(.unsupportedGrantType, "grant type is not supported")
            }
            let body =
                switch type {
                case .authorizationCode: try await exchange(form, client)
                case .refreshToken: try await refresh(form, client)
                }
            return .oauth(.ok, body.revealedBytes)
        }
    }

    private func exchange(_ form: AppForm, _ client: AppClient) async throws(AppError) -> SecretBytes {
        guard let code = form["code"] else { throw AppError(.invalidRequest, "code is required") }
        return try await apps.exchange(
            .init(code: code, redirectURI: form["redirect_uri"], codeVerifier: form["code_verifier"]), for: client)
    }

    private func refresh(_ form: AppForm, _ client: AppClient) async throws(AppError) -> SecretBytes {
        guard let token = form["refresh_token"] else { throw AppError(.invalidRequest, "refresh token is required") }
        return try await apps.refresh(token, for: client)
    }

    /// RFC 7009: the answer is the same whatever the token is.
    private func revoke(_ call: Call) async throws(BrokerError) -> Response {
        await answer(call) { form, authentication throws(AppError) in
            let client = try await authentication.client(in: apps.clients)
            guard let token = form["token"] else { throw AppError(.invalidRequest, "token is required") }
            try await apps.revoke(token, for: client)
            return .oauth(.ok, [])
        }
    }

    /// - Parameter isCounted: whether the limits of the token endpoint count the request.
    private func answer(
        _ call: Call, isCounted: Bool = false, _ body: (AppForm, AppAuthentication) async throws(AppError) -> Response
    ) async -> Response {
        let isChallenged = call.request.fields.contains("Authorization")
        do throws(AppError) {
            if isCounted { try await apps.limits.admit(call.request.source) }
            let form = try await AppForm.content(of: call)
            return try await body(form, try AppAuthentication(form, call.request.fields))
        } catch {
            broker.log.info(
                "app_request_refused", [.request(RequestID(call.request.id)), .reason(error.code.logged)])
            return error.response(challenging: isChallenged)
        }
    }

    /// RFC 8414 §2.
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
            json.member("grant_types_supported", GrantType.allCases.map(\.rawValue))
            let methods = ["none", "client_secret_basic", "client_secret_post"]
            json.member("token_endpoint_auth_methods_supported", methods)
            json.member("revocation_endpoint_auth_methods_supported", methods)
            json.member("code_challenge_methods_supported", ["S256"])
            json.member("authorization_response_iss_parameter_supported", true)
        }
    }
}

extension AppError.Code {
    fileprivate var logged: StaticString {
        switch self {
        case .invalidRequest: "invalid_request"
        case .invalidClient: "invalid_client"
        case .invalidGrant: "invalid_grant"
        case .unauthorizedClient: "unauthorized_client"
        case .unsupportedGrantType: "unsupported_grant_type"
        case .unsupportedResponseType: "unsupported_response_type"
        case .accessDenied: "access_denied"
        case .serverError: "server_error"
        case .temporarilyUnavailable: "temporarily_unavailable"
        case .rateLimited: "x_rate_limited"
        }
    }
}
