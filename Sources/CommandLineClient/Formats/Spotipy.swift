import ExternalText

extension TokenFileFormat {
    /// The cache of spotipy's `CacheFileHandler`. It has no client identifier.
    static let spotipy = TokenFileFormat(
        name: "spotipy", help: "a cache file of spotipy",
        read: { bytes throws(TokenFileFault) in
            try TokenFileJSON.tokens(bytes, group: "spotipy", expiry: "expires_at")
        })
}
