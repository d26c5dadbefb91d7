internal import BrokerCore
internal import BrokerTesting
internal import ExternalText
internal import OAuth
internal import Reactor
internal import Testing

/// Whom a provider's request for a pause concerns: one user of a client, or all of them.
@Suite struct `Provider pauses` {
    private static let client = ProviderPauses.Key(
        ClientConfiguration(clientID: "c1", clientSecret: nil, clientUniqueKey: nil, scopes: .empty),
        at: AuthorizationServer(
            preset: .oidc, authorizationEndpoint: "https://id.example/a", tokenEndpoint: "https://id.example/t",
            revocationEndpoint: nil, issuer: nil, announcesIssuerInResponses: false, clientAuthentication: .none,
            pinnedCertificates: []))

    private static func user(_ name: String) throws -> ProviderPauses.User {
        let id = CredentialsID(
            tenant: try #require(TenantName("t1")), storageKey: try #require(StorageKey(name)))
        return ProviderPauses.User(id, of: client)
    }

    private static func at(_ seconds: Int64) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 0).advanced(by: .seconds(seconds))
    }

    /// What the first user was told, and for how long each of the two is paused.
    @Test(arguments: [(1, 1, 1), (4, 4, 4), (5, 5, 5), (6, 6, 5), (3600, 3600, 5)])
    func `the first answer pauses its user for as long as it says, and others for five seconds at most`(
        asked: Int64, own: Int64, others: Int64
    ) throws {
        let pauses = ProviderPauses()
        let (one, two) = (try Self.user("one"), try Self.user("two"))
        pauses.pause(one, for: .seconds(asked), now: Self.at(0))
        #expect(pauses.remaining(one, now: Self.at(0)) == .seconds(own))
        #expect(pauses.remaining(two, now: Self.at(0)) == .seconds(others))
        #expect(pauses.remaining(.init(nil, of: Self.client), now: Self.at(0)) == .seconds(others))
        #expect(pauses.remaining(two, now: Self.at(others)) == nil)
        #expect(pauses.remaining(one, now: Self.at(own)) == nil)
    }

    /// When a second answer comes, for whom, and for how long the others are paused then.
    @Test(
        arguments: [
            (6, "two", 100), (59, "two", 100), (60, "two", 5), (6, "one", 5),
        ] as [(Int64, String, Int64)])
    func `another user's answer while that pause lasts pauses all for as long as it says`(
        second: Int64, name: String, others: Int64
    ) throws {
        let pauses = ProviderPauses()
        let (one, three) = (try Self.user("one"), try Self.user("three"))
        pauses.pause(one, for: .seconds(60), now: Self.at(0))
        pauses.pause(try Self.user(name), for: .seconds(100), now: Self.at(second))
        #expect(pauses.remaining(three, now: Self.at(second)) == .seconds(others))
    }

    @Test func `an answer to a call without stored credentials pauses such calls, and no user`() throws {
        let pauses = ProviderPauses()
        let (user, other) = (try Self.user("one"), ProviderPauses.User(nil, of: Self.client))
        for second in 0..<3 {
            pauses.pause(other, for: .seconds(100), now: Self.at(Int64(second)))
            #expect(pauses.remaining(user, now: Self.at(Int64(second))) == nil)
        }
        #expect(pauses.remaining(other, now: Self.at(2)) == .seconds(100))
    }

    @Test func `a new configuration ends the pauses of the client and of all its users`() throws {
        let pauses = ProviderPauses()
        let users = try ["one", "two"].map(Self.user)
        for user in users { pauses.pause(user, for: .seconds(60), now: Self.at(0)) }
        pauses.lift(Self.client)
        for user in users { #expect(pauses.remaining(user, now: Self.at(1)) == nil) }
    }
}
