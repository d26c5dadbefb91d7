package import ExternalText

extension ProviderPreset {
    /// How a token request is sent.
    package enum TokenRequestFormat: String, Sendable, CaseIterable {
        /// By POST, with the parameters as a form (RFC 6749 §4.1.3).
        case form
        /// By POST, with the parameters as the members of a JSON object.
        case json
        /// With the parameters as the query: by GET, unless the profile says POST.
        case query
    }

    /// The method of a token request.
    package enum TokenRequestMethod: String, Sendable, CaseIterable {
        case get = "GET"
        case post = "POST"
    }

    enum Switch: String, CaseIterable {
        case on, off
    }

    /// The addresses of a provider's endpoints. Nil where the tenant or the provider's metadata must name the endpoint, or
    /// where the provider has no such endpoint.
    package struct Endpoints: Sendable {
        package var authorization: AddressTemplate?
        package var token: AddressTemplate?
        /// Where refreshes go; nil for the token endpoint.
        package var refresh: AddressTemplate?
        package var deviceAuthorization: AddressTemplate?
        package var revocation: AddressTemplate?
        package var keys: AddressTemplate?
        package var pushedAuthorization: AddressTemplate?
        package var accountCreation: AddressTemplate?
        package var activation: AddressTemplate?
        package var logout: AddressTemplate?

        init() {}

        init(_ reader: inout ObjectReader) {
            authorization = template(&reader, "authorization")
            token = template(&reader, "token")
            refresh = template(&reader, "refresh")
            deviceAuthorization = template(&reader, "device_authorization")
            revocation = template(&reader, "revocation")
            keys = template(&reader, "jwks")
            pushedAuthorization = template(&reader, "pushed_authorization_request")
            accountCreation = template(&reader, "account_creation")
            activation = template(&reader, "activation")
            logout = template(&reader, "logout")
        }
    }

    static func template(_ reader: inout ObjectReader, _ name: WireText) -> AddressTemplate? {
        // `ProfileRules` says where an http URL may stand.
        reader.value(name, rule: "must be an https URL, in which {name} stands for a parameter") { text in
            guard text.starts(with: "https://") || text.starts(with: "http://") || text.starts(with: "{") else {
                return nil
            }
            return AddressTemplate(text)
        }
    }

    static func texts(_ reader: inout ObjectReader, _ name: WireText) -> [String] {
        reader.strings(name)?.map(\.text) ?? []
    }

    static func seconds(_ reader: inout ObjectReader, _ name: WireText, in range: ClosedRange<Int64>) -> Duration? {
        reader.integer(name, in: range).map { .seconds($0) }
    }

    static func levels(_ reader: inout ObjectReader) -> Set<CredentialsLevel> {
        let rule = ValueRule.choice(CredentialsLevel.self)
        let names = reader.strings("levels", allowsEmpty: false) { CredentialsLevel($0) == nil ? rule : nil }
        return names.map { Set($0.compactMap { CredentialsLevel($0) }) } ?? Set(CredentialsLevel.allCases)
    }

    static func refusals(
        _ reader: inout ObjectReader, _ name: WireText, _ usual: [(status: Int, error: String)]
    ) -> [RefusalPattern] {
        reader.objects(name, atMost: 32) { RefusalPattern(&$0) }
            ?? usual.compactMap { RefusalPattern(status: $0.status, error: $0.error) }
    }

    /// How a provider without a login page creates and activates accounts, and how it logs out.
    package struct AccountRules: Sendable {
        /// The redirect URI of the provider's own applications. The provider's redirects to it carry the code; they are
        /// read and not followed.
        package let redirectURI: String
        /// The name of the cookie that connects the requests of one login.
        package let sessionCookie: WireText
        /// The `source` of a platform's signature for which the caller names none.
        package let signatureSource: WireText
        /// The `status` of the answer to a logout that has succeeded.
        package let logoutStatus: WireText
        /// The `error` values of the provider's refusals.
        package let errors: Set<WireText>

        init(_ reader: inout ObjectReader) {
            redirectURI = reader.requiredString("redirect_uri")?.text ?? ""
            sessionCookie = reader.requiredString("session_cookie") ?? ""
            signatureSource = reader.requiredString("signature_source") ?? ""
            logoutStatus = reader.requiredString("logout_status") ?? ""
            errors = Set(reader.strings("errors") ?? [])
        }
    }

    /// How an app of a device, which a user is logged in to, gets a code for another app of the device.
    package struct AppToAppRules: Sendable {
        /// The path of the challenge endpoint below the issuer, without a slash at its beginning.
        package let challengePath: String
        /// What a challenge is asked for.
        package let challengePurpose: String
        /// `typ` of the token by which an app proves that it has its device key.
        package let proofType: WireText
        /// The parameter of the code exchange that binds a device key to the session.
        package let keyParameter: String
        /// The grant that answers with a code for the other app.
        package let grantType: String
        /// What a challenge for a biometric key is asked for.
        package let biometricPurpose: String
        /// `typ` of the token by which an app proves that it has a biometric key.
        package let biometricProofType: WireText
        /// The grant that sets up a biometric key, and logs its user in.
        package let biometricGrantType: String
        /// The `error_description` of an `invalid_grant` for a biometric key that the provider does not know.
        package let biometricRefusal: WireText

        init(_ reader: inout ObjectReader) {
            challengePath = reader.requiredString("challenge_path")?.text ?? ""
            challengePurpose = reader.requiredString("challenge_purpose")?.text ?? ""
            proofType = reader.requiredString("proof_type") ?? ""
            keyParameter = reader.requiredString("key_parameter")?.text ?? ""
            grantType = reader.requiredString("grant_type")?.text ?? ""
            biometricPurpose = reader.requiredString("biometric_purpose")?.text ?? ""
            biometricProofType = reader.requiredString("biometric_proof_type") ?? ""
            biometricGrantType = reader.requiredString("biometric_grant_type")?.text ?? ""
            biometricRefusal = reader.requiredString("biometric_refusal") ?? ""
        }
    }

    /// A refusal that callers get as an error of that name.
    package enum NamedRefusal: String, Sendable, CaseIterable {
        /// The refresh token is not valid any more.
        case invalidTokenRequest = "invalid_token_request"
        /// The account does not exist.
        case unknownAccount = "unknown_account"
    }

    /// How long a token request may take.
    /// - Parameter limit: the limit of the broker's configuration.
    package func longestTokenRequest(atLeast limit: Duration) -> Duration { max(limit, tokenRequestLimit ?? .zero) }

    /// What callers get as the provider's error code: the name of the number in the answer, otherwise its `error` or
    /// `sub_status`.
    package func shownCode(of answer: TokenErrorResponse) -> String? {
        answer.detailNumber.flatMap { refusalDetails[$0] } ?? answer.errorCode
    }
}
