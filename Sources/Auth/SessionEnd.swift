import BrokerCore
import ExternalText
public import FoundationEssentials
import JSON
import OAuth

/// How a user's session has ended.
public struct SessionEnd: Sendable, Equatable {
    /// What has ended a session.
    public enum Cause: String, Sendable, CaseIterable {
        /// The program: `AuthClient.logout`, or `OAuthClient.logout` and `OAuthClient.removeLocalAccount`.
        case logout
        /// The provider, which does not accept the refresh token any more.
        case revoked
        /// The token's expiry, where the provider has granted no refresh token, or its time is over.
        case expired
    }

    /// Why a session has ended that neither the user nor the provider may have wanted to end.
    public enum Reason: String, Sendable, CaseIterable {
        /// An earlier refresh, whose answer was lost, may have spent the refresh token that the provider has refused.
        case outcomeUnknown = "outcome_unknown"
        /// A refresh has brought another user's token, which no caller gets.
        case subjectChanged = "subject_changed"
    }

    /// What has ended it.
    public let cause: Cause
    /// Nil where the cause says everything, and in an `AuthError`.
    public let reason: Reason?
    /// When it was ended, or was found to have ended.
    public let time: Date

    /// Sets the members, for tests of code that uses the library.
    public init(cause: Cause, reason: Reason? = nil, time: Date) {
        self.cause = cause
        self.reason = reason
        self.time = time
    }

    init(_ session: EndedSession) {
        self.init(cause: Cause(session.cause), time: Date(session.time))
    }

    /// What has happened, in English.
    var sentence: String {
        switch cause {
        case .logout: "The user has logged out."
        case .revoked: "The provider has ended the user's session."
        case .expired: "The user's session has expired."
        }
    }
}

extension SessionEnd.Cause {
    fileprivate init(_ cause: EndedSession.Cause) {
        self =
            switch cause {
            case .logout: .logout
            case .revoked: .revoked
            case .expired: .expired
            }
    }
}

/// A notice that a user's session has ended: the user must log in again before there is a user's token.
public struct SessionEndedMessage: Sendable, Equatable {
    /// How it has ended.
    public let end: SessionEnd
    /// The user; nil if the provider has not sent an identifier.
    public let userID: String?

    /// Creates a message, for tests of code that uses the library.
    public init(end: SessionEnd, userID: String? = nil) {
        self.end = end
        self.userID = userID
    }

    /// Nil for an event of another kind, and for the end of a client's own credentials.
    init?(_ kind: BrokerEvent.Kind, _ data: JSONValue) {
        guard kind == .credentialsDeauthorized,
            data["level"]?.string == WireText(CredentialsLevel.user.rawValue),
            let cause = data["cause"]?.string.flatMap({ EndedSession.Cause(rawValue: $0.text) }),
            let time = data["time"]?.string.flatMap({ Timestamp(rfc3339: $0.text) })
        else { return nil }
        let reason = data["reason"]?.string.flatMap { SessionEnd.Reason(rawValue: $0.text) }
        self.init(
            end: SessionEnd(cause: SessionEnd.Cause(cause), reason: reason, time: Date(time)),
            userID: data["user_id"]?.string?.text)
    }
}

extension SessionEndedMessage {
    /// Texts from the provider are compared by their bytes, which takes linear time for every text.
    public static func == (left: SessionEndedMessage, right: SessionEndedMessage) -> Bool {
        left.end == right.end && left.userID.map { WireText($0) } == right.userID.map { WireText($0) }
    }
}

extension AuthClient {
    /// A stream of the ends of users' sessions from now on, also of those that other processes have ended. Each call creates a
    /// separate stream, which ends like `bus` and buffers as many messages.
    ///
    /// A session ends by a logout, or if the provider has ended it: not because something fails. Where a login takes the place of
    /// a session, no message is sent.
    public var sessionEnds: AsyncStream<SessionEndedMessage> {
        stream { piece, _ in piece.events.compactMap { SessionEndedMessage($0.kind, $0.data) } }
    }
}

extension Date {
    fileprivate init(_ time: Timestamp) {
        self.init(timeIntervalSince1970: Double(time.milliseconds) / 1000)
    }
}
