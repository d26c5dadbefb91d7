package import ExternalText

/// By what names a provider has told who a user is. A name of one kind is not compared with a name of the other: the same
/// person can have two.
package struct UserIdentity: Sendable, Equatable {
    /// The member `user_id` of a token answer.
    package var userID: WireText?
    /// `sub` of an ID token.
    package var subject: WireText?

    package init(userID: WireText? = nil, subject: WireText? = nil) {
        self.userID = userID
        self.subject = subject
    }

    /// Of credentials from elsewhere, and of those that an earlier build stored.
    package var isUnknown: Bool { userID == nil && subject == nil }

    /// The same with what was told before where this has no name.
    func completed(by earlier: UserIdentity?) -> UserIdentity {
        UserIdentity(userID: userID ?? earlier?.userID, subject: subject ?? earlier?.subject)
    }
}

extension HeldCredentials {
    /// Whether the answer to a refresh of these credentials is about another user. An answer that names none is not.
    package func isOfOtherUser(than response: TokenResponse) -> Bool {
        differs(from: response.identity, response.userID)
    }

    /// Whether these credentials are another user's, where the one is the successor of the other.
    package func isOfOtherUser(than successor: HeldCredentials) -> Bool {
        successor.level == .user && differs(from: successor.identity, successor.userID)
    }

    /// Whether the answer to a refresh of these credentials tells a subject that cannot be compared with the name that
    /// they came with, because it is not known of what kind that one is.
    package func learnsSubject(from response: TokenResponse) -> Bool {
        guard level == .user, identity.isUnknown, let userID, response.identity.userID == nil else { return false }
        return response.identity.subject.map { $0 != userID } ?? false
    }

    private func differs(from other: UserIdentity, _ otherUserID: WireText?) -> Bool {
        guard level == .user else { return false }
        // The subject is the name that a provider never gives to another person (OpenID Connect Core §2).
        if let own = identity.subject, let theirs = other.subject { return own != theirs }
        if let own = identity.userID, let theirs = other.userID { return own != theirs }
        // A name of an unknown kind is compared with every name of the other side if a `user_id` is among them. A subject
        // alone may be a further name of the same person. Of two names of unknown kinds, one may be a `user_id` and the
        // other a subject, so that a difference between them must not end the session.
        guard identity.isUnknown != other.isUnknown,
            (identity.isUnknown ? other : identity).userID != nil
        else { return false }
        let own = Set([userID, identity.userID, identity.subject].compactMap(\.self))
        let theirs = Set([otherUserID, other.userID, other.subject].compactMap(\.self))
        return !own.isEmpty && !theirs.isEmpty && own.isDisjoint(with: theirs)
    }
}
