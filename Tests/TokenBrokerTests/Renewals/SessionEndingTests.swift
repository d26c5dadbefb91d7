import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Answers that end a session` {
    /// A tenant whose user's token has to be refreshed.
    private static func expired(
        _ tenant: String = #"{"client_id": "c1"}"#, store: any RecordStore = MemoryRecordStore(),
        _ adjust: (inout Broker.Settings) -> Void = { _ in }
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, adjust)
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        return broker
    }

    // MARK: The design's

    // T33
    // T34
    // T70 H080
    @Test(arguments: [
        (400, "unauthorized_client"), (400, "invalid_grant"), (400, "invalid_request"), (401, "access_denied"),
        (401, "invalid_client"), (401, "invalid_grant"),
    ])
    func `are told once, keep the session aside, and are not asked for again`(status: Int, error: String) async throws {
        let broker = try await Self.expired()
        // A status in the body does not count.
        broker.transport.enqueue(.json(status, #"{"status": 500, "error": "\#(error)", "sub_status": 11101}"#))
        #expect(await broker.get().level == "basic")
        for _ in 0..<3 { #expect(await broker.get().level == "basic") }
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.status().isLoggedIn == false)
        let kept = try #require(try await broker.quarantined())
        #expect(kept.credentials.refreshToken?.revealedText == "r1")
        #expect(kept.until == broker.time.now.advanced(by: .seconds(7 * 86_400)))
        let events = try await broker.events()
        #expect(
            events.map(\.kind) == [
                .credentialsUpdated, .refreshStarted, .refreshRefreshingAccessToken, .credentialsDeauthorized,
                .refreshFailed,
            ])
        #expect(events[3].data["cause"] == .string("revoked"))
        #expect(events[4].data["error_code"] == .string(error))
    }

    // MARK: Those that never do

    // T32
    // T70
    @Test(arguments: [
        (403, #"{"error": "invalid_grant"}"#), (404, #"{"error": "invalid_grant"}"#),
        (408, #"{"error": "invalid_grant"}"#), (422, #"{"error": "invalid_grant"}"#),
        (429, #"{"error": "invalid_grant"}"#), (500, #"{"error": "invalid_grant"}"#),
        (502, #"{"error": "invalid_grant"}"#), (503, #"{"error": "invalid_grant"}"#),
        (302, #"{"error": "invalid_grant"}"#), (200, #"{"error": "invalid_grant"}"#),
        (400, ""), (400, "{}"), (400, #"{"error": "invalid_grant""#), (400, "<p>invalid_grant</p>"),
        (400, #"["invalid_grant"]"#), (400, #"{"error": null}"#), (400, #"{"error": "Invalid_Grant"}"#),
        (400, #"{"error": "invalid_grant "}"#), (400, #"{"error_code": "invalid_grant"}"#),
        (400, #"{"error": "invalid_token_request"}"#), (401, ""), (401, #"{"status": 401, "subStatus": 6001}"#),
        (400, #"{"status": 401, "error": "access_denied"}"#), (401, #"{"status": 400, "error": "invalid_request"}"#),
    ])
    func `are these and no others`(status: Int, body: String) async throws {
        let broker = try await Self.expired(#"{"client_id": "c1", "client_secret": "s1"}"#)
        let tag = await broker.get("policy=local").tag
        broker.transport.always(.json(status, body))
        let answer = await broker.get()
        #expect(answer.status == 502 || answer.status == 503)
        #expect(await broker.get("policy=local").tag == tag)
        #expect(await broker.status().isLoggedIn == true)
        #expect(try await broker.quarantined() == nil)
        #expect(try await broker.causes() == ["set"])
        broker.time.advance(by: .seconds(60))
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test(arguments: [
        TransportError.timedOut(.firstByte, requestSent: true), .connectionLost(requestSent: true), .untrusted(.pin),
        .malformedResponse,
    ])
    func `are not a lack of an answer`(error: TransportError) async throws {
        let broker = try await Self.expired()
        broker.transport.always(.failure(error))
        #expect(await broker.get().status >= 502)
        #expect(await broker.status().isLoggedIn == true)
        #expect(try await broker.quarantined() == nil)
    }

    /// An error counts whatever the status that bears it, where the provider's rules name no statuses.
    @Test(arguments: [200, 201, 400, 401, 403, 404, 422])
    func `are invalid_grant with any status at a provider whose rules name none`(status: Int) async throws {
        let broker = try await Self.expired("{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        broker.transport.always(.json(status, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.count == 1)
        #expect(try await broker.causes() == ["set", "revoked"])
        let other = try await Self.expired("{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        other.transport.always(.json(status, #"{"error": "invalid_client"}"#))
        #expect(await other.get().status == 424)
        #expect(await other.status().isLoggedIn == true)
    }

    // MARK: A look at what is stored

    @Test(arguments: [400, 401])
    func `are news of a sibling's refresh where there was one`(status: Int) async throws {
        let store = MemoryRecordStore()
        let broker = try await Self.expired(store: store)
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(status, #"{"error": "invalid_grant"}"#)))
        async let late = broker.get()
        await gate.arrivals()
        sibling.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await sibling.get().token == "a2")
        gate.open()
        #expect(await late.token == "a2")
        #expect(try await broker.quarantined() == nil)
        #expect(try await !broker.causes().contains("revoked"))
        // What began is told to be over, for either of the two.
        let kinds = try await broker.events().map(\.kind)
        #expect(kinds.count { $0 == .refreshStarted } == 2)
        #expect(kinds.count { $0 == .refreshSucceeded } == 1)
        #expect(kinds.count { $0 == .refreshFailed } == 1)
    }

    @Test func `are refuted by a grant that is stored later, and what was kept aside goes`() async throws {
        let leaseClock = ManualTime()
        let base = MemoryRecordStore { leaseClock.monotonic }
        let store = BrokerFaultyStore(base)
        let broker = try await Self.expired(store: store)
        let sibling = try await BrokerHarness(store: base, time: broker.time)
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.replaces(.credentials) }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        async let granted = broker.get()
        await gate.arrivals()
        // The first is held up for longer than its lease lasts.
        leaseClock.advance(by: .seconds(60))
        sibling.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await sibling.get().level == "basic")
        #expect(try await broker.quarantined() != nil)
        gate.open()
        #expect(await granted.token == "a2")
        #expect(await broker.status().isLoggedIn == true)
        // Restoring the spent refresh token would end the session after all.
        #expect(try await broker.quarantined() == nil)
    }

    @Test func `found by two replicas at once are one logout`() async throws {
        let leaseClock = ManualTime()
        let base = MemoryRecordStore { leaseClock.monotonic }
        let store = BrokerFaultyStore(base)
        let broker = try await Self.expired(store: store)
        let sibling = try await BrokerHarness(store: base, time: broker.time)
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.writes(.quarantine) }
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        async let late = broker.get()
        await gate.arrivals()
        // The first is held up for longer than its lease lasts.
        leaseClock.advance(by: .seconds(60))
        sibling.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await sibling.get().level == "basic")
        gate.open()
        #expect(await late.level == "basic")
        #expect(broker.transport.seen.count == 1)
        #expect(try await broker.causes() == ["set", "revoked"])
        #expect(try await broker.quarantined()?.credentials.refreshToken?.revealedText == "r1")
    }

    @Test func `ask the provider no second time when only what is kept aside has changed`() async throws {
        let base = MemoryRecordStore()
        let store = BrokerFaultyStore(base)
        let broker = try await Self.expired(store: store)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get().level == "basic")
        await broker.set("b1", refresh: "r2", lifetime: .zero)
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.writes(.quarantine) }
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        async let ended = broker.get()
        await gate.arrivals()
        // Housekeeping, while the new one is about to take the old one's place.
        broker.time.advance(by: .seconds(7 * 86_400) + .milliseconds(1))
        // The record of refusals, by which a wave is noticed, goes with it.
        #expect(try await base.removeExpired(before: broker.time.now, limit: 10) == 2)
        gate.open()
        #expect(await ended.level == "basic")
        #expect(broker.transport.seen.count == 2)
        #expect(try await broker.quarantined()?.credentials.refreshToken?.revealedText == "r2")
        #expect(try await broker.causes() == ["set", "revoked", "set", "revoked"])
    }

    @Test(arguments: [BrokerFaultyStore.Fault.refuse, .loseAnswer])
    func `are stored once although the store fails`(fault: BrokerFaultyStore.Fault) async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.expired(store: store)
        store.disturb([fault]) { $0.replaces(.credentials) }
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.count == 1)
        #expect(store.remainingFaults == 0)
        #expect(try await broker.causes() == ["set", "revoked"])
        #expect(await broker.restore().status == 200)
    }

    @Test func `do not end what a login has brought meanwhile`() async throws {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(400, #"{"error": "invalid_grant"}"#)))
        async let refreshed = broker.get()
        await gate.arrivals()
        let tag = await broker.set("b1", refresh: "r2")
        gate.open()
        let answer = await refreshed
        #expect((answer.token, answer.tag) == ("b1", tag))
        #expect(try await broker.quarantined() == nil)
    }

    @Test func `keep nothing aside where the broker is to keep nothing`() async throws {
        let store = MemoryRecordStore()
        let before = try await Self.expired(store: store)
        before.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await before.get().level == "basic")
        let broker = try await Self.expired(store: store) { $0.core.quarantine = .zero }
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get().level == "basic")
        // Not the older session either: it would be taken for this one.
        #expect(try await broker.count(.quarantine) == 0)
        #expect(await broker.restore().status == 404)
    }

    // MARK: After a rotation of the secret

    @Test func `after a rotation of the secret are invalid_grant only`() async throws {
        for (status, error, code, level) in [
            (400, "invalid_grant", 200, "client"), (401, "invalid_grant", 200, "client"),
            (401, "invalid_client", 424, nil), (400, "unauthorized_client", 424, nil),
            (400, "invalid_request", 502, nil), (401, "access_denied", 502, nil),
        ] as [(Int, String, Int, String?)] {
            let broker = try await Self.expired(
                "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#)
            await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s2"}"#)
            broker.transport.enqueue(
                .json(status, #"{"error": "\#(error)"}"#), .json(200, BrokerHarness.token("client-1")))
            let answer = await broker.get()
            #expect((answer.status, answer.level) == (code, level), "\(status) \(error)")
            #expect(await broker.status().isLoggedIn == (level == nil))
            let last = try await broker.events().last { $0.kind == .refreshFailed }
            #expect(last?.data["error_code"] == .string(error))
        }
    }

    @Test func `are judged anew once the new secret has been taken`() async throws {
        func tenant(_ secret: String) -> String {
            "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "\#(secret)", "#
                + #""session_ending_answers": [{"status": 401, "error": "session_over"}]}"#
        }
        let broker = try await Self.expired(tenant("s1"))
        await broker.makeTenant("t1", tenant("s2"))
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a2")), .json(401, #"{"error": "session_over"}"#))
        #expect(await broker.get().token == "a2")
        #expect(await broker.get("policy=local_force_refresh").json["session"]?["cause"]?.text == "revoked")
    }

    // MARK: The tenant's own

    @Test(
        arguments: [
            (#"[{"status": 400}]"#, 400, "", true), (#"[{"status": 400}]"#, 400, "{}", true),
            (#"[{"status": 400}]"#, 400, #"{"error": null}"#, true),
            (#"[{"status": 400}]"#, 400, #"{"error": "invalid_scope"}"#, false),
            (#"[{"status": 400}]"#, 400, "<html>", false), (#"[{"status": 400}]"#, 401, "", false),
            (#"[{"status": 400}]"#, 400, #"{"error": 5}"#, false),
            (#"[{"status": 400, "error": null}]"#, 400, "", true),
            (
                #"[{"status": 400, "error": "invalid_token_request"}]"#, 400, #"{"error": "invalid_token_request"}"#,
                true
            ),
            (#"[{"status": 400, "error": "invalid_token_request"}]"#, 400, "", false),
            (
                #"[{"status": 400, "error": "invalid_token_request"}]"#, 401, #"{"error": "invalid_token_request"}"#,
                false
            ),
            (#"[{"status": 499, "error": "e"}, {"status": 403}]"#, 403, "", true),
            (#"[{"status": 499, "error": "e"}, {"status": 403}]"#, 499, #"{"error": "e"}"#, true),
            (#"[]"#, 400, "", false),
        ] as [(String, Int, String, Bool)])
    func `of a tenant's configuration count beside the design's`(
        patterns: String, status: Int, body: String, ends: Bool
    ) async throws {
        let broker = try await Self.expired(#"{"client_id": "c1", "session_ending_answers": \#(patterns)}"#)
        broker.transport.enqueue(.json(status, body))
        // Where no cause is named, the client is tried by a made-up code.
        broker.transport.always(.json(403, #"{"error": "invalid_code"}"#))
        let answer = await broker.get()
        #expect(answer.status == (ends ? 200 : 502))
        #expect(await broker.status().isLoggedIn == !ends)
        #expect(try await (broker.quarantined() != nil) == ends)
        // The design's own still count.
        await broker.set("b1", refresh: "r2", lifetime: .zero)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get().level == "basic")
    }

    @Test func `of a tenant's configuration end neither logins nor upgrades nor client credentials`() async throws {
        let patterns = #""session_ending_answers": [{"status": 403}]"#
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", \#(patterns)}"#)
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", #"{"client_id": "c2", \#(patterns)}"#)
        broker.transport.always(.json(403, ""))
        #expect(await broker.get().code == "retryable_error")
        #expect(await broker.status().isLoggedIn == true)
        await broker.makeTenant("t2", #"{"client_id": "c1", "client_secret": "s1", \#(patterns)}"#)
        #expect(await broker.get(tenant: "t2").code == "illegal_configuration")
    }
}
