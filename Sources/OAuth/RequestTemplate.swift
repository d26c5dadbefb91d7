import Cryptography
package import ExternalText
package import HTTPCodec
import JSON

/// A request for tokens that has a form of the provider's own: which parameters it has, and how and where it is sent.
package struct RequestTemplate: Sendable, Equatable {
    package enum Method: String, Sendable, CaseIterable {
        /// The parameters are the query.
        case get = "GET"
        /// The parameters are a form.
        case post = "POST"
    }

    package struct Parameter: Sendable, Equatable {
        package let name: WireText
        /// A text, in which `{access_token}` and the other placeholders stand for their values.
        package let value: WireText
        let template: AddressTemplate
    }

    /// What may stand in a parameter.
    package enum Placeholder: String, Sendable, CaseIterable {
        case accessToken = "access_token"
        case refreshToken = "refresh_token"
        case clientID = "client_id"
        case clientSecret = "client_secret"
        case scope
    }

    /// Nil for the token endpoint.
    package var endpoint: AddressTemplate?
    /// Nil where it is not said; then `POST`.
    package var method: Method?
    /// In the order of their names; nil where they are not said.
    package var parameters: [Parameter]?

    /// - Parameter endpoint: reads the member `endpoint`.
    package init(_ reader: inout ObjectReader, endpoint: (inout ObjectReader) -> AddressTemplate?) {
        self.endpoint = endpoint(&reader)
        method = reader.choice("method", Method.self)
        guard let texts = reader.stringMap("parameters", atMost: 16) else { return }
        if texts.isEmpty { reader.note("parameters", "must not be empty") }
        parameters = texts.sorted { $0.key < $1.key }.compactMap { name, value in
            guard AuthorizationRequest.isCustomParameterName(name) else {
                reader.note("parameters", member: name, "must have a name of 1 to 64 letters, digits, - and _")
                return nil
            }
            guard value.count <= 1024, let template = AddressTemplate(value),
                template.names.allSatisfy({ Placeholder($0) != nil })
            else {
                reader.note(
                    "parameters", member: name,
                    "must be a text of 1024 bytes at most, in which only "
                        + Placeholder.allCases.map { "{\($0.rawValue)}" }.joined(separator: ", ")
                        + " stand for values")
                return nil
            }
            return Parameter(name: name, value: value, template: template)
        }
    }

    /// This request, with what a tenant says of it in place of what it says itself.
    package static func merged(_ request: RequestTemplate?, _ own: RequestTemplate?) -> RequestTemplate? {
        guard var merged = request else { return own }
        guard let own else { return request }
        merged.endpoint = own.endpoint ?? merged.endpoint
        merged.method = own.method ?? merged.method
        merged.parameters = own.parameters ?? merged.parameters
        return merged
    }

    /// Whether a parameter has that value.
    package func has(_ placeholder: Placeholder) -> Bool {
        parameters?.contains { $0.template.names.contains(WireText(placeholder.rawValue)) } ?? false
    }

    /// Whether an access token takes the place of a refresh token.
    package var usesAccessToken: Bool { has(.accessToken) && !has(.refreshToken) }

    /// The parameters with their values. One that has a placeholder without a value is left out.
    func filled(_ value: (Placeholder) -> String?) -> [FormEncoding.Pair] {
        (parameters ?? []).compactMap { parameter in
            parameter.template.filled(joiningSlashes: false) { Placeholder($0).flatMap(value) }
                .map { FormEncoding.Pair(parameter.name, WireText($0)) }
        }
    }

    func encode(to json: inout JSONWriter) {
        json.object { json in
            json.memberIfPresent("endpoint", endpoint?.text)
            json.memberIfPresent("method", method?.rawValue)
            guard let parameters else { return }
            json.name("parameters")
            json.object { json in
                for parameter in parameters { json.member(parameter.name.text, parameter.value.text) }
            }
        }
    }
}

extension MemberRule where Value == RequestTemplate {
    /// A request in a form of the provider's own.
    /// - Parameter endpoint: what the member `endpoint` has to be.
    package static func template(endpoint: MemberRule<String, Context>) -> MemberRule {
        MemberRule { reader, name, context in
            reader.object(name) { reader in
                RequestTemplate(&reader) { reader in
                    endpoint.read(&reader, "endpoint", context).flatMap { AddressTemplate(WireText($0)) }
                }
            }
        } write: {
            $0.encode(to: &$1)
        }
    }
}

/// The requests of a provider that have forms of its own, with the addresses that a tenant uses. Immutable; an object, since few
/// providers have any.
package final class OwnRequests: Sendable, Equatable {
    package struct Form: Sendable, Equatable {
        package let address: String
        package let template: RequestTemplate

        package init(address: String, template: RequestTemplate) {
            (self.address, self.template) = (address, template)
        }
    }

    /// Takes the place of RFC 6749's refresh; nil where that is made.
    package let refresh: Form?
    /// Exchanges the token of a login for one that lives longer; nil where there is none.
    package let exchange: Form?

    /// Nil where there is no such request.
    package init?(refresh: Form?, exchange: Form?) {
        if refresh == nil, exchange == nil { return nil }
        (self.refresh, self.exchange) = (refresh, exchange)
    }

    /// Whether refreshes present the access token, which takes the place of a refresh token.
    package var refreshesByAccessToken: Bool { refresh?.template.usesAccessToken ?? false }

    package static func == (left: OwnRequests, right: OwnRequests) -> Bool {
        left === right || left.refresh == right.refresh && left.exchange == right.exchange
    }
}

extension TokenRequest {
    /// A request in a form of the provider's own.
    package struct OwnForm {
        package let address: String
        package let format: ProviderPreset.TokenRequestFormat
        package let pairs: [FormEncoding.Pair]
    }

    /// The request in the provider's own form; nil where it has none for it.
    package func ownForm(for client: ClientConfiguration, at server: AuthorizationServer) -> OwnForm? {
        guard let own = server.own else { return nil }
        let tokens: (access: SecretBytes, refresh: SecretBytes)
        let form: OwnRequests.Form?
        switch self {
        case .refresh(let refresh, let access): (form, tokens) = (own.refresh, (access ?? refresh, refresh))
        case .exchange(let access, let refresh): (form, tokens) = (own.exchange, (access, refresh))
        default: return nil
        }
        guard let form else { return nil }
        let pairs = form.template.filled { placeholder in
            switch placeholder {
            case .accessToken: tokens.access.revealedText
            case .refreshToken: tokens.refresh.revealedText
            case .clientID: client.clientID.text
            case .clientSecret: client.clientSecret?.revealedText
            case .scope: client.scopes.isEmpty ? nil : server.shape.scope(client.scopes)
            }
        }
        return OwnForm(
            address: form.address, format: form.template.method == .get ? .query : .form, pairs: pairs)
    }
}
