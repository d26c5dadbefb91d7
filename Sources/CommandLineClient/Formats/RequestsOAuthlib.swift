import ExternalText

extension TokenFileFormat {
    /// The token of a session of requests-oauthlib as JSON, whose scopes are a list.
    static let requestsOAuthlib = TokenFileFormat(
        name: "requests-oauthlib", help: "the token of requests-oauthlib as JSON, or several by names",
        read: { bytes throws(TokenFileFault) in
            try TokenFileJSON.tokens(bytes, group: "requests-oauthlib", expiry: "expires_at")
        })
}
