import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JOSE
import JSON
import Testing

/// Clients that show the provider a JWT (RFC 7523).
@Suite struct `A client's JWT` {
    private static let key: PrivateJSONWebKey = {
        guard let key = try? PrivateKey.generate(.elliptic(.p256)) else { fatalError("no key was made") }
        return PrivateJSONWebKey(key, keyID: "k1")
    }()

    private static let otherKey: PrivateJSONWebKey = {
        guard let key = try? PrivateKey.generate(.elliptic(.p256)) else { fatalError("no key was made") }
        return PrivateJSONWebKey(key, keyID: "k1")
    }()

    private static func fixture() -> ProviderFixture {
        var client = ProviderClient("signer")
        client.publicKeys = String(decoding: JSONWebKeySet([key.publicJWK]).json, as: UTF8.self)
        return ProviderFixture(.rfc, clients: [client, ProviderClient("app")], clientID: "signer")
    }

    /// What differs from a good JWT.
    struct Change: Sendable {
        var issuer = "signer"
        var subject = "signer"
        /// Nil for the provider's issuer.
        var audiences: [String]?
        /// Seconds from now.
        var expiry: Int64? = 60
        var notBefore: Int64?
        var identifier: String? = "j1"
        var isOfOtherKey = false
    }

    private static func assertion(_ change: Change, _ fixture: ProviderFixture) throws -> String {
        let now = fixture.clock.milliseconds / 1000
        let audiences = change.audiences ?? [fixture.provider.configuration.baseURL.description]
        let claims = JSONWriter.object { json in
            json.member("iss", change.issuer)
            json.member("sub", change.subject)
            if audiences.count == 1 { json.member("aud", audiences[0]) } else { json.member("aud", audiences) }
            json.memberIfPresent("exp", change.expiry.map { now + $0 })
            json.memberIfPresent("nbf", change.notBefore.map { now + $0 })
            json.memberIfPresent("jti", change.identifier)
        }
        let signer = try TokenSigner(change.isOfOtherKey ? otherKey : key, algorithm: .es256)
        return try signer.sign(claims, type: "JWT").text
    }

    private static func ask(
        _ fixture: ProviderFixture, _ assertion: String?,
        type: String = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer", _ more: [FormEncoding.Pair] = []
    ) async -> Int {
        let shown: [FormEncoding.Pair] =
            assertion.map { [.init("client_assertion_type", type), .init("client_assertion", $0)] } ?? []
        return await fixture.driver.token(.clientCredentials, shown + more).status.code
    }

    @Test func `authenticates it once`() async throws {
        let fixture = Self.fixture()
        let assertion = try Self.assertion(Change(), fixture)
        #expect(await Self.ask(fixture, assertion) == 200)
        #expect(fixture.provider.requests.last?.clientAuthentication == .assertion)
        #expect(await Self.ask(fixture, assertion) == 401)
        #expect(await Self.ask(fixture, try Self.assertion(Change(identifier: "j2"), fixture)) == 200)
    }

    @Test func `is needed where the client has keys, and not doubled`() async throws {
        let fixture = Self.fixture()
        #expect(await Self.ask(fixture, nil) == 401)
        #expect(await Self.ask(fixture, try Self.assertion(Change(), fixture), [.init("client_secret", "s")]) == 401)
        #expect(await Self.ask(fixture, try Self.assertion(Change(), fixture), type: "jwt") == 401)
        #expect(await Self.ask(fixture, "a.b.c") == 401)
    }

    private static let changes: [(change: Change, status: Int)] = [
        (Change(), 200), (Change(expiry: 1), 200), (Change(expiry: 0), 401), (Change(expiry: -1), 401),
        (Change(expiry: 300), 200), (Change(expiry: 301), 401), (Change(expiry: nil), 401),
        (Change(notBefore: 0), 200), (Change(notBefore: 1), 401), (Change(issuer: "app"), 401),
        (Change(issuer: "app", subject: "app"), 401), (Change(identifier: nil), 401), (Change(identifier: ""), 401),
        (Change(isOfOtherKey: true), 401), (Change(audiences: ["https://other.example"]), 401),
        (Change(audiences: []), 401), (Change(audiences: ["https://a.example", "https://b.example"]), 401),
    ]

    @Test(arguments: changes.indices)
    func `is examined`(index: Int) async throws {
        let (change, status) = Self.changes[index]
        let fixture = Self.fixture()
        #expect(await Self.ask(fixture, try Self.assertion(change, fixture)) == status)
    }

    @Test func `may be for the token endpoint`() async throws {
        let fixture = Self.fixture()
        let audience = fixture.provider.configuration.baseURL.description + "/token"
        #expect(await Self.ask(fixture, try Self.assertion(Change(audiences: [audience]), fixture)) == 200)
    }
}
