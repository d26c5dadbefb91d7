package import ExternalText
import HTTPCodec
package import JSON
import OAuth

/// The other side of one of the broker's profiles, played from the profile's own document: requests in the provider's form are
/// rewritten to those of the RFCs, and the answers of the profile `rfc` are rewritten to the provider's. Immutable.
///
/// What of it is about requests is in `ProfileRequests.swift`, what is about answers in `ProfileAnswers.swift`.
package final class ProfileTranslation: Sendable {
    /// The profile's name.
    package let name: String
    let profile: ProviderPreset
    let document: JSONValue
    let answers: Answers
    /// The paths below the base URL, by the members of a tenant's `endpoints`.
    private let named: [(member: String, endpoint: Endpoint, path: String)]
    /// The paths of the requests that have forms of the provider's own, by the members of a tenant.
    private let own: [(member: String, path: String)]
    /// Values of the parameters in addresses that have no default, by name.
    private let values: [WireText: WireText]

    /// The profiles that can be played: those whose users log in, but for the ones that have a flow of their own in
    /// `ProviderProfile`.
    package static let names = ShippedProfiles.names.filter { name in
        ProviderProfile(rawValue: name) == nil && ProviderPreset.named(WireText(name))?.hasLogins == true
    }

    /// The member of a tenant's `endpoints` for refreshes, and the one for a form of its own.
    private static let refreshMember = "refresh"

    /// What a segment of a path stands for in which the client's identifier is.
    private static let anyClient: WireText = "{client_id}"

    /// Nil for a name that is not among `names`.
    /// - Parameter parameters: what stands for the parameters in the profile's addresses. One that is left out has the profile's
    ///   default, else its example. Others than the profile's are not used.
    package init?(_ name: String, parameters: [WireText: WireText] = [:]) {
        guard Self.names.contains(name), let profile = ProviderPreset.named(WireText(name)),
            let document = ShippedProfiles.document(WireText(name))
        else { return nil }
        self.name = name
        self.profile = profile
        self.document = document
        answers = Answers(document)
        var values: [WireText: WireText] = [:]
        for (name, parameter) in document["parameters"]?.object ?? [:] {
            values[name] = parameters[name] ?? parameter["default"]?.string ?? parameter["example"]?.string
        }
        self.values = values
        func path(_ template: AddressTemplate?) -> String? { Self.path(template, values) }
        let refreshMember = Self.refreshMember
        let isFound = profile.endpoints.token == nil
        named = Self.addresses(profile.endpoints).compactMap { member, endpoint, template in
            // A provider that is found by its metadata may have any paths.
            let path = isFound && member != refreshMember ? ProviderBehaviour.standard.paths[endpoint] : path(template)
            return path.map { (member, endpoint, $0) }
        }
        let requests = [(refreshMember, profile.refresh), ("exchange_for_long_lived", profile.exchange)]
        own = requests.compactMap { member, request in path(request?.endpoint).map { (member, $0) } }
    }

    /// The addresses of a profile, by the members of a tenant's `endpoints`.
    private static func addresses(
        _ endpoints: ProviderPreset.Endpoints
    ) -> [(member: String, endpoint: Endpoint, address: AddressTemplate?)] {
        [
            ("authorization", .authorize, endpoints.authorization), ("token", .token, endpoints.token),
            (refreshMember, .token, endpoints.refresh),
            ("device_authorization", .deviceAuthorization, endpoints.deviceAuthorization),
            ("revocation", .revoke, endpoints.revocation), ("jwks", .keys, endpoints.keys),
            ("account_creation", .createAccount, endpoints.accountCreation),
            ("activation", .login, endpoints.activation), ("logout", .logout, endpoints.logout),
        ]
    }

    /// The paths of the endpoints that a profile without parameters names.
    static func paths(of profile: ProviderPreset) -> [Endpoint: String] {
        var bases: [WireText: WireText] = [:]
        bases[WireText(AddressTemplate.Base.loginService.rawValue)] = profile.loginServiceBaseURI.map { WireText($0) }
        bases[WireText(AddressTemplate.Base.authService.rawValue)] = profile.authServiceBaseURI.map { WireText($0) }
        let paths = addresses(profile.endpoints).compactMap { _, endpoint, address in
            path(address, bases).map { (endpoint, $0) }
        }
        return Dictionary(paths, uniquingKeysWith: { first, _ in first })
    }

    /// The path of an address; nil without an address.
    private static func path(_ template: AddressTemplate?, _ values: [WireText: WireText]) -> String? {
        let address = template?.filled { name in
            name == AddressTemplate.clientID ? anyClient.text : values[name]?.text ?? name.text
        }
        guard let address else { return nil }
        // Behind the scheme, two slashes and the host.
        let parts = WireText(address).split(at: "/", limit: 4)
        return "/" + (parts.count == 4 ? parts[3].split(at: "?", limit: 2)[0].text : "")
    }

    /// The names of the parameters in the profile's addresses.
    package var parameterNames: [String] { profile.parameters.keys.sorted().map(\.text) }

    // MARK: Paths

    /// The path of an endpoint below the base URL; nil where the profile has none.
    func path(of endpoint: Endpoint) -> String? {
        named.first { $0.endpoint == endpoint }?.path
            ?? (isFoundByMetadata ? ProviderBehaviour.standard.paths[endpoint] : nil)
    }

    /// The endpoint at a path; nil where there is none.
    func endpoint(at path: WireText) -> Endpoint? {
        named.first { Self.fits(path, $0.path) }?.endpoint
            ?? (own.contains { Self.fits(path, $0.path) } ? .token : nil)
            ?? Endpoint.allCases.first { self.path(of: $0).map { WireText($0) } == path }
    }

    private static func fits(_ path: WireText, _ pattern: String) -> Bool {
        let (given, wanted) = (path.split(at: "/"), WireText(pattern).split(at: "/"))
        return given.count == wanted.count
            && zip(given, wanted).allSatisfy { $0 == $1 || $1 == anyClient && !$0.isEmpty }
    }

    /// Whether refreshes have a path of their own, and a request is at it; nil where they have none.
    /// - Parameter path: with the path of the base URL, where that has one.
    func isAtRefresh(_ path: String) -> Bool? {
        named.first { $0.member == Self.refreshMember }.map { WireText(path).ends(with: WireText($0.path)) }
    }

    /// The methods of an endpoint; nil for an endpoint that has those of the profile `rfc`.
    func methods(of endpoint: Endpoint) -> [String]? {
        switch endpoint {
        case .token:
            let own = [profile.refresh, profile.exchange].compactMap { $0 }.map { ($0.method ?? .post).rawValue }
            return Set([profile.tokenRequestMethod.rawValue] + own).sorted()
        case .revoke: return [(profile.shape.revocation?.method ?? .post).rawValue]
        default: return nil
        }
    }

    /// Whether the provider is found by its metadata, so that it names itself in authorization responses.
    var isFoundByMetadata: Bool { profile.endpoints.token == nil && !isRequired("endpoints.token") }

    private func isRequired(_ member: WireText) -> Bool { profile.guide.required.contains(member) }

    /// The values of `grant_type` that the token endpoint accepts.
    var grants: [GrantType] {
        var grants: [GrantType] = [.authorizationCode, .refreshToken]
        if profile.grantsClientCredentials { grants.append(.clientCredentials) }
        if path(of: .deviceAuthorization) != nil { grants.append(.deviceCode) }
        return grants
    }

    // MARK: Tenants

    /// The members of a tenant of this profile with which a broker uses the provider at that base URL in place of the real one:
    /// those that `PUT /tenants/{tenant}` wants beside the client.
    package func tenant(below base: String, clientID: String) -> [WireText: JSONValue] {
        func address(_ path: String) -> JSONValue {
            let client = FormEncoding.percentEncode(clientID)
            let named = WireText(path).split(at: "/").map { $0 == Self.anyClient ? client : $0.text }
            return .string(WireText(base + named.joined(separator: "/")))
        }
        var members: [WireText: JSONValue] = ["provider": .string(WireText(name))]
        if !isFoundByMetadata {
            members["endpoints"] = .object(
                Dictionary(uniqueKeysWithValues: named.map { (WireText($0.member), address($0.path)) }))
        }
        for (member, path) in own { members[WireText(member)] = .object(["endpoint": address(path)]) }
        if isRequired("resource") { members["resource"] = address("/resource") }
        if profile.issuer != nil || isRequired("issuer") { members["issuer"] = .string(WireText(base)) }
        let needed = profile.parameters.filter { $0.value.usual == nil }.keys
        if !needed.isEmpty {
            members["parameters"] = .object(
                Dictionary(uniqueKeysWithValues: needed.map { ($0, .string(values[$0] ?? $0)) }))
        }
        return members
    }

    /// Whether a tenant has to bring this member, such as `client_secret`.
    package func requires(_ member: WireText) -> Bool { isRequired(member) }

    /// The scopes of a tenant without any, and the one without which a login brings no refresh token.
    package var usualScopes: [String] {
        Set(profile.defaultScopes.values + [profile.lives.refreshTokenScope?.text].compactMap(\.self)).sorted()
    }

    /// Whether a login brings what renews its access token: a refresh token, or the access token itself.
    package var isRenewable: Bool { profile.lives.refreshTokens != .never || profile.refresh != nil }

    /// How old a token must be before it is renewed; zero for no such rule.
    package var earliestRefresh: Duration { profile.earliestRefreshAfter ?? .zero }

    /// Whether tokens can be revoked by a request.
    package var canRevoke: Bool { path(of: .revoke) != nil }
}
