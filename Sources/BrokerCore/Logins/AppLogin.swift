import Cryptography
package import ExternalText
import HTTPCodec
import JSON
import OAuth

/// What a login is for that an app has begun by an authorization request (RFC 6749 §4.1.1).
package struct AppLogin: Sendable, Equatable {
    package let clientID: String
    /// The app's name for people.
    package let title: String
    package let redirectURI: String
    /// Whether the request named the redirect URI.
    package let namedRedirectURI: Bool
    /// Nil where the request has none.
    package let state: WireText?
    /// Of the method S256.
    package let codeChallenge: WireText
    /// Whether the storage key is made of the user's identifier, once that is known.
    package let storesByUser: Bool
    /// Whether the user confirms the login before the code is redeemed.
    package let asksUser: Bool

    /// Where the app gets the outcome of its login, by a redirect of the browser (RFC 6749 §4.1.2, RFC 9207).
    package struct Return: Sendable {
        let login: AppLogin
        let outcome: Result<SecretBytes, AppError>

        init(login: AppLogin, _ outcome: Result<SecretBytes, BrokerError>) {
            self.login = login
            self.outcome = outcome.mapError { Self.error($0) }
        }

        private static func error(_ error: BrokerError) -> AppError {
            switch error.code {
            case .authorizationError:
                error.errorCode.flatMap { AppError.Code(WireText($0)) }.map {
                    AppError($0, "The login did not succeed.")
                }
                    ?? AppError(.accessDenied, "The login did not succeed.")
            case .retryableError, .networkError, .storageUnavailable, .tooManyRequests:
                AppError(.temporarilyUnavailable, "A service did not answer. Try again in a moment.")
            default: AppError(.serverError, "The login could not be finished (\(error.code.rawValue)).")
            }
        }

        /// - Parameter issuer: the broker's.
        package func uri(issuer: String) -> String {
            switch outcome {
            case .success(let code):
                Self.uri(login.redirectURI, [.init("code", code.revealedText)], login.state, issuer)
            case .failure(let error): Self.uri(login.redirectURI, error: error, state: login.state, issuer: issuer)
            }
        }

        /// Where the app gets an error.
        package static func uri(_ redirectURI: String, error: AppError, state: WireText?, issuer: String) -> String {
            uri(
                redirectURI, [.init("error", error.code.rawValue), .init("error_description", error.description)],
                state,
                issuer)
        }

        private static func uri(
            _ redirectURI: String, _ outcome: [FormEncoding.Pair], _ state: WireText?, _ issuer: String
        ) -> String {
            let state = state.map { [FormEncoding.Pair("state", $0)] } ?? []
            return RedirectURI.adding(outcome + state + [.init("iss", issuer)], to: redirectURI)
        }
    }

    /// The storage key of events of a login whose user is not known yet.
    static let unknownUser: StorageKey = {
        guard let key = StorageKey("~") else { preconditionFailure("~ is a storage key") }
        return key
    }()

    // MARK: Stored

    func encode(to json: inout JSONWriter) {
        json.member("client_id", clientID)
        json.member("title", title)
        json.member("redirect_uri", redirectURI)
        json.member("named_redirect_uri", namedRedirectURI)
        json.memberIfPresent("state", state?.text)
        json.member("code_challenge", codeChallenge.text)
        json.member("stores_by_user", storesByUser)
        json.member("asks_user", asksUser)
    }
}

extension AppLogin {
    init(
        client: AppClient, redirectURI: String, namedRedirectURI: Bool, state: WireText?, codeChallenge: WireText
    ) {
        self.init(
            clientID: client.clientID, title: client.title, redirectURI: redirectURI,
            namedRedirectURI: namedRedirectURI, state: state, codeChallenge: codeChallenge,
            storesByUser: client.settings.storageKey == nil,
            // Another app of the device can send the request of a public client, and could get its code (RFC 8252 §8.6).
            asksUser: client.isPublic)
    }

    /// Nil where this build cannot read it.
    init?(_ json: JSONValue) {
        guard let clientID = json["client_id"]?.string?.text, let title = json["title"]?.string?.text,
            let redirectURI = json["redirect_uri"]?.string?.text, let named = json["named_redirect_uri"]?.bool,
            let challenge = json["code_challenge"]?.string, let storesByUser = json["stores_by_user"]?.bool,
            let asksUser = json["asks_user"]?.bool
        else { return nil }
        self.init(
            clientID: clientID, title: title, redirectURI: redirectURI, namedRedirectURI: named,
            state: json["state"]?.string, codeChallenge: challenge, storesByUser: storesByUser, asksUser: asksUser)
    }
}
