import OAuth

/// What an operator can do about a provider's refusal, by its error code (RFC 6749 §4.1.2.1, §5.2; RFC 8628 §3.5). Each sentence
/// is the broker's own, since of the provider's text only the error code is shown.
enum RefusalAdvice {
    /// For an answer of the token endpoint.
    /// - Returns: nil where there is nothing to advise.
    static func sentence(of answer: TokenErrorResponse, status: Int, grant: TokenRequest.Grant) -> String? {
        switch answer.error {
        case "invalid_client": client
        case _ where answer.namesMissingGrant:
            "The client may not use \(name(of: grant)): allow it at the provider's registration of the client."
                .followed(
                    by: alsoWrongSecret(answer))
        case "invalid_grant":
            switch grant {
            case .authorizationCode, .accountCreation:
                "The code was used already, is too old, or was given for another redirect URI or client. Begin another "
                    + "login; if it fails again, compare the redirect URI that is registered at the provider."
            case .deviceCode: "The code was used already or is too old. Begin another login."
            case .refreshToken, .upgrade, .clientCredentials: nil
            }
        case "invalid_scope": scopes
        case "invalid_request" where grant == .refreshToken:
            "Some providers say in this way that the session has ended, such as LemonLDAP::NG. If the answer lasts for a "
                + "minute, the broker compares it with those to made-up grants, and says here what it means."
        case "invalid_request":
            "The provider misses something in the request, or knows something in it otherwise: check the configured "
                + "provider and token_endpoint_auth_method."
        case "access_denied": "The user, or a policy of the provider, does not allow it."
        case "redirect_uri_mismatch", "invalid_redirect_uri": redirectURI
        case "invalid_dpop_proof", "use_dpop_nonce": proof
        default:
            sentence(
                ofStatus: status, isReadable: answer.isReadable, isNamed: answer.errorCode != nil || answer.isMalformed)
        }
    }

    /// What to do when a client is not granted client credentials.
    static let clientCredentials =
        "allow that grant at the provider's registration of the client, or say \"client_credentials\": \"off\" where the "
        + "secret is for refreshes only."

    /// What else to check where a server refuses a client that shows a JWT; nil for other clients.
    static func assertion(at server: AuthorizationServer) -> String? {
        switch server.clientAuthentication {
        case .privateKeyJWT:
            "The client shows a JWT: register the public part of private_key at the provider, with its kid, and set "
                + "client_assertion_audience to what the provider wants in aud."
        case .clientSecretJWT:
            "The client shows a JWT: set client_assertion_audience to what the provider wants in aud."
        default: nil
        }
    }

    /// Advice for an answer that Glewlwyd also sends to a client with a wrong secret; nil for other answers.
    static func alsoWrongSecret(_ answer: TokenErrorResponse) -> String? {
        switch answer.error {
        case "unauthorized_client":
            "Check the configured client_secret, too: some providers refuse a wrong one in the same way."
        default: nil
        }
    }

    /// What callers get where the provider does not take the client any more that has logged their user in, and that another one
    /// of the broker's has replaced.
    static func ofEarlierClient(_ error: BrokerError) -> BrokerError {
        BrokerError(
            error.code,
            "The authorization server does not accept the client any more that the broker had there when this user logged in, "
                + "and has given the broker another one since. Have the user log in anew. What is stored stays, in case the "
                + "server accepts that client again.", errorCode: error.errorCode)
    }

    // MARK: Answers that were compared

    /// The entry of `session_ending_answers` for an answer.
    private static func entry(_ answer: RefusedAnswer) -> String {
        let error = answer.error.map { ", \"error\": \"\($0)\"" } ?? ""
        return "{\"status\": \(answer.status)\(error)}"
    }

    private static func words(_ answer: RefusedAnswer) -> String {
        "status \(answer.status) and " + (answer.error.map { "the error \($0)" } ?? "no error")
    }

    /// What callers get while an answer is to end sessions that the provider gives to whatever it is asked.
    static func provesNothing(_ answer: RefusedAnswer, retryAfter: Duration) -> BrokerError {
        BrokerError(
            .retryableError,
            "The provider, or something in front of it such as a firewall, gives a made-up refresh token and a made-up code "
                + "the same answer as this user's refresh token, \(words(answer)). So the answer says nothing about the "
                + "session, which stays as it is. Check that calls from this broker's address are allowed.",
            retryAfter: Int(retryAfter.components.seconds))
    }

    /// For an answer that a made-up code did not get, or a made-up refresh token did not get.
    static func ofGrant(_ answer: RefusedAnswer, _ error: BrokerError) -> BrokerError {
        BrokerError(
            error.code,
            "The provider refuses this user's refresh token with \(words(answer)), and answers a made-up grant otherwise: so "
                + "it is about this refresh token, and not about the client or its client_secret. If that is how the "
                + "provider says that a session is over, a tenant of the service needs \(entry(answer)) in its "
                + "session_ending_answers. Or have the user log in anew.", errorCode: error.errorCode)
    }

    /// For an answer that made-up grants get as well.
    static func ofNothing(_ answer: RefusedAnswer, _ error: BrokerError) -> BrokerError {
        let remedy =
            answer.error == nil
            ? "Check client_id, client_secret and token_endpoint_auth_method, and that calls from this broker's address are "
                + "allowed."
            : "Check client_id, client_secret and token_endpoint_auth_method. If other users' tokens are refreshed, the answer "
                + "means that a session is over: then a tenant of the service needs \(entry(answer)) in its "
                + "session_ending_answers. Or have the user log in anew."
        return BrokerError(
            error.code,
            "The provider gives a made-up refresh token and a made-up code the same answer as this user's refresh token, "
                + "\(words(answer)). \(remedy)", errorCode: error.errorCode)
    }

    /// The advice for an answer whose error code says no more than its status.
    /// - Parameters:
    ///   - isReadable: whether the answer can be that of an authorization server.
    ///   - isNamed: whether the answer has an error code.
    private static func sentence(ofStatus status: Int, isReadable: Bool, isNamed: Bool) -> String? {
        switch status {
        case 300...399:
            "The answer is a redirect to another address, and the broker follows none: name in the configured endpoints the "
                + "address that answers itself."
        case 401: client
        case 403:
            "The provider forbids the request: check the configured client_secret, allow what is asked for at the provider's "
                + "registration of the client, and calls from this broker's address where the provider or a firewall in "
                + "front of it restricts them."
        case 404: "No such endpoint is at that address: check the configured provider, issuer and endpoints."
        case 400...499 where !isReadable:
            "The answer is not an authorization server's: a proxy or another server answers there. Check the configured "
                + "issuer and endpoints, and what stands between the broker and the provider."
        case 400...499 where !isNamed:
            "The provider named no reason. Some refuse a wrong client_secret in this way: check the configured client_id, "
                + "client_secret and token_endpoint_auth_method."
        default: nil
        }
    }

    /// The advice for an error that a browser has brought back from the login service.
    static func sentence(ofLoginError error: String?) -> String? {
        switch error {
        case "access_denied": "The user, or a policy there, did not allow it."
        case "invalid_scope": scopes
        case "unauthorized_client", "unsupported_response_type":
            "The client may not log users in by a code: allow the authorization code grant at the provider's registration "
                + "of the client."
        case "invalid_client": "Check the configured client_id."
        case "redirect_uri_mismatch", "invalid_redirect_uri": redirectURI
        case "invalid_request":
            "The login service misses something in the request, or knows something in it otherwise: check the configured "
                + "provider, and the redirect URI at the provider's registration of the client."
        case "server_error", "temporarily_unavailable": "The login service failed: try again in a moment."
        case "login_required", "interaction_required", "consent_required", "account_selection_required":
            "The login service needs the user, whom a parameter of the request kept away: leave prompt=none out."
        default: nil
        }
    }

    static let client =
        "The provider does not accept the client: check the configured client_id, client_secret and "
        + "token_endpoint_auth_method."
    private static let redirectURI =
        "The provider does not know the login's redirect URI: register it there letter by letter, as the redirect_uri of the "
        + "login_uri has it."
    private static let scopes = "The provider does not grant these scopes to the client: check the configured scopes."

    private static let proof =
        "The provider wants requests to be proven by a key (RFC 9449): say \"dpop\": true in the tenant. If the tenant says so "
        + "already, the proof was refused: compare the clocks of the broker and of the provider."

    private static func name(of grant: TokenRequest.Grant) -> String {
        switch grant {
        case .authorizationCode: "the authorization code grant"
        case .refreshToken: "the refresh token grant"
        case .clientCredentials: "the client credentials grant"
        case .upgrade: "the grant that moves a session to another client"
        case .deviceCode: "the device code grant"
        case .accountCreation: "account creation"
        }
    }
}

extension TokenErrorResponse {
    /// Whether the error code says that the client must not use the grant, or that the provider does not support it. Glewlwyd
    /// sends `authorization_type_invalid`. False where a rule of the profile says what the answer means: `error` is not the
    /// provider's own then.
    var namesMissingGrant: Bool {
        switch error {
        case _ where meaning != nil: false
        case "unauthorized_client", "unsupported_grant_type", "authorization_type_invalid": true
        default: false
        }
    }
}
