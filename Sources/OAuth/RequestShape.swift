package import ExternalText
package import HTTPCodec

/// Whether a login is protected by RFC 7636.
package enum PKCEUse: String, Sendable, CaseIterable {
    case required
    /// Sent, except where the provider's metadata lists the methods that it knows, and S256 is not among them.
    case allowed
    /// The provider refuses its parameters, or takes them for a statement that the client is a public one.
    case forbidden
}

/// Whether authorization requests have a nonce (OpenID Connect Core §3.1.2.1).
package enum NonceUse: String, Sendable, CaseIterable {
    case on, off
}

/// What stands between the scopes of a request.
package enum ScopeSeparator: String, Sendable, CaseIterable {
    case space = " "
    case comma = ","
}

/// What the requests to a provider have beside what the RFCs say. Immutable; an object, so that each call passes one reference on.
package final class RequestShape: Sendable {
    /// What a tenant says of it. A member that is nil or empty means what the profile says.
    package struct Own: Sendable, Equatable {
        package var pkce: PKCEUse?
        package var authorizeParameters: [WireText: WireText] = [:]
        package var tokenParameters: [WireText: WireText] = [:]
        package var refreshParameters: [WireText: WireText] = [:]
        /// Scopes of the other kind, for a provider that has two.
        package var userScopes: ScopeSet = .empty
        package var resources: [WireText] = []
        package var audience: WireText?
        package var nonce: NonceUse?
        package var omitsEmpty: Bool?
        package var repeatsScopes: Bool?
        package var revocation: RevocationShape?
        package var assertionAudience: AssertionAudience?

        package init() {}
    }

    /// Sent with each authorization request, in the order of their names.
    package let authorizeParameters: [FormEncoding.Pair]
    /// Sent with each exchange of a code.
    package let tokenParameters: [FormEncoding.Pair]
    /// Sent with each refresh.
    package let refreshParameters: [FormEncoding.Pair]
    /// Sent with each request to the token endpoint.
    package let tokenHeaders: RequestHeaders
    /// The provider's names of parameters, by the names of RFC 6749. Usually empty.
    package let names: [WireText: WireText]
    package let scopeSeparator: ScopeSeparator
    package let pkce: PKCEUse
    /// The parameter for scopes of the other kind; nil where the provider has one kind.
    package let userScopeParameter: WireText?
    package let userScopes: ScopeSet
    /// What grants are asked for where the login names nothing else; nil for the client's scopes alone.
    package let asked: AskedGrant?
    /// Nil for a nonce where an ID token is asked for.
    package let nonce: NonceUse?
    /// Whether parameters without a value are left out.
    package let omitsEmpty: Bool
    /// Whether the code exchange, the refresh and the device poll repeat the scopes. RFC 6749 defines no scope in the exchange,
    /// and an absent scope in a refresh means the granted scopes.
    package let repeatsScopes: Bool
    /// Nil for RFC 7009.
    package let revocation: RevocationShape?
    /// The name of the code in the callback.
    package let codeName: WireText
    /// The `aud` of the JWTs by which clients authenticate.
    package let assertionAudience: AssertionAudience

    init(_ reader: inout ObjectReader) {
        authorizeParameters = Self.pairs(Self.parameters(&reader, "authorize_parameters"))
        tokenParameters = Self.pairs(Self.parameters(&reader, "token_parameters"))
        refreshParameters = Self.pairs(Self.parameters(&reader, "refresh_parameters"))
        let headers = reader.stringMap("token_headers", atMost: RequestHeaders.most) ?? [:]
        for (name, value) in headers {
            if let fault = RequestHeaders.fault(name, value) { reader.note("token_headers", member: name, fault) }
        }
        tokenHeaders = RequestHeaders(headers)
        names = reader.stringMap("parameter_names", atMost: 16) ?? [:]
        for name in names.keys where !Self.renamable.contains(name) {
            reader.note("parameter_names", member: name, "is not a parameter that has another name")
        }
        scopeSeparator =
            reader.value("scope_separator", rule: "must be a space or a comma", { ScopeSeparator($0) }) ?? .space
        pkce = reader.choice("pkce", PKCEUse.self) ?? .required
        userScopeParameter = reader.string("user_scope_parameter")
        userScopes = .empty
        let resources = AskedGrant.resources(&reader)
        asked = AskedGrant(resources: resources, audience: AskedGrant.audience(&reader))
        nonce = reader.choice("nonce", NonceUse.self)
        omitsEmpty = reader.bool("omit_empty") ?? false
        repeatsScopes = reader.bool("repeat_scope") ?? false
        revocation = reader.object("revocation") { RevocationShape(&$0) }
        codeName = reader.string("callback_parameter") ?? "code"
        assertionAudience = reader.choice("client_assertion_audience", AssertionAudience.self) ?? .issuer
    }

    private init(_ shape: RequestShape, _ own: Own) {
        authorizeParameters = Self.merged(shape.authorizeParameters, own.authorizeParameters)
        tokenParameters = Self.merged(shape.tokenParameters, own.tokenParameters)
        refreshParameters = Self.merged(shape.refreshParameters, own.refreshParameters)
        tokenHeaders = shape.tokenHeaders
        names = shape.names
        scopeSeparator = shape.scopeSeparator
        pkce = own.pkce ?? shape.pkce
        userScopeParameter = shape.userScopeParameter
        userScopes = own.userScopes
        asked = AskedGrant(
            resources: own.resources.isEmpty ? shape.asked?.resources ?? [] : own.resources,
            audience: own.audience ?? shape.asked?.audience)
        nonce = own.nonce ?? shape.nonce
        omitsEmpty = own.omitsEmpty ?? shape.omitsEmpty
        repeatsScopes = own.repeatsScopes ?? shape.repeatsScopes
        revocation = own.revocation ?? shape.revocation
        codeName = shape.codeName
        assertionAudience = own.assertionAudience ?? shape.assertionAudience
    }

    /// This shape with what a tenant says.
    package func replaced(by own: Own) -> RequestShape { own == Own() ? self : RequestShape(self, own) }

    package func scope(_ scopes: ScopeSet) -> String { scopes.values.joined(separator: scopeSeparator.rawValue) }

    /// The parameters by the provider's names, without those that are not sent.
    func named(_ pairs: [FormEncoding.Pair]) -> [FormEncoding.Pair] {
        let sent = omitsEmpty ? pairs.filter { !$0.value.isEmpty } : pairs
        return names.isEmpty ? sent : sent.map { .init(names[$0.name] ?? $0.name, $0.value) }
    }

    private static func pairs(_ parameters: [WireText: WireText]) -> [FormEncoding.Pair] {
        parameters.sorted { $0.key < $1.key }.map { .init($0.key, $0.value) }
    }

    private static func merged(
        _ pairs: [FormEncoding.Pair], _ own: [WireText: WireText]
    ) -> [FormEncoding.Pair] {
        if own.isEmpty { return pairs }
        return Self.pairs(Dictionary(pairs.map { ($0.name, $0.value) }, uniquingKeysWith: { $1 }).merging(own) { $1 })
    }

    // MARK: Parameters that are configured

    private static let renamable: Set<WireText> = [
        "client_id", "client_secret", "redirect_uri", "scope", "code", "refresh_token", "code_verifier", "grant_type",
        "response_type", "state",
    ]

    /// What the broker writes itself, and what would have it ask for something else than it reads, or bind a grant to a key that
    /// it does not have (`dpop_jkt`, RFC 9449 §10).
    private static let reserved: Set<WireText> = [
        "response_type", "redirect_uri", "client_id", "client_secret", "client_assertion", "client_assertion_type",
        "scope", "code_challenge_method", "code_challenge", "code_verifier", "code", "state", "nonce", "grant_type",
        "refresh_token", "device_code", "response_mode", "request", "request_uri", "dpop_jkt", "client_unique_key",
    ]

    /// The names that a parameter of a caller's must not have: beside those of `reserved`, what has a member of its own in the
    /// request, and what would extend what is asked for (`claims`, OpenID Connect Core §5.5; `authorization_details`, RFC 9396).
    package static let reservedForCallers = reserved.union([
        "lang", "language", "ui_locales", "email", "login_hint", "resource", "authorization_details", "claims",
        "registration",
    ])

    /// Reads parameters that are sent with each request of a kind, and notes those that may not be.
    package static func parameters(_ reader: inout ObjectReader, _ member: WireText) -> [WireText: WireText] {
        let parameters = reader.stringMap(member) ?? [:]
        for (name, value) in parameters {
            if reserved.contains(name) {
                reader.note(
                    member, member: name, "is a parameter that the broker writes itself, or that it never sends")
            } else if !AuthorizationRequest.isCustomParameterName(name) {
                reader.note(member, member: name, "must have a name of 1 to 64 letters, digits, - and _")
            } else if value.count > 1024 {
                reader.note(member, member: name, "must not be longer than 1024 bytes")
            }
        }
        return parameters
    }
}

extension RequestShape: Equatable {
    package static func == (left: RequestShape, right: RequestShape) -> Bool {
        left === right
            || left.authorizeParameters == right.authorizeParameters && left.tokenParameters == right.tokenParameters
                && left.refreshParameters == right.refreshParameters && left.tokenHeaders == right.tokenHeaders
                && left.names == right.names && left.scopeSeparator == right.scopeSeparator && left.pkce == right.pkce
                && left.userScopeParameter == right.userScopeParameter && left.userScopes == right.userScopes
                && left.asked == right.asked && left.nonce == right.nonce && left.omitsEmpty == right.omitsEmpty
                && left.repeatsScopes == right.repeatsScopes && left.revocation == right.revocation
                && left.codeName == right.codeName
                && left.assertionAudience == right.assertionAudience
    }
}
