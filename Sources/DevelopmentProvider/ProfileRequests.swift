import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// A request in the provider's form, as the profile `rfc` takes it.
struct TranslatedRequest: Sendable {
    /// What a request in a form of the provider's own asks for.
    enum OwnForm: Sendable {
        /// A new access token for the one that is shown.
        case refresh
        /// A token that lives longer.
        case exchange
    }

    var request: Request
    let received: ReceivedParameters
    /// Why it is refused; nil for a request that the profile allows.
    var refusal: OAuthError?
    /// Nil for a grant of RFC 6749.
    var ownForm: OwnForm?
    /// Whether the token alone says whose it is.
    var namesNoClient = false
}

extension ProfileTranslation {
    private static let form = "application/x-www-form-urlencoded"
    private static let json: WireText = "application/json"
    private static let grantType: WireText = "grant_type"
    private static let codeVerifier: WireText = "code_verifier"
    private static let clientSecret: WireText = "client_secret"
    private static let scope: WireText = "scope"
    private typealias Method = ProviderPreset.ClientAuthentication

    /// The request in the form of the RFCs; nil for an endpoint whose requests have no other form.
    func translated(_ request: Request, at endpoint: Endpoint) -> TranslatedRequest? {
        switch endpoint {
        case .authorize: authorization(request)
        case .token: ownForm(request) ?? tokenRequest(request)
        case .deviceAuthorization: deviceAuthorization(request)
        case .revoke: revocation(request)
        default: nil
        }
    }

    // MARK: Authorization

    private func authorization(_ request: Request) -> TranslatedRequest {
        let received = ReceivedParameters(request)
        // The login page's form repeats the parameters by the names of the RFCs.
        let isForm = request.method == .post
        let query = received.query.map { renamed($0, dropping: !isForm) }
        let form = received.form.map { renamed($0, dropping: false) }
        return TranslatedRequest(
            request: request, received: ReceivedParameters(query: query, form: form, hasForm: received.hasForm))
    }

    /// Why the profile refuses the parameters of an authorization request, which are those of the RFCs; nil for nothing.
    func refusal(ofAuthorization parameters: Parameters) -> String? {
        if profile.shape.pkce == .forbidden, parameters["code_challenge"] != nil {
            return "This provider takes no code_challenge"
        }
        let missing = profile.shape.authorizeParameters.first { parameters[$0.name] == nil }
        return missing.map { $0.name.text + " is missing" }
    }

    /// The scopes of the other kind that an authorization request asks for; empty where the profile has one kind.
    func userScope(_ parameters: Parameters) throws(OAuthError) -> [String] {
        guard let name = profile.shape.userScopeParameter, let text = parameters[name] else { return [] }
        guard let scopes = TokenIssuer.scopes(text) else {
            throw OAuthError(.invalidScope, "The scope is malformed")
        }
        return scopes
    }

    // MARK: Tokens

    private func tokenRequest(_ request: Request) -> TranslatedRequest {
        let received = ReceivedParameters(request)
        var pairs: [FormEncoding.Pair]
        var refusal: OAuthError?
        switch profile.tokenRequestFormat {
        case .form:
            guard received.hasForm, let form = received.form, received.query?.isEmpty != false else {
                return TranslatedRequest(request: request, received: received)
            }
            pairs = form
        case .query:
            pairs = received.query ?? []
            if received.query == nil { refusal = OAuthError(.invalidRequest, "Malformed parameters") }
        case .json:
            pairs = Self.members(request) ?? []
            if Self.members(request) == nil {
                refusal = OAuthError(.invalidRequest, "The content is not a JSON object with its content type")
            }
        }
        pairs = renamed(pairs, dropping: true)
        let grant = pairs.first { $0.name == Self.grantType }?.value
        if refusal == nil, request.method.name != profile.tokenRequestMethod.rawValue {
            refusal = OAuthError(.invalidRequest, "Token requests have another method")
        }
        return rewritten(
            request, pairs, by: profile.clientAuthentication,
            refusal: refusal ?? missingHeader(request) ?? unfit(pairs, grant, request.path))
    }

    /// What a token request lacks, or has and must not have; nil for nothing.
    private func unfit(_ pairs: [FormEncoding.Pair], _ grant: WireText?, _ path: String) -> OAuthError? {
        let shape = profile.shape
        let isRefresh = grant == WireText(GrantType.refreshToken.rawValue)
        let isCode = grant == WireText(GrantType.authorizationCode.rawValue)
        if let isAtRefresh = isAtRefresh(path), isAtRefresh != isRefresh {
            return OAuthError(.unsupportedGrantType, "Refreshes have an address of their own")
        }
        if shape.pkce == .forbidden, pairs.contains(where: { $0.name == Self.codeVerifier }) {
            return OAuthError(.invalidRequest, "This provider takes no code_verifier")
        }
        let wanted = isCode ? shape.tokenParameters : isRefresh ? shape.refreshParameters : []
        let missing = wanted.first { wanted in !pairs.contains { $0.name == wanted.name } }
        return missing.map { OAuthError(.invalidRequest, $0.name.text + " is missing") }
    }

    private func missingHeader(_ request: Request) -> OAuthError? {
        let missing = profile.shape.tokenHeaders.fields.first { request.fields[$0.name.text] != $0.value }
        return missing.map { OAuthError(.invalidRequest, "The field \($0.name.text) is missing, or has another value") }
    }

    /// A request in a form of the provider's own; nil for another one.
    private func ownForm(_ request: Request) -> TranslatedRequest? {
        let forms: [(TranslatedRequest.OwnForm, RequestTemplate?)] = [
            (.refresh, profile.refresh), (.exchange, profile.exchange),
        ]
        for (kind, template) in forms {
            guard let template, let parameters = template.parameters,
                request.method.name == (template.method ?? .post).rawValue
            else { continue }
            let received = ReceivedParameters(request)
            let pairs = template.method == .get ? received.query : received.form
            let given = Parameters(pairs ?? [], toleratesEqual: false)
            let constants = parameters.filter { AddressTemplate($0.value)?.names.isEmpty == true }
            guard !constants.isEmpty, constants.allSatisfy({ given[$0.name] == $0.value }) else { continue }
            let grant =
                switch kind {
                case .refresh: WireText(GrantType.refreshToken.rawValue)
                case .exchange: given["grant_type"] ?? "exchange"
                }
            var ofRFC = [FormEncoding.Pair("grant_type", grant)]
            for parameter in parameters {
                guard let names = AddressTemplate(parameter.value)?.names, names.count == 1,
                    let value = given[parameter.name]
                else { continue }
                ofRFC.append(.init(names[0], value))
            }
            var translated = rewritten(
                request, ofRFC, by: .clientSecretPost,
                refusal: given.repeated.isEmpty
                    ? missingHeader(request) : OAuthError(.invalidRequest, "A parameter occurs more than once"))
            // What presents a refresh token is a refresh as any other.
            if template.usesAccessToken { translated.ownForm = kind }
            return translated
        }
        return nil
    }

    private func deviceAuthorization(_ request: Request) -> TranslatedRequest {
        let received = ReceivedParameters(request)
        guard received.hasForm, let form = received.form, received.query?.isEmpty != false else {
            return TranslatedRequest(request: request, received: received)
        }
        return rewritten(request, renamed(form, dropping: true), by: profile.clientAuthentication, refusal: nil)
    }

    // MARK: Revocation

    private func revocation(_ request: Request) -> TranslatedRequest {
        let received = ReceivedParameters(request)
        guard let shape = profile.shape.revocation else {
            guard received.hasForm, let form = received.form, received.query?.isEmpty != false else {
                return TranslatedRequest(request: request, received: received)
            }
            return rewritten(request, renamed(form, dropping: false), by: profile.clientAuthentication, refusal: nil)
        }
        let body: [FormEncoding.Pair]? =
            switch shape.format {
            case .form: received.hasForm ? received.form : nil
            case .json: Self.members(request)
            case .none: []
            }
        var refusal = missingHeader(request)
        if body == nil { refusal = OAuthError(.invalidRequest, "The content is not what this endpoint takes") }
        var pairs = (body ?? []) + (shape.place == .query ? received.query ?? [] : [])
        let own = Dictionary(shape.names.map { ($1, $0) }, uniquingKeysWith: { first, _ in first })
        pairs = pairs.filter { shape.names[$0.name] == nil }.map { .init(own[$0.name] ?? $0.name, $0.value) }
        pairs = renamed(pairs, dropping: false)
        guard shape.place == .bearer else {
            var translated = rewritten(
                request, pairs, by: shape.authentication ?? profile.clientAuthentication, refusal: refusal)
            translated.namesNoClient = shape.format == .none && request.fields["Authorization"] == nil
            return translated
        }
        if let token = Self.bearer(request) {
            pairs.append(.init("token", token))
        } else {
            refusal = OAuthError(.invalidRequest, "The token belongs in the Authorization field, as a bearer token")
        }
        var request = request
        request.fields.set("Authorization", nil)
        var translated = rewritten(request, pairs, by: .clientSecretPost, refusal: refusal)
        translated.namesNoClient = true
        return translated
    }

    // MARK: Rewriting

    /// The parameters by the names of the RFCs, with spaces between scopes.
    /// - Parameter dropping: whether parameters are left out by whose names the provider does not know them.
    private func renamed(_ pairs: [FormEncoding.Pair], dropping: Bool) -> [FormEncoding.Pair] {
        let shape = profile.shape
        let own = Dictionary(shape.names.map { ($1, $0) }, uniquingKeysWith: { first, _ in first })
        return pairs.filter { !dropping || shape.names[$0.name] == nil }.map { pair in
            let name = own[pair.name] ?? pair.name
            guard shape.scopeSeparator == .comma, name == Self.scope || name == shape.userScopeParameter else {
                return .init(name, pair.value)
            }
            return .init(name, WireText(pair.value.split(at: ",").map(\.text).joined(separator: " ")))
        }
    }

    /// A POST with a form, whose client credentials are in the place that the method wants.
    private func rewritten(
        _ request: Request, _ pairs: [FormEncoding.Pair], by method: Method, refusal: OAuthError?
    ) -> TranslatedRequest {
        var (request, pairs) = (request, pairs)
        let misplaced = Self.misplaced(request, pairs, by: method)
        if method == .clientSecretBearer, let secret = Self.bearer(request) {
            pairs.append(.init("client_secret", secret))
            request.fields.set("Authorization", nil)
        }
        (request.method, request.query) = (.post, nil)
        request.fields.set("Content-Type", Self.form)
        request.body = Array(FormEncoding.encode(pairs).utf8)
        return TranslatedRequest(
            request: request, received: ReceivedParameters(query: [], form: pairs, hasForm: true),
            refusal: refusal ?? misplaced)
    }

    /// The refusal of client credentials in another place than the method's; nil for none. A method that needs more than a secret
    /// counts as the form's.
    private static func misplaced(
        _ request: Request, _ pairs: [FormEncoding.Pair], by method: Method
    ) -> OAuthError? {
        let isPosted = pairs.contains { $0.name == clientSecret }
        let isInHeader = request.fields["Authorization"] != nil
        switch method {
        case .clientSecretBasic where isPosted:
            return OAuthError(.invalidClient, "The client secret belongs in the Authorization field, by HTTP Basic")
        case .clientSecretBearer where isPosted || isInHeader && bearer(request) == nil:
            return OAuthError(.invalidClient, "The client secret belongs in the Authorization field, as a bearer token")
        case .clientSecretBasic, .clientSecretBearer, .none: return nil
        default: break
        }
        return isInHeader ? OAuthError(.invalidClient, "The client secret belongs among the parameters") : nil
    }

    private static func bearer(_ request: Request) -> WireText? {
        guard let parts = request.fields["Authorization"]?.split(at: " ", limit: 2), parts.count == 2,
            parts[0].equalsIgnoringCase("Bearer")
        else { return nil }
        return parts[1]
    }

    /// The members of a JSON object that are texts or whole numbers; nil for other content.
    private static func members(_ request: Request) -> [FormEncoding.Pair]? {
        guard MediaType(request.fields["Content-Type"] ?? "").name == json,
            let members = (try? JSONValue(parsing: request.body))?.object
        else { return nil }
        return members.sorted { $0.key < $1.key }.compactMap { name, value in
            (value.string ?? value.integer.map { WireText(String($0)) }).map { .init(name, $0) }
        }
    }

    /// The ways in which clients may authenticate, for the metadata; nil for any.
    var authenticationMethods: [String]? {
        switch profile.clientAuthentication {
        case .none: nil
        case .clientSecretBasic: ["client_secret_basic", "none"]
        case .clientSecretBearer: ["client_secret_bearer", "none"]
        default: ["client_secret_post", "none"]
        }
    }
}
