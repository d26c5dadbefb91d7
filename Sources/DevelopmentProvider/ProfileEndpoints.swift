import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// The endpoints of a profile that is played from its document: those of the profile `rfc`, with requests in the provider's form.
enum ProfileEndpoints {
    static func respond(
        _ translated: TranslatedRequest, at endpoint: Endpoint, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        if let refusal = translated.refusal { return EndpointResult(refusal, issuer.configuration) }
        let (request, received) = (translated.request, translated.received)
        switch endpoint {
        case .authorize:
            return AuthorizationEndpoint.respond(request, received: received, issuer: &issuer, now: now)
        case .deviceAuthorization:
            return ClientEndpoints.deviceAuthorization(request, received: received, issuer: &issuer, now: now)
        case .revoke where translated.namesNoClient: return revoke(received, issuer: &issuer, now: now)
        case .revoke: return ClientEndpoints.revoke(request, received: received, issuer: &issuer, now: now)
        default: break
        }
        guard let form = translated.ownForm else {
            return ClientEndpoints.token(request, received: received, issuer: &issuer, now: now)
        }
        return renew(received, form, issuer: &issuer, now: now)
    }

    /// A revocation in which the token alone says whose it is.
    private static func revoke(
        _ received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        do {
            let token = try received.posted(issuer.configuration.behaviour).required("token")
            if let client = issuer.client(ofToken: token) { try issuer.revoke(token: token, client: client, now: now) }
            return EndpointResult(Response(.ok, fields: ["Cache-Control": "no-store"]))
        } catch {
            return EndpointResult(error, issuer.configuration)
        }
    }

    /// A request that shows an access token for another one. What it says of the client must be right.
    private static func renew(
        _ received: ReceivedParameters, _ form: TranslatedRequest.OwnForm, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        var trace: RefreshTrace?
        var result: EndpointResult
        do {
            let parameters = try received.posted(issuer.configuration.behaviour)
            let token = try parameters.required("access_token")
            let client = issuer.client(ofToken: token)
            if let id = parameters["client_id"] ?? client.map({ WireText($0.id) }), parameters["client_secret"] != nil {
                let named = Parameters(
                    [.init(AddressTemplate.clientID, id)] + parameters.all, toleratesEqual: true)
                _ = try ClientAuthentication([:], named).client(in: issuer.configuration, requiresSecret: true)
            }
            let grant = try issuer.renew(token, form, now: now, trace: &trace)
            result = EndpointResult(
                issuer.configuration.translation?.response(to: grant, issuer.configuration, lasts: true, now: now)
                    ?? ClientEndpoints.response(to: grant, issuer.configuration))
        } catch {
            result = EndpointResult(error, issuer.configuration)
        }
        result.refresh = trace
        return result
    }
}
