package import ExternalText
package import OAuth

/// Whose tokens a session, a code or a biometric key of an app is good for: the user of one login.
package struct AppOwner: Sendable, Equatable {
    /// The user who had logged in; nil where the provider told of none.
    let userID: WireText?
    /// `HeldCredentials.loggedInSince` of the login; nil in records of earlier builds.
    let login: Timestamp?
    /// When the session, the code or the key was made.
    let created: Timestamp

    package init(userID: WireText?, login: Timestamp?, created: Timestamp) {
        self.userID = userID
        self.login = login
        self.created = created
    }

    /// By how much the clocks of two replicas may differ, for records that do not name their login.
    private static let clockTolerance: Duration = .seconds(60)

    /// Whether these credentials are those of this login. A user who is not known is no other login's user.
    package func isOf(_ held: HeldCredentials) -> Bool {
        guard held.level == .user else { return false }
        let known = [held.userID, held.identity.userID, held.identity.subject].compactMap(\.self)
        let isSameUser = userID.map(known.contains) ?? false
        if userID != nil, !known.isEmpty, !isSameUser { return false }
        let since = held.loggedInSince
        guard let login else {
            // A login that came after the record is another one. A known user's need not be, by a replica's clock.
            return since <= (isSameUser ? created.advanced(by: Self.clockTolerance) : created)
        }
        // An earlier build has written the credentials without their login.
        if since == HeldCredentials.unknownLogin { return isSameUser || login == since }
        return login == since
    }
}
