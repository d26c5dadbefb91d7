import ExternalText
public import FoundationEssentials
import JOSE
import JSON
import OAuth

/// The claims that access tokens and refresh tokens have in common.
///
/// As `Codable` they are a part of the payload of the token: the names of the claims are those of the JWT, and times are
/// seconds since 1970.
public struct TokenClaims: Codable, Sendable {
    /// `iss`, the provider that issued the token.
    public let issuer: String
    /// `aud`, the services that the token is for; a text counts as a list of one.
    public let audience: [String]
    /// `sub`, the user's identifier at the provider.
    public let subject: String
    /// `jti`, the token's own identifier; nil if it has none.
    public let identifier: String?
    /// `iat`.
    public let issuedAt: Date
    /// `exp`: the token is not valid at this time and later.
    public let expiresAt: Date
    /// `scope`, a list with spaces; nil if the token has none.
    public let scope: String?
    /// `api`, the version of the provider's interface; nil if the token names none.
    public let api: String?

    private enum CodingKeys: String, CodingKey {
        case issuer = "iss"
        case audience = "aud"
        case subject = "sub"
        case identifier = "jti"
        case issuedAt = "iat"
        case expiresAt = "exp"
        case scope, api
    }

    /// Sets the claims, for tests of code that uses the library.
    public init(
        issuer: String, audience: [String], subject: String, identifier: String? = nil, issuedAt: Date, expiresAt: Date,
        scope: String? = nil, api: String? = nil
    ) {
        self.issuer = issuer
        self.audience = audience
        self.subject = subject
        self.identifier = identifier
        self.issuedAt = issuedAt
        self.expiresAt = expiresAt
        self.scope = scope
        self.api = api
    }

    public init(from decoder: any Decoder) throws {
        let values = try decoder.container(keyedBy: CodingKeys.self)
        issuer = try values.decode(String.self, forKey: .issuer)
        audience = try values.audience(forKey: .audience)
        subject = try values.decode(String.self, forKey: .subject)
        identifier = try values.decodeIfPresent(String.self, forKey: .identifier)
        issuedAt = try values.time(forKey: .issuedAt)
        expiresAt = try values.time(forKey: .expiresAt)
        scope = try values.decodeIfPresent(String.self, forKey: .scope)
        api = try values.decodeIfPresent(String.self, forKey: .api)
    }

    public func encode(to encoder: any Encoder) throws {
        var values = encoder.container(keyedBy: CodingKeys.self)
        try values.encode(issuer, forKey: .issuer)
        try values.encode(audience: audience, forKey: .audience)
        try values.encode(subject, forKey: .subject)
        try values.encodeIfPresent(identifier, forKey: .identifier)
        try values.encode(issuedAt.timeIntervalSince1970, forKey: .issuedAt)
        try values.encode(expiresAt.timeIntervalSince1970, forKey: .expiresAt)
        try values.encodeIfPresent(scope, forKey: .scope)
        try values.encodeIfPresent(api, forKey: .api)
    }
}

/// The claims of an access token that is a JWT (RFC 9068 §2.2). They say what the token says: only `OAuthClient` knows
/// whether that was verified.
///
/// Each member of `TokenClaims` is a member of the token as well, such as `token.subject`. As `Codable` it is the payload of
/// the token.
@dynamicMemberLookup
public struct JWTAccessToken: Codable, Sendable {
    /// The claims that refresh tokens have, too.
    public let claims: TokenClaims
    /// `email`; nil for a user without an email address.
    public let email: String?
    /// What the user has subscribed to; empty if the token names nothing.
    public let entitlements: [Entitlement]

    private enum CodingKeys: String, CodingKey {
        case email, entitlements
    }

    /// Sets the claims, for tests of code that uses the library.
    public init(_ claims: TokenClaims, email: String? = nil, entitlements: [Entitlement] = []) {
        self.claims = claims
        self.email = email
        self.entitlements = entitlements
    }

    public init(from decoder: any Decoder) throws {
        claims = try TokenClaims(from: decoder)
        let values = try decoder.container(keyedBy: CodingKeys.self)
        email = try values.decodeIfPresent(String.self, forKey: .email)
        entitlements = try values.decodeIfPresent([Entitlement].self, forKey: .entitlements) ?? []
    }

    public func encode(to encoder: any Encoder) throws {
        try claims.encode(to: encoder)
        var values = encoder.container(keyedBy: CodingKeys.self)
        try values.encodeIfPresent(email, forKey: .email)
        try values.encode(entitlements, forKey: .entitlements)
    }

    /// A claim that refresh tokens have, too.
    public subscript<Value>(dynamicMember claim: KeyPath<TokenClaims, Value>) -> Value { claims[keyPath: claim] }

    /// Whether the token has expired at `time`.
    public func isExpired(at time: Date = Date()) -> Bool { time >= claims.expiresAt }
}

/// The claims of a refresh token that is a JWT. They say what the token says: only `OAuthClient` knows whether that was
/// verified.
///
/// Each member of `TokenClaims` is a member of the token as well. As `Codable` it is the payload of the token.
@dynamicMemberLookup
public struct JWTRefreshToken: Codable, Sendable, Equatable {
    /// The claims, which access tokens have, too.
    public let claims: TokenClaims

    /// Sets the claims, for tests of code that uses the library.
    public init(_ claims: TokenClaims) { self.claims = claims }

    public init(from decoder: any Decoder) throws { claims = try TokenClaims(from: decoder) }

    public func encode(to encoder: any Encoder) throws { try claims.encode(to: encoder) }

    /// A claim.
    public subscript<Value>(dynamicMember claim: KeyPath<TokenClaims, Value>) -> Value { claims[keyPath: claim] }

    /// Whether the token has expired at `time`.
    public func isExpired(at time: Date = Date()) -> Bool { time >= claims.expiresAt }
}

/// What a user has subscribed to, as an access token names it.
public struct Entitlement: Codable, Sendable, Hashable {
    /// The product.
    public let product: Product
    /// The kind of the entitlement, such as `subscriber`.
    public let name: String

    /// Sets the members, for tests of code that uses the library.
    public init(product: Product, name: String = "subscriber") {
        self.product = product
        self.name = name
    }

    /// A product. Providers may name products that this library does not know; they are kept.
    public struct Product: RawRepresentable, Codable, Sendable, Hashable {
        /// The name in the token.
        public let rawValue: String

        /// A product of any name.
        public init(rawValue: String) { self.rawValue = rawValue }

        init(_ name: String) { rawValue = name }

        public init(from decoder: any Decoder) throws {
            rawValue = try decoder.singleValueContainer().decode(String.self)
        }

        public func encode(to encoder: any Encoder) throws {
            var value = encoder.singleValueContainer()
            try value.encode(rawValue)
        }

        /// A virtual private network.
        public static let networkProtection = Product(rawValue: "Network Protection")
        /// The removal of personal data from brokers' lists.
        public static let dataBrokerProtection = Product(rawValue: "Data Broker Protection")
        /// Help after a theft of identity, in the United States.
        public static let identityTheftRestoration = Product(rawValue: "Identity Theft Restoration")
        /// Help after a theft of identity, elsewhere.
        public static let identityTheftRestorationGlobal = Product(rawValue: "Global Identity Theft Restoration")
        /// Chats with language models.
        public static let paidAIChat = Product(rawValue: "Duck.ai")

        /// The products that this library knows.
        public static let known: Set<Product> = [
            .networkProtection, .dataBrokerProtection, .identityTheftRestoration, .identityTheftRestorationGlobal,
            .paidAIChat,
        ]

        /// Whether this library knows the product.
        public var isKnown: Bool { Self.known.contains(self) }
    }
}

extension KeyedDecodingContainer {
    /// A text, or a list of texts.
    fileprivate func audience(forKey key: Key) throws -> [String] {
        if let one = try? decode(String.self, forKey: key) { return [one] }
        return try decode([String].self, forKey: key)
    }

    fileprivate func time(forKey key: Key) throws -> Date {
        Date(timeIntervalSince1970: try decode(Double.self, forKey: key))
    }
}

extension KeyedEncodingContainer {
    fileprivate mutating func encode(audience: [String], forKey key: Key) throws {
        if audience.count == 1 {
            try encode(audience[0], forKey: key)
        } else {
            try encode(audience, forKey: key)
        }
    }
}

// MARK: - Comparisons

// Texts from a provider are compared by their bytes, which takes linear time for every text.

extension TokenClaims: Equatable {
    public static func == (left: TokenClaims, right: TokenClaims) -> Bool {
        left.texts == right.texts && left.issuedAt == right.issuedAt && left.expiresAt == right.expiresAt
    }

    private var texts: [WireText?] {
        [issuer, subject, identifier, scope, api].map { $0.map { WireText($0) } } + audience.map { WireText($0) }
    }
}

extension JWTAccessToken: Equatable {
    public static func == (left: JWTAccessToken, right: JWTAccessToken) -> Bool {
        left.claims == right.claims && left.email.map { WireText($0) } == right.email.map { WireText($0) }
            && left.entitlements == right.entitlements
    }
}

extension Entitlement {
    public static func == (left: Entitlement, right: Entitlement) -> Bool {
        left.product == right.product && WireText(left.name) == WireText(right.name)
    }

    public func hash(into hasher: inout Hasher) {
        hasher.combine(product)
        hasher.combine(WireText(name))
    }
}

extension Entitlement.Product {
    public static func == (left: Entitlement.Product, right: Entitlement.Product) -> Bool {
        WireText(left.rawValue) == WireText(right.rawValue)
    }

    public func hash(into hasher: inout Hasher) { hasher.combine(WireText(rawValue)) }
}

// MARK: - From a token

/// Why the claims of a token cannot be read. No case carries a part of the token. Retrying cannot help.
public enum TokenClaimsError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The token is longer than `TokenContainer.longestToken`, or no JWT.
    case notReadable
    /// A required claim is missing, or a claim has another type than its definition says.
    case claim(String)

    public var description: String {
        switch self {
        case .notReadable: "The token is no JSON Web Token."
        case .claim(let name): "The token's claim \(name) is missing or has the wrong type."
        }
    }
}

extension JWTAccessToken {
    /// Reads the claims of a token, without verifying it.
    /// - Throws: every case of `TokenClaimsError`. `iss`, `aud`, `sub`, `iat` and `exp` are required.
    public init(unverified token: String) throws(TokenClaimsError) {
        let claims = try ClaimsSet(unverified: token)
        self.init(
            try TokenClaims(claims), email: try claims.textIfPresent("email"),
            entitlements: try Self.entitlements(claims))
    }

    /// The most entitlements that are read.
    private static let mostEntitlements = 1000

    private static func entitlements(_ claims: ClaimsSet) throws(TokenClaimsError) -> [Entitlement] {
        let value = claims.members["entitlements"] ?? .null
        if value == .null { return [] }
        guard let array = value.array, array.count <= mostEntitlements else { throw .claim("entitlements") }
        var entitlements: [Entitlement] = []
        for element in array {
            guard let product = element["product"]?.string, let name = element["name"]?.string else {
                throw .claim("entitlements")
            }
            entitlements.append(Entitlement(product: Entitlement.Product(product.text), name: name.text))
        }
        return entitlements
    }
}

extension JWTRefreshToken {
    /// Reads the claims of a token, without verifying it.
    /// - Throws: every case of `TokenClaimsError`. `iss`, `aud`, `sub`, `iat` and `exp` are required.
    public init(unverified token: String) throws(TokenClaimsError) {
        self.init(try TokenClaims(ClaimsSet(unverified: token)))
    }
}

extension TokenClaims {
    fileprivate init(_ claims: ClaimsSet) throws(TokenClaimsError) {
        guard let issuer = claims.issuer else { throw .claim("iss") }
        guard !claims.audience.isEmpty else { throw .claim("aud") }
        guard let subject = claims.subject else { throw .claim("sub") }
        guard let issuedAt = claims.issuedAt else { throw .claim("iat") }
        guard let expiry = claims.expiry else { throw .claim("exp") }
        self.init(
            issuer: issuer.text, audience: claims.audience.map(\.text), subject: subject.text,
            identifier: try claims.textIfPresent("jti"), issuedAt: Date(issuedAt), expiresAt: Date(expiry),
            scope: try claims.textIfPresent("scope"), api: try claims.textIfPresent("api"))
    }
}

extension Date {
    fileprivate init(_ date: NumericDate) {
        let (seconds, attoseconds) = date.sinceEpoch.components
        self.init(timeIntervalSince1970: Double(seconds) + Double(attoseconds) / 1e18)
    }
}

extension ClaimsSet {
    /// The payload of a token whose signature was not verified.
    fileprivate init(unverified token: String) throws(TokenClaimsError) {
        guard token.utf8.count <= TokenContainer.longestToken,
            let payload = JSONWebToken.payloadBytes(of: WireText(token))
        else { throw .notReadable }
        do throws(ClaimsFault) {
            try self.init(parsing: payload)
        } catch {
            switch error {
            case .malformed: throw .notReadable
            case .wrongType(let claim): throw .claim(claim.rawValue)
            }
        }
    }

    /// A claim that is a text; nil where it is missing or null.
    fileprivate func textIfPresent(_ name: WireText) throws(TokenClaimsError) -> String? {
        let value = members[name] ?? .null
        if value == .null { return nil }
        guard let text = value.string else { throw .claim(name.text) }
        return text.text
    }
}
