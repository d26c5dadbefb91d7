import ExternalText
import HTTPCodec
import HTTPServer
import JSON

import struct OAuth.Timestamp

/// The endpoints of the authgear profile that the other profiles do not have, and its token endpoint.
enum AuthgearEndpoints {
    /// The answer of an endpoint that is part of this flow; nil for another one.
    static func respond(
        _ request: Request, at endpoint: Endpoint, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult? {
        switch endpoint {
        case .token: token(request, received: received, issuer: &issuer, now: now)
        case .challenge: challenge(request, issuer: &issuer, now: now)
        case .userInfo: userInfo(request, issuer: issuer, now: now)
        case .assetLinks: LinkFileEndpoints.assetLinks(issuer.configuration)
        case .appleAssociation: LinkFileEndpoints.appleAssociation(issuer.configuration)
        default: nil
        }
    }

    // MARK: Token

    private static func token(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        var trace: RefreshTrace?
        var result: EndpointResult
        do {
            result = EndpointResult(
                try answer(request, received: received, issuer: &issuer, now: now, trace: &trace))
        } catch {
            result = EndpointResult(error, issuer.configuration)
        }
        result.refresh = trace
        return result
    }

    private static func answer(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64,
        trace: inout RefreshTrace?
    ) throws(OAuthError) -> Response {
        let source = WireText("\(request.source)")
        if issuer.configuration.limitsTokenRequests, !issuer.apps.admit(address: source, now: now) {
            throw TokenIssuer.rateLimited
        }
        let configuration = issuer.configuration
        let parameters = try received.posted(configuration.behaviour)
        let authentication = ClientAuthentication(request, parameters, configuration.behaviour)
        guard let client = authentication.clientID.flatMap(configuration.client) else {
            throw OAuthError(.invalidClient, "invalid client ID")
        }
        guard let grant = parameters["grant_type"].flatMap({ GrantType($0) }), configuration.grants.contains(grant)
        else {
            throw OAuthError(.unsupportedGrantType, "grant type is not supported")
        }
        switch grant {
        case .authorizationCode:
            return ClientEndpoints.response(
                to: try issuer.redeemApp(parameters, authentication, client: client, now: now), configuration)
        case .refreshToken:
            try authentication.checkSecret(of: client)
            let grant = try issuer.refresh(
                parameters.required("refresh_token"), client: client, scope: parameters.scope(), now: now,
                trace: &trace)
            return ClientEndpoints.response(to: grant, configuration)
        case .appToApp, .appToAppRequest:
            let code = try issuer.approveApp(parameters, target: client, now: now)
            return .json(.ok) { $0.member("code", code) }
        case .biometric:
            try authentication.checkSecret(of: client)
            return try biometric(request, parameters, client, issuer: &issuer, now: now)
        case .clientCredentials, .deviceCode, .updateClient:
            throw OAuthError(.unsupportedGrantType, "grant type is not supported")
        }
    }

    private enum BiometricAction: String, CaseIterable {
        case setUp = "setup"
        case authenticate
        case authenticateAppToApp = "authenticate_app2app"
    }

    private static func biometric(
        _ request: Request, _ parameters: Parameters, _ client: ProviderClient, issuer: inout TokenIssuer, now: Int64
    ) throws(OAuthError) -> Response {
        guard let jwt = parameters["jwt"] else { throw OAuthError(.invalidRequest, "jwt is required") }
        guard let proof = AppKeyProof(jwt, .biometric, now: now) else { throw TokenIssuer.credentials }
        guard let action = proof.action.flatMap({ BiometricAction($0) }) else {
            let shown = (proof.action ?? "").utf8.prefix(64).filter(\.isUnreserved)
            throw OAuthError(.invalidRequest, "invalid action: " + String(decoding: shown, as: UTF8.self))
        }
        switch action {
        case .setUp:
            try issuer.setUpBiometric(proof, bearer: bearer(request), client: client, now: now)
            return Response(.ok, fields: ["Cache-Control": "no-store", "Pragma": "no-cache"])
        case .authenticate:
            let login = try issuer.logInBiometric(proof, client: client, scope: parameters.scope(), now: now)
            return ClientEndpoints.response(to: login.grant, issuer.configuration)
        case .authenticateAppToApp:
            guard client.allowsAppToApp else { throw TokenIssuer.notAllowed }
            guard let targetID = proof.clientID else { throw OAuthError(.invalidRequest, "client id is required") }
            guard let target = issuer.configuration.client(targetID) else {
                throw OAuthError(.invalidClient, "invalid client ID")
            }
            let destination = try issuer.destination(parameters, target)
            let login = try issuer.logInBiometric(
                proof, client: client, scope: parameters.scope(), target: (target, destination), now: now)
            return ClientEndpoints.response(to: login.grant, issuer.configuration, code: login.code)
        }
    }

    /// The token of an `Authorization` field (RFC 6750 §2.1).
    private static func bearer(_ request: Request) -> WireText? {
        let credentials = (request.fields["Authorization"] ?? "").split(at: " ", limit: 2)
        guard credentials.count == 2, credentials[0].equalsIgnoringCase("Bearer") else { return nil }
        return credentials[1]
    }

    // MARK: Challenges

    private static func challenge(_ request: Request, issuer: inout TokenIssuer, now: Int64) -> EndpointResult {
        guard MediaType(request.fields["Content-Type"] ?? "").name == "application/json",
            let members = (try? JSONValue(parsing: request.body))?.object
        else { return invalid("the body is not a JSON object", kind: "type") }
        guard let purpose = members["purpose"] else { return invalid("purpose is missing", kind: "required") }
        guard members.count == 1 else {
            return invalid("there are other members than purpose", kind: "additionalProperties")
        }
        guard let purpose = purpose.string.flatMap({ AppDirectory.Purpose($0) }) else {
            return invalid("unknown challenge purpose", kind: "general", at: "/purpose")
        }
        let challenge = issuer.apps.issueChallenge(for: purpose, now: now)
        return EndpointResult(
            .json(.ok) { writer in
                writer.name("result")
                writer.object { writer in
                    writer.member("token", challenge.token)
                    writer.member("expire_at", Timestamp(milliseconds: challenge.expiresAt).description)
                }
            })
    }

    private static func invalid(_ message: String, kind: String, at location: String = "") -> EndpointResult {
        EndpointResult(
            .json(.badRequest) { writer in
                writer.name("error")
                writer.object { writer in
                    writer.member("name", "Invalid")
                    writer.member("reason", "ValidationFailed")
                    writer.member("message", message)
                    writer.member("code", 400)
                    writer.name("info")
                    writer.object { writer in
                        writer.name("causes")
                        writer.array { writer in
                            writer.object { writer in
                                writer.member("location", location)
                                writer.member("kind", kind)
                            }
                        }
                    }
                }
            }, error: "ValidationFailed")
    }

    // MARK: User info

    private static func userInfo(_ request: Request, issuer: borrowing TokenIssuer, now: Int64) -> EndpointResult {
        guard let bearer = bearer(request), let token = issuer.introspect(accessToken: bearer.text, now: now),
            let user = token.user
        else {
            var response = Response(.unauthorized, fields: ["Cache-Control": "no-store"])
            response.fields.set("WWW-Authenticate", #"Bearer error="invalid_token""#)
            return EndpointResult(response, error: "invalid_token")
        }
        return EndpointResult(
            .json(.ok) { writer in
                writer.member("sub", String(user.id))
                writer.member("preferred_username", user.name)
                writer.memberIfPresent("email", user.email)
            })
    }
}
