package import ExternalText

extension ProviderPreset {
    /// How a token request is sent.
    package enum TokenRequestFormat: Sendable {
        /// By POST, with the parameters as a form (RFC 6749 §4.1.3).
        case form
        /// By GET, with the parameters as the query.
        case query
    }

    /// The service whose base URI a path is below.
    package enum Base: Sendable, Equatable {
        case loginService
        case authService
    }

    /// The path of an endpoint below one of the base URIs, without a slash at its beginning.
    package struct EndpointPath: Sendable, Equatable {
        package let base: Base
        package let path: String

        package init(_ base: Base, _ path: String) {
            self.base = base
            self.path = path
        }
    }

    /// The paths of a provider's endpoints below its base URIs. Nil where the tenant or the provider's metadata must
    /// name the endpoint, or where the provider has no such endpoint.
    package struct EndpointPaths: Sendable, Equatable {
        package var authorization: EndpointPath?
        package var token: EndpointPath?
        package var deviceAuthorization: EndpointPath?
        package var keys: EndpointPath?
        package var accountCreation: EndpointPath?
        package var activation: EndpointPath?
        package var logout: EndpointPath?

        package init(
            authorization: EndpointPath? = nil, token: EndpointPath? = nil, deviceAuthorization: EndpointPath? = nil,
            keys: EndpointPath? = nil, accountCreation: EndpointPath? = nil, activation: EndpointPath? = nil,
            logout: EndpointPath? = nil
        ) {
            self.authorization = authorization
            self.token = token
            self.deviceAuthorization = deviceAuthorization
            self.keys = keys
            self.accountCreation = accountCreation
            self.activation = activation
            self.logout = logout
        }
    }

    /// How a provider without a login page creates and activates accounts, and how it logs out.
    package struct AccountRules: Sendable, Equatable {
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
    }

    /// How an app of a device, which a user is logged in to, gets a code for another app of the device.
    package struct AppToAppRules: Sendable, Equatable {
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
    }

    /// A refusal that callers get as an error of that name.
    package enum NamedRefusal: Sendable {
        /// The refresh token is not valid any more.
        case invalidTokenRequest
        /// The account does not exist.
        case unknownAccount
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
