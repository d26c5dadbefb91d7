import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `The status of credentials` {
    private static func status(_ broker: BrokerHarness, _ query: String = "") async -> BrokerHarness.Answer {
        await broker.call(.get, "/credentials/status\(query)", tenant: "t1")
    }

    @Test func `nothing stored is basic`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        let answer = await Self.status(broker)
        #expect(answer.status == 200)
        #expect(answer.text == #"{"logged_in":false,"level":"basic","expires":null,"refreshable":false}"#)
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test(arguments: [
        (true, 3_599_999, true), (true, 3_600_000, true), (true, 999_999_999, true), (false, 3_599_999, true),
        (false, 3_600_000, false), (false, 3_600_001, false),
    ])
    func `a user is logged in while the token lives or can be refreshed`(
        isRefreshable: Bool, milliseconds: Int, isLoggedIn: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: isRefreshable ? "r1" : nil)
        broker.time.advance(by: .milliseconds(milliseconds))
        let answer = await Self.status(broker)
        let ends = isRefreshable ? "null" : #"{"at":"2026-11-21T10:00:00Z","why":"token"}"#
        #expect(
            answer.text == #"{"logged_in":\#(isLoggedIn),"level":"user","expires":"2026-11-21T10:00:00Z","#
                + #""refreshable":\#(isRefreshable),"ends":\#(ends),"state":"active"}"#)
        #expect(broker.transport.seen.isEmpty)
    }

    // T22
    @Test func `client credentials are no user's login`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", members: #""level": "client", "#)
        let answer = await Self.status(broker)
        #expect(
            answer.text == #"{"logged_in":false,"level":"client","expires":"2026-11-21T10:00:00Z","refreshable":false,"#
                + #""ends":null}"#)
    }

    @Test func `the status tells storage keys apart`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", storageKey: "alice")
        #expect(await Self.status(broker, "?storage_key=alice").json["logged_in"] == .bool(true))
        #expect(await Self.status(broker).json["logged_in"] == .bool(false))
    }

    @Test func `a status after a logout is basic`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        _ = await broker.call(.delete, "/credentials", tenant: "t1")
        #expect(await Self.status(broker).text.contains(#""logged_in":false,"level":"basic""#))
    }

    @Test(arguments: [
        ("policy=local", "policy"), ("storage_key=", "storage_key"), ("storage_key=a&storage_key=b", "storage_key"),
    ])
    func `a parameter that is wrong is refused`(query: String, name: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await Self.status(broker, "?" + query)
        #expect((answer.status, answer.pointers) == (400, [name]))
    }
}
