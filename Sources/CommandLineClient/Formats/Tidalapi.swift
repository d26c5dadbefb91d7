import ExternalText
import JSON

extension TokenFileFormat {
    /// A session of tidalapi, in which each member is an object of its own: `{"access_token": {"data": "…"}}`. It has neither the
    /// token's end nor a client identifier.
    static let tidalapi = TokenFileFormat(
        name: "tidalapi", help: "a session file of tidalapi",
        read: { bytes throws(TokenFileFault) in
            let root = try TokenFileJSON.object(bytes)
            guard root["access_token"]?.object != nil || root["refresh_token"]?.object != nil else {
                throw TokenFileFault("has no access_token with data: it is no session of tidalapi")
            }
            let names: [WireText] = ["access_token", "refresh_token", "token_type"]
            var members: [WireText: JSONValue] = [:]
            for name in names { members[name] = root[name]?["data"] }
            var entry = TokenFileEntry("the session", group: "tidalapi")
            entry.takeTokens(of: .object(members))
            return [entry]
        })
}
