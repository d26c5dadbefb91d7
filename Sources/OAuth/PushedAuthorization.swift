import Cryptography
package import ExternalText
package import HTTPCodec
import JSON

/// When the parameters of an authorization request go to the provider by themselves, before the browser does (RFC 9126).
package enum PushedAuthorizationUse: String, Sendable, CaseIterable {
    /// Always. A login does not begin without it.
    case required
    /// Where an endpoint for it is known. A login begins without it where that endpoint does not take the request, unless the
    /// provider's metadata require it.
    case whenAnnounced = "when_announced"
}

/// The endpoint that takes the parameters of authorization requests (RFC 9126).
package struct PushedAuthorization: Sendable, Equatable {
    package let endpoint: String
    /// Whether no login begins without it, by the tenant's or the profile's word or the provider's metadata.
    package let isRequired: Bool

    private static let clientID: WireText = "client_id"

    package init(endpoint: String, isRequired: Bool) {
        self.endpoint = endpoint
        self.isRequired = isRequired
    }

    /// The parameters that are pushed (RFC 9126 §2.1): those of the authorization request, with the client's authentication as at
    /// the token endpoint, and the value of `Authorization` if the client authenticates with that header.
    /// - Parameter parameters: those of the authorization request, by the provider's names.
    package static func form(
        _ parameters: [FormEncoding.Pair], for client: ClientConfiguration, at server: AuthorizationServer
    ) -> (pairs: [FormEncoding.Pair], authorization: String?) {
        var own: [FormEncoding.Pair] = []
        let authorization = ClientAuthenticator.authenticate(
            client, by: server.clientAuthentication, at: server, into: &own)
        // The identifier is one of the authorization request's parameters already.
        own.removeAll { $0.name == Self.clientID }
        return (parameters + server.shape.named(own), authorization)
    }
}

/// The answer to a pushed authorization request (RFC 9126 §2.2).
package struct PushedAuthorizationResponse: Sendable, Equatable {
    /// What stands for the parameters. Good for one login page, at most for `lifetime`.
    package let requestURI: WireText
    /// At least one second.
    package let lifetime: Duration

    /// The longest `request_uri`, in bytes.
    package static let longestURI = 2048

    /// Nil when `body` has no `request_uri` that can be sent on, or no lifetime.
    package init?(body: [UInt8]) {
        guard let json = try? JSONValue(parsing: body), let uri = json["request_uri"]?.string,
            (1...Self.longestURI).contains(uri.count), uri.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f }),
            let seconds = json["expires_in"]?.wholeSeconds(.down), seconds > 0
        else { return nil }
        requestURI = uri
        lifetime = .seconds(min(seconds, TokenResponse.longestLifetimeSeconds))
    }
}

extension AuthorizationServer {
    /// The address of the authorization endpoint with these parameters.
    package func authorizationURI(with parameters: [FormEncoding.Pair]) -> String {
        prefix + FormEncoding.encode(parameters)
    }

    /// The address for the browser after the parameters were pushed (RFC 9126 §4).
    package func authorizationURI(
        of client: ClientConfiguration, referringTo pushed: PushedAuthorizationResponse
    ) -> String {
        authorizationURI(
            with: shape.named([.init("client_id", client.clientID), .init("request_uri", pushed.requestURI)]))
    }

    /// The parameters of an address that `authorizationURI(with:)` has made; nil for another address.
    package func parameters(of authorizationURI: String) -> [FormEncoding.Pair]? {
        let uri = WireText(authorizationURI)
        guard uri.starts(with: WireText(prefix)) else { return nil }
        let query = Array(uri.utf8.dropFirst(prefix.utf8.count))
        return try? FormEncoding.decode(query.span, limits: FormEncoding.Limits(pairs: .max, nameBytes: .max))
    }

    /// RFC 6749 §3.1: a query that the endpoint has already is kept.
    private var prefix: String {
        authorizationEndpoint + (WireText(authorizationEndpoint).contains("?") ? "&" : "?")
    }
}
