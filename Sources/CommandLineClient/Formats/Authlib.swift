import ExternalText

extension TokenFileFormat {
    /// The token of a session of Authlib as JSON.
    static let authlib = TokenFileFormat(
        name: "authlib", help: "the token of Authlib as JSON, or several by names",
        read: { bytes throws(TokenFileFault) in
            try TokenFileJSON.tokens(bytes, group: "authlib", expiry: "expires_at")
        })
}
