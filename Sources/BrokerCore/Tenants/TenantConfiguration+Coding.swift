import Cryptography
import ExternalText
package import HTTPSClient
package import JSON
package import OAuth

extension TenantConfiguration {
    /// Reads the body of `PUT /tenants/{tenant}`.
    /// - Parameters:
    ///   - rules: which addresses the configuration may name.
    ///   - isStored: whether an earlier build has stored the configuration. Then an `issuer` that would never be asked is no
    ///     fault, nor is an address of apps that this build would not take. It may bear the profile that it uses.
    ///   - profile: the operator's profile of the name in `provider`; nil where there is none, and a shipped one is meant.
    package init(
        _ json: JSONValue, rules: TargetPolicy, isStored: Bool = false, profile: ProviderPreset? = nil
    ) throws(BrokerError) {
        var reader = ObjectReader(json)
        let preset = profile ?? (isStored ? Self.storedProfile(&reader) : nil) ?? Self.preset(&reader)
        if profile != nil || preset.document != nil { _ = reader.string("provider") }
        let clientID =
            preset.hasLogins && !preset.findsServerByResource
            ? reader.requiredString("client_id", limit: 512)
            : reader.string("client_id", limit: 512)
        let clientOfNone: WireText = preset.hasLogins ? "" : Self.staticClient
        let proof = Self.clientProof(&reader)
        let uniqueKey = reader.string("client_unique_key", limit: 512)
        let scopes = reader.strings("scopes", atMost: ScopeSet.most, check: Self.scopeFault)
        self.init(
            preset: preset,
            client: ClientConfiguration(
                clientID: clientID ?? clientOfNone, clientSecret: proof.secret, clientUniqueKey: uniqueKey,
                scopes: scopes.map { ScopeSet($0) ?? .empty } ?? preset.defaultScopes, material: proof.material))
        if preset.findsServerByResource {
            (hasOwnClient, hasOwnScopes) = (clientID != nil, !client.scopes.isEmpty)
        }
        let reading = Reading(targets: rules, isStored: isStored)
        Self.pinMembers.read(&reader, into: &self, reading)
        let faultsBefore = reader.faultCount
        Self.addressMembers.read(&reader, into: &self, reading)
        checkEndpoints(&reader)
        let hasAddresses = reader.faultCount == faultsBefore
        Self.otherMembers.read(&reader, into: &self, reading)
        checkProvider(&reader)
        checkAddresses(&reader, hasAddresses: hasAddresses, isStored: isStored)
        if !isStored {
            checkTokenUse(&reader)
            checkPushedAuthorization(&reader)
        }
        checkOwnRequests(&reader)
        if preset.findsServerByResource { readResource(&reader, rules, stored: isStored ? json : nil) }
        try reader.finish()
    }

    private static let unused = "is not used with this provider"

    /// Notes endpoints that the provider has no use for.
    private func checkEndpoints(_ reader: inout ObjectReader) {
        for (name, path) in Endpoints.accountMembers where endpoints[keyPath: path] != nil && preset.accounts == nil {
            reader.note("endpoints", member: name, Self.unused)
        }
        if endpoints.challenge != nil, preset.appToApp == nil {
            reader.note("endpoints", member: "challenge", Self.unused)
        }
    }

    /// Notes other members that the provider has no use for.
    private func checkProvider(_ reader: inout ObjectReader) {
        if preset.loginServiceBaseURI == nil, loginServiceBaseURI != nil {
            reader.note("login_service_base_uri", Self.unused)
        }
        if preset.authServiceBaseURI == nil, authServiceBaseURI != nil {
            reader.note("auth_service_base_uri", Self.unused)
        }
        if certificatePinning == true, effectivePins.isEmpty {
            reader.note("certificate_pinning", "needs pinned_certificates with this provider")
        }
        for (name, value) in parameters.sorted(by: { $0.key < $1.key }) {
            if preset.parameters[name] == nil {
                reader.note("parameters", member: name, "is not a parameter of the provider \(preset.name)")
            } else if let fault = AddressTemplate.fault(value) {
                reader.note("parameters", member: name, fault)
            }
        }
        if !requests.userScopes.isEmpty, preset.shape.userScopeParameter == nil {
            reader.note("user_scopes", "\(Self.unused), which has one kind of scopes: use scopes")
        }
        if bindsTokens, !preset.hasLogins || preset.accounts != nil { reader.note("dpop", Self.unused) }
        if provesDeviceKeys, bindsTokens { reader.note("dpop", "is not used together with app2app") }
        if appToApp != nil, preset.appToApp == nil { reader.note("app2app", Self.unused) }
    }

    /// Notes addresses that are missing.
    /// - Parameter hasAddresses: whether those that are given can be used. Otherwise what they lack is not told.
    private func checkAddresses(_ reader: inout ObjectReader, hasAddresses: Bool, isStored: Bool) {
        if issuer != nil, !isStored, usesPresetAddresses {
            // Otherwise the client secret would be sent to the preset's provider, and not to the issuer.
            reader.note(
                "issuer",
                "is not where the provider \(preset.name) is looked for: with an issuer say \"provider\": \"oidc\", or "
                    + "name endpoints.authorization and endpoints.token, too")
        }
        let missing = missingParameters
        for name in missing where !isStored {
            reader.note(
                "parameters", member: name,
                "is required with this provider: " + preset.parameters[name]!.description)
        }
        guard hasAddresses, missing.isEmpty else { return }
        guard configuredServer != nil else {
            if effectiveIssuer == nil, preset.hasLogins, !preset.findsServerByResource {
                reader.note(
                    "issuer",
                    "is required with this provider, unless endpoints.authorization and endpoints.token are given")
            }
            return
        }
        if effectiveTokenVerification?.verifiesTokens == true, configuredKeys == nil {
            reader.note(
                "token_verification",
                "needs the address of the provider's keys: name it in its jwks or in endpoints.jwks")
        }
        if bindsDeviceKeys || appToApp?.bindsKeysLater == true, challengeEndpoint(issuer: effectiveIssuer) == nil {
            reader.note("app2app", "needs endpoints.challenge, or the issuer")
        }
    }

    /// Reads the resource whose authorization server is found by it, and what was found.
    /// - Parameter stored: a sealed record; nil for a body of `PUT /tenants/{tenant}`, which has nothing that was found.
    private mutating func readResource(_ reader: inout ObjectReader, _ rules: TargetPolicy, stored: JSONValue?) {
        if requests.resources.count == 1 {
            protectedResource = requests.resources[0].text
            if let fault = Self.addressFault(requests.resources[0], rules, isBase: false) {
                reader.note("resource", fault)
            }
        } else if requests.resources.isEmpty {
            reader.note("resource", "is required with this provider: the address of the server")
        } else {
            reader.note("resource", "must be one address with this provider")
        }
        if issuer != nil || endpoints.authorization != nil || endpoints.token != nil {
            reader.note(
                issuer != nil ? "issuer" : "endpoints",
                "is not used with this provider, whose addresses are found by the resource: leave it out, or say "
                    + "\"provider\": \"oidc\"")
        }
        if !hasOwnClient {
            if client.isConfidential {
                reader.note("client_id", "is required beside what the client shows the provider")
            }
            if clientAuthentication != nil {
                reader.note("token_endpoint_auth_method", "needs the client_id that it is for")
            }
        }
        guard let stored else { return }
        let earlier = reader.any(EarlierFinding.memberName)?.array ?? []
        earlierFindings = earlier.compactMap(EarlierFinding.init(stored:))
        guard let found = stored["found"] else { return }
        reader.passOver("found")
        guard let known = FoundAuthorization(stored: found) else {
            reader.note("found", "cannot be read")
            return
        }
        self = finding(known)
    }

    /// The client of a tenant whose keys do not come by OAuth, and that names none.
    private static let staticClient: WireText = "static"

    /// The parameters that the preset's addresses lack, sorted; none where the tenant has the addresses.
    var missingParameters: [WireText] {
        if endpoints.authorization != nil, endpoints.token != nil || issuer != nil { return [] }
        return preset.parameters.filter { $0.value.usual == nil && parameters[$0.key] == nil }.keys.sorted()
    }

    private static func preset(_ reader: inout ObjectReader) -> ProviderPreset {
        guard let name = reader.string("provider") else { return .tidal }
        if let preset = ProviderPreset.named(name) { return preset }
        reader.note(
            "provider",
            "must be one of " + ShippedProfiles.names.joined(separator: ", ")
                + ", or a profile that this broker was given: GET /providers lists all")
        return .tidal
    }

    // MARK: Writing and storing

    /// Writes the configuration's members: for the sealed record with the secret, for answers without.
    package func encode(to json: inout JSONWriter, revealingSecret: Bool) {
        json.member("provider", preset.name)
        if hasOwnClient {
            json.member("client_id", client.clientID.text)
            encodeClientProof(to: &json, revealingSecret: revealingSecret)
        } else if !revealingSecret {
            json.member("client_secret_set", false)
        }
        if revealingSecret, let document = preset.document, let profile = try? JSONValue(parsing: document) {
            json.member(Self.profileMember.text, profile)
        }
        json.memberIfPresent("client_unique_key", client.clientUniqueKey?.text)
        json.member("scopes", hasOwnScopes ? client.scopes.values : [])
        if let found {
            json.name("found")
            json.object { found.encode(to: &$0, revealingSecret: revealingSecret) }
        }
        if revealingSecret, !earlierFindings.isEmpty {
            json.name(EarlierFinding.memberName.text)
            json.array { json in for earlier in earlierFindings { json.object { earlier.encode(to: &$0) } } }
        }
        Self.members.write(self, to: &json, revealingSecret: revealingSecret)
    }

    /// The content of the sealed record.
    package var encoded: [UInt8] {
        JSONWriter.object { encode(to: &$0, revealingSecret: true) }
    }

    /// Reads a sealed record.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes) else { return nil }
        self.init(stored: json)
    }

    /// Reads the content of a sealed record. The present rules for addresses do not apply to what an earlier build accepted.
    ///
    /// A member or a value that this build does not know makes the record unreadable on purpose: it may protect a login, as
    /// `"browser_binding": "confirm"` does.
    init?(stored json: JSONValue) {
        guard let configuration = try? TenantConfiguration(json, rules: .everything, isStored: true) else {
            return nil
        }
        self = configuration
    }

    /// Whether a login may send the browser back to `uri`: its origin and path are listed, with any query.
    func allowsReturn(to uri: WireText) -> Bool {
        guard let wanted = URLTarget(uri.text) else { return false }
        return allowedReturnURIs.contains { listed in
            guard let listed = URLTarget(listed) else { return false }
            return listed.origin == wanted.origin && listed.path == wanted.path
        }
    }
}

extension URLTarget {
    /// The path without the query.
    var path: WireText { WireText(pathAndQuery).split(at: "?", limit: 2)[0] }
}
