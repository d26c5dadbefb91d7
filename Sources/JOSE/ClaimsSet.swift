package import ExternalText
package import JSON

/// The claims of JWTs that are read (RFC 7519 §4.1, OpenID Connect Core §2, RFC 8693 §4.2).
package enum Claim: String, Sendable {
    case iss, sub, aud, exp, nbf, iat, jti, scope, azp, nonce, acr
    case authTime = "auth_time"
    case accessTokenHash = "at_hash"
    case codeHash = "c_hash"
}

/// Why a payload is no claims set. No case carries a part of it. Retrying cannot help.
package enum ClaimsFault: Error, Equatable, Sendable, CustomStringConvertible {
    /// Not a JSON object, or one that names a member twice.
    case malformed
    /// A claim has another type than its definition says; a time is before 1970 or after the year 9999; there are more
    /// than `ClaimsSet.mostAudiences`.
    case wrongType(Claim)

    package var description: String {
        switch self {
        case .malformed: "The token's claims are no JSON object, or a claim is there twice."
        case .wrongType(let claim): "The token's claim \(claim.rawValue) has the wrong type or range."
        }
    }
}

/// The claims of a JWT (RFC 7519 §4).
package struct ClaimsSet: Sendable, Equatable {
    /// The most elements of `aud`.
    package static let mostAudiences = 100

    /// Every claim, those that are not known too.
    package let members: [WireText: JSONValue]
    /// `iss`.
    package let issuer: WireText?
    /// `sub`.
    package let subject: WireText?
    /// `aud`, which is one text or several; empty when there is none.
    package let audience: [WireText]
    /// `exp`.
    package let expiry: NumericDate?
    /// `nbf`.
    package let notBefore: NumericDate?
    /// `iat`.
    package let issuedAt: NumericDate?
    /// `auth_time`.
    package let authenticatedAt: NumericDate?

    /// Reads a claims set.
    /// - Throws: every case of `ClaimsFault`. A claim that is null counts as one of the wrong type.
    package init(parsing json: [UInt8]) throws(ClaimsFault) {
        // RFC 7519 §7.2: UTF-8 of a JSON object. A byte order mark is none.
        guard json.first != 0xef, let members = (try? JSONValue(parsing: json))?.object else { throw .malformed }
        self.members = members
        issuer = try Self.text(members, .iss)
        subject = try Self.text(members, .sub)
        audience = try Self.audience(members)
        expiry = try Self.date(members, .exp)
        notBefore = try Self.date(members, .nbf)
        issuedAt = try Self.date(members, .iat)
        authenticatedAt = try Self.date(members, .authTime)
    }

    /// A claim that is a text; nil when it is missing.
    /// - Throws: `.wrongType`.
    package func text(_ claim: Claim) throws(ClaimsFault) -> WireText? { try Self.text(members, claim) }

    private static func text(_ members: [WireText: JSONValue], _ claim: Claim) throws(ClaimsFault) -> WireText? {
        guard let value = members[WireText(claim.rawValue)] else { return nil }
        guard let text = value.string else { throw .wrongType(claim) }
        return text
    }

    private static func date(_ members: [WireText: JSONValue], _ claim: Claim) throws(ClaimsFault) -> NumericDate? {
        guard let value = members[WireText(claim.rawValue)] else { return nil }
        guard let date = NumericDate(value) else { throw .wrongType(claim) }
        return date
    }

    private static func audience(_ members: [WireText: JSONValue]) throws(ClaimsFault) -> [WireText] {
        switch members[WireText(Claim.aud.rawValue)] {
        case nil: return []
        case .string(let text)?: return [text]
        case .array(let elements)?:
            let texts = elements.compactMap(\.string)
            guard !texts.isEmpty, texts.count == elements.count, texts.count <= mostAudiences else {
                throw .wrongType(.aud)
            }
            return texts
        default: throw .wrongType(.aud)
        }
    }
}
