import Cryptography
package import ExternalText
package import HTTPCodec
import JSON

/// How a provider revokes tokens whose endpoint is not as RFC 7009 describes it. A provider without one is asked by RFC 7009.
package struct RevocationShape: Sendable, Equatable {
    package enum RequestMethod: String, Sendable, CaseIterable {
        case post = "POST"
        case delete = "DELETE"
    }

    /// What the body is.
    package enum Format: String, Sendable, CaseIterable {
        case form, json, none
    }

    /// Where the token stands.
    package enum Place: String, Sendable, CaseIterable {
        case body
        /// `Authorization`, so that the client is not named. With the scheme `DPoP` for a token that is bound to a key.
        case bearer
        case query
    }

    package enum TokenKind: String, Sendable, CaseIterable {
        case access
        /// The access token where there is no refresh token.
        case refresh
    }

    package var method = RequestMethod.post
    package var format = Format.form
    package var place = Place.body
    /// Nil for the refresh token, and for the access token where there is none or where the token is a bearer token.
    package var kind: TokenKind?
    /// How the client authenticates; nil for as elsewhere.
    package var authentication: ProviderPreset.ClientAuthentication?
    /// The provider's names of `token`, `client_id` and `client_secret`, where they are others than in token requests.
    package var names: [WireText: WireText] = [:]

    private static let renamable: Set<WireText> = ["token", "client_id", "client_secret"]

    /// Reads the members, and notes what does not fit.
    package init(_ reader: inout ObjectReader) {
        method = reader.choice("method", RequestMethod.self) ?? .post
        format = reader.choice("format", Format.self) ?? .form
        place = reader.choice("token_in", Place.self) ?? .body
        kind = reader.choice("token", TokenKind.self)
        authentication = reader.choice("auth_method", ProviderPreset.ClientAuthentication.self)
        names = reader.stringMap("parameter_names", atMost: Self.renamable.count) ?? [:]
        for (name, other) in names {
            if !Self.renamable.contains(name) {
                reader.note("parameter_names", member: name, "is not a parameter of a revocation")
            } else if !AuthorizationRequest.isCustomParameterName(other) {
                reader.note("parameter_names", member: name, "must have 1 to 64 letters, digits, - and _")
            }
        }
        if place == .body, format == .none { reader.note("token_in", "needs a format other than none") }
    }

    func encode(to json: inout JSONWriter) {
        json.object { json in
            json.member("method", method.rawValue)
            json.member("format", format.rawValue)
            json.member("token_in", place.rawValue)
            json.memberIfPresent("token", kind?.rawValue)
            json.memberIfPresent("auth_method", authentication?.rawValue)
            if !names.isEmpty {
                json.name("parameter_names")
                json.object { json in
                    for (name, other) in names.sorted(by: { $0.key < $1.key }) { json.member(name.text, other.text) }
                }
            }
        }
    }

    /// What a request has.
    package struct Request {
        package let query: [FormEncoding.Pair]
        package let body: [FormEncoding.Pair]
        /// The value of `Authorization`; nil for none.
        package let authorization: String?
    }

    private func showsAccess(of held: HeldCredentials) -> Bool {
        kind == .access || kind == nil && place == .bearer || held.refreshToken == nil
    }

    /// Whether the request has an access token in `Authorization` that is bound to a key, which it proves then (RFC 9449 §7.1).
    package func bearsBoundToken(of held: HeldCredentials) -> Bool {
        place == .bearer && showsAccess(of: held) && held.proofKey?.bindsToken == true
    }

    /// The request that revokes credentials.
    /// - Parameter server: with the method by which the client authenticates.
    package func request(
        for held: HeldCredentials, of client: ClientConfiguration, at server: AuthorizationServer
    ) -> Request {
        let text = (showsAccess(of: held) ? held.accessToken : held.refreshToken ?? held.accessToken).revealedText
        if place == .bearer {
            let scheme = bearsBoundToken(of: held) ? "DPoP " : "Bearer "
            return Request(query: [], body: [], authorization: scheme + text)
        }
        var server = server
        // Such an endpoint takes what it documents, and no identifier beside the one in the header.
        server.repeatsClientID = false
        var clientPairs: [FormEncoding.Pair] = []
        let authorization = ClientAuthenticator.authenticate(
            client, by: server.revocationAuthentication, at: server, into: &clientPairs)
        let token = [FormEncoding.Pair("token", text)]
        return Request(
            query: place == .query ? named(token, server) : [],
            body: format == .none ? [] : named((place == .body ? token : []) + clientPairs, server),
            authorization: authorization)
    }

    private func named(_ pairs: [FormEncoding.Pair], _ server: AuthorizationServer) -> [FormEncoding.Pair] {
        pairs.map { pair in
            .init(names[pair.name] ?? server.shape.names[pair.name] ?? pair.name, pair.value)
        }
    }
}

extension MemberRule where Value == RevocationShape {
    package static var revocation: MemberRule {
        MemberRule { reader, name, _ in
            reader.object(name) { RevocationShape(&$0) }
        } write: {
            $0.encode(to: &$1)
        }
    }
}
