package import ExternalText

extension ProviderPreset {
    /// What a profile says of tenants and of the provider's plans. What only people read of it is in its document.
    package struct Guide: Sendable {
        /// What a tenant must bring: its members, and `endpoints.token` or `parameters.subdomain` for members of members.
        package let required: [WireText]
        /// What the provider has announced, the earliest first.
        package let changes: [Change]

        init(_ reader: inout ObjectReader) {
            _ = reader.string("documentation")
            _ = reader.string("registration")
            _ = reader.string("as_of", limit: 10)
            required =
                reader.strings("required") { name in
                    Self.isRequirable(name)
                        ? nil
                        : "must be client_id, client_secret, issuer, resource, scopes, endpoints.authorization, endpoints.token or "
                            + "parameters.NAME"
                } ?? ["client_id"]
            _ = reader.strings("notes")
            changes = reader.objects("changes", atMost: 32) { Change(&$0) } ?? []
        }

        private static func isRequirable(_ name: WireText) -> Bool {
            switch name {
            case "client_id", "client_secret", "issuer", "resource", "scopes", "endpoints.authorization", "endpoints.token":
                true
            default: name.starts(with: "parameters.")
            }
        }
    }

    /// A change that a provider has announced.
    package struct Change: Sendable {
        /// A day, as 2027-02-16.
        package let date: String
        package let what: String

        init?(_ reader: inout ObjectReader) {
            let (date, what) = (reader.requiredString("date", limit: 10), reader.requiredString("what"))
            reader.passOver("set")
            guard let date, what != nil else { return nil }
            (self.date, self.what) = (date.text, what?.text ?? "")
        }
    }

    /// A part of addresses that a tenant brings.
    package struct AddressParameter: Sendable {
        package let description: String
        /// What holds where a tenant names none; nil where it has to.
        package let usual: String?

        static func read(_ reader: inout ObjectReader) -> [WireText: AddressParameter] {
            reader.objectMap("parameters", atMost: 16) { reader in
                _ = reader.string("example")
                return AddressParameter(
                    description: reader.string("description")?.text ?? "", usual: reader.string("default")?.text
                )
            } ?? [:]
        }
    }

    /// When the grants of a provider end, whatever a broker does. Nil for what is not known.
    package struct GrantLives: Sendable {
        /// Whether a login brings a refresh token.
        package enum RefreshTokens: String, Sendable, CaseIterable {
            case always
            case never
            case withScope = "with_scope"
            /// A setting of the app at the provider decides.
            case bySetting = "by_setting"
        }

        package let refreshTokens: RefreshTokens?
        /// The scope without which a login brings none.
        package let refreshTokenScope: WireText?
        /// How long a refresh token lives that is not used.
        package let refreshToken: Duration?
        /// Whether a use does not begin that time again.
        package let isFixed: Bool
        /// How long a refresh token lives that is not used, before which the broker uses it, asked for or not.
        package let idle: Duration?
        /// From the login until everything ends.
        package let consent: Duration?

        init(_ reader: inout ObjectReader) {
            let range = TokenLifetime.seconds
            refreshTokens = reader.choice("refresh_tokens", RefreshTokens.self)
            refreshTokenScope = reader.string("refresh_token_scope")
            refreshToken = ProviderPreset.seconds(&reader, "refresh_token_lifetime", in: range)
            isFixed = reader.bool("refresh_token_lifetime_is_fixed") ?? false
            idle = ProviderPreset.seconds(&reader, "idle_expiry", in: range)
            consent = ProviderPreset.seconds(&reader, "consent_lifetime", in: range)
        }
    }
}
