import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// A tenant whose `client_id` is mistyped, and then put back.
@Suite struct `A client_id that changes` {
    private static func tenant(_ clientID: String, secret: Bool = false, provider: String = BrokerHarness.oidc)
        -> String
    {
        let secret = secret ? #", "client_secret": "s1""# : ""
        return #"{\#(provider)"client_id": "\#(clientID)"\#(secret)}"#
    }

    private static func loggedIn(
        secret: Bool = false, refresh: String? = "refresh-1", store: any RecordStore = MemoryRecordStore()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant("c1", secret: secret))
        await broker.logIn(token: BrokerHarness.token("access-1", refresh: refresh))
        return broker
    }

    private static let queries = [
        "", "policy=local_force_refresh", "policy=create_if_needed", "min_ttl=7200", "api_error_sub_status=11003",
        "policy=create_if_needed&api_error_sub_status=6001", "level=client",
    ]

    @Test(arguments: [false, true])
    func `keeps an expired session, which goes on when the client_id is put back`(secret: Bool) async throws {
        let broker = try await Self.loggedIn(secret: secret)
        await broker.makeTenant("t1", Self.tenant("mistyped", secret: secret))
        broker.time.advance(by: .seconds(7200))
        let count = broker.transport.seen.count
        for query in Self.queries {
            let answer = await broker.get(query)
            if secret {
                #expect((answer.status, answer.code) == (424, "illegal_configuration"), "\(query)")
                #expect(answer.json["detail"]?.text?.contains("client_id") == true)
            } else if query == "level=client" {
                #expect((answer.status, answer.code) == (424, "level_not_available"))
            } else {
                #expect((answer.status, answer.level) == (200, "basic"), "\(query)")
            }
        }
        let answer = await broker.get("level=user")
        #expect((answer.status, answer.code) == (424, "level_not_available"))
        #expect(answer.json["detail"]?.text?.contains("client_id") == true)
        let status = await broker.status()
        #expect(status.differences == ["client_id"])
        #expect(status.isLoggedIn == true)
        let listed = await broker.call(.get, "/credentials/list", tenant: "t1").json["credentials"]?.array?.first
        #expect(listed?["configuration_differences"] == .array([.string("client_id")]))
        #expect(listed?["state"] == .string("active"))
        #expect(broker.transport.seen.count == count)
        #expect(try await broker.causes() == ["login"])
        #expect(try await broker.quarantined() == nil)

        await broker.makeTenant("t1", Self.tenant("c1", secret: secret))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.get().token == "access-2")
        #expect(await broker.status().differences == nil)
        let after = await broker.call(.get, "/credentials/list", tenant: "t1").json["credentials"]?.array?.first
        #expect(after?["configuration_differences"] == nil)
        #expect(try await broker.causes() == ["login", "refresh"])
    }

    @Test(arguments: ["refresh-1", nil])
    func `leaves a living token with its callers, and keeps it when an API refuses it`(refresh: String?) async throws {
        let broker = try await Self.loggedIn(refresh: refresh)
        await broker.makeTenant("t1", Self.tenant("mistyped"))
        #expect(await broker.get().token == "access-1")
        #expect(await broker.get("api_error_sub_status=11003").level == "basic")
        #expect(await broker.get("min_ttl=7200").token == "access-1")
        broker.time.advance(by: .seconds(3590))
        #expect(await broker.get().level == "basic")
        #expect(try await broker.causes() == ["login"])
        await broker.makeTenant("t1", Self.tenant("c1"))
        #expect(await broker.get("min_ttl=0").token == "access-1")
        guard refresh == nil else { return }
        // At its end it is over whatever the configuration.
        await broker.makeTenant("t1", Self.tenant("mistyped"))
        broker.time.advance(by: .seconds(10))
        #expect(await broker.get().level == "basic")
        #expect(try await broker.causes() == ["login", "expired"])
    }

    @Test func `leaves the session to a login of the other client, or to a logout`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", Self.tenant("c2"))
        broker.time.advance(by: .seconds(7200))
        #expect(await broker.get().level == "basic")
        await broker.logIn(token: BrokerHarness.token("access-2", refresh: "refresh-2"))
        #expect(await broker.get().token == "access-2")
        #expect(await broker.status().differences == nil)
        await broker.makeTenant("t1", Self.tenant("c1"))
        #expect(await broker.logOut().status == 204)
        #expect(await broker.status().isLoggedIn == false)
        #expect(try await broker.causes() == ["login", "login", "logout"])
    }

    @Test func `ends no session at a replica that renews ahead of the expiry`() async throws {
        let broker = try await BrokerHarness()
        let ahead = #""proactive_refresh": 600, "#
        await broker.makeTenant("t1", Self.tenant("c1", provider: BrokerHarness.oidc + ahead))
        await broker.logIn()
        await broker.makeTenant("t1", Self.tenant("mistyped", provider: BrokerHarness.oidc + ahead))
        let count = broker.transport.seen.count
        for _ in 0..<5 {
            broker.time.advance(by: .seconds(900))
            _ = await broker.broker.core.expiryJob.handleAllDue()
            await broker.broker.core.expiryJob.finish()
        }
        #expect(broker.transport.seen.count == count)
        #expect(await broker.status().isLoggedIn == true)
        await broker.makeTenant("t1", Self.tenant("c1"))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.get().token == "access-2")
    }

    @Test func `has apps ask again, whose sessions go on when it is put back`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant("c1"))
        await broker.makeClient()
        let token = await broker.appSession()
        await broker.makeTenant("t1", Self.tenant("mistyped"))
        broker.time.advance(by: .seconds(7200))
        let answer = await broker.refresh(token)
        #expect((answer.status, answer.json["error"]) == (503, .string("temporarily_unavailable")))
        #expect(answer.fields["Retry-After"] != nil)
        await broker.makeTenant("t1", Self.tenant("c1"))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.refresh(token).json["access_token"] == .string("access-2"))
    }

    @Test func `of TIDAL's is carried over as ever`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1"}"#)
        await broker.logIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.time.advance(by: .seconds(7200))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2")))
        #expect(await broker.get().token == "access-2")
        #expect(broker.transport.seen.last?.form["grant_type"] == "update_client")
    }
}
