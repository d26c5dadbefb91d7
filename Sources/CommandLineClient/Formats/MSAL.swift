import ExternalText
import JSON
import OAuth

extension TokenFileFormat {
    /// The token cache of MSAL in its JSON form, which MSAL for Python, .NET, Java, Go and Node have in common. Times in it are
    /// texts of seconds.
    static let msal = TokenFileFormat(
        name: "msal", help: "a token cache of MSAL as JSON",
        read: { bytes throws(TokenFileFault) in
            let root = try TokenFileJSON.object(bytes)
            guard root["RefreshToken"]?.object != nil || root["AccessToken"]?.object != nil else {
                throw TokenFileFault("has neither RefreshToken nor AccessToken: it is no token cache of MSAL in clear")
            }
            return MSALCache(root).entries
        })
}

/// What belongs together in a cache of MSAL.
private struct MSALCache {
    /// One account with one client.
    private struct Owner: Hashable, Comparable {
        let account: String
        let environment: String
        let client: String

        init?(_ value: JSONValue) {
            guard let account = value["home_account_id"]?.string, !account.isEmpty else { return nil }
            self.account = account.text
            environment = value["environment"]?.string?.text ?? ""
            client = value["client_id"]?.string?.text ?? ""
        }

        static func < (left: Owner, right: Owner) -> Bool {
            (left.client, left.environment, left.account) < (right.client, right.environment, right.account)
        }
    }

    private var refreshTokens: [Owner: [JSONValue]] = [:]
    private var accessTokens: [Owner: [JSONValue]] = [:]
    private var ownerless: [TokenFileEntry] = []
    private var names: [String: String] = [:]

    init(_ root: JSONValue) {
        for account in Self.members(root["Account"]) {
            guard let id = account["home_account_id"]?.string, let name = account["username"]?.string, !name.isEmpty
            else { continue }
            names[id.text] = name.text
        }
        for token in Self.members(root["RefreshToken"]) {
            guard let owner = Owner(token) else {
                ownerless.append(.refused("a refresh token", group: Self.client(token), "it names no account"))
                continue
            }
            refreshTokens[owner, default: []].append(token)
        }
        for token in Self.members(root["AccessToken"]) {
            guard let owner = Owner(token) else {
                ownerless.append(
                    .refused(
                        "the token of an app", group: Self.client(token),
                        "it is no user's: the broker gets tokens of the client itself"))
                continue
            }
            accessTokens[owner, default: []].append(token)
        }
    }

    /// The values of a section, by their keys.
    private static func members(_ section: JSONValue?) -> [JSONValue] {
        (section?.object ?? [:]).sorted { $0.key < $1.key }.map(\.value)
    }

    private static func client(_ value: JSONValue) -> String { value["client_id"]?.string?.text ?? "" }

    var entries: [TokenFileEntry] {
        let owners = Set(refreshTokens.keys).union(accessTokens.keys).sorted()
        return owners.map(entry) + ownerless
    }

    private func entry(_ owner: Owner) -> TokenFileEntry {
        var entry = TokenFileEntry(names[owner.account] ?? owner.account, group: owner.client)
        // The names of guests have characters that a storage key cannot have.
        entry.storageKey = names[owner.account].flatMap { StorageKey($0)?.description } ?? owner.account
        entry.clientID = owner.client.isEmpty ? nil : owner.client
        if let refresh = Self.newest(refreshTokens[owner] ?? [], by: "last_modification_time") {
            entry.refreshToken = entry.text("secret", of: refresh)
            entry.granted = entry.time("last_modification_time", of: refresh)
        }
        let access = accessTokens[owner] ?? []
        let targets = Set(access.compactMap { $0["target"]?.string })
        // Each is for one resource. Where there are several, the broker gets the one that it needs by the refresh token.
        if targets.count <= 1 || entry.refreshToken == nil, let token = Self.newest(access, by: "expires_on") {
            entry.accessToken = entry.text("secret", of: token)
            entry.tokenType = entry.text("token_type", of: token)
            entry.expires = entry.time("expires_on", of: token)
            entry.takeScopes(token["target"])
        } else if targets.count > 1 {
            entry.notes.append(
                "it has access tokens for several resources, which are left: the first use gets a new one")
        }
        return entry
    }

    private static func newest(_ values: [JSONValue], by member: WireText) -> JSONValue? {
        func number(_ value: JSONValue) -> Double {
            (value[member]?.string?.text).flatMap { $0.utf8.count <= 32 ? Double($0) : nil }
                ?? value[member]?.integer.map(Double.init) ?? 0
        }
        return values.max { number($0) < number($1) }
    }
}
