import ExternalText
import JSON

extension TokenFileFormat {
    /// A session of oauth2-proxy in clear, as its code keeps it: `{"AccessToken": "…", "RefreshToken": "…", "Email": "…"}`, one
    /// or a list. What oauth2-proxy stores itself is encrypted.
    static let oauth2Proxy = TokenFileFormat(
        name: "oauth2-proxy", help: "sessions of oauth2-proxy in clear; it stores them encrypted, which cannot be read",
        read: { bytes throws(TokenFileFault) in
            guard let first = bytes.first(where: { ![0x20, 0x09, 0x0a, 0x0d, 0xef, 0xbb, 0xbf].contains($0) }),
                first == UInt8(ascii: "{") || first == UInt8(ascii: "[")
            else {
                throw TokenFileFault(
                    "is no session in clear. oauth2-proxy keeps sessions in the users' cookies, or in Redis under a key that only "
                        + "the user's cookie has, both encrypted: its users must log in once more")
            }
            let root = try TokenFileJSON.value(bytes)
            return (root.array ?? [root]).enumerated().map { entry($0.element, "session \($0.offset + 1)") }
        })

    private static func entry(_ value: JSONValue, _ name: String) -> TokenFileEntry {
        guard value.object != nil else { return .refused(name, "it is no object") }
        var entry = TokenFileEntry(name, group: "oauth2-proxy")
        if let user = entry.text("Email", of: value) ?? entry.text("User", of: value) {
            (entry.name, entry.storageKey) = (user, user)
        }
        entry.accessToken = entry.text("AccessToken", of: value)
        entry.refreshToken = entry.text("RefreshToken", of: value)
        entry.expires = entry.time("ExpiresOn", of: value)
        entry.granted = entry.refreshToken == nil ? nil : entry.time("CreatedAt", of: value)
        return entry
    }
}
