import ExternalText
import JSON

extension TokenFileFormat {
    /// Connections of Nango: one answer of its `GET /connection/{id}`, a list of them, an object with the list `connections`, or
    /// one in each line.
    static let nango = TokenFileFormat(
        name: "nango", help: "connections of Nango with their credentials",
        read: { bytes throws(TokenFileFault) in
            try connections(bytes).enumerated().map { entry($0.element, "connection \($0.offset + 1)") }
        })

    private static func connections(_ bytes: [UInt8]) throws(TokenFileFault) -> [JSONValue] {
        let lines = bytes.split(separator: 0x0a).filter { $0.contains { $0 != 0x20 && $0 != 0x09 && $0 != 0x0d } }
        // Several objects, one after another: none of them goes on in the next line.
        if lines.count > 1, lines.count <= mostEntries,
            lines.allSatisfy({ $0.first == UInt8(ascii: "{") && ($0.last == UInt8(ascii: "}") || $0.last == 0x0d) })
        {
            var values: [JSONValue] = []
            for (index, line) in lines.enumerated() {
                do throws(TokenFileFault) {
                    values.append(try TokenFileJSON.value(Array(line)))
                } catch {
                    throw TokenFileFault(error.text, line: index + 1)
                }
            }
            return values
        }
        let root = try TokenFileJSON.value(bytes)
        return root.array ?? root["connections"]?.array ?? [root]
    }

    private static func entry(_ value: JSONValue, _ name: String) -> TokenFileEntry {
        guard value.object != nil else { return .refused(name, "it is no object") }
        var entry = TokenFileEntry(name, group: value["provider_config_key"]?.string?.text ?? "")
        // An identifier may be a number.
        if let id = value["connection_id"]?.string?.text ?? value["connection_id"]?.integer.map({ String($0) }) {
            (entry.name, entry.storageKey) = (id, id)
        }
        guard let credentials = value["credentials"], credentials.object != nil else {
            entry.refuse(
                "it has no credentials: fetch each connection by GET /connection/{connection_id}, not their list")
            return entry
        }
        let type = entry.text("type", of: credentials)
        switch type {
        case "OAUTH2", nil:
            entry.accessToken = entry.text("access_token", of: credentials)
            entry.refreshToken =
                entry.text("refresh_token", of: credentials)
                ?? credentials["raw"].flatMap { entry.text("refresh_token", of: $0) }
            entry.expires = entry.time("expires_at", of: credentials)
            if let raw = credentials["raw"], raw.object != nil {
                entry.tokenType = entry.text("token_type", of: raw)
                entry.takeScopes(raw["scope"])
            }
        case "API_KEY":
            entry.accessToken = entry.text("apiKey", of: credentials) ?? entry.text("api_key", of: credentials)
        default:
            entry.refuse("its credentials are of the type \(type ?? ""), which are no OAuth 2.0 tokens and no API key")
        }
        return entry
    }
}
