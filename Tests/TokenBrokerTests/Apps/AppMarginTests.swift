import BrokerTesting
import CredentialStore
import JSON
import OAuth
import Testing

/// Refreshes of apps that count an access token as over some minutes before its end.
@Suite struct `Access tokens of apps near their end` {
    /// A broker, and an app whose access token lives for so many seconds.
    private static func begin(_ lifetime: Int, rotates: Bool = true) async throws -> (BrokerHarness, String) {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1",
            #"""
            {"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "refresh_token_rotation": \#(rotates)}
            """#)
        let code = await broker.appCode(
            token: BrokerHarness.token("access-1", refresh: "refresh-1", expiresIn: lifetime, userID: 42))
        let token = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        return (broker, token)
    }

    @Test(arguments: [(301, false), (300, false), (299, true), (61, true)])
    func `a token with less than five minutes left is renewed`(_ left: Int, _ isRenewed: Bool) async throws {
        let (broker, token) = try await Self.begin(3600)
        broker.time.advance(by: .seconds(3600 - left))
        if isRenewed { broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2"))) }
        let answer = await broker.refresh(token)
        #expect(answer.json["access_token"]?.text == (isRenewed ? "access-2" : "access-1"), "\(answer.text)")
        #expect(answer.json["expires_in"]?.integer == (isRenewed ? 3600 : Int64(left)))
        #expect(answer.json["refresh_token"]?.text != nil)
    }

    @Test(arguments: [true, false])
    func `the token at hand is given without rotation where the provider gives none`(rotates: Bool) async throws {
        let (broker, token) = try await Self.begin(3600, rotates: rotates)
        let end = broker.time.now.advanced(by: .seconds(3600))
        broker.time.advance(by: .seconds(3600 - 200))
        for _ in 0..<20 { broker.transport.enqueue(.json(503, "{}")) }
        for _ in 0..<2 {
            let answer = await broker.refresh(token)
            #expect(answer.json["access_token"]?.text == "access-1", "\(answer.text)")
            // The pauses between two tries move the clock.
            let left = broker.time.now.duration(to: end).components.seconds
            #expect(answer.json["expires_in"]?.integer == left)
            #expect(answer.json["refresh_token"] == nil)
            broker.time.advance(by: .seconds(10))
        }
        #expect(await broker.sessions().count == 1)
    }

    /// For how long a token lives that is short by itself, and after how long it is renewed.
    @Test(arguments: [
        (200, 99, false), (200, 100, true), (300, 149, false), (300, 150, true), (301, 1, false), (301, 2, true),
        (500, 200, false), (500, 201, true),
    ])
    func `a token whose whole life is not longer than that is renewed only after half of it`(
        _ lifetime: Int, _ age: Int, _ isRenewed: Bool
    ) async throws {
        let (broker, token) = try await Self.begin(lifetime)
        broker.time.advance(by: .seconds(age))
        if isRenewed {
            broker.transport.enqueue(
                .json(200, BrokerHarness.token("access-2", refresh: "refresh-2", expiresIn: lifetime)))
        }
        let answer = await broker.refresh(token)
        #expect(answer.json["access_token"]?.text == (isRenewed ? "access-2" : "access-1"), "\(answer.text)")
        #expect((answer.json["refresh_token"] != nil) == (isRenewed || lifetime - age >= 300))
        // The next call of such a client, at once.
        let next = await broker.refresh(answer.json["refresh_token"]?.text ?? token)
        #expect(next.json["access_token"]?.text == (isRenewed ? "access-2" : "access-1"), "\(next.text)")
    }

    @Test func `a client with a margin of five minutes works all day with one request to the provider for each token`()
        async throws
    {
        let (broker, token) = try await Self.begin(3600)
        var session = token
        var end = broker.time.now.advanced(by: .seconds(3600))
        var refreshes = 0
        for number in 2..<40 {
            broker.transport.enqueue(
                .json(200, BrokerHarness.token("access-\(number)", refresh: "refresh-\(number)", expiresIn: 3600)))
        }
        for _ in 0..<(24 * 60) {
            broker.time.advance(by: .seconds(60))
            guard end.advanced(by: .seconds(-300)) <= broker.time.now else { continue }
            let answer = await broker.refresh(session)
            #expect(answer.status == 200, "\(answer.text)")
            session = answer.json["refresh_token"]?.text ?? session
            end = broker.time.now.advanced(by: .seconds(answer.json["expires_in"]?.integer ?? 0))
            refreshes += 1
        }
        // A token is renewed 56 minutes after the one before. At 300 seconds before its end it is still good enough, so the app
        // comes twice for each.
        #expect(broker.transport.seen.count == 1 + 25)
        #expect(refreshes == 50)
    }
}
