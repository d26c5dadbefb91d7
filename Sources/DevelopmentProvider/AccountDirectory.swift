import Containers
import ExternalText

/// What an account of the duckduckgo profile is good for.
package enum AccountState: String, Sendable, CaseIterable {
    case active
    case suspended
    case unverified
    /// The account does not exist any more, or never did.
    case removed
}

/// The accounts of the duckduckgo profile, and the authorization sessions with which a client logs in to them.
struct AccountDirectory: Sendable {
    /// An authorization request that waits for a login. Its session cookie names it.
    struct Session: Sendable {
        let client: ProviderClient
        let redirectURI: String
        let challenge: String
        let scope: [String]
        let expiresAt: Int64
        /// The email address that a password was sent to.
        var email: String?
        /// The authorization code that the session was used for; nil until then.
        var codeDigest: String?
    }

    /// States by the digest of the user's name. A user without one is removed.
    private var accounts: BoundedTable<String, AccountState>
    private var sessions = BoundedTable<String, Session>(capacity: 20_000)
    /// The code challenges that sessions were made for. Each makes one session only.
    private var challenges = BoundedTable<String, Bool>(capacity: 20_000)
    private var lastAccount = 0

    init(capacity: Int) { accounts = BoundedTable(capacity: capacity) }

    /// Makes an active account with a name of its own.
    mutating func create() -> ProviderUser {
        while true {
            lastAccount += 1
            let user = ProviderUser("account-\(lastAccount)")
            guard state(of: user) == .removed else { continue }
            set(.active, of: user)
            return user
        }
    }

    func state(of user: ProviderUser) -> AccountState { accounts[Secrets.digest(user.name)] ?? .removed }

    mutating func set(_ state: AccountState, of user: ProviderUser) {
        accounts[Secrets.digest(user.name)] = state == .removed ? nil : state
    }

    /// Opens a session and returns what its cookie contains; nil when the challenge was used before.
    mutating func open(_ session: Session) -> String? {
        guard challenges[session.challenge] == nil else { return nil }
        challenges[session.challenge] = true
        let cookie = Secrets.makeAlphanumeric(count: 64)
        sessions[Secrets.digest(cookie)] = session
        return cookie
    }

    /// The session of a cookie; nil for an unknown or expired one.
    func session(_ cookie: WireText, now: Int64) -> Session? {
        guard let session = sessions[Secrets.digest(cookie.text)], now < session.expiresAt else { return nil }
        return session
    }

    mutating func noteEmail(_ email: String, in cookie: WireText) {
        sessions[Secrets.digest(cookie.text)]?.email = email
    }

    mutating func noteCode(_ digest: String, in cookie: WireText) {
        sessions[Secrets.digest(cookie.text)]?.codeDigest = digest
    }
}
