package import HTTPCodec

/// The request that begins a device login (RFC 8628 §3.1).
package enum DeviceAuthorizationRequest {
    /// The form to send, and the value of `Authorization` if the client authenticates with that header. The client
    /// authenticates in the same way as at the token endpoint.
    package static func form(
        for client: ClientConfiguration, at server: AuthorizationServer
    ) -> (pairs: [FormEncoding.Pair], authorization: String?) {
        var pairs: [FormEncoding.Pair] = []
        let scopes = server.asked?.scopes ?? client.scopes
        if !scopes.isEmpty { pairs.append(.init("scope", server.shape.scope(scopes))) }
        if let asked = server.asked { pairs += asked.pairs }
        let authorization = ClientAuthenticator.authenticate(
            client, by: server.clientAuthentication, at: server, into: &pairs)
        return (server.shape.named(pairs), authorization)
    }
}
