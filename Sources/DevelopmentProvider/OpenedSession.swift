package import JSON

/// A session that the control interface opened without a login.
package struct OpenedSession: Sendable {
    package let user: ProviderUser
    package let accessToken: String
    /// The lifetime in seconds.
    package let expiresIn: Int64
    /// Nil when the provider issues no refresh tokens.
    package let refreshToken: String?

    package func write(to writer: inout JSONWriter) {
        writer.object { writer in
            writer.member("user", user.name)
            writer.member("user_id", user.id)
            writer.member("access_token", accessToken)
            writer.member("expires_in", expiresIn)
            writer.memberIfPresent("refresh_token", refreshToken)
        }
    }
}
