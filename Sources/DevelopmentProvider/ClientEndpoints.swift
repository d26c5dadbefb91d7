import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Reactor

/// The endpoints that clients post to: token, device authorization and revocation.
enum ClientEndpoints {
    /// The token endpoint (RFC 6749 §3.2, RFC 8628 §3.4).
    static func token(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        var trace: RefreshTrace?
        var result: EndpointResult
        do {
            let key = try ProofVerification.thumbprint(of: request, issuer: &issuer, now: now)
            let parameters = try received.posted(issuer.configuration.behaviour)
            try issuer.checkKey(
                ofCode: parameters["code"], refreshToken: parameters["refresh_token"], proven: key)
            let grant = try grant(request, received: received, issuer: &issuer, now: now, trace: &trace)
            if let key { issuer.bind(grant, to: key) }
            let (configuration, type) = (issuer.configuration, key == nil ? nil : "DPoP")
            result = EndpointResult(
                configuration.translation?.response(to: grant, configuration, type: type, now: now)
                    ?? response(to: grant, configuration, type: type ?? "Bearer"))
        } catch {
            result = EndpointResult(error, issuer.configuration)
        }
        result.refresh = trace
        return result
    }

    private static func grant(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64,
        trace: inout RefreshTrace?
    ) throws(OAuthError) -> TokenIssuer.Grant {
        let configuration = issuer.configuration
        let parameters = try received.posted(configuration.behaviour)
        let name = try parameters.required("grant_type")
        guard let grant = GrantType(name), configuration.grants.contains(grant) else {
            throw OAuthError(.unsupportedGrantType, "This grant type is not supported")
        }
        let client = try authenticate(
            request, parameters: parameters, issuer: &issuer, now: now,
            requiresSecret: configuration.behaviour.requiresSecret || grant == .clientCredentials)
        switch grant {
        case .authorizationCode:
            return try issuer.redeem(
                code: parameters.required("code"), client: client, redirectURI: parameters["redirect_uri"],
                verifier: parameters["code_verifier"], now: now)
        case .refreshToken, .updateClient:
            return try issuer.refresh(
                parameters.required("refresh_token"), client: client, scope: parameters.scope(),
                movesClient: grant == .updateClient, now: now, trace: &trace)
        case .clientCredentials:
            return try issuer.grantClientCredentials(client: client, scope: parameters.scope(), now: now)
        case .deviceCode:
            return try issuer.poll(deviceCode: parameters.required("device_code"), client: client, now: now)
        // AuthgearEndpoints has the token endpoint of the profile with these grants.
        case .appToApp, .appToAppRequest, .biometric:
            throw OAuthError(.unsupportedGrantType, "This grant type is not supported")
        }
    }

    static func authenticate(
        _ request: Request, parameters: Parameters, issuer: inout TokenIssuer, now: Int64, requiresSecret: Bool
    ) throws(OAuthError) -> ProviderClient {
        let configuration = issuer.configuration
        if configuration.behaviour.takesClientAssertions, parameters["client_assertion"] != nil {
            guard parameters["client_secret"] == nil, request.fields["Authorization"] == nil else {
                throw OAuthError(.invalidClient, "Malformed or doubled client credentials")
            }
            return try issuer.assertions.client(parameters, in: configuration, now: now)
        }
        return try ClientAuthentication(request, parameters, configuration.behaviour)
            .client(in: configuration, requiresSecret: requiresSecret)
    }

    /// - Parameter code: a code for another app that comes with the tokens.
    static func response(
        to grant: TokenIssuer.Grant, _ configuration: ProviderConfiguration, code: String? = nil,
        type: String = "Bearer"
    ) -> Response {
        let shape = configuration.behaviour.tokenAnswer
        return .json(.ok) { writer in
            writer.member("access_token", grant.accessToken)
            writer.member("token_type", type)
            writer.member("expires_in", grant.lifetime.components.seconds)
            writer.memberIfPresent("refresh_token", grant.refreshToken)
            writer.memberIfPresent("id_token", grant.idToken)
            writer.memberIfPresent("code", code)
            if shape.scope == .always || shape.scope == .unlessEmpty && !grant.scope.isEmpty {
                writer.member("scope", grant.scope.joined(separator: " "))
            }
            if let user = shape.user { writer.memberIfPresent(user, grant.user?.id) }
            if let name = shape.clientName { writer.member(name, grant.client.name) }
        }
    }

    /// The device authorization endpoint (RFC 8628 §3.1).
    static func deviceAuthorization(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        let configuration = issuer.configuration
        do {
            let parameters = try received.posted(configuration.behaviour)
            let client = try authenticate(
                request, parameters: parameters, issuer: &issuer, now: now,
                requiresSecret: configuration.behaviour.requiresSecret)
            let scope = try TokenIssuer.scope(parameters.scope(), of: client)
            let grant = issuer.authorizeDevice(client: client, scope: scope, now: now)
            let shape = configuration.behaviour.deviceAnswer
            let base = configuration.baseURL
            // An address with http must contain the scheme.
            let omitsScheme = shape.omitsHTTPS && base.scheme == "https"
            let uri = (omitsScheme ? base.authority + base.path : base.description) + "/link"
            let userCode =
                shape.lettersBeforeHyphen.map { grant.userCode.prefix($0) + "-" + grant.userCode.dropFirst($0) }
                .map { String($0) } ?? grant.userCode
            return EndpointResult(
                .json(.ok) { writer in
                    writer.member(shape.deviceCode, grant.deviceCode)
                    writer.member(shape.userCode, userCode)
                    writer.member(shape.verificationURI, uri)
                    writer.member(shape.completeURI, uri + "/" + userCode)
                    writer.member(shape.expiresIn, grant.lifetime.components.seconds)
                    writer.member("interval", grant.interval.components.seconds)
                })
        } catch {
            return EndpointResult(error, configuration)
        }
    }

    /// The revocation endpoint (RFC 7009 §2).
    static func revoke(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        do {
            let parameters = try received.posted(issuer.configuration.behaviour)
            let client = try authenticate(
                request, parameters: parameters, issuer: &issuer, now: now, requiresSecret: true)
            try issuer.revoke(token: parameters.required("token"), client: client, now: now)
            return EndpointResult(Response(.ok, fields: ["Cache-Control": "no-store"]))
        } catch {
            return EndpointResult(error, issuer.configuration)
        }
    }
}
