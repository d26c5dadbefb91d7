package import Cryptography
package import ExternalText
import HTTPCodec
package import JSON

/// A successful response of the token endpoint (RFC 6749 §5.1). It is read leniently where strictness would lose a
/// session.
package struct TokenResponse: Sendable, Equatable {
    package let accessToken: SecretBytes
    /// Nil when the response has none or an empty one: the held refresh token then stays valid (RFC 6749 §6).
    package let refreshToken: SecretBytes?
    /// Whether the answer to a refresh has a refresh token of a wrong type, such as a number or false. It then counts as none.
    package let hasUnreadableRefreshToken: Bool
    /// Nil when the response has no readable lifetime and the token contains none.
    package let expires: Timestamp?
    /// From when it was asked for until it expires; nil where `expires` is.
    package let lifetime: Duration?
    /// Whether the response has a lifetime that is not a number of seconds, and the token contains none. The token then
    /// expires at an unknown time.
    package let hasUnreadableLifetime: Bool
    /// Nil when the answer names none.
    package let scopes: ScopeSet?
    /// The member `user_id`; nil when there is none.
    package let userID: WireText?
    /// The ID token, of which nothing is believed before it is verified; nil when there is none.
    package let idToken: SecretBytes?
    /// What the provider tells beside the token, by the profile's names; usually empty.
    package var extra: [WireText: JSONValue]
    /// The key that has proven the request, and whether the access token is bound to it; nil for a request without one.
    package let proofKey: DPoPKey?

    /// Before this no refresh is to be tried; nil where the answer does not say it.
    package let earliestRefresh: Timestamp?
    /// When the refresh token ends; nil where the answer does not say it.
    package let refreshTokenEnds: Timestamp?
    /// When the user's consent ends; nil where the answer does not say it.
    package let consentEnds: Timestamp?

    /// The longest lifetime: ten years. Longer ones are cut to this, which is beyond every real token and safe from
    /// overflow.
    package static let longestLifetimeSeconds: Int64 = 315_360_000

    /// Nil when `body` has no usable token: it is neither JSON nor a form, it has no `access_token`, its type is not one that
    /// can be sent as a bearer token, or its refresh token is not a text that can be read.
    ///
    /// In the answer to a refresh, a refresh token of a wrong type counts as none. Such values are how a program writes that it has
    /// none, and are the same in the next answer: presenting the refresh token again brings no other one, and a provider that
    /// allows no second use ends the session for it. So the access token is served, and the refresh token stays.
    /// - Parameters:
    ///   - profile: how the provider's answers are read.
    ///   - use: which of the tokens of an answer with two is read.
    ///   - isForm: whether the answer says that it is a form.
    ///   - isRefresh: whether it answers a refresh.
    ///   - key: the key that has proven the request; nil for none. Tokens of the type `DPoP` are usable with one only.
    package init?(
        body: [UInt8], askedAt now: Timestamp, from profile: ProviderPreset, use: AnswerShape.TokenUse = .user,
        isForm: Bool = false, isRefresh: Bool = false, provenBy key: DPoPKey? = nil
    ) {
        let answers = profile.answers
        guard let (members, extra) = answers.content(of: body, isForm: isForm, for: use, isRefresh: isRefresh),
            let token = members["access_token"]?.string, TokenText.isSendable(token)
        else { return nil }
        switch members["token_type"] {
        case nil, .null?: proofKey = key?.answered(bindsToken: false)
        case .string(let type)? where key != nil && type.equalsIgnoringCase("DPoP"):
            proofKey = key?.answered(bindsToken: true)
        case .string(let type)? where answers.isUsable(tokenType: type):
            proofKey = key?.answered(bindsToken: false)
        default: return nil
        }
        switch members["refresh_token"] {
        case nil, .null?: (refreshToken, hasUnreadableRefreshToken) = (nil, false)
        case .string(let text)?:
            // A text that was spoiled on its way is another one when the answer is sent again.
            if Self.isRepaired(text) { return nil }
            (refreshToken, hasUnreadableRefreshToken) = (text.isEmpty ? nil : SecretBytes(utf8: text.text), false)
        default:
            guard isRefresh else { return nil }
            (refreshToken, hasUnreadableRefreshToken) = (nil, true)
        }
        accessToken = SecretBytes(utf8: token.text)
        // Refusing a response with an unreadable lifetime would lose a refresh token that has replaced the held one.
        let lifetime = members["expires_in"] ?? .null
        expires =
            (profile.prefersTokenExpiry ? Self.expiry(ofToken: token) : nil)
            ?? lifetime.wholeSeconds(.down).map {
                let seconds = answers.isInMilliseconds ? $0 / 1000 : $0
                return now.advanced(by: .seconds(min(max(seconds, 0), Self.longestLifetimeSeconds)))
            } ?? members["expires_at"].flatMap { Self.time($0, inMilliseconds: answers.isInMilliseconds, askedAt: now) }
            ?? Self.expiry(ofToken: token)
        self.lifetime = expires.map { now.duration(to: $0) }
        hasUnreadableLifetime = expires == nil && lifetime != .null
        switch members["scope"] {
        case .string(let text)?: scopes = ScopeSet(granted: text)
        case .array(let list)?:
            scopes = ScopeSet(granted: WireText(list.compactMap(\.string?.text).joined(separator: " ")))
        default: scopes = nil
        }
        idToken = members["id_token"]?.string.flatMap { $0.isEmpty ? nil : SecretBytes(utf8: $0.text) }
        switch members["user_id"] {
        case .integer(let number)?: userID = WireText(String(number))
        case .string(let text)? where !text.isEmpty: userID = text
        default: userID = nil
        }
        self.extra = extra
        // Seconds, whatever the unit of lifetimes.
        earliestRefresh = members["earliest_refresh_at"].flatMap {
            Self.time($0, inMilliseconds: false, askedAt: now)
        }
        func end(_ name: WireText) -> Timestamp? {
            // Some providers say 0 where there is no end.
            guard let number = members[name]?.wholeSeconds(.down), number > 0 else { return nil }
            let seconds = answers.isInMilliseconds ? number / 1000 : number
            return now.advanced(by: .seconds(min(seconds, Self.longestLifetimeSeconds)))
        }
        refreshTokenEnds = end("refresh_token_expires_in")
        consentEnds = end("authorization_expires_in")
    }

    /// A time since 1970, or in the form of RFC 3339; ten years from `now` at most.
    /// - Parameter isInMilliseconds: the unit of a number that does not tell it itself.
    private static func time(
        _ value: JSONValue, inMilliseconds isInMilliseconds: Bool, askedAt now: Timestamp
    ) -> Timestamp? {
        let time =
            value.string.flatMap { Timestamp(rfc3339: $0.text) }
            ?? value.wholeSeconds(.down).map { Timestamp(since1970: $0, inMilliseconds: isInMilliseconds) }
        return time.map { min($0, now.advanced(by: .seconds(longestLifetimeSeconds))) }
    }

    /// Whether something of the text was replaced because it could not be read.
    private static func isRepaired(_ text: WireText) -> Bool {
        let (bytes, replacement) = (Array(text.utf8), Array("\u{fffd}".utf8))
        return bytes.indices.contains { bytes[$0...].starts(with: replacement) }
    }

    private static let refreshTokenName: WireText = "refresh_token"

    /// The refresh token in an answer of success that has no usable access token; nil where it cannot be read beyond doubt.
    ///
    /// The provider has spent the refresh token of the request all the same, and then this one is the only one that works. It is
    /// read from the object that the body begins with, also if something follows that object, or if another member occurs twice;
    /// and from a form. Of a body that is neither, the text behind the name `"refresh_token"` counts, if it has an end and is the
    /// only one.
    /// - Parameter isForm: whether the body is `application/x-www-form-urlencoded`.
    package static func refreshToken(ofUnusable body: [UInt8], isForm: Bool) -> SecretBytes? {
        let token: WireText?
        if isForm {
            token = refreshToken(inForm: body)
        } else if let json = try? JSONValue(beginning: body) {
            token = json[Self.refreshTokenName]?.string
        } else {
            // An object behind what a page begins with, such as a warning of PHP, but no page that shows one.
            let ends = (first: body.first { !isSpace($0) }, last: body.last { !isSpace($0) })
            if ends.first == UInt8(ascii: "<"), ends.last != UInt8(ascii: "}") { return nil }
            token = refreshToken(inText: body) ?? refreshToken(inForm: body)
        }
        return token.flatMap { $0.isEmpty || isRepaired($0) ? nil : SecretBytes(utf8: $0.text) }
    }

    private static func refreshToken(inForm body: [UInt8]) -> WireText? {
        let pairs = (try? FormEncoding.decode(body.span)) ?? []
        let values = Set(pairs.filter { $0.name == Self.refreshTokenName }.map(\.value))
        return values.count == 1 ? values.first : nil
    }

    /// The string behind the member's name in a text that is no JSON; nil where there is none, or another one as well. The time is
    /// proportional to the text's length.
    private static func refreshToken(inText body: [UInt8]) -> WireText? {
        let name = Array("\"refresh_token\"".utf8)
        var values: Set<WireText> = []
        var index = body.startIndex
        while index < body.endIndex {
            let isEscaped = index > body.startIndex && body[index - 1] == UInt8(ascii: "\\")
            guard !isEscaped, body[index...].starts(with: name) else {
                index += 1
                continue
            }
            index += name.count
            let value = body[index...].drop(while: isSpace)
            guard value.first == UInt8(ascii: ":") else { continue }
            let text = value.dropFirst().drop(while: isSpace)
            guard text.first == UInt8(ascii: "\""), let end = endOfString(text) else { continue }
            // The text alone is JSON, if anything is.
            if let read = (try? JSONValue(parsing: Array(text[..<end])))?.string { values.insert(read) }
            index = end
        }
        return values.count == 1 ? values.first : nil
    }

    private static func isSpace(_ byte: UInt8) -> Bool { [0x20, 0x09, 0x0a, 0x0d].contains(byte) }

    /// The index behind the quotation mark that ends the string; nil where the string has no end.
    private static func endOfString(_ text: ArraySlice<UInt8>) -> Int? {
        var index = text.startIndex + 1
        while index < text.endIndex {
            switch text[index] {
            case UInt8(ascii: "\""): return index + 1
            case UInt8(ascii: "\\"): index += 2
            default: index += 1
            }
        }
        return nil
    }

    /// The identifier of the user that the response itself has. That of a token counts once the token is verified.
    package var identity: UserIdentity { UserIdentity(userID: userID) }

    /// The `exp` claim of a JWT; nil for other tokens.
    package static func expiry(ofToken token: WireText) -> Timestamp? {
        JSONWebToken.payload(of: token)?["exp"]?.wholeSeconds(.down).map {
            Timestamp(seconds: min(max($0, 0), Timestamp.latest.seconds))
        }
    }
}

/// Text that may be sent in an `Authorization: Bearer` field (RFC 6750 §2.1). Every visible ASCII character is allowed,
/// which is more than the RFC allows.
package enum TokenText {
    package static func isSendable(_ text: WireText) -> Bool {
        !text.isEmpty && text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f }
    }
}

/// The unverified claims of a JWT (RFC 7519), also of a stranger's one. They serve as hints, such as a lifetime or whose keys
/// verify the token, never for decisions about trust.
package enum JSONWebToken {
    /// The header and the claims of a token that was verified before; nil when it is not a JWT.
    package static func parts(of token: SecretBytes) -> (header: JSONValue, claims: JSONValue)? {
        guard let text = token.withRevealed({ WireText(validating: $0) }) else { return nil }
        let parts = text.split(at: ".", limit: 4)
        guard parts.count == 3, let header = Base64URL.decode(parts[0].text).flatMap({ try? JSONValue(parsing: $0) }),
            let claims = payload(of: text)
        else { return nil }
        return (header, .object(claims))
    }

    /// The claims of a JWT, verified or not; nil for other tokens.
    package static func payload(of token: WireText) -> [WireText: JSONValue]? {
        guard let bytes = payloadBytes(of: token) else { return nil }
        return (try? JSONValue(parsing: bytes))?.object
    }

    /// The JSON text of a JWT's claims, of which nothing is known; nil for other tokens.
    package static func payloadBytes(of token: WireText) -> [UInt8]? {
        // A fourth part shows that the token is not a JWT.
        let parts = token.split(at: ".", limit: 4)
        guard parts.count == 3 else { return nil }
        return Base64URL.decode(parts[1].text)
    }
}

/// An error response of the token endpoint: RFC 6749 §5.2, with TIDAL's `sub_status` in both of its spellings.
package struct TokenErrorResponse: Sendable, Equatable {
    /// The `error` member; nil when there is none that `ErrorText` permits. Where `meaning` is known, the code of RFC 6749 or RFC 8628
    /// that means the same. Decisions use this; `errorCode` is shown.
    package let error: String?
    /// What a rule of the profile says that the answer means; nil where none fits. It counts before every list of `error` values.
    package let meaning: AnswerShape.Meaning?
    /// The `sub_status` member. Decisions use this; `shownSubStatus` is shown.
    package let subStatus: String?
    /// The `error_code` member, a number that says more about the `error`; nil when there is none.
    package let detailNumber: Int64?
    private let shownError: String?
    /// The `sub_status`, or `withheld` if it repeats a secret of the request.
    package let shownSubStatus: String?
    /// The name of the refusal: `error`, otherwise `sub_status`, or `withheld` if it repeats a secret of the request.
    package var errorCode: String? { shownError ?? shownSubStatus }
    /// Whether the body cannot be understood: it is neither empty nor a JSON object whose `error`, if present, may be
    /// shown. If this is false, an `error` of nil means that the provider sent none.
    package let isMalformed: Bool
    /// Whether the body may be from an authorization server: it is empty or a JSON object.
    package let isReadable: Bool

    /// Never fails: a body that cannot be understood is an error without a name.
    /// - Parameters:
    ///   - sent: the secrets of the request.
    ///   - answers: how the provider's answers are read; nil for as RFC 6749 says.
    package init(body: [UInt8], answering sent: SentSecrets, answers: AnswerShape? = nil) {
        meaning = nil
        let json = try? JSONValue(parsing: body)
        isReadable = body.isEmpty || json?.object != nil
        switch answers.map({ answers in json.flatMap(answers.error) }) ?? json?["error"] {
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
        detailNumber = json?["error_code"]?.integer
        shownError = error.map { ErrorText.shown($0, answering: sent) }
        shownSubStatus = subStatus.map { ErrorText.shown($0, answering: sent) }
    }

    /// This answer, whose error means what the profile says.
    /// - Parameter meaning: see `AnswerShape.meaning`.
    package init(_ answer: TokenErrorResponse, meaning: AnswerShape.Meaning) {
        error = meaning.error
        self.meaning = meaning
        subStatus = answer.subStatus
        detailNumber = answer.detailNumber
        shownError = answer.shownError
        shownSubStatus = answer.shownSubStatus
        isMalformed = false
        isReadable = true
    }

    package init(error: String?, subStatus: String?, isMalformed: Bool = false) {
        (self.error, shownError) = (error, error)
        (self.subStatus, shownSubStatus) = (subStatus, subStatus)
        self.isMalformed = isMalformed
        (meaning, detailNumber) = (nil, nil)
        isReadable = true
    }
}
