internal import BrokerCore
internal import BrokerTesting
internal import CredentialStore
internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import OAuth
internal import Reactor
internal import Testing
internal import TokenBroker

/// A renewal whose tries have all failed, with no token left to give.
@Suite struct `A provider that fails six times` {
    private static func expired(
        _ tenant: String = #"{"client_id": "c1"}"#, store: any RecordStore = MemoryRecordStore()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        return broker
    }

    private static let failures: [(ScriptedTransport.Step, String)] = [
        (.json(503, ""), "retryable_error"), (.json(500, #"{"error": "server_error"}"#), "retryable_error"),
        (.failure(.connectFailed), "network_error"),
        (.failure(.timedOut(.firstByte, requestSent: true)), "network_error"),
        (.json(200, "<html>"), "token_response_error"),
    ]

    // MARK: The pause

    @Test(arguments: failures)
    func `is not asked again for 30 seconds, and callers are told so at once`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let broker = try await Self.expired()
        broker.transport.always(step)
        let first = await broker.get()
        #expect(first.code == code)
        #expect(first.retryAfter == (code == "token_response_error" ? nil : 30))
        #expect(broker.transport.seen.count == 6)
        broker.time.forgetSleeps()
        for _ in 0..<5 {
            let answer = await broker.get()
            #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 30))
        }
        broker.time.advance(by: .milliseconds(29_999))
        #expect(await broker.get().retryAfter == 1)
        #expect(broker.transport.seen.count == 6)
        #expect(broker.time.slept.isEmpty)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r1")
    }

    @Test(arguments: ["policy=local_force_refresh", "api_error_sub_status=11003", "min_ttl=7200", "level=user"])
    func `is not asked by callers that demand a new token either`(query: String) async throws {
        let broker = try await Self.expired()
        broker.transport.always(.json(503, ""))
        #expect(await broker.get().code == "retryable_error")
        let answer = await broker.get(query)
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 30))
        #expect(broker.transport.seen.count == 6)
        #expect(await broker.get("policy=local").token == "a1")
    }

    @Test func `is asked for other users, and at once when the tenant is put again`() async throws {
        let broker = try await Self.expired()
        await broker.set("b1", refresh: "r2", lifetime: .zero, storageKey: "other")
        broker.transport.always(.json(503, ""))
        #expect(await broker.get().retryAfter == 30)
        #expect(await broker.get("storage_key=other").retryAfter == 30)
        #expect(broker.transport.seen.count == 12)
        await broker.makeTenant()
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test func `pauses what client credentials are asked for by as well`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.always(.json(500, ""))
        #expect(await broker.get().code == "retryable_error")
        #expect(await broker.get().retryAfter == 30)
        #expect(broker.transport.seen.count == 6)
        broker.time.advance(by: .seconds(30))
        broker.transport.always(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
    }

    @Test func `has a token that lives given without further calls`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(59))
        broker.transport.always(.failure(.connectFailed))
        for _ in 0..<3 { #expect(await broker.get().token == "a1") }
        #expect(broker.transport.seen.count == 6)
        broker.time.advance(by: .seconds(29))
        #expect(await broker.get().token == "a1")
        #expect(broker.transport.seen.count == 6)
    }

    @Test(arguments: [
        (ScriptedTransport.Step.json(403, ""), "unexpected_error"),
        (.failure(.untrusted(.chain)), "provider_untrusted"),
        (.json(429, "", fields: ["Retry-After": "0"]), "retryable_error"),
    ])
    func `is told apart from one that refuses, which is one call for each read`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let broker = try await Self.expired()
        broker.transport.always(step)
        for calls in 1...3 {
            #expect(await broker.get().code == code)
            #expect(broker.transport.seen.count == calls)
        }
        #expect(try await broker.events().allSatisfy { $0.kind != .credentialsDegraded })
    }

    @Test func `is told of to listeners, with the time when it is asked again`() async throws {
        let broker = try await Self.expired()
        broker.transport.always(.json(503, #"{"error": "server_error"}"#))
        for _ in 0..<3 { #expect(await broker.get().status == 503) }
        let events = try await broker.events().dropFirst()
        #expect(
            events.map(\.kind) == [
                .refreshStarted, .refreshRefreshingAccessToken, .refreshFailed, .credentialsDegraded,
            ])
        let told = try #require(events.last?.data)
        #expect(told["error"] == .string("retryable_error"))
        #expect(told["error_code"] == .string("server_error"))
        let retry = try #require(Timestamp(rfc3339: told["retry_at"]?.text ?? ""))
        #expect(broker.time.now.duration(to: retry) <= .seconds(30))
        #expect(broker.time.now.duration(to: retry) > .seconds(29))
        #expect(Set(events.compactMap { $0.data["refresh_id"]?.text }).count == 1)
    }

    // MARK: Within the provider's grace

    /// Has what was given up be looked for so often.
    private static func look(_ count: Int, _ time: ManualTime) async {
        func looks() -> Int { time.slept.count { $0 >= .milliseconds(500) && $0 <= .milliseconds(625) } }
        while looks() == 0 { await Task.yield() }
        for _ in 0..<count {
            let before = looks()
            time.advance(by: .milliseconds(625))
            while looks() == before { await Task.yield() }
        }
    }

    /// A refresh token that may be spent is tried again, whatever callers are told.
    @Test func `is asked again within its grace where the refresh token may be spent, and callers are told at once`()
        async throws
    {
        let time = ManualTime()
        let (one, two) = try await BrokerHarness.replicas(believing: .seconds(5), time: time)
        await one.makeTenant("t1", #"{"client_id": "c1", "reuse_grace": 60}"#)
        await one.set("a1", refresh: "r1", lifetime: .zero)
        one.transport.always(.json(503, ""))
        let gate = Gate()
        two.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        #expect(await one.get().status == 503)
        for broker in [one, two] { #expect(await broker.get().retryAfter == 30) }
        #expect(one.transport.seen.count == 6 && two.transport.seen.isEmpty)
        time.holdSleeps()
        time.forgetSleeps()
        two.broker.start()
        await Self.look(4, time)
        await gate.arrivals()
        #expect((1...29).contains(await two.get().retryAfter ?? 0))
        gate.open()
        two.broker.beginDraining()
        await two.broker.finish()
        time.advance(by: .seconds(5))
        #expect(await one.get().token == "a2")
        #expect(one.transport.seen.count == 6 && two.transport.seen.count == 1)
    }

    @Test func `is asked again within its grace by a process that has the store for itself`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(store: MemoryRecordStore { time.monotonic }, time: time)
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.broker.start()
        // Too much patience for a call, of a provider that may have spent the refresh token.
        broker.transport.enqueue(
            .json(503, "", fields: ["Retry-After": "31"]), .json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().status == 503)
        await Self.look(4, time)
        while broker.transport.seen.count < 2 { await Task.yield() }
        await broker.broker.credentials.idle()
        #expect(await broker.get().token == "a2")
        broker.broker.beginDraining()
        await broker.broker.finish()
    }

    // MARK: Replicas

    @Test(arguments: failures)
    func `is not asked by another replica, which tells its callers at once`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let (one, two) = try await BrokerHarness.replicas(believing: .zero)
        await one.makeTenant()
        await one.set("a1", refresh: "r1", lifetime: .zero)
        one.transport.always(step)
        two.transport.always(step)
        #expect(await one.get().code == code)
        one.time.forgetSleeps()
        for after in [0, 20_000, 9999] {
            one.time.advance(by: .milliseconds(after))
            for broker in [two, one] {
                let answer = await broker.get()
                #expect((answer.status, answer.code) == (503, "retryable_error"))
                #expect((1...30).contains(answer.retryAfter ?? 0))
            }
        }
        #expect(one.transport.seen.count == 6 && two.transport.seen.isEmpty)
        #expect(one.time.slept.isEmpty)
        one.time.advance(by: .milliseconds(1))
        two.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await two.get().token == "a2")
        #expect(await one.get().token == "a2")
    }

    @Test func `is asked by another replica at once when the tenant is put again`() async throws {
        let (one, two) = try await BrokerHarness.replicas(believing: .zero)
        await one.makeTenant()
        await one.set("a1", refresh: "r1", lifetime: .zero)
        one.transport.always(.json(503, ""))
        #expect(await one.get().status == 503)
        await two.makeTenant()
        two.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await two.get().token == "a2")
    }
}
