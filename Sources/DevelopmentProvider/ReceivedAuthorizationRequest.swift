import ExternalText

/// A valid request to the authorization endpoint, which may be shown to the user (RFC 6749 §4.1.1).
struct ReceivedAuthorizationRequest: Sendable {
    /// Why a request is refused.
    enum Refusal: Error {
        /// The browser must not be redirected, so a page shows the error to the user (RFC 6749 §3.1.2.4).
        case page(String)
        case redirect(to: String, state: WireText?, error: String, description: String)
    }

    let client: ProviderClient
    let redirectURI: String
    let redirectURIWasSent: Bool
    let state: WireText?
    let scope: [String]
    /// Scopes of the other kind; empty where the provider has one kind.
    let userScope: [String]
    let challenge: String?

    init(_ parameters: Parameters, _ configuration: ProviderConfiguration) throws(Refusal) {
        guard !parameters.repeated.contains("client_id"), !parameters.repeated.contains("redirect_uri") else {
            throw .page("The application's request names its client or its return address twice.")
        }
        guard let clientID = parameters["client_id"], let client = configuration.client(clientID) else {
            throw .page("The application that sent you here is not known.")
        }
        let sent = parameters["redirect_uri"]
        let wanted = sent ?? (client.redirectURIs.count == 1 ? WireText(client.redirectURIs[0]) : nil)
        guard let wanted, Self.isSafe(wanted),
            client.allows(wanted)
        else {
            throw .page("The application's request has a return address that is missing or not registered.")
        }
        let redirectURI = wanted.text
        let state = parameters.repeated.contains("state") ? nil : parameters["state"]
        func refuse(_ error: String, _ description: String) -> Refusal {
            .redirect(to: redirectURI, state: state, error: error, description: description)
        }
        guard parameters.repeated.isEmpty else { throw refuse("invalid_request", "A parameter occurs more than once") }
        if let refusal = configuration.translation?.refusal(ofAuthorization: parameters) {
            throw refuse("invalid_request", refusal)
        }
        switch parameters["response_type"] {
        case "code": break
        case nil where configuration.behaviour.toleratesMissingResponseType: break
        case nil: throw refuse("invalid_request", "response_type is missing")
        default: throw refuse("unsupported_response_type", "The response type is not code")
        }
        let challenge = parameters["code_challenge"]
        if let challenge {
            guard parameters["code_challenge_method"] == "S256" else {
                throw refuse("invalid_request", "The code challenge method is not S256")
            }
            guard challenge.utf8.count == 43, challenge.utf8.allSatisfy({ $0.isUnreserved && $0 != 0x2e && $0 != 0x7e })
            else { throw refuse("invalid_request", "The code challenge is not a SHA-256 digest in base64url") }
        } else if configuration.requiresProofKey,
            client.secret == nil || !configuration.behaviour.sparesConfidentialClientsPKCE
        {
            throw refuse("invalid_request", "Code challenge required")
        }
        do {
            scope = try TokenIssuer.scope(parameters.scope(), of: client)
            userScope = try configuration.translation?.userScope(parameters) ?? []
        } catch {
            throw refuse(error.error, error.description)
        }
        self.challenge = challenge?.text
        self.client = client
        self.redirectURI = redirectURI
        redirectURIWasSent = sent != nil
        self.state = state
    }

    /// Whether this is an absolute URI without a fragment (RFC 6749 §3.1.2), with a scheme that a browser does not
    /// execute.
    static func isSafe(_ uri: WireText) -> Bool {
        let scheme = uri.split(at: ":", limit: 2)[0]
        guard scheme.count < uri.count, let first = scheme.utf8.first, first.isLetter,
            scheme.utf8.allSatisfy({ $0.isLetter || $0 >= 0x30 && $0 <= 0x39 || "+-.".utf8.contains($0) })
        else { return false }
        return !["javascript", "data", "vbscript", "blob", "about", "file"].contains(scheme.lowercased)
            && uri.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f && !"#\"<>\\^`{|}".utf8.contains($0) }
    }
}

extension UInt8 {
    fileprivate var isLetter: Bool { self | 0x20 >= UInt8(ascii: "a") && self | 0x20 <= UInt8(ascii: "z") }
}
