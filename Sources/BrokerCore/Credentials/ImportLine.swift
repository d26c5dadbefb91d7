import Cryptography
package import OAuth

/// A set of credentials that another broker has kept, and that this one is to take over.
package struct ImportLine: Sendable {
    package let id: CredentialsID
    /// What is to be stored. Its access token is empty where the line has a refresh token only: the first caller has it refreshed.
    package internal(set) var held: HeldCredentials
    let grant: ImportedGrant
    /// Whether `held` has a refresh token that was put aside, in place of the line's own.
    private(set) var wasPutAside = false
    /// Whether it takes the place of the set of a user who is logged in.
    private let replaces: Bool

    /// - Parameters:
    ///   - held: what the line brings.
    ///   - granted: when the provider granted it; nil where the line does not say.
    package init(_ id: CredentialsID, _ held: HeldCredentials, granted: Timestamp?, replaces: Bool) {
        let grant = ImportedGrant(of: held.refreshToken ?? held.accessToken, granted: granted)
        self.id = id
        self.held = held
        self.held.imported = grant
        self.grant = grant
        self.replaces = replaces
    }

    /// The same line with the refresh token of these credentials, which were put aside: its own is spent.
    func resuming(_ aside: HeldCredentials) -> ImportLine {
        var line = self
        line.held = held.havingRefreshToken(of: aside)
        line.held.imported = grant
        line.wasPutAside = true
        return line
    }

    package enum Outcome: Sendable, Equatable {
        case imported
        /// The line's grant is stored already, or what renewals have made of it.
        case unchanged
        /// Other credentials are stored, and stay.
        case conflict(String)
    }

    /// What becomes of the line over what is stored; nil where it is to be stored.
    func outcome(over record: CredentialRecord, now: Timestamp) -> Outcome? {
        switch ImportStanding(of: record, to: held, grant, now: now) {
        case .free: nil
        case .same: .unchanged
        case .taken:
            replaces
                ? nil
                : .conflict(
                    "A user is logged in under this storage key, by another grant. Only an import with replace=true replaces it."
                )
        case .newer: .conflict("What is stored under this storage key was granted later than this line's granted_at.")
        case .refused:
            replaces
                ? nil
                : .conflict(
                    "The provider has refused this refresh token, which ended the session. Only an import with replace=true "
                        + "stores it again.")
        }
    }
}
