import BrokerTesting
import CredentialStore
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// `withheld` of `GET /credentials/status`: why the provider would not be asked now for another token, and until when.
@Suite(.timeLimit(.minutes(1))) struct `What keeps the provider from being asked` {
    private static let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#
    private static let row = RecordID(.credentials, TenantName("t1")!, key: "default")

    /// A user whose token has the rest of its life.
    private static func make(_ tenant: String = tenant, lifetime: Duration = .zero) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: lifetime)
        return broker
    }

    private static func withheld(_ broker: BrokerHarness, _ storageKey: String = "default") async -> JSONValue? {
        await broker.status(storageKey: storageKey).json["withheld"]
    }

    /// Expects the code until the end, to both sides of it.
    private static func expect(
        _ code: String, for duration: Duration, _ broker: BrokerHarness, then next: String? = nil,
        at location: SourceLocation = #_sourceLocation
    ) async {
        let end = broker.time.now.advanced(by: duration)
        var found = await withheld(broker)
        #expect(found?["code"]?.text == code, sourceLocation: location)
        #expect(found?["until"]?.text == end.description, sourceLocation: location)
        #expect(found?["detail"]?.text.map { !$0.isEmpty } == true, sourceLocation: location)
        broker.time.advance(by: duration - .milliseconds(1))
        found = await withheld(broker)
        #expect(found?["code"]?.text == code, sourceLocation: location)
        broker.time.advance(by: .milliseconds(1))
        found = await withheld(broker)
        #expect(found?["code"]?.text == next, sourceLocation: location)
    }

    @Test func `is nothing while nothing has failed`() async throws {
        let broker = try await Self.make()
        #expect(await Self.withheld(broker) == nil)
        #expect(await Self.withheld(broker, "nobody") == nil)
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `is nothing to speak of where there is nothing to ask for`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        for key in ["lasting", "user"] {
            await broker.set("a1", refresh: key == "user" ? "r1" : nil, lifetime: .seconds(3600), storageKey: key)
        }
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "3600"]))
        #expect(await broker.get().status == 503)
        #expect(await Self.withheld(broker, "lasting") == nil)
        #expect(await Self.withheld(broker, "nobody") == nil)
        #expect(await Self.withheld(broker, "user")?["code"]?.text == "provider_asked_to_wait")
    }

    @Test func `is the pause that the provider has asked for`() async throws {
        let broker = try await Self.make()
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "3600"]))
        #expect(await broker.get().retryAfter == 3600)
        let found = await Self.withheld(broker)
        #expect(found?["detail"]?.text?.contains("2026-11-21T10:00:00Z") == true)
        #expect(await broker.get().status == 503)
        #expect(broker.log.contains { $0.contains(#""withheld":"provider_asked_to_wait""#) })
        await Self.expect("provider_asked_to_wait", for: .seconds(3600), broker)
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `is that it answers no calls`() async throws {
        let broker = try await Self.make()
        for _ in 0..<ProviderCircuit.threshold {
            let login = await broker.beginLogin()
            broker.transport.enqueue(.failure(.timedOut(.firstByte, requestSent: true)))
            _ = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        }
        #expect(await broker.get().status == 503)
        await Self.expect("circuit_open", for: .seconds(1), broker)
    }

    @Test func `is that it does not accept the client`() async throws {
        let broker = try await Self.make()
        broker.transport.enqueue(.json(401, #"{"error": "invalid_client"}"#))
        #expect(await broker.get().status == 424)
        #expect(await broker.status().json["state"]?.text == "degraded")
        await Self.expect("client_refused", for: .seconds(30), broker)
    }

    @Test func `is a renewal that failed while the token lives`() async throws {
        let broker = try await Self.make(lifetime: .seconds(40))
        broker.transport.enqueue(.json(400, #"{"error": "invalid_scope"}"#))
        #expect(await broker.get().json["degraded"] != nil)
        await Self.expect("degraded", for: .seconds(5), broker)
    }

    @Test func `is an upgrade that failed`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["a"]}"#)
        await broker.set("a1", refresh: "r1", members: #""level": "user", "client_unique_key": "u1", "#)
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.always(.json(500, ""))
        #expect(await broker.get().code == "retryable_error")
        await Self.expect("upgrade_failed", for: .seconds(30), broker)
    }

    @Test(arguments: ["early_pause", "recovery_failed"])
    func `is what keeps back the broker's own calls only`(code: String) async throws {
        let broker = try await Self.make(lifetime: .seconds(3600))
        let failures = broker.broker.core.renewer.failures
        let id = CredentialsID(tenant: TenantName("t1")!, storageKey: StorageKey("default")!)
        let version = try #require(try await broker.vault.read(Self.row)).version
        func note() {
            if code == "early_pause" {
                failures.noteEarly(id, version: version, for: .seconds(30))
            } else {
                failures.noteRecovery(id, isFirst: true)
            }
        }
        note()
        await Self.expect(code, for: code == "early_pause" ? .seconds(30) : .seconds(1), broker)
        note()
        broker.transport.enqueue(.json(200, BrokerHarness.token("new", refresh: "r2")))
        #expect(await broker.get("policy=local_force_refresh").token == "new")
    }

    @Test func `is a grant that the store does not have yet`() async throws {
        let broker = try await Self.make(lifetime: .seconds(3600))
        let records = broker.broker.core.renewer.records
        let id = CredentialsID(tenant: TenantName("t1")!, storageKey: StorageKey("default")!)
        records.serve(try await records.reread(id), unpublished: id)
        let found = await Self.withheld(broker)
        #expect(found?["code"]?.text == "grant_not_stored")
        #expect(found?["until"] == nil)
        records.published(id)
        #expect(await Self.withheld(broker) == nil)
    }

    @Test func `is a token that is too new for its provider`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let earliest = broker.time.now.advanced(by: .seconds(1800))
        await broker.logIn(
            token: #"""
                {"access_token": "a1", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "r1",
                 "earliest_refresh_at": "\#(earliest)"}
                """#)
        await Self.expect("too_early", for: broker.time.now.duration(to: earliest), broker)
    }

    @Test func `is the refused client before the token that is too new`() async throws {
        let broker = try await Self.make()
        let earliest = broker.time.now.advanced(by: .seconds(1800))
        await broker.logIn(
            storageKey: "alice",
            token: #"""
                {"access_token": "a1", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "r2",
                 "earliest_refresh_at": "\#(earliest)"}
                """#)
        #expect(await Self.withheld(broker, "alice")?["code"]?.text == "too_early")
        broker.transport.enqueue(.json(401, #"{"error": "invalid_client"}"#))
        #expect(await broker.get().status == 424)
        #expect(await Self.withheld(broker, "alice")?["code"]?.text == "client_refused")
        broker.time.advance(by: .seconds(30))
        #expect(await Self.withheld(broker, "alice")?["code"]?.text == "too_early")
    }

    @Test func `is a wave, for the sets that are held`() async throws {
        let broker = try await `A wave of refusals`.make(6)
        await `A wave of refusals`.wave(broker)
        let held = await Self.withheld(broker, `A wave of refusals`.key(0))
        #expect(held?["code"]?.text == "wave_on")
        #expect(held?["until"] == nil)
        #expect(await Self.withheld(broker, `A wave of refusals`.key(5)) == nil)
    }

    // MARK: Replicas

    private static func replicas() async throws -> (one: BrokerHarness, two: BrokerHarness) {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", tenant)
        await one.set("a1", refresh: "r1", lifetime: .zero)
        return (one, two)
    }

    @Test func `is a store that has lost its last commits`() async throws {
        let (one, _) = try await Self.replicas()
        one.broker.core.renewer.records.rollback.note()
        await Self.expect("store_went_back", for: StoreRollback.hold, one)
    }

    @Test func `is another replica that renews, or has just failed to`() async throws {
        let (one, two) = try await Self.replicas()
        let version = try #require(try await one.vault.read(Self.row)).version
        try await one.vault.commit([
            .claim(Self.row, version: version, LeaseClaim(holder: "other", for: .seconds(10), marksUse: true))
        ])
        let found = await Self.withheld(two)
        #expect(found?["code"]?.text == "lease_elsewhere")
        #expect(found?["until"]?.text == two.time.now.advanced(by: .seconds(10)).description)
        try await one.vault.commit([
            .release(
                Self.row, version: version, holder: "other",
                LeaseRelease(.settled, failure: LeaseFailure(code: "network_error", remaining: .seconds(2))))
        ])
        await Self.expect("failed_elsewhere", for: .seconds(2), two)
    }

    @Test func `is nothing of others while the store does not answer`() async throws {
        let time = ManualTime()
        let store = FaultyStore(MemoryRecordStore { time.monotonic }, revalidateAfter: .seconds(5))
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant("t1", Self.tenant)
        await broker.set("a1", refresh: "r1", lifetime: .seconds(40))
        broker.transport.enqueue(.json(400, #"{"error": "invalid_scope"}"#))
        #expect(await broker.get().json["degraded"] != nil)
        store.setDown(true)
        #expect(await Self.withheld(broker)?["code"]?.text == "degraded")
    }

    /// The codes that are told, so that a new one is entered in openapi.yaml.
    @Test func `has the codes of the contract`() {
        #expect(
            Withheld.Code.allCases.map(\.rawValue) == [
                "store_went_back", "grant_not_stored", "wave_on", "client_refused", "provider_asked_to_wait",
                "circuit_open", "too_early", "lease_elsewhere", "failed_elsewhere", "upgrade_failed", "degraded",
                "recovery_failed", "early_pause",
            ])
    }
}
