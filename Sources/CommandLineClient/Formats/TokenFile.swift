import ExternalText
import JSON
import OAuth

/// A kind of file in which another program keeps tokens.
struct TokenFileFormat: Sendable {
    /// As `token-broker import` names it.
    let name: String
    /// What it reads.
    let help: String
    let read: @Sendable (_ bytes: [UInt8]) throws(TokenFileFault) -> [TokenFileEntry]

    static let all = [
        googleAuthorizedUser, msal, spotipy, tidalapi, requestsOAuthlib, authlib, goOAuth2, rclone, awsSSO, gitHubCLI,
        nango, oauth2Proxy,
    ]

    /// The longest file, in bytes.
    static let longest = 16 << 20
    /// The most entries of a file.
    static let mostEntries = 100_000
}

/// Why a file as a whole cannot be read.
struct TokenFileFault: Error, Equatable {
    /// What is wrong, as it follows the file's name: `is no JSON object`.
    let text: String
    /// Where, from 1; nil where that is not known.
    let line: Int?

    init(_ text: String, line: Int? = nil) {
        self.text = text
        self.line = line
    }
}

/// What a file has of one account.
struct TokenFileEntry: Sendable, Equatable {
    /// How the file calls it.
    var name: String
    /// Which provider or client it is of, in the file's words. Entries of one tenant have one in common.
    var group: String
    /// The storage key that it gets unless another one is named; nil where the file has no name for the account.
    var storageKey: String?
    var accessToken: String?
    var refreshToken: String?
    var tokenType: String?
    /// When the access token ends; nil where the file does not say.
    var expires: Timestamp?
    var clientID: String?
    /// Empty where the file does not say.
    var scopes: [String] = []
    /// When the refresh token was granted.
    var granted: Timestamp?
    /// What else to know of it.
    var notes: [String] = []
    /// Why it cannot be taken over; the first reason found.
    private(set) var refusal: String?

    init(_ name: String, group: String, storageKey: String? = nil) {
        self.name = name
        self.group = group
        self.storageKey = storageKey
    }

    mutating func refuse(_ reason: String) { refusal = refusal ?? reason }

    static func refused(_ name: String, group: String = "", _ reason: String) -> TokenFileEntry {
        var entry = TokenFileEntry(name, group: group)
        entry.refuse(reason)
        return entry
    }
}

// MARK: Members of JSON files

extension TokenFileEntry {
    /// A member that is a text; nil where it is left out, null or empty. Another kind of value refuses the entry.
    mutating func text(_ name: WireText, of value: JSONValue) -> String? {
        guard let member = value[name], member != .null else { return nil }
        guard let text = member.string else {
            refuse("its \(name) is no text")
            return nil
        }
        return text.isEmpty ? nil : text.text
    }

    /// The members of an answer of a token endpoint.
    mutating func takeTokens(of value: JSONValue) {
        accessToken = text("access_token", of: value)
        refreshToken = text("refresh_token", of: value)
        tokenType = text("token_type", of: value)
    }

    /// A time: a number or a text of seconds, or a text as `Timestamp(ofFile:)` reads it. A time in the year 1 is none.
    mutating func time(_ name: WireText, of value: JSONValue) -> Timestamp? {
        let time: Timestamp?
        switch value[name] {
        case nil, .null?: return nil
        case .integer(let number)?: time = Timestamp(ofFile: Double(number))
        case .number(let number)?: time = Timestamp(ofFile: number)
        case .string(let text)?:
            if text.isEmpty { return nil }
            time =
                Timestamp(ofFile: text.text)
                ?? (text.count <= 32 ? Double(text.text) : nil).flatMap { Timestamp(ofFile: $0) }
        default: time = nil
        }
        if time == nil { refuse("its \(name) is no time") }
        return time.flatMap { $0.isNoneOfFile ? nil : $0 }
    }

    /// Scopes: a text with spaces, or with commas where it has no space, or a list of texts.
    mutating func takeScopes(_ value: JSONValue?) {
        switch value {
        case nil, .null?: break
        case .string(let text)?: scopes = Self.scopes(text)
        case .array(let values)?:
            let texts = values.compactMap(\.string)
            if texts.count < values.count { refuse("its scopes are no texts") }
            scopes = texts.flatMap { Self.scopes($0) }
        default: refuse("its scopes are no texts")
        }
    }

    static func scopes(_ text: WireText) -> [String] {
        text.split(at: text.contains(" ") ? " " : ",").filter { !$0.isEmpty }.map(\.text)
    }
}

/// Reads JSON files of tokens.
enum TokenFileJSON {
    static func value(_ bytes: [UInt8]) throws(TokenFileFault) -> JSONValue {
        do throws(JSONValue.Fault) {
            return try JSONValue(parsing: bytes, longestName: 4096)
        } catch {
            switch error {
            case .malformed: throw TokenFileFault("is not one well-formed JSON value in UTF-8")
            case .tooDeep: throw TokenFileFault("is nested deeper than \(JSONValue.maximumDepth) levels")
            case .repeatedMember(let pointer): throw TokenFileFault("has the member \(pointer) more than once")
            case .nameTooLong: throw TokenFileFault("has the name of a member that is too long")
            }
        }
    }

    static func object(_ bytes: [UInt8]) throws(TokenFileFault) -> JSONValue {
        let value = try value(bytes)
        guard value.object != nil else { throw TokenFileFault("is no JSON object") }
        return value
    }

    /// Files with an answer of a token endpoint, or with an object of several by the names of their accounts.
    /// - Parameter expiry: the member with the time at which the access token ends.
    static func tokens(
        _ bytes: [UInt8], group: String, expiry: WireText
    ) throws(TokenFileFault) -> [TokenFileEntry] {
        let root = try object(bytes)
        if root["access_token"] != nil || root["refresh_token"] != nil {
            return [entry(root, "the token", group: group, storageKey: nil, expiry: expiry)]
        }
        let members = (root.object ?? [:]).sorted { $0.key < $1.key }
        guard !members.isEmpty, members.allSatisfy({ $0.value.object != nil }) else {
            throw TokenFileFault("has neither an access_token nor a refresh_token")
        }
        return members.map { entry($0.value, $0.key.text, group: group, storageKey: $0.key.text, expiry: expiry) }
    }

    private static func entry(
        _ value: JSONValue, _ name: String, group: String, storageKey: String?, expiry: WireText
    ) -> TokenFileEntry {
        var entry = TokenFileEntry(name, group: group, storageKey: storageKey)
        entry.takeTokens(of: value)
        entry.expires = entry.time(expiry, of: value)
        entry.takeScopes(value["scope"])
        return entry
    }
}
