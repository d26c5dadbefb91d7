internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import Reactor

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
            let parameters = try received.posted(issuer.configuration.profile)
            try issuer.checkKey(
                ofCode: parameters["code"], refreshToken: parameters["refresh_token"], proven: key)
            let grant = try grant(request, received: received, issuer: &issuer, now: now, trace: &trace)
            if let key { issuer.bind(grant, to: key) }
            let (configuration, type) = (issuer.configuration, key == nil ? nil : "DPoP")
            result = EndpointResult(
                configuration.translation?.response(to: grant, configuration, type: type, now: now)
                    ?? response(to: grant, configuration.profile, type: type ?? "Bearer"))
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
        let parameters = try received.posted(configuration.profile)
        let name = try parameters.required("grant_type")
        guard let grant = GrantType(name), configuration.grants.contains(grant) else {
            throw OAuthError(.unsupportedGrantType, "This grant type is not supported")
        }
        let client = try authenticate(
            request, parameters: parameters, issuer: &issuer, now: now,
            requiresSecret: configuration.profile == .rfc || grant == .clientCredentials)
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
        if configuration.profile == .rfc, parameters["client_assertion"] != nil {
            guard parameters["client_secret"] == nil, request.fields["Authorization"] == nil else {
                throw OAuthError(.invalidClient, "Malformed or doubled client credentials")
            }
            return try issuer.assertions.client(parameters, in: configuration, now: now)
        }
        // TIDAL accepts client credentials only in the form, Authgear in the header only if the form has none.
        let isPosted = parameters["client_id"] != nil || parameters["client_secret"] != nil
        let fields =
            configuration.profile == .tidal || configuration.profile == .authgear && isPosted ? [:] : request.fields
        return try ClientAuthentication(fields, parameters).client(in: configuration, requiresSecret: requiresSecret)
    }

    /// - Parameter code: a code for another app that comes with the tokens.
    static func response(
        to grant: TokenIssuer.Grant, _ profile: ProviderProfile, code: String? = nil, type: String = "Bearer"
    ) -> Response {
        .json(.ok) { writer in
            writer.member("access_token", grant.accessToken)
            writer.member("token_type", type)
            writer.member("expires_in", grant.lifetime.components.seconds)
            writer.memberIfPresent("refresh_token", grant.refreshToken)
            writer.memberIfPresent("id_token", grant.idToken)
            writer.memberIfPresent("code", code)
            switch profile {
            case .duckduckgo, .authgear: break
            case .tidal:
                writer.member("scope", grant.scope.joined(separator: " "))
                writer.memberIfPresent("user_id", grant.user?.id)
                writer.member("clientName", grant.client.name)
            case .rfc:
                // A scope has at least one token (RFC 6749 §3.3).
                if !grant.scope.isEmpty { writer.member("scope", grant.scope.joined(separator: " ")) }
            }
        }
    }

    /// The device authorization endpoint (RFC 8628 §3.1).
    static func deviceAuthorization(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        let configuration = issuer.configuration
        do {
            let parameters = try received.posted(configuration.profile)
            let client = try authenticate(
                request, parameters: parameters, issuer: &issuer, now: now,
                requiresSecret: configuration.profile == .rfc)
            let scope = try TokenIssuer.scope(parameters.scope(), of: client)
            let grant = issuer.authorizeDevice(client: client, scope: scope, now: now)
            let (expiresIn, interval) = (grant.lifetime.components.seconds, grant.interval.components.seconds)
            let base = configuration.baseURL
            switch configuration.profile {
            case .tidal:
                // TIDAL shows these addresses on screens: without a scheme, which means https. If this provider uses
                // http, the address must contain the scheme.
                let uri = (base.scheme == "https" ? base.authority + base.path : base.description) + "/link"
                return EndpointResult(
                    .json(.ok) { writer in
                        writer.member("deviceCode", grant.deviceCode)
                        writer.member("userCode", grant.userCode)
                        writer.member("verificationUri", uri)
                        writer.member("verificationUriComplete", uri + "/" + grant.userCode)
                        writer.member("expiresIn", expiresIn)
                        writer.member("interval", interval)
                    })
            // The duckduckgo and authgear profiles have no such endpoint.
            case .rfc, .duckduckgo, .authgear:
                let uri = base.description + "/link"
                return EndpointResult(
                    .json(.ok) { writer in
                        let code = grant.userCode.prefix(4) + "-" + grant.userCode.dropFirst(4)
                        writer.member("device_code", grant.deviceCode)
                        writer.member("user_code", String(code))
                        writer.member("verification_uri", uri)
                        writer.member("verification_uri_complete", uri + "/" + String(code))
                        writer.member("expires_in", expiresIn)
                        writer.member("interval", interval)
                    })
            }
        } catch {
            return EndpointResult(error, configuration)
        }
    }

    /// The revocation endpoint (RFC 7009 §2).
    static func revoke(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        do {
            let parameters = try received.posted(issuer.configuration.profile)
            let client = try authenticate(
                request, parameters: parameters, issuer: &issuer, now: now, requiresSecret: true)
            try issuer.revoke(token: parameters.required("token"), client: client, now: now)
            return EndpointResult(Response(.ok, fields: ["Cache-Control": "no-store"]))
        } catch {
            return EndpointResult(error, issuer.configuration)
        }
    }
}
