package import Cryptography
package import ExternalText
package import JSON

/// A successful answer of the token endpoint (RFC 6749 §5.1), read leniently where strictness would cost a session.
package struct TokenResponse: Sendable, Equatable {
    package let accessToken: SecretBytes
    /// Nil when the answer has none, or an empty one: the one that is held stays good (RFC 6749 §6).
    package let refreshToken: SecretBytes?
    /// Nil when the answer names no lifetime that can be read and the token does not tell.
    package let expires: Timestamp?
    /// Whether the answer names a lifetime that is no number of seconds, and the token does not tell: it ends, and it is
    /// not known when.
    package let hasUnreadableLifetime: Bool
    /// Nil when the answer names none.
    package let scopes: ScopeSet?
    package let userID: WireText?
    /// The names behind `userID`, by their kinds.
    package let identity: UserIdentity

    /// Longer lifetimes are taken for this one: ten years, beyond any real token and far from arithmetic's edge.
    package static let longestLifetimeSeconds: Int64 = 315_360_000

    /// Nil when there is no usable token in `body`: not JSON, no `access_token`, a type other than Bearer, or a
    /// refresh token that is no text.
    package init?(body: [UInt8], askedAt now: Timestamp) {
        guard let json = try? JSONValue(parsing: body), case .object(let members) = json,
            let token = members["access_token"]?.string, TokenText.isSendable(token)
        else { return nil }
        switch members["token_type"] {
        case nil, .null?: break
        case .string(let type)? where type.equalsIgnoringCase("bearer"): break
        default: return nil
        }
        switch members["refresh_token"] {
        case nil, .null?: refreshToken = nil
        case .string(let text)?: refreshToken = text.isEmpty ? nil : SecretBytes(utf8: text.text)
        default: return nil
        }
        accessToken = SecretBytes(utf8: token.text)
        // Refusing an answer whose lifetime cannot be read would throw away a refresh token that has replaced the one we
        // hold.
        let lifetime = members["expires_in"] ?? .null
        expires =
            lifetime.wholeSeconds(.down).map {
                now.advanced(by: .seconds(min(max($0, 0), Self.longestLifetimeSeconds)))
            } ?? Self.expiry(ofToken: token)
        hasUnreadableLifetime = expires == nil && lifetime != .null
        switch members["scope"] {
        case .string(let text)?: scopes = ScopeSet(granted: text)
        case .array(let list)?:
            scopes = ScopeSet(granted: WireText(list.compactMap(\.string?.text).joined(separator: " ")))
        default: scopes = nil
        }
        let subject = members["id_token"]?.string.flatMap { JSONWebToken.payload(of: $0)?["sub"]?.string }
        var identity = UserIdentity(subject: subject.flatMap { $0.isEmpty ? nil : $0 })
        switch members["user_id"] {
        case .integer(let number)?: identity.userID = WireText(String(number))
        case .string(let text)? where !text.isEmpty: identity.userID = text
        default: break
        }
        self.identity = identity
        userID = identity.userID ?? identity.subject
    }

    /// The `exp` claim of a token that is a JWT; nil for any other.
    package static func expiry(ofToken token: WireText) -> Timestamp? {
        JSONWebToken.payload(of: token)?["exp"]?.wholeSeconds(.down).map {
            Timestamp(seconds: min(max($0, 0), Timestamp.latest.seconds))
        }
    }
}

/// What may stand in an `Authorization: Bearer` field (RFC 6750 §2.1), less strictly: any visible ASCII.
package enum TokenText {
    package static func isSendable(_ text: WireText) -> Bool {
        !text.isEmpty && text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f }
    }
}

/// The claims of a JWT (RFC 7519), unverified: for hints such as a lifetime, never for a decision about trust. Tokens
/// that are read this way came straight from the token endpoint over a verified connection.
package enum JSONWebToken {
    package static func payload(of token: WireText) -> [WireText: JSONValue]? {
        // One part more than a JWT has tells that it is none.
        let parts = token.split(at: ".", limit: 4)
        guard parts.count == 3, let bytes = Base64URL.decode(parts[1].text) else { return nil }
        return (try? JSONValue(parsing: bytes))?.object
    }
}

/// An error answer of the token endpoint: RFC 6749 §5.2, with TIDAL's `sub_status` in either of its spellings.
package struct TokenErrorResponse: Sendable, Equatable {
    /// `error`, or nil where there is none that `ErrorText` lets pass. What rules go by; what is shown is `errorCode`.
    package let error: String?
    /// The same of the `sub_status`; what is shown of it is `shownSubStatus`.
    package let subStatus: String?
    private let shownError: String?
    /// The `sub_status`, or `withheld` in the place of one that repeats a secret.
    package let shownSubStatus: String?
    /// What to call the refusal by: `error`, or else the `sub_status`. `withheld` stands for one that repeats a secret.
    package var errorCode: String? { shownError ?? shownSubStatus }
    /// Whether it cannot be said what the body names: it is neither empty nor a JSON object whose `error`, if it has
    /// one, is fit to be repeated. Where this is false, an `error` of nil means that the provider named none.
    package let isMalformed: Bool
    /// Whether the body can be an authorization server's: it is empty or a JSON object.
    package let isReadable: Bool

    /// Never fails: a body that says nothing is an error without a name.
    /// - Parameter sent: the secrets of the request, which only the provider may see.
    package init(body: [UInt8], answering sent: SentSecrets) {
        let json = try? JSONValue(parsing: body)
        isReadable = body.isEmpty || json?.object != nil
        switch json?["error"] {
        case nil, .null?:
            error = nil
            isMalformed = !isReadable
        case .string(let text)?:
            error = ErrorText.presentable(text)
            isMalformed = error == nil
        default:
            error = nil
            isMalformed = true
        }
        switch json?["sub_status"] ?? json?["subStatus"] {
        case .integer(let number)?: subStatus = String(number)
        case .string(let text)?: subStatus = ErrorText.presentable(text)
        default: subStatus = nil
        }
        shownError = error.map { ErrorText.shown($0, answering: sent) }
        shownSubStatus = subStatus.map { ErrorText.shown($0, answering: sent) }
    }

    package init(error: String?, subStatus: String?, isMalformed: Bool = false) {
        (self.error, shownError) = (error, error)
        (self.subStatus, shownSubStatus) = (subStatus, subStatus)
        self.isMalformed = isMalformed
        isReadable = true
    }
}
