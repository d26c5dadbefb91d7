package import JSON

/// A session that was opened by the control interface, without a login.
package struct OpenedSession: Sendable {
    package let user: ProviderUser
    package let accessToken: String
    /// Seconds.
    package let expiresIn: Int64
    /// Nil where the provider gives none.
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
