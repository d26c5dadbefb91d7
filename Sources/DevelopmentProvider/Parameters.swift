import ExternalText
import HTTPCodec
import HTTPServer

/// The received parameters of a request, separately for the URL and the body.
struct ReceivedParameters: Sendable {
    /// Nil when the query is malformed or exceeds the limits of `FormEncoding`.
    let query: [FormEncoding.Pair]?
    /// Nil when the form is malformed or exceeds the limits; empty without a form.
    let form: [FormEncoding.Pair]?
    let hasForm: Bool
}

extension ReceivedParameters {
    init(_ request: Request) {
        query = Self.decode((request.query ?? "").utf8.span)
        hasForm = MediaType(request.fields["Content-Type"] ?? "").name == "application/x-www-form-urlencoded"
        form = hasForm ? Self.decode(request.body.span) : []
    }

    private static func decode(_ text: Span<UInt8>) -> [FormEncoding.Pair]? {
        do {
            return try FormEncoding.decode(text)
        } catch {
            return nil
        }
    }

    /// The parameters of a POST to the token, device authorization or revocation endpoint.
    func posted(_ behaviour: ProviderBehaviour) throws(OAuthError) -> Parameters {
        guard hasForm || behaviour.takesQueryAlone else {
            throw OAuthError(.invalidRequest, "The content type is not application/x-www-form-urlencoded")
        }
        let tolerates = behaviour.toleratesEqualParameters
        let parameters: Parameters
        switch behaviour.parameterPlaces {
        case .form:
            guard let query, let form else { throw OAuthError(.invalidRequest, "Malformed parameters") }
            if query.contains(where: { Parameters.names.contains($0.name) }) {
                throw OAuthError(.invalidRequest, "Parameters belong in the body, not in the URL")
            }
            parameters = Parameters(form, toleratesEqual: tolerates)
        case .formOrQuery:
            guard let query, let form else { throw OAuthError(.invalidRequest, "Malformed parameters") }
            parameters = Parameters(query + form, toleratesEqual: tolerates)
        case .queryAgainInForm:
            let fromQuery = Parameters(query ?? [], toleratesEqual: tolerates)
            guard query != nil, form != nil || !fromQuery.isEmpty else {
                throw OAuthError(.invalidRequest, "Malformed parameters")
            }
            parameters = fromQuery.adding(Parameters(form ?? [], toleratesEqual: tolerates))
        }
        try parameters.refuseRepeated()
        return parameters
    }
}

/// Parameters by name. A parameter without a value counts as absent (RFC 6749 §3.1).
struct Parameters: Sendable {
    /// The parameters that a client sends to the token, device authorization or revocation endpoint.
    static let names: Set<WireText> = [
        "grant_type", "code", "redirect_uri", "code_verifier", "client_id", "client_secret", "client_unique_key",
        "refresh_token", "scope", "device_code", "token", "token_type_hint",
    ]

    /// The parameters whose values must not be logged.
    static let secretNames: Set<WireText> = [
        "code", "code_verifier", "client_secret", "refresh_token", "device_code", "token", "access_token", "id_token",
        "state", "nonce", "password", "jwt", "x_app2app_device_key_jwt", "client_assertion", "assertion",
        "subject_token", "actor_token",
    ]

    /// In the order of the request, each name once.
    private(set) var all: [FormEncoding.Pair] = []
    /// The names that occurred more than once.
    private(set) var repeated: Set<WireText> = []
    private var values: [WireText: WireText] = [:]

    /// - Parameter toleratesEqual: whether repetitions with the same value are accepted, because some clients send
    ///   them.
    init(_ pairs: [FormEncoding.Pair], toleratesEqual: Bool) {
        for pair in pairs where !pair.value.isEmpty {
            if let earlier = values[pair.name] {
                if !toleratesEqual || earlier != pair.value { repeated.insert(pair.name) }
            } else {
                values[pair.name] = pair.value
                all.append(pair)
            }
        }
    }

    var isEmpty: Bool { all.isEmpty }

    subscript(_ name: WireText) -> WireText? { values[name] }

    /// These parameters, and those of `other` whose names are not among them.
    func adding(_ other: Parameters) -> Parameters {
        var result = self
        for pair in other.all where values[pair.name] == nil {
            result.values[pair.name] = pair.value
            result.all.append(pair)
        }
        result.repeated.formUnion(other.repeated.filter { values[$0] == nil })
        return result
    }

    func refuseRepeated() throws(OAuthError) {
        guard repeated.isEmpty else { throw OAuthError(.invalidRequest, "A parameter occurs more than once") }
    }

    /// - Throws: `invalid_scope`.
    func scope() throws(OAuthError) -> [String]? {
        guard let text = self["scope"] else { return nil }
        guard let scopes = TokenIssuer.scopes(text) else {
            throw OAuthError(.invalidScope, "The scope is malformed")
        }
        return scopes
    }

    func required(_ name: WireText) throws(OAuthError) -> WireText {
        guard let value = self[name] else { throw OAuthError(.invalidRequest, name.text + " is missing") }
        return value
    }
}
