import ExternalText
import JSON
import OAuth

/// Makes lines of `POST /credentials/import` of what a file has.
struct TokenFileLines {
    /// Names the storage key of a file's only entry; nil for what the file says.
    var storageKey: String?
    /// The entries to take, by their names or by what they have in common; empty for all.
    var only: [String] = []
    /// Whether the scopes that the file names are left out, so that those of the tenant count.
    var leavesOutScopes = false
    /// The time by which tokens have ended.
    let now: Timestamp

    /// The longest token, in bytes.
    private static let longestToken = 65_536

    /// - Returns: for each entry a line, or why it cannot be taken over.
    /// - Throws: `usage` where the file has entries of several kinds, or several entries for one storage key.
    func items(_ entries: [TokenFileEntry]) throws(CommandError) -> [ImportItem] {
        let chosen =
            only.isEmpty ? entries : entries.filter { only.contains($0.name) || only.contains($0.group) }
        for name in only where !entries.contains(where: { $0.name == name || $0.group == name }) {
            let names = Array(Set(entries.map(\.name) + entries.map(\.group))).filter { !$0.isEmpty }.sorted()
            throw CommandError(.usage, TextTable.shown(Nearest.complaint(about: name, "entry", among: names)))
        }
        let usable = chosen.filter { $0.refusal == nil }
        let groups = Array(Set(usable.map(\.group))).sorted()
        if groups.count > 1 {
            throw CommandError(
                .usage,
                TextTable.shown(
                    "the file has entries of several providers or clients, which are several tenants: choose with --only; "
                        + "there are " + groups.prefix(20).joined(separator: ", ")))
        }
        if storageKey != nil, usable.count > 1 {
            throw CommandError(
                .usage, "the file has \(usable.count) entries, which cannot have one storage key: choose with --only")
        }
        var keys: Set<String> = []
        return chosen.enumerated().map { index, entry in
            let key = storageKey ?? entry.storageKey ?? "default"
            var entry = entry
            check(&entry, key)
            if entry.refusal == nil, !keys.insert(key).inserted {
                entry.refuse("another entry of the file has the storage key \(key)")
            }
            if let refusal = entry.refusal {
                let named = entry.storageKey.flatMap { StorageKey($0)?.description }
                return ImportItem(
                    number: index + 1, name: entry.name, storageKey: named,
                    content: .refused(refusal))
            }
            return ImportItem(
                number: index + 1, name: entry.name, storageKey: key, content: .line(line(entry, key)),
                notes: entry.notes)
        }
    }

    private func check(_ entry: inout TokenFileEntry, _ key: String) {
        if entry.accessToken == nil, entry.refreshToken == nil { entry.refuse("it has no token") }
        if let type = entry.tokenType, !WireText(type).equalsIgnoringCase("bearer") {
            entry.refuse("its token_type is \(type), whose tokens need more than the file has")
        }
        for token in [entry.accessToken, entry.refreshToken].compactMap(\.self) {
            if token.utf8.count > Self.longestToken {
                entry.refuse("a token has more than \(Self.longestToken) bytes")
            }
            if !token.utf8.allSatisfy({ (0x21...0x7e).contains($0) }) { entry.refuse("a token is no visible ASCII") }
        }
        if entry.refreshToken == nil, let end = entry.expires, end <= now {
            entry.refuse("its token has ended at \(end), and it has no refresh token")
        }
        if let granted = entry.granted, granted > now { entry.granted = nil }
        if StorageKey(key) == nil {
            entry.refuse(
                "\(key) cannot be a storage key, which has 1 to 200 letters, digits and . _ ~ : @ -; name one with --storage-key"
            )
        }
    }

    private func line(_ entry: TokenFileEntry, _ key: String) -> [UInt8] {
        JSONWriter.object { json in
            json.member("storage_key", key)
            json.name("credentials")
            json.object { json in
                json.member("level", "user")
                json.memberIfPresent("client_id", entry.clientID)
                if let token = entry.accessToken {
                    json.member("token", token)
                    json.memberIfPresent("expires", entry.expires?.description)
                }
                if !leavesOutScopes, !entry.scopes.isEmpty { json.member("granted_scopes", entry.scopes) }
            }
            json.memberIfPresent("refresh_token", entry.refreshToken)
            json.memberIfPresent("granted_at", entry.granted?.description)
        }
    }
}
