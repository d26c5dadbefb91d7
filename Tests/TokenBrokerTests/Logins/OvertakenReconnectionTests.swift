import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import Testing
import TokenBroker

/// Several browsers open the address for a new login after the end of a session: the first one that ends its login has it.
@Suite(.timeLimit(.minutes(1))) struct `A new login that another one has overtaken` {
    private static let tenant = #"""
        {"provider": "oidc", "client_id": "c1", "scopes": ["r_usr"], "endpoints": {"authorization": "https://op.example/a",
         "token": "https://op.example/t", "revocation": "https://op.example/revoke"}}
        """#

    private static func ended() async throws -> (broker: BrokerHarness, address: String) {
        let broker = try await BrokerHarness()
        return (broker, try await endSession(at: broker))
    }

    /// - Returns: the address for the new login.
    private static func endSession(at broker: BrokerHarness) async throws -> String {
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        return try #require(await broker.get().json["session"]?["reconnect_uri"]?.text)
    }

    /// A browser that has opened the address.
    private struct Browser {
        let state: String
        let cookie: String

        func bring(_ broker: BrokerHarness, _ code: String) async -> BrokerHarness.Answer {
            await broker.call(
                .get, "/login/callback?code=\(code)&state=\(state)", key: nil,
                fields: ["Accept": "application/json", "Cookie": cookie])
        }
    }

    private static func open(_ broker: BrokerHarness, _ address: String) async throws -> Browser {
        let answer = await broker.call(
            .get, BrokerHarness.path(of: address), key: nil, fields: ["Accept": BrokerHarness.browserAccept])
        let uri = try #require(answer.fields["Location"]?.text, "\(answer.status) \(answer.text)")
        return Browser(
            state: try #require(BrokerHarness.parameters(of: uri)["state"]),
            cookie: try #require(BrokerHarness.cookie(answer)))
    }

    private static func token(of user: Int) -> String {
        BrokerHarness.token("access-\(user)", refresh: "refresh-\(user)", userID: user)
    }

    @Test func `ends without presenting its code`() async throws {
        let (broker, address) = try await Self.ended()
        let (one, two) = (try await Self.open(broker, address), try await Self.open(broker, address))
        broker.transport.enqueue(.json(200, Self.token(of: 1)))
        #expect(await one.bring(broker, "c-1").status == 200)
        let calls = broker.transport.seen.count
        let late = await two.bring(broker, "c-2")
        #expect((late.status, late.code) == (410, "gone"))
        #expect(broker.transport.seen.count == calls)
        #expect(await broker.get().token == "access-1")
    }

    @Test func `leaves the session where its code was being redeemed`() async throws {
        let (broker, address) = try await Self.ended()
        let (one, two) = (try await Self.open(broker, address), try await Self.open(broker, address))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.token(of: 2))))
        async let late = two.bring(broker, "c-2")
        await gate.arrivals()
        broker.transport.enqueue(.json(200, Self.token(of: 1)))
        #expect(await one.bring(broker, "c-1").status == 200)
        gate.open()
        let answer = await late
        #expect((answer.status, answer.code) == (410, "gone"))
        #expect(await broker.get().token == "access-1")
        // What it was granted is revoked.
        broker.transport.enqueue(.json(200, ""))
        broker.time.advance(by: .milliseconds(1))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(broker.transport.seen.last?.form["token"] == "refresh-2")
        #expect(try await broker.count(.revocation) == 0)
    }

    @Test func `is not overtaken by itself where the answer to its commit is lost`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        let address = try await Self.endSession(at: broker)
        let browser = try await Self.open(broker, address)
        store.disturb([.loseAnswer]) { $0.writes(.credentials) }
        broker.transport.enqueue(.json(200, Self.token(of: 1)))
        #expect(await browser.bring(broker, "c-1").status == 200)
        #expect(await broker.get().token == "access-1")
    }

    @Test func `ends where the user has logged out meanwhile`() async throws {
        let (broker, address) = try await Self.ended()
        let browser = try await Self.open(broker, address)
        await broker.logOut()
        #expect(await browser.bring(broker, "c-1").status == 410)
        #expect(await broker.status().isLoggedIn == false)
    }

    /// Services that send mails add parameters to the addresses in them.
    @Test func `begins with parameters that others have added to the address`() async throws {
        let (broker, address) = try await Self.ended()
        let browser = try await Self.open(broker, address + "?utm_source=mail")
        broker.transport.enqueue(.json(200, Self.token(of: 1)))
        #expect(await browser.bring(broker, "c-1").status == 200)
    }
}
