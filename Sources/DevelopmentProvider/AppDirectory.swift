import Containers
import ExternalText
import JOSE
import Reactor

/// What the authgear profile remembers of apps: challenges, device keys, biometric keys, and how many token requests came
/// of late. Every table is bounded and removes its oldest entry first.
struct AppDirectory: Sendable {
    /// What a challenge is for.
    enum Purpose: String, Sendable, CaseIterable {
        case anonymous = "anonymous_request"
        case biometric = "biometric_request"
        case appToApp = "app2app_request"
    }

    struct BiometricKey: Sendable {
        let key: JSONWebKey
        let clientID: String
        let user: ProviderUser
        /// The session that was begun with the key last.
        var family: Int?
    }

    private struct Challenge: Sendable {
        let purpose: Purpose
        let expiresAt: Int64
    }

    private struct Window: Sendable {
        let start: Int64
        var count: Int
    }

    /// How long a challenge is valid, in milliseconds.
    static let challengeLifetime: Int64 = 300_000
    /// How long the requests of an address and of a user are counted together, in milliseconds.
    private static let window: Int64 = 60_000
    private static let requestsOfAddress = 120
    private static let requestsOfUser = 60

    private var challenges: BoundedTable<WireText, Challenge>
    private var deviceKeys: BoundedTable<Int, JSONWebKey>
    private var biometricKeys: BoundedTable<WireText, BiometricKey>
    private var addresses: BoundedTable<WireText, Window>
    private var users: BoundedTable<ProviderUser, Window>

    init(capacity: Int) {
        challenges = BoundedTable(capacity: capacity)
        deviceKeys = BoundedTable(capacity: capacity)
        biometricKeys = BoundedTable(capacity: capacity)
        addresses = BoundedTable(capacity: capacity)
        users = BoundedTable(capacity: capacity)
    }

    // MARK: Challenges

    /// A new challenge, and until when it is valid.
    mutating func issueChallenge(for purpose: Purpose, now: Int64) -> (token: String, expiresAt: Int64) {
        let token = Secrets.makeChallenge()
        let expiresAt = TokenIssuer.time(now, .milliseconds(Self.challengeLifetime))
        challenges[WireText(token)] = Challenge(purpose: purpose, expiresAt: expiresAt)
        return (token, expiresAt)
    }

    /// Removes a challenge. Returns whether it was valid and for this purpose.
    mutating func consume(_ token: WireText, for purpose: Purpose, now: Int64) -> Bool {
        guard let challenge = challenges.removeValue(forKey: token) else { return false }
        return challenge.purpose == purpose && now < challenge.expiresAt
    }

    // MARK: Keys

    /// The device key of a session; nil without one.
    func deviceKey(of family: Int) -> JSONWebKey? { deviceKeys[family] }

    mutating func bind(_ key: JSONWebKey, to family: Int) { deviceKeys[family] = key }

    subscript(biometricKey id: WireText) -> BiometricKey? {
        get { biometricKeys[id] }
        set { biometricKeys[id] = newValue }
    }

    // MARK: Rates

    /// Counts a token request of an address. Returns false for one too many.
    mutating func admit(address: WireText, now: Int64) -> Bool {
        Self.admit(address, to: &addresses, limit: Self.requestsOfAddress, now: now)
    }

    /// Counts a request that uses a session or a biometric key of the user. Returns false for one too many.
    mutating func admit(_ user: ProviderUser, now: Int64) -> Bool {
        Self.admit(user, to: &users, limit: Self.requestsOfUser, now: now)
    }

    private static func admit<Key>(
        _ key: Key, to windows: inout BoundedTable<Key, Window>, limit: Int, now: Int64
    ) -> Bool {
        guard var current = windows[key], now - current.start < Self.window else {
            windows[key] = Window(start: now, count: 1)
            return true
        }
        guard current.count < limit else { return false }
        current.count += 1
        windows[key] = current
        return true
    }
}
