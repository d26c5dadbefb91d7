import ExternalText

extension TokenFileFormat {
    /// A token of Go's x/oauth2 as JSON. Its time has the offset of where it was written, and is in the year 1 for no end.
    static let goOAuth2 = TokenFileFormat(
        name: "go-oauth2", help: "a token of Go's x/oauth2 as JSON, or several by names",
        read: { bytes throws(TokenFileFault) in
            try TokenFileJSON.tokens(bytes, group: "go-oauth2", expiry: "expiry")
        })
}
