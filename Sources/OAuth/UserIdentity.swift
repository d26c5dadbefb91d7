package import ExternalText

/// The identifiers with which a provider has named a user. Identifiers of different kinds are not compared, because one
/// user can have both.
package struct UserIdentity: Sendable, Equatable {
    /// The member `user_id` of a token response.
    package var userID: WireText?
    /// `sub` of a verified ID token, or of a verified access token where no ID token has come.
    package var subject: WireText?

    package init(userID: WireText? = nil, subject: WireText? = nil) {
        self.userID = userID
        self.subject = subject
    }

    /// True for imported credentials and for those that an earlier build stored.
    package var isUnknown: Bool { userID == nil && subject == nil }

    /// This identity, with the earlier identifiers where it has none.
    func completed(by earlier: UserIdentity?) -> UserIdentity {
        UserIdentity(userID: userID ?? earlier?.userID, subject: subject ?? earlier?.subject)
    }
}

extension HeldCredentials {
    /// Whether a refresh of these credentials named another user. False when it named none.
    /// - Parameter told: what it has told of the user, and nothing that was known before.
    package func isOfOtherUser(than told: UserIdentity) -> Bool {
        differs(from: told, told.userID ?? told.subject)
    }

    /// Whether these credentials are another user's than the credentials that replace them.
    package func isOfOtherUser(than successor: HeldCredentials) -> Bool {
        successor.level == .user && differs(from: successor.identity, successor.userID)
    }

    /// Whether these credentials and others are known to be one user's. Not the contrary of `isOfOtherUser`: where one of the two
    /// users is not known, both are false.
    package func isKnownToBeSameUser(as other: HeldCredentials) -> Bool {
        guard level == .user, other.level == .user else { return false }
        if let own = identity.subject, let theirs = other.identity.subject { return own == theirs }
        if let own = identity.userID, let theirs = other.identity.userID { return own == theirs }
        // Identifiers of different kinds may be equal by chance. An imported identifier has no kind.
        guard identity.isUnknown || other.identity.isUnknown, let own = userID, let theirs = other.userID else {
            return false
        }
        return own == theirs
    }

    /// The credentials of a login with their `loggedInSince`: that of the login before where both are known to be the same user's
    /// and the one before has not ended; otherwise a time that no earlier login has.
    /// - Parameter earlier: the credentials that these replace; nil for none.
    package func loggedIn(after earlier: HeldCredentials?, at now: Timestamp) -> HeldCredentials {
        guard level == .user else { return self }
        var login = self
        guard let earlier, earlier.level == .user else {
            login.loggedInSince = now
            return login
        }
        if earlier.isLoggedIn(at: now), earlier.isKnownToBeSameUser(as: self), isOfProvider(of: earlier) {
            login.loggedInSince = earlier.loggedInSince
            login.terms = GrantTerms(login: terms, at: now)
        } else {
            login.loggedInSince = max(now, earlier.loggedInSince.advanced(by: .milliseconds(1)))
        }
        return login
    }

    /// As `loggedIn`, for credentials that were stored before they were verified, with the `loggedInSince` of that time.
    package func verifiedLogin(after earlier: HeldCredentials?, at now: Timestamp) -> HeldCredentials {
        let login = loggedIn(after: earlier, at: now)
        // The time at which it was stored identifies a new login, unless the login before has it.
        let isNew = level == .user && login.loggedInSince != earlier?.loggedInSince
        return isNew && loggedInSince != Self.unknownLogin && loggedInSince != earlier?.loggedInSince ? self : login
    }

    /// The login that a change of the stored credentials ends; nil where it goes on, and where there was none.
    package static func login(of earlier: HeldCredentials?, endedBy next: HeldCredentials?) -> Timestamp? {
        guard let earlier, earlier.level == .user else { return nil }
        let goesOn = next.map { $0.level == .user && $0.loggedInSince == earlier.loggedInSince } ?? false
        return goesOn ? nil : earlier.loggedInSince
    }

    /// Whether the credentials that a refresh of these brought have a subject that cannot be compared with their user ID,
    /// because the kind of that ID is not known.
    package func learnsSubject(from successor: HeldCredentials) -> Bool {
        guard level == .user, identity.isUnknown, let userID, successor.identity.userID == nil else { return false }
        return successor.identity.subject.map { $0 != userID } ?? false
    }

    /// Whether both were granted by the same provider. Credentials of an earlier build count as granted by the configured one.
    private func isOfProvider(of earlier: HeldCredentials) -> Bool {
        guard let grantedBy, let theirs = earlier.grantedBy else { return true }
        return grantedBy.isKnownToBe(theirs)
    }

    private func differs(from other: UserIdentity, _ otherUserID: WireText?) -> Bool {
        guard level == .user else { return false }
        // A provider never assigns a subject to another user (OpenID Connect Core §2).
        if let own = identity.subject, let theirs = other.subject { return own != theirs }
        if let own = identity.userID, let theirs = other.userID { return own != theirs }
        // An identifier of unknown kind is compared with all identifiers of the other side if these include a `user_id`. A
        // subject alone may be a second identifier of the same user. Of two identifiers of unknown kind, one may be a
        // `user_id` and the other a subject of one user, so a difference between them must not log the user out.
        guard identity.isUnknown != other.isUnknown,
            (identity.isUnknown ? other : identity).userID != nil
        else { return false }
        let own = Set([userID, identity.userID, identity.subject].compactMap(\.self))
        let theirs = Set([otherUserID, other.userID, other.subject].compactMap(\.self))
        return !own.isEmpty && !theirs.isEmpty && own.isDisjoint(with: theirs)
    }
}
