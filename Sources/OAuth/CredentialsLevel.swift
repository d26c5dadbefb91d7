/// The levels of credentials, lowest first (TIDAL's Auth design, "Credentials levels").
package enum CredentialsLevel: String, Sendable, CaseIterable, Comparable {
    /// Only the client identifier, without a token.
    case basic
    /// A token for the client.
    case client
    /// A token for a user.
    case user

    package static func < (left: CredentialsLevel, right: CredentialsLevel) -> Bool {
        left.rank < right.rank
    }

    private var rank: Int {
        switch self {
        case .basic: 0
        case .client: 1
        case .user: 2
        }
    }
}
