import ExternalText
import JSON

extension TokenFileFormat {
    /// rclone's configuration: the remotes of it that have a token, which is Go's x/oauth2 as JSON.
    static let rclone = TokenFileFormat(
        name: "rclone", help: "rclone.conf",
        read: { bytes throws(TokenFileFault) in
            let bytes = bytes.starts(with: [0xef, 0xbb, 0xbf]) ? Array(bytes[3...]) : bytes
            guard let text = WireText(validating: bytes.span) else { throw TokenFileFault("is no text in UTF-8") }
            return try remotes(text).map(entry)
        })

    private struct Remote {
        let name: String
        var members: [String: String] = [:]
    }

    private static func remotes(_ text: WireText) throws(TokenFileFault) -> [Remote] {
        var remotes: [Remote] = []
        var names: Set<String> = []
        for (index, whole) in text.split(at: "\n").enumerated() {
            let line = trimmed(whole)
            if line.starts(with: "RCLONE_ENCRYPT_V") {
                throw TokenFileFault(
                    "is encrypted: rclone config show prints it in clear, which can be piped to this command",
                    line: index + 1)
            }
            if line.isEmpty || line.starts(with: "#") || line.starts(with: ";") { continue }
            if line.starts(with: "["), line.ends(with: "]"), line.count > 2 {
                let name = line.dropping(1).prefix(line.count - 2).text
                guard names.insert(name).inserted else {
                    throw TokenFileFault("has the remote \(TextTable.shown(name)) twice", line: index + 1)
                }
                guard remotes.count < mostEntries else { throw TokenFileFault("has too many remotes") }
                remotes.append(Remote(name: name))
                continue
            }
            let parts = line.split(at: "=", limit: 2)
            guard parts.count == 2, !remotes.isEmpty else {
                throw TokenFileFault("is no configuration of rclone", line: index + 1)
            }
            remotes[remotes.count - 1].members[trimmed(parts[0]).text] = trimmed(parts[1]).text
        }
        if remotes.isEmpty { throw TokenFileFault("has no remote") }
        return remotes
    }

    private static func trimmed(_ line: WireText) -> WireText {
        (line.ends(with: "\r") ? line.prefix(line.count - 1) : line).trimmed
    }

    private static func entry(_ remote: Remote) -> TokenFileEntry {
        let kind = remote.members["type"] ?? ""
        var entry = TokenFileEntry(remote.name, group: kind, storageKey: remote.name)
        guard let token = remote.members["token"], !token.isEmpty else {
            entry.refuse("a remote of the type \(kind) without a token")
            return entry
        }
        guard let value = try? JSONValue(parsing: Array(token.utf8)), value.object != nil else {
            entry.refuse("its token is no JSON object")
            return entry
        }
        entry.takeTokens(of: value)
        entry.expires = entry.time("expiry", of: value)
        if let client = remote.members["client_id"], !client.isEmpty {
            entry.clientID = client
        } else {
            entry.notes.append(
                "rclone's own client has got its token: it can be refreshed only where that is the tenant's client")
        }
        if let scope = remote.members["scope"] {
            // rclone leaves out what Google's scopes begin with.
            entry.scopes = TokenFileEntry.scopes(WireText(scope)).map {
                kind == "drive" && !$0.hasPrefix("https://") ? "https://www.googleapis.com/auth/" + $0 : $0
            }
        }
        return entry
    }
}
