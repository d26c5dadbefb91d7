package import Cryptography
package import ExternalText

/// Which tokens of a set of credentials were verified. What is not in it was taken from the token endpoint unseen, as opaque
/// tokens are.
package struct TokenProof: Sendable, Equatable {
    package var accessToken: Bool
    package var refreshToken: Bool
    /// The verified ID token of the login, or of the last refresh that brought one; nil where there was none.
    package var idToken: SecretBytes?

    package init(accessToken: Bool = false, refreshToken: Bool = false, idToken: SecretBytes? = nil) {
        self.accessToken = accessToken
        self.refreshToken = refreshToken
        self.idToken = idToken
    }

    /// Whether no token was verified.
    package var isEmpty: Bool { !accessToken && !refreshToken && idToken == nil }
}

/// What is known of a set of credentials that was stored before it was verified, because the provider's keys were not there.
/// The set is served once it is verified. An object, since few records have one, and all would have room for it.
package final class WaitingVerification: Sendable, Equatable {
    /// What has brought the set. The raw value is stored.
    package enum Origin: String, Sendable, CaseIterable {
        case login, device, activation, refresh, upgrade, client, imported
    }

    package let origin: Origin
    /// The set before, which is served meanwhile; nil where there was none.
    package let earlier: HeldCredentials?
    /// The ID token that came with the set; nil where none did.
    package let idToken: SecretBytes?
    /// The nonce of the authorization request; nil where it had none.
    package let nonce: WireText?
    /// The key of the login's record, which ends when the set is verified; nil where no such login waits.
    package let login: String?
    /// When it was granted. Its tokens are judged by this time: they may expire while they wait.
    package let granted: Timestamp

    package init(
        origin: Origin, replacing earlier: HeldCredentials?, idToken: SecretBytes?, nonce: WireText? = nil,
        login: String? = nil, granted: Timestamp
    ) {
        self.origin = origin
        self.earlier = earlier
        self.idToken = idToken
        self.nonce = nonce
        self.login = login
        self.granted = granted
    }

    /// Whether a user was logged in when the set came, so that this session goes on if the set is not believed.
    package var hasSessionBefore: Bool { earlier?.isLoggedIn(at: granted) == true }

    package static func == (left: WaitingVerification, right: WaitingVerification) -> Bool {
        left === right
            || left.origin == right.origin && left.earlier == right.earlier && left.idToken == right.idToken
                && left.nonce == right.nonce && left.login == right.login && left.granted == right.granted
    }
}
