import Containers
import ExternalText
import HTTPCodec
import HTTPServer
import JSON

/// Whether a provider takes an optional part of the protocol.
package enum OptionalPart: String, Sendable, CaseIterable {
    case off
    case allowed
    case required
}

/// The parameters of an authorization request that a client has pushed.
struct PushedRequest: Sendable {
    let clientID: String
    let parameters: Parameters
    let expiresAt: Int64
    /// Whether a browser has opened the login page for it. It is good for one.
    var isOpened = false
}

/// The endpoint that takes the parameters of authorization requests (RFC 9126).
enum PushedAuthorizationEndpoint {
    private static let prefix = "urn:ietf:params:oauth:request_uri:"
    private static let secrets: Set<WireText> = ["client_secret"]
    private static let reference: WireText = "request_uri"

    static func respond(
        _ request: Request, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        let configuration = issuer.configuration
        guard configuration.pushedRequests != .off else {
            return EndpointResult(.problem(.notFound, "There is no such path."))
        }
        do throws(OAuthError) {
            let posted = try received.posted(configuration.behaviour)
            let client = try ClientEndpoints.authenticate(
                request, parameters: posted, issuer: &issuer, now: now, requiresSecret: true)
            guard posted[reference] == nil else {
                throw OAuthError(.invalidRequest, "A pushed request must not name another one")
            }
            let parameters = Parameters(posted.all.filter { !secrets.contains($0.name) }, toleratesEqual: false)
            do throws(ReceivedAuthorizationRequest.Refusal) {
                let read = try ReceivedAuthorizationRequest(parameters, configuration)
                guard read.client.id == client.id else {
                    throw .page("The request is of another client")
                }
            } catch {
                switch error {
                case .page(let text): throw OAuthError(.invalidRequest, text)
                case .redirect(_, _, _, let description): throw OAuthError(.invalidRequest, description)
                }
            }
            let uri = prefix + Secrets.make("par_")
            let lifetime = configuration.pushedRequestLifetime
            issuer.pushedRequests[Secrets.digest(uri)] = PushedRequest(
                clientID: client.id, parameters: parameters, expiresAt: TokenIssuer.time(now, lifetime))
            return EndpointResult(
                .json(.created) { writer in
                    writer.member("request_uri", uri)
                    writer.member("expires_in", lifetime.components.seconds)
                })
        } catch {
            return EndpointResult(error, configuration)
        }
    }

    /// The parameters of a request to the authorization endpoint: the pushed ones, where it names them.
    /// - Parameter opens: whether a browser opens the login page.
    /// - Returns: nil where the request must not be shown to a user.
    static func resolve(
        _ parameters: Parameters, opens: Bool, issuer: inout TokenIssuer, now: Int64
    ) -> Parameters? {
        let use = issuer.configuration.pushedRequests
        guard use != .off, let uri = parameters[reference] else { return use == .required ? nil : parameters }
        let digest = Secrets.digest(uri.text)
        guard var pushed = issuer.pushedRequests[digest], now < pushed.expiresAt || !opens,
            parameters["client_id"] == WireText(pushed.clientID), pushed.isOpened != opens
        else { return nil }
        pushed.isOpened = true
        issuer.pushedRequests[digest] = pushed
        return pushed.parameters
    }
}
