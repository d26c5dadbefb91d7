import BrokerCore
import BrokerTesting
import CredentialStore
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Providers at which a refresh ends the access token that callers have.
@Suite struct `An access token that ends at its refresh` {
    private static func make(_ members: String = "") async throws -> BrokerHarness {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant(
            "t1", #"{\#(BrokerHarness.oidc)"client_id": "c1", "access_token_after_refresh": "ends"\#(members)}"#)
        await broker.set("a1", refresh: "r1")
        return broker
    }

    @Test(arguments: ["", #", "refresh_lead_time": 86400"#])
    func `is renewed for no caller and behind no answer before its last ten seconds`(members: String) async throws {
        let broker = try await Self.make(members)
        for query in ["", "min_ttl=7200", "min_ttl=86400"] {
            let answer = await broker.get(query)
            #expect((answer.status, answer.token) == (200, "a1"), "\(query)")
            #expect(answer.json["expires_in"] == .integer(3600))
            #expect(answer.json["degraded"] == nil)
        }
        broker.time.advance(by: .seconds(3590))
        #expect(await broker.get("min_ttl=7200").json["expires_in"] == .integer(10))
        await broker.broker.core.renewer.finish()
        #expect(broker.transport.seen.isEmpty)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
    }

    @Test func `is renewed when an API has refused it`() async throws {
        let broker = try await Self.make()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get("api_error_sub_status=11003").token == "a2")
    }

    @Test func `is renewed without a caller only when it has ended`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(store: MemoryRecordStore { time.monotonic }, time: time)
        await broker.makeTenant(
            "t1",
            #"{\#(BrokerHarness.oidc)"client_id": "c1", "access_token_after_refresh": "ends", "proactive_refresh": 1800}"#
        )
        await broker.set("a1", refresh: "r1")
        broker.transport.always(.json(200, BrokerHarness.token("a2", refresh: "r2", expiresIn: 36_000)))
        let job = broker.broker.core.expiryJob
        for _ in 0..<119 {
            time.advance(by: .seconds(30))
            _ = await job.handleAllDue()
            await job.finish()
        }
        #expect(broker.transport.seen.isEmpty)
        for _ in 0..<4 {
            time.advance(by: .seconds(30))
            _ = await job.handleAllDue()
            await job.finish()
        }
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("policy=local").token == "a2")
    }

    @Test(arguments: ProviderProfile.withLoginPage, [false, true])
    func `is not taken from the callers that have it, over HTTP`(profile: ProviderProfile, isKnown: Bool) async throws {
        let members = #""refresh_lead_time": 86400, "# + (isKnown ? #""access_token_after_refresh": "ends", "# : "")
        try await EndToEnd.run(
            profile, rotation: .rotate(grace: .seconds(60)), members: members,
            endsAccessTokens: true
        ) { all async throws in
            #expect(try await all.broker.logIn().status == 200)
            let first = try #require(try await all.token("?policy=local").json["token"]?.text)
            // Another caller wants more life than the token has.
            #expect(try await all.token("?min_ttl=43200").status == 200)
            let renewer = all.broker.broker.core.renewer
            await renewer.finish()
            let isAlive = all.controls.introspect(accessToken: first) != nil
            #expect(isAlive == isKnown)
            all.time.advance(by: profile == .tidal ? .seconds(14_391) : .seconds(3591))
            #expect(try await all.token().status == 200)
            await renewer.finish()
            let last = try #require(try await all.token("?policy=local").json["token"]?.text)
            #expect(last != first)
            #expect(all.controls.introspect(accessToken: last) != nil)
            #expect(all.controls.introspect(accessToken: first) == nil)
        }
    }
}

/// When a renewal is tried again, where the profile or the tenant says what becomes of a used refresh token.
@Suite struct `The pauses between the calls of a renewal` {
    private static let dead: [(String, [Duration])] = [
        (#"{"client_id": "c1"}"#, RenewalWaits.design),
        (#"{"client_id": "c1", "rotation": "never", "reuse_grace": 9}"#, RenewalWaits.design),
        (#"{"client_id": "c1", "rotation": "always"}"#, RenewalWaits.withinGrace),
        (#"{\#(BrokerHarness.oidc)"client_id": "c1"}"#, RenewalWaits.withinGrace),
        (#"{\#(BrokerHarness.oidc)"client_id": "c1", "rotation": "never"}"#, RenewalWaits.design),
        // Pauses that are configured do not give way to a grace that is not.
        (
            #"{\#(BrokerHarness.oidc)"client_id": "c1", "retry": {"tries": 4, "first_pause_ms": 4000, "factor": 1}}"#,
            [.seconds(4), .seconds(4), .seconds(4)]
        ),
    ]

    @Test(arguments: dead, [ScriptedTransport.Step.json(503, ""), .failure(.connectionLost(requestSent: true))])
    func `are those of the schedule where no refresh token is spent, or where they are configured`(
        tenant: (String, [Duration]), step: ScriptedTransport.Step
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant.0)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.always(step)
        #expect(await broker.get().status == 503)
        // Extensions of the lease divide no wait.
        #expect(broker.time.slept == tenant.1)
    }

    @Test func `of an upgrade are those of the schedule`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.always(.json(503, ""))
        #expect(await broker.get().status == 503)
        #expect(broker.time.slept == RenewalWaits.design)
        #expect(broker.transport.seen.count == 6)
    }

    /// No replica takes a turn between two calls of another one, and none begins anew at their end.
    @Test func `belong to one replica of two`() async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let one = try await BrokerHarness(store: FaultyStore(records, revalidateAfter: .seconds(3600)), time: time)
        let two = try await BrokerHarness(store: FaultyStore(records, revalidateAfter: .seconds(3600)), time: time)
        await one.makeTenant()
        await one.set("a1", refresh: "r1", lifetime: .zero)
        for broker in [one, two] { broker.transport.always(.json(503, "")) }
        #expect(await one.get().status == 503)
        #expect(await two.get().status == 503)
        #expect((one.transport.seen.count, two.transport.seen.count) == (6, 0))
        #expect(time.slept == RenewalWaits.design)
    }
}
