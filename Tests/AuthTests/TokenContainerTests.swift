import Auth
import AuthTesting
import FoundationEssentials
import Testing

@Suite struct `Token containers` {
    private let factory = TokenContainerFactory(now: Date(timeIntervalSince1970: 1_800_000_000))

    // D25
    @Test func `containers are equal if both tokens are, whatever their claims say`() {
        let (one, other) = (factory.container(), factory.container(email: "ada@example.com"))
        func container(_ access: TokenContainer, _ refresh: TokenContainer, claims: TokenContainer) -> TokenContainer {
            TokenContainer(
                accessToken: access.accessToken, refreshToken: refresh.refreshToken,
                decodedAccessToken: claims.decodedAccessToken, decodedRefreshToken: claims.decodedRefreshToken)
        }
        #expect(container(one, one, claims: other) == one)
        #expect(container(other, one, claims: one) != one)
        #expect(container(one, other, claims: one) != one)
    }

    // D26
    @Test func `a container goes through data and comes back`() throws {
        for state in TokenContainerFactory.State.allCases {
            let container = factory.container(
                state, email: "ada@example.com",
                entitlements: [.init(product: .networkProtection), .init(product: .init(rawValue: "Tea"), name: "fan")])
            let back = try TokenContainer(with: try #require(container.data))
            #expect(back == container)
            #expect(back.decodedAccessToken == container.decodedAccessToken)
            #expect(back.decodedRefreshToken == container.decodedRefreshToken)
        }
    }

    // D26
    @Test func `other data is refused, and the error shows nothing of it`() throws {
        let data = try #require(factory.container().data)
        let text = String(decoding: data, as: UTF8.self)
        let broken = [
            Data(), Data("{}".utf8), data.dropLast(), data + Data(" x".utf8),
            Data(text.replacing("\"accessToken\"", with: "\"token\"").utf8),
            Data(text.replacing("\"exp\"", with: "\"end\"").utf8),
            Data((text + String(repeating: " ", count: TokenContainer.longestData)).utf8),
        ]
        for data in broken {
            let error = #expect(throws: DecodingError.self) { try TokenContainer(with: data) }
            let secret = String(text.dropFirst(20).prefix(30))
            #expect(!"\(String(describing: error))".contains(secret))
        }
        // The greatest size that is read.
        let padding = String(repeating: " ", count: TokenContainer.longestData - data.count)
        #expect(try TokenContainer(with: Data((text + padding).utf8)) == TokenContainer(with: data))
        #expect(throws: DecodingError.self) { try TokenContainer(with: Data((text + padding + " ").utf8)) }
    }

    @Test func `a container prints neither its tokens nor the email address`() {
        let container = factory.container(email: "ada@example.com")
        var text = "\(container) " + String(reflecting: container)
        dump(container, to: &text)
        for secret in [container.accessToken, container.refreshToken, "ada@example.com"] {
            #expect(!text.contains(secret))
        }
        #expect("\(container)" == "tokens of 8c5e3f0a")
    }

    // D24
    @Test func `the claims of both tokens are read, and unknown products are kept`() throws {
        let made = factory.container(
            email: "ada@example.com",
            entitlements: [.init(product: .paidAIChat), .init(product: .init(rawValue: "Tea"))])
        let read = try TokenContainer(unverifiedAccessToken: made.accessToken, refreshToken: made.refreshToken)
        #expect(read.decodedAccessToken == made.decodedAccessToken)
        #expect(read.decodedRefreshToken == made.decodedRefreshToken)
        let access = read.decodedAccessToken
        #expect(access.issuer == "https://provider.example" && access.audience == ["PrivacyPro"])
        #expect(access.subject == "8c5e3f0a" && access.scope == "privacypro" && access.api == "v2")
        #expect(access.email == "ada@example.com")
        #expect(access.expiresAt == Date(timeIntervalSince1970: 1_800_014_400))
        #expect(access.entitlements.map(\.product.isKnown) == [true, false])
        #expect(access.entitlements.map(\.product.rawValue) == ["Duck.ai", "Tea"])
        #expect(read.decodedRefreshToken.audience == ["Auth"] && read.decodedRefreshToken.scope == "refresh")
    }

    @Test(arguments: [
        ("", TokenClaimsError.notReadable), ("opaque", .notReadable), ("a.b", .notReadable), ("a.b.c.d", .notReadable),
        ("e30.e30.", .claim("iss")),
        // {"iss":"i","aud":"a","sub":"s","iat":1}
        ("e30.eyJpc3MiOiJpIiwiYXVkIjoiYSIsInN1YiI6InMiLCJpYXQiOjF9.", .claim("exp")),
        // {"iss":1}
        ("e30.eyJpc3MiOjF9.", .claim("iss")),
    ])
    func `a token without the claims of a JWT cannot be read`(token: String, reason: TokenClaimsError) {
        #expect(throws: reason) { try JWTAccessToken(unverified: token) }
        #expect(throws: reason) { try JWTRefreshToken(unverified: token) }
    }

    @Test func `a token is read up to its greatest length`() throws {
        // {"iss":"i","aud":["a","b"],"sub":"s","iat":1,"exp":2}
        let token = "e30.eyJpc3MiOiJpIiwiYXVkIjpbImEiLCJiIl0sInN1YiI6InMiLCJpYXQiOjEsImV4cCI6Mn0."
        let longest = token + String(repeating: "s", count: TokenContainer.longestToken - token.utf8.count)
        let claims = try JWTAccessToken(unverified: longest)
        #expect(claims.audience == ["a", "b"] && claims.identifier == nil && claims.entitlements.isEmpty)
        #expect(throws: TokenClaimsError.notReadable) { try JWTAccessToken(unverified: longest + "s") }
    }

    @Test func `a token is expired from its expiry on`() {
        let token = factory.container().decodedAccessToken
        #expect(!token.isExpired(at: token.expiresAt.addingTimeInterval(-1)))
        #expect(token.isExpired(at: token.expiresAt))
        #expect(token.isExpired(at: token.expiresAt.addingTimeInterval(1)))
        let refresh = factory.container(.bothTokensExpired).decodedRefreshToken
        #expect(refresh.isExpired(at: factory.now) && !refresh.isExpired(at: refresh.issuedAt))
    }
}
