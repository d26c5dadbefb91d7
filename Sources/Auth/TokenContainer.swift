import ExternalText
public import FoundationEssentials

/// A user's access token and refresh token with the claims of both, at a provider whose tokens are JWTs.
///
/// - Warning: Never store a container or keep it in a cache outside the library. Never pass it around: ask `OAuthClient`
///   for it, use it, and drop it. A container that was kept has a refresh token that the provider may have replaced, and
///   presenting it again can end the user's session. The exception is another process of the same program that cannot
///   use the library; `data` is for that.
///
/// Printing a container shows no token. Two containers are equal if both tokens are equal, whatever their claims say.
public struct TokenContainer: Codable, Sendable {
    /// The longest token that is read: 65,536 bytes.
    public static let longestToken = 65_536
    /// The longest data that `init(with:)` reads: 1,048,576 bytes.
    public static let longestData = 1 << 20

    /// The token for APIs, to be sent as `Authorization: Bearer`.
    public let accessToken: String
    /// The token for refreshes. The library presents it; no other code should.
    public let refreshToken: String
    /// The claims of the access token.
    public let decodedAccessToken: JWTAccessToken
    /// The claims of the refresh token.
    public let decodedRefreshToken: JWTRefreshToken

    /// A container of tokens and claims that are known already. Nothing is verified, and the claims need not be those of
    /// the tokens: `OAuthClient` reads the tokens.
    public init(
        accessToken: String, refreshToken: String, decodedAccessToken: JWTAccessToken,
        decodedRefreshToken: JWTRefreshToken
    ) {
        self.accessToken = accessToken
        self.refreshToken = refreshToken
        self.decodedAccessToken = decodedAccessToken
        self.decodedRefreshToken = decodedRefreshToken
    }

    /// A container with the claims that the tokens name. Nothing is verified: `OAuthClient.decode` does that.
    /// - Throws: every case of `TokenClaimsError`.
    public init(unverifiedAccessToken accessToken: String, refreshToken: String) throws(TokenClaimsError) {
        self.init(
            accessToken: accessToken, refreshToken: refreshToken,
            decodedAccessToken: try JWTAccessToken(unverified: accessToken),
            decodedRefreshToken: try JWTRefreshToken(unverified: refreshToken))
    }

    /// The container as JSON, for another process; nil if a claim cannot be written, such as a time that is no number.
    ///
    /// This is `Data` on every platform: on Linux, `NSData` is a part of the whole of Foundation, which the library does
    /// not load. A program that imports Foundation writes `NSData(data:)`.
    /// - Warning: it has both tokens in the clear. Send it only to a process of the same user, and do not store it.
    public var data: Data? { try? JSONEncoder().encode(self) }

    /// Reads what `data` made.
    /// - Parameter data: at most `longestData` bytes.
    /// - Throws: `DecodingError` for other data; its text has no part of a token.
    public init(with data: Data) throws {
        guard data.count <= Self.longestData else { throw Self.unreadable }
        do {
            self = try JSONDecoder().decode(Self.self, from: data)
        } catch {
            throw Self.unreadable
        }
        guard accessToken.utf8.count <= Self.longestToken, refreshToken.utf8.count <= Self.longestToken else {
            throw Self.unreadable
        }
    }

    private static let unreadable = DecodingError.dataCorrupted(
        .init(codingPath: [], debugDescription: "The data is no token container."))
}

extension TokenContainer: Equatable {
    /// Compares the two tokens by their bytes, and nothing else.
    public static func == (left: TokenContainer, right: TokenContainer) -> Bool {
        WireText(left.accessToken) == WireText(right.accessToken)
            && WireText(left.refreshToken) == WireText(right.refreshToken)
    }
}

/// Printing a container uses these. They omit the tokens, and the user's email address.
extension TokenContainer: CustomStringConvertible, CustomReflectable {
    public var description: String { "tokens of \(decodedAccessToken.subject)" }

    public var customMirror: Mirror {
        Mirror(
            self,
            children: [
                "subject": decodedAccessToken.subject, "accessTokenExpiresAt": decodedAccessToken.expiresAt,
                "refreshTokenExpiresAt": decodedRefreshToken.expiresAt,
            ], displayStyle: .struct)
    }
}
