package import ExternalText
package import JSON
package import OAuth

/// What a new configuration keeps of the one before, and what an operator is told of it.
extension TenantConfiguration {
    /// This configuration with what logins have found for the one that it replaces, where both are for the same resource. With another
    /// resource that is kept aside, and is there again when the resource is named once more: without its client, the sessions
    /// that this has got could not be refreshed.
    package func keepingFinding(of previous: TenantConfiguration?) -> TenantConfiguration {
        guard let previous, preset == previous.preset, let protectedResource else { return self }
        var earlier = previous.earlierFindings
        var known = previous.found
        if let resource = previous.protectedResource, resource != protectedResource {
            if let found = previous.found {
                earlier.removeAll { $0.resource == resource }
                earlier.append(EarlierFinding(resource: resource, found: found))
            }
            known = earlier.last { $0.resource == protectedResource }?.found
            earlier.removeAll { $0.resource == protectedResource }
        }
        var kept = finding(known)
        kept.earlierFindings = earlier.suffix(EarlierFinding.most)
        return kept
    }

    /// The members that an operator has configured.
    package var configuredMembers: [WireText: JSONValue] {
        var members = storedMembers
        (members["found"], members[EarlierFinding.memberName]) = (nil, nil)
        return members
    }

    /// Whether the secret of the other configuration goes where that one would send it.
    func sendsSecret(like other: TenantConfiguration) -> Bool {
        preset == other.preset && effectiveIssuer == other.effectiveIssuer
            && configuredServer?.tokenEndpoint == other.configuredServer?.tokenEndpoint
            && endpoints.token == other.endpoints.token && endpoints.refresh == other.endpoints.refresh
            && endpoints.revocation == other.endpoints.revocation
            && endpoints.deviceAuthorization == other.endpoints.deviceAuthorization
            && endpoints.pushedAuthorization == other.endpoints.pushedAuthorization
            && refresh == other.refresh && exchange == other.exchange
    }

    /// The members that `previous` has and this configuration has not, `endpoints.token` for a member of a member, in their order.
    package func dropped(from previous: TenantConfiguration) -> [String] {
        Self.dropped(previous.shownMembers, shownMembers, "")
    }

    /// The configured members, as far as two configurations are compared by them.
    private var shownMembers: [WireText: JSONValue] {
        var members = configuredMembers
        // Another key may have other members, and is no less a key.
        if members["private_key"] != nil { members["private_key"] = .bool(true) }
        return members
    }

    private static func dropped(
        _ before: [WireText: JSONValue], _ now: [WireText: JSONValue], _ prefix: String
    ) -> [String] {
        before.sorted { $0.key < $1.key }.flatMap { name, value -> [String] in
            switch (value, now[name]) {
            // An empty list is written, too.
            case (.array(let list), .array(let other)?) where other.isEmpty && !list.isEmpty: [prefix + name.text]
            case (.object(let members), .object(let others)?): dropped(members, others, prefix + name.text + ".")
            case (_, nil): [prefix + name.text]
            default: []
            }
        }
    }

    /// What may surprise the operator of a tenant.
    package struct Warning: Sendable {
        package enum Code: String, Sendable, CaseIterable {
            /// Logins bring no refresh token: users have to log in again when their token ends.
            case noRefreshToken = "no_refresh_token"
            /// A setting of the app at the provider decides whether they do.
            case refreshTokenBySetting = "refresh_token_by_setting"
            /// Tokens do not end, so that a stolen one is good until it is revoked.
            case tokenNeverExpires = "token_never_expires"
            /// Everything ends at a fixed time after the login.
            case consentEnds = "consent_ends"
            /// The provider has announced a change.
            case providerChanges = "provider_changes"
        }

        package let code: Code
        package let detail: String
    }

    package func warnings(at now: Timestamp) -> [Warning] {
        var warnings: [Warning] = []
        func warn(_ code: Warning.Code, _ detail: String) { warnings.append(Warning(code: code, detail: detail)) }
        let (lives, provider) = (preset.lives, preset.title ?? "The provider")
        let neverEnds = effectiveDefaultLifetime == .unlimited
        switch lives.refreshTokens {
        case .never? where !neverEnds && !refreshesByAccessToken:
            warn(
                .noRefreshToken,
                "\(provider) grants no refresh tokens: users have to log in again when their tokens end.")
        case .withScope?:
            if let scope = lives.refreshTokenScope, !client.scopes.values.contains(scope.text),
                !requests.userScopes.values.contains(scope.text)
            {
                warn(
                    .noRefreshToken,
                    "\(provider) grants refresh tokens only for the scope \(scope.text), which is not among the scopes: "
                        + "add it, or users have to log in again when their tokens end.")
            }
        case .bySetting?:
            warn(
                .refreshTokenBySetting,
                "A setting of the app at \(preset.title ?? "the provider") decides whether tokens end and can be renewed: see the "
                    + "notes of GET /providers/\(preset.name).")
        case .always?, .never?, nil: break
        }
        if neverEnds, preset.hasLogins {
            warn(
                .tokenNeverExpires,
                "Tokens for which the provider names no end are served until it refuses them: a stolen one is good until it is "
                    + "revoked.")
        }
        if let consent = consentLifetime ?? lives.consent {
            warn(
                .consentEnds,
                "\(provider) ends what a user has consented to after \(consent.components.seconds / 86_400) days, whatever is "
                    + "refreshed: users have to log in again then.")
        }
        let today = String(now.description.prefix(10))
        for change in preset.guide.changes where change.date >= today {
            warn(.providerChanges, "From \(change.date) on: \(change.what)")
        }
        return warnings
    }

    /// Why stored credentials are not those that a caller asks for: they cannot be refreshed, or have no access token yet.
    func reasonWithoutRefresh(_ held: HeldCredentials?, at now: Timestamp) -> String {
        if held?.refreshToken != nil {
            return
                "The user's credentials are stored, but were imported without an access token: the first read that is not "
                + "policy=local has one granted."
        }
        let beginning =
            "The user's credentials are stored, but cannot be refreshed, because they have no refresh token."
        if !hasProvider { return "\(beginning) Keys do not come by OAuth: bring a new one by PUT /credentials." }
        let cause = warnings(at: now).first { [.noRefreshToken, .refreshTokenBySetting].contains($0.code) }?.detail
        return
            "\(beginning) \(cause ?? "The login, or the caller, that brought them had none.") Have the user log in anew."
    }
}
