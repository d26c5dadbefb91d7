internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import Reactor

/// The token endpoint, device authorization and revocation: what clients post to.
enum TokenEndpoint {
    /// RFC 6749 §3.2, RFC 8628 §3.4.
    static func token(
        _ request: Request, _ received: ReceivedParameters, _ server: inout AuthorizationServer, now: Int64
    ) -> EndpointAnswer {
        var trace: RefreshTrace?
        var answer: EndpointAnswer
        do {
            let grant = try grant(request, received, &server, now: now, trace: &trace)
            answer = EndpointAnswer(response(to: grant, server.configuration.profile))
        } catch {
            answer = EndpointAnswer(error, server.configuration)
        }
        answer.refresh = trace
        return answer
    }

    private static func grant(
        _ request: Request, _ received: ReceivedParameters, _ server: inout AuthorizationServer, now: Int64,
        trace: inout RefreshTrace?
    ) throws(OAuthError) -> AuthorizationServer.Grant {
        let configuration = server.configuration
        let parameters = try received.posted(configuration.profile)
        let name = try parameters.required("grant_type")
        guard let grant = GrantType(name), grant != .updateClient || configuration.profile == .tidal else {
            throw OAuthError(.unsupportedGrantType, "This grant type is unknown here")
        }
        let client = try authenticate(
            request, parameters, configuration,
            provesItself: configuration.profile == .rfc || grant == .clientCredentials)
        switch grant {
        case .authorizationCode:
            return try server.redeem(
                code: parameters.required("code"), client: client, redirectURI: parameters["redirect_uri"],
                verifier: parameters["code_verifier"], now: now)
        case .refreshToken, .updateClient:
            return try server.refresh(
                parameters.required("refresh_token"), client: client, scope: parameters.scope(),
                movesClient: grant == .updateClient, now: now, trace: &trace)
        case .clientCredentials:
            return try server.grantClientCredentials(client: client, scope: parameters.scope(), now: now)
        case .deviceCode:
            return try server.poll(deviceCode: parameters.required("device_code"), client: client, now: now)
        }
    }

    private static func authenticate(
        _ request: Request, _ parameters: Parameters, _ configuration: ProviderConfiguration, provesItself: Bool
    ) throws(OAuthError) -> ProviderClient {
        // TIDAL knows credentials in the form only.
        let fields = configuration.profile == .tidal ? [:] : request.fields
        return try ClientAuthentication(fields, parameters).client(in: configuration, provesItself: provesItself)
    }

    private static func response(to grant: AuthorizationServer.Grant, _ profile: ProviderProfile) -> Response {
        .json(.ok) { writer in
            writer.member("access_token", grant.accessToken)
            writer.member("token_type", "Bearer")
            writer.member("expires_in", grant.lifetime.components.seconds)
            writer.memberIfPresent("refresh_token", grant.refreshToken)
            switch profile {
            case .tidal:
                writer.member("scope", grant.scope.joined(separator: " "))
                writer.memberIfPresent("user_id", grant.user?.id)
                writer.member("clientName", grant.client.name)
            case .rfc:
                // A scope has one token at least (RFC 6749 §3.3).
                if !grant.scope.isEmpty { writer.member("scope", grant.scope.joined(separator: " ")) }
            }
        }
    }

    /// RFC 8628 §3.1.
    static func deviceAuthorization(
        _ request: Request, _ received: ReceivedParameters, _ server: inout AuthorizationServer, now: Int64
    ) -> EndpointAnswer {
        let configuration = server.configuration
        do {
            let parameters = try received.posted(configuration.profile)
            let client = try authenticate(
                request, parameters, configuration, provesItself: configuration.profile == .rfc)
            let scope = try AuthorizationServer.scope(parameters.scope(), of: client)
            let grant = server.authorizeDevice(client: client, scope: scope, now: now)
            let (expiresIn, interval) = (grant.lifetime.components.seconds, grant.interval.components.seconds)
            let base = configuration.baseURL
            switch configuration.profile {
            case .tidal:
                // TIDAL writes these addresses for a screen: without a scheme, which means https. Where this provider
                // has only http, the address has to say so to be of any use.
                let uri = (base.scheme == "https" ? base.authority + base.path : base.description) + "/link"
                return EndpointAnswer(
                    .json(.ok) { writer in
                        writer.member("deviceCode", grant.deviceCode)
                        writer.member("userCode", grant.userCode)
                        writer.member("verificationUri", uri)
                        writer.member("verificationUriComplete", uri + "/" + grant.userCode)
                        writer.member("expiresIn", expiresIn)
                        writer.member("interval", interval)
                    })
            case .rfc:
                let uri = base.description + "/link"
                return EndpointAnswer(
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
            return EndpointAnswer(error, configuration)
        }
    }

    /// RFC 7009 §2.
    static func revoke(
        _ request: Request, _ received: ReceivedParameters, _ server: inout AuthorizationServer, now: Int64
    ) -> EndpointAnswer {
        do {
            let parameters = try received.posted(server.configuration.profile)
            let client = try authenticate(request, parameters, server.configuration, provesItself: true)
            try server.revoke(token: parameters.required("token"), client: client, now: now)
            return EndpointAnswer(Response(.ok, fields: ["Cache-Control": "no-store"]))
        } catch {
            return EndpointAnswer(error, server.configuration)
        }
    }
}
