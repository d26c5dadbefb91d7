import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/oauth2/token` and `/oauth2/revoke`, for apps: they are OAuth clients of the broker, and need no API key.
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
            CrossOrigin.preflight(.post, "/oauth2/token"),
            CrossOrigin.preflight(.post, "/oauth2/revoke"),
        ]
    }

    enum GrantType: String, CaseIterable {
        case authorizationCode = "authorization_code"
        case refreshToken = "refresh_token"
        /// The name in Authgear's design, and the one that its server and its SDKs use.
        case appToApp = "urn:authgear:params:oauth:grant-type:app2app"
        case appToAppRequest = "urn:authgear:params:oauth:grant-type:app2app-request"
        case biometric = "urn:authgear:params:oauth:grant-type:biometric-request"
    }

    private func token(_ call: Call) async throws(BrokerError) -> Response {
        await answer(call, for: .token) { form, authentication throws(AppError) in
            let name = form["grant_type"]
            let type = name.flatMap { GrantType($0) }
            if type == .appToApp || type == .appToAppRequest { return try await approve(form, call) }
            if type == .refreshToken { return .oauth(.ok, try await refresh(form, authentication, call).revealedBytes) }
            let client = try await authentication.client(in: apps.clients)
            guard name != nil else { throw AppError(.invalidRequest, "grant_type is required") }
            switch type {
            case .authorizationCode: return .oauth(.ok, try await exchange(form, client, call).revealedBytes)
            case .biometric: return try await biometric(form, client, call)
            case .appToApp, .appToAppRequest, .refreshToken, nil:
                throw AppError(.unsupportedGrantType, "grant type is not supported")
            }
        }
    }

    /// The app that holds the session asks for another app, whose secret it does not have: the other app proves itself when it
    /// exchanges the code.
    private func approve(_ form: AppForm, _ call: Call) async throws(AppError) -> Response {
        let target: AppClient?
        do throws(BrokerError) {
            target = if let clientID = form["client_id"] { try await apps.clients.client(clientID) } else { nil }
        } catch {
            throw AppError(error)
        }
        guard let target else { throw AppError.unknownTarget }
        let code = try await broker.core.appToApp.approve(request(form, call), for: target)
        return .oauth(.ok, JSONWriter.object { $0.member("code", code.revealedText) })
    }

    private func biometric(_ form: AppForm, _ client: AppClient, _ call: Call) async throws(AppError) -> Response {
        switch try await broker.core.appToApp.biometric(request(form, call), for: client) {
        case .isSetUp: .oauth(.ok, [])
        case .tokens(let body): .oauth(.ok, body.revealedBytes)
        }
    }

    private func request(_ form: AppForm, _ call: Call) -> AppToAppGrants.Request {
        AppToAppGrants.Request(
            jwt: form["jwt"], refreshToken: form["refresh_token"], redirectURI: form["redirect_uri"],
            codeChallenge: form["code_challenge"], codeChallengeMethod: form["code_challenge_method"],
            arrival: call.request.arrival)
    }

    private func exchange(
        _ form: AppForm, _ client: AppClient, _ call: Call
    ) async throws(AppError) -> SecretBytes {
        guard let code = form["code"] else { throw AppError(.invalidRequest, "code is required") }
        return try await apps.exchange(
            .init(
                code: code, redirectURI: form["redirect_uri"], codeVerifier: form["code_verifier"],
                arrival: call.request.arrival), for: client
        ) { () async throws(AppError) in
            try await broker.core.appToApp.binding(form["x_app2app_device_key_jwt"], of: client)
        }
    }

    private func refresh(
        _ form: AppForm, _ authentication: AppAuthentication, _ call: Call
    ) async throws(AppError) -> SecretBytes {
        let text = form["refresh_token"]
        guard let token = text.flatMap({ AppSessionToken($0) }) else {
            _ = try await authentication.client(in: apps.clients)
            throw text == nil
                ? AppError(.invalidRequest, "refresh token is required") : AppError.invalidRefreshToken
        }
        return try await apps.refresh(token, arrival: call.request.arrival) { () async throws(AppError) in
            try await authentication.client(in: apps.clients)
        }
    }

    /// RFC 7009: the answer is the same whatever the token is.
    private func revoke(_ call: Call) async throws(BrokerError) -> Response {
        await answer(call, for: .revocation) { form, authentication throws(AppError) in
            let client = try await authentication.client(in: apps.clients)
            guard let token = form["token"] else { throw AppError(.invalidRequest, "token is required") }
            try await apps.revoke(token, for: client)
            return .oauth(.ok, [])
        }
    }

    private func answer(
        _ call: Call, for purpose: TokenEndpointLimits.Purpose,
        _ body: (AppForm, AppAuthentication) async throws(AppError) -> Response
    ) async -> Response {
        let isChallenged = call.request.fields.contains("Authorization")
        var claimed: WireText?
        do throws(AppError) {
            try await apps.limits.admit(call.request.source, for: purpose)
            let form = try await AppForm.content(of: call)
            let authentication = try AppAuthentication(form, call.request.fields)
            claimed = authentication.clientID
            return try await body(form, authentication)
        } catch {
            broker.log.info(
                "app_request_refused",
                [.request(RequestID(call.request.id)), .reason(error.code.logged)] + (await known(claimed)))
            return error.response(challenging: isChallenged)
        }
    }

    /// The log's fields of the client that a request names, if there is one: no other text of a request is logged. The request may
    /// have come from another program.
    private func known(_ clientID: WireText?) async -> [LogField] {
        guard let clientID, let client = try? await apps.clients.client(clientID) else { return [] }
        return LogField.client(client)
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
