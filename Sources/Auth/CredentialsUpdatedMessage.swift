/// A change of the credentials: a login, a refresh, an upgrade, `setCredentials`, or the removal of the credentials.
public struct CredentialsUpdatedMessage: Sendable, Equatable {
    /// What has changed credentials. Later versions may add causes.
    public struct Cause: RawRepresentable, Sendable, Hashable {
        /// The name of the cause, such as `refresh`.
        public let rawValue: String

        /// A cause of any name.
        public init(rawValue: String) { self.rawValue = rawValue }

        /// A login with a browser, through another app, or by a biometric key.
        public static let login = Cause(rawValue: "login")
        /// A login on another device.
        public static let device = Cause(rawValue: "device")
        /// A refresh.
        public static let refresh = Cause(rawValue: "refresh")
        /// A refresh with the parameters of another configuration.
        public static let upgrade = Cause(rawValue: "upgrade")
        /// `AuthClient.setCredentials`, or `OAuthClient.adopt`.
        public static let set = Cause(rawValue: "set")
        /// A session that the provider had ended was put back. The library itself does not do that.
        public static let restored = Cause(rawValue: "restored")
        /// A token of the client's own was granted.
        public static let client = Cause(rawValue: "client")
        /// The store had lost the credentials, and they were stored again.
        public static let recovery = Cause(rawValue: "recovery")
        /// The program has logged the user out.
        public static let logout = Cause(rawValue: "logout")
        /// The provider has ended the session.
        public static let revoked = Cause(rawValue: "revoked")
        /// The session has expired.
        public static let expired = Cause(rawValue: "expired")
    }

    /// The credentials after the change; basic ones if the credentials were removed.
    public let credentials: Credentials
    /// What the change was; nil if it is not known. Another change can follow before the message is made: `credentials` are then
    /// those after that one.
    public let cause: Cause?

    /// Creates a message, for your own implementation of `CredentialsProvider`.
    public init(credentials: Credentials, cause: Cause? = nil) {
        self.credentials = credentials
        self.cause = cause
    }
}
