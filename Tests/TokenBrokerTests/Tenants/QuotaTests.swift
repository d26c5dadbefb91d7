import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@Suite(.timeLimit(.minutes(2))) struct `Limits of one API key and one tenant` {
    private static func broker(
        store: any RecordStore = MemoryRecordStore(), time: ManualTime = ManualTime(),
        _ adjust: (inout Broker.Settings) -> Void = { _ in }
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time, adjust)
        await broker.makeTenant()
        return broker
    }

    private static func begin(_ broker: BrokerHarness, key: String) async -> BrokerHarness.Answer {
        await broker.call(.post, "/login/initialize", key: key)
    }

    private static func isRefused(_ answer: BrokerHarness.Answer, retryAfter: String) -> Bool {
        (answer.status, answer.code, answer.fields["Retry-After"]?.text, answer.json["retry_after"])
            == (429, "too_many_requests", retryAfter, .integer(Int64(retryAfter)!))
    }

    private static func refusals(_ broker: BrokerHarness, _ quota: String) async -> Int? {
        let prefix = #"token_broker_quota_refusals_total{quota="\#(quota)"} "#
        let lines = await broker.call(.get, "/metrics", key: nil).text.split(separator: "\n")
        return lines.first { $0.hasPrefix(prefix) }.flatMap { Int($0.dropFirst(prefix.count)) }
    }

    private static func source(_ address: String) throws -> NetworkSource {
        NetworkSource(try #require(NetworkAddress(parsing: Array(address.utf8)[...])))
    }

    // MARK: Rates

    // H016
    @Test func `a key begins two hundred logins at once and fifty a second, and holds up no other key`() async throws {
        let broker = try await Self.broker()
        let (key, other) = (await broker.makeKey(), await broker.makeKey())
        #expect(await Self.refusals(broker, "login_rate") == 0)
        for _ in 0..<200 { #expect(await Self.begin(broker, key: key).status == 201) }
        #expect(Self.isRefused(await Self.begin(broker, key: key), retryAfter: "1"))
        #expect(await Self.begin(broker, key: other).status == 201)
        broker.time.advance(by: .milliseconds(19))
        #expect(await Self.begin(broker, key: key).status == 429)
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.begin(broker, key: key).status == 201)
        #expect(await Self.begin(broker, key: key).status == 429)
        #expect(await Self.refusals(broker, "login_rate") == 3)
    }

    @Test func `the operator's key has no rate`() async throws {
        let broker = try await Self.broker { $0.rates.logins = Rate(perSecond: 1, burst: 1) }
        for _ in 0..<3 { #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 201) }
    }

    // H016
    @Test func `the time to come back is when the next token comes`() async throws {
        let broker = try await Self.broker { $0.rates.logins = Rate(perSecond: 1, burst: 3) }
        let key = await broker.makeKey()
        for _ in 0..<3 { #expect(await Self.begin(broker, key: key).status == 201) }
        #expect(Self.isRefused(await Self.begin(broker, key: key), retryAfter: "1"))
        broker.time.advance(by: .milliseconds(999))
        #expect(Self.isRefused(await Self.begin(broker, key: key), retryAfter: "1"))
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.begin(broker, key: key).status == 201)
    }

    @Test func `device logins have a rate of their own, and the provider is not asked beyond it`() async throws {
        let broker = try await Self.broker { $0.rates.deviceLogins = Rate(perSecond: 1, burst: 1) }
        // The polls of the first login are not to move the clock.
        broker.time.holdSleeps()
        let key = await broker.makeKey()
        broker.transport.enqueue(
            .json(200, #"{"device_code":"d","user_code":"u","verification_uri":"https://p.example","expires_in":300}"#))
        #expect(await broker.call(.post, "/device", key: key).status == 201)
        #expect(Self.isRefused(await broker.call(.post, "/device", key: key), retryAfter: "1"))
        #expect(await Self.begin(broker, key: key).status == 201)
        #expect(await Self.refusals(broker, "device_login_rate") == 1)
    }

    @Test func `writes and forced refreshes share a rate, and reads do not count`() async throws {
        let broker = try await Self.broker { $0.rates.writes = Rate(perSecond: 1, burst: 4) }
        let key = await broker.makeKey()
        let body = #"{"credentials": {"client_id": "c1", "token": "a", "expires_in": 3600}}"#
        #expect(await broker.call(.put, "/credentials", key: key, body: body).status == 200)
        #expect(await broker.call(.delete, "/credentials", key: key).status == 204)
        #expect(await broker.call(.get, "/credentials?policy=local_force_refresh", key: key).status != 429)
        #expect(await broker.call(.get, "/credentials?api_error_sub_status=11003", key: key).status != 429)
        for (method, target) in [
            (Method.put, "/credentials"), (.delete, "/credentials"), (.get, "/credentials?policy=local_force_refresh"),
            (.get, "/credentials?api_error_sub_status=11003"),
        ] {
            let answer = await broker.call(method, target, key: key, body: method == .put ? body : nil)
            #expect(Self.isRefused(answer, retryAfter: "1"), "\(method) \(target)")
        }
        for target in ["/credentials", "/credentials?api_error_sub_status=1", "/credentials/status"] {
            #expect(await broker.call(.get, target, key: key).status == 200)
        }
        #expect(await Self.refusals(broker, "write_rate") == 4)
    }

    @Test func `requests in general are counted where the operator says so`() async throws {
        let broker = try await Self.broker { $0.rates.requests = Rate(perSecond: 1, burst: 2) }
        let key = await broker.makeKey()
        for _ in 0..<2 { #expect(await broker.call(.get, "/credentials/status", key: key).status == 200) }
        #expect(Self.isRefused(await broker.call(.get, "/credentials/status", key: key), retryAfter: "1"))
        // What the key may not do is not told apart by the limit.
        #expect(await broker.call(.get, "/tenants", key: key).status == 403)
    }

    // H016 H027
    @Test func `the keys of a tenant share its rate, and hold up no other tenant and no operator`() async throws {
        let broker = try await Self.broker { $0.rates.requestsOfTenant = Rate(perSecond: 1, burst: 3) }
        await broker.makeTenant("t2")
        let (first, second, other) = (await broker.makeKey(), await broker.makeKey(), await broker.makeKey("t2"))
        for key in [first, second, first] {
            #expect(await broker.call(.get, "/credentials/status", key: key).status == 200)
        }
        for key in [first, second] {
            #expect(Self.isRefused(await broker.call(.get, "/credentials/status", key: key), retryAfter: "1"))
        }
        #expect(await broker.call(.get, "/credentials/status", key: other).status == 200)
        #expect(await broker.call(.get, "/credentials/status", tenant: "t1").status == 200)
        broker.time.advance(by: .milliseconds(999))
        #expect(await broker.call(.get, "/credentials/status", key: second).status == 429)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.call(.get, "/credentials/status", key: second).status == 200)
        #expect(await Self.refusals(broker, "tenant_request_rate") == 3)
    }

    // H016
    @Test func `an address has a rate for all keys together, and other addresses have theirs`() async throws {
        let broker = try await Self.broker { $0.rates.requestsFromAddress = Rate(perSecond: 1, burst: 2) }
        let (first, second) = (await broker.makeKey(), await broker.makeKey())
        func answer(_ key: String, _ source: NetworkSource) async -> BrokerHarness.Answer {
            await broker.call(.get, "/credentials/status", key: key, source: source)
        }
        let (here, there) = (try Self.source("192.0.2.1"), try Self.source("192.0.2.2"))
        #expect(await answer(first, here).status == 200)
        #expect(await answer(second, here).status == 200)
        #expect(Self.isRefused(await answer(first, here), retryAfter: "1"))
        #expect(await answer(first, there).status == 200)
        // A Unix-domain socket has no address.
        for _ in 0..<3 { #expect(await answer(first, .unknown).status == 200) }
        broker.time.advance(by: .seconds(1))
        #expect(await answer(second, here).status == 200)
        #expect(await answer(second, here).status == 429)
        #expect(await Self.refusals(broker, "address_request_rate") == 2)
    }

    // MARK: Pending logins

    @Test func `a tenant has so many pending logins at once, whichever replica began them`() async throws {
        let base = MemoryRecordStore()
        let time = ManualTime()
        func replica() async throws -> BrokerHarness {
            try await BrokerHarness(store: FaultyStore(base, revalidateAfter: .seconds(5)), time: time) {
                $0.core.pendingLogins = 10
            }
        }
        let (one, two) = (try await replica(), try await replica())
        await one.makeTenant()
        await one.makeTenant("t2")
        let key = await one.makeKey()
        for _ in 0..<10 { #expect(await Self.begin(one, key: key).status == 201) }
        for broker in [one, two] { #expect(Self.isRefused(await Self.begin(broker, key: key), retryAfter: "10")) }
        #expect(await two.call(.post, "/login/initialize", tenant: "t2").status == 201)
        #expect(await Self.refusals(two, "pending_logins") == 1)
        // They are over by themselves.
        time.advance(by: PendingLogin.validity - .milliseconds(1))
        #expect(await Self.begin(two, key: key).status == 429)
        time.advance(by: .milliseconds(1) + .seconds(2))
        #expect(await Self.begin(two, key: key).status == 201)
    }

    @Test func `callers that wait for a slow count are held to the limit together`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store) { $0.core.pendingLogins = 3 }
        let gate = Gate()
        store.holdNextCount(gate)
        let calls = (0..<10).map { _ in
            // Each runs until it waits for the count before the next one begins.
            Task.immediate { await broker.call(.post, "/login/initialize", tenant: "t1").status }
        }
        await gate.arrivals()
        // Longer than a count is used.
        broker.time.advance(by: .seconds(3))
        gate.open()
        var statuses: [Int] = []
        for call in calls { statuses.append(await call.value) }
        #expect(statuses.count { $0 == 201 } == 3)
        #expect(statuses.count { $0 == 429 } == 7)
    }

    @Test func `a login that has ended is not pending, whatever came of it`() async throws {
        let broker = try await Self.broker { $0.core.pendingLogins = 2 }
        let (first, second) = (await broker.beginLogin(), await broker.beginLogin())
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 429)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a", refresh: "r")))
        #expect(await broker.callback("code=c&state=\(first.state)").status == 200)
        #expect(await broker.callback("error=access_denied&state=\(second.state)").status == 400)
        // What is counted anew is what the store has.
        broker.time.advance(by: .seconds(2))
        for _ in 0..<2 { #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 201) }
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 429)
    }

    @Test func `a tenant has so many pending device logins, and the provider is not asked for more`() async throws {
        // The provider is not polled meanwhile.
        let broker = try await Self.broker(time: ManualTime(skipsSleeps: false)) { $0.core.pendingDeviceLogins = 1 }
        broker.transport.enqueue(
            .json(200, #"{"device_code":"d","user_code":"u","verification_uri":"https://p.example","expires_in":300}"#))
        #expect(await broker.call(.post, "/device", tenant: "t1").status == 201)
        let requests = broker.transport.seen.count
        #expect(Self.isRefused(await broker.call(.post, "/device", tenant: "t1"), retryAfter: "10"))
        #expect(broker.transport.seen.count == requests)
        #expect(await Self.refusals(broker, "pending_device_logins") == 1)
    }

    @Test func `zero of the operator's is no limit`() async throws {
        let broker = try await Self.broker {
            $0.core.pendingLogins = nil
            $0.rates.logins = nil
        }
        let key = await broker.makeKey()
        for _ in 0..<300 { #expect(await Self.begin(broker, key: key).status == 201) }
    }

    // MARK: What a login keeps

    @Test func `a pending login takes sixteen kilobytes at most, however long the tenant's lists are`() async throws {
        let broker = try await BrokerHarness()
        let filler = (0..<90).map { "\"https://app.example/\($0)/" + String(repeating: "x", count: 1900) + "\"" }
        let longest = "https://app.example/" + String(repeating: "y", count: 2028)
        await broker.makeTenant(
            "t1",
            #"{"client_id": "c1", "allowed_redirect_uris": [\#((["\"\(longest)\""] + filler).joined(separator: ","))]}"#
        )
        func begin(_ redirectURI: String, custom: Int) async -> BrokerHarness.Answer {
            let value = String(repeating: "v", count: custom)
            return await broker.call(
                .post, "/login/initialize", tenant: "t1",
                body: #"{"redirect_uri": "\#(redirectURI)", "login_config": {"custom_parameters": {"a": "\#(value)"}}}"#
            )
        }
        let begun = await begin(longest, custom: 4095)
        #expect(begun.status == 201, "\(begun.text)")
        let record = try #require(await broker.loginRecord(begun.json["login_id"]?.text ?? ""))
        #expect(record.utf8.count <= 16_384)
        #expect(try await broker.count(.login) == 1)
    }

    @Test(arguments: ["code=c", "error=access_denied"])
    func `a login that has ended keeps its outcome and no more`(response: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"client_id": "the-client", "client_secret": "the-secret", "display_name": "Shop",
             "allowed_redirect_uris": ["https://app.example/back"], "allowed_return_uris": ["https://app.example/done"]}
            """#)
        let login = await broker.beginLogin(
            body:
                #"{"storage_key": "alice", "return_to": "https://app.example/done", "login_config": {"email": "a@b.example"}}"#
        )
        let pending = try #require(await broker.loginRecord(login.id))
        #expect(pending.contains("the-secret") && pending.contains("app.example/done"))
        #expect(!pending.contains("app.example/back"))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a", refresh: "r")))
        #expect(await broker.callback("\(response)&state=\(login.state)").status == 303)
        let ended = try #require(await broker.loginRecord(login.id))
        for text in ["the-client", "the-secret", "app.example", "a@b.example", "login.tidal.com", "redirect_uri"] {
            #expect(!ended.contains(text), "\(ended)")
        }
        #expect(ended.utf8.count < 400)
        let progress = await broker.progress(login.id)
        #expect(progress.json["status"] == .string(response == "code=c" ? "completed" : "failed"))
        // It is still known as used, by its state and by its page.
        #expect(await broker.callback("code=d&state=\(login.state)").status == 409)
    }

    @Test func `a device login that has ended keeps its outcome and no more`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant("t1", #"{"client_id": "the-client", "client_secret": "the-secret"}"#)
        broker.transport.enqueue(
            .json(
                200,
                #"{"device_code":"the-code","user_code":"u","verification_uri":"https://p.example","expires_in":9}"#),
            .json(400, #"{"error":"access_denied"}"#))
        let begun = await broker.call(.post, "/device", tenant: "t1")
        let code = try #require(begun.json["device_code"]?.string)
        await broker.time.sleepers(of: .seconds(5))
        broker.time.advance(by: .seconds(5))
        let progress = Task { await broker.call(.get, "/device/\(code)?wait=60", tenant: "t1") }
        #expect(await progress.value.json["status"] == .string("failed"))
        let records = try await broker.vault.list(.device, tenant: nil, limit: 2)
        let ended = try #require(records.first?.content.revealedText)
        for text in ["the-client", "the-secret", "the-code", "tidal.com"] { #expect(!ended.contains(text), "\(ended)") }
        #expect(ended.utf8.count < 300)
    }

    // MARK: Event streams

    @Test func `a key has so many event streams, and the place of one that ends is free`() async throws {
        let broker = try await Self.broker(time: ManualTime(skipsSleeps: false)) { $0.core.listenersPerKey = 2 }
        let (key, other) = (await broker.makeKey(), await broker.makeKey())
        let streams = [await broker.listen(key: key), await broker.listen(key: key)]
        let refused = await broker.listen(key: key)
        #expect(Self.isRefused(refused.answer, retryAfter: "10"))
        #expect(await Self.refusals(broker, "event_streams_per_key") == 1)
        let others = await broker.listen(key: other)
        let operators = [await broker.listen(tenant: "t1"), await broker.listen(tenant: "t1"), await broker.listen()]
        #expect(([others] + operators).allSatisfy { $0.answer.status == 200 })
        await streams[0].close()
        let next = await broker.listen(key: key)
        #expect(next.answer.status == 200)
        for stream in [streams[1], next, others] + operators { await stream.close() }
        #expect(broker.broker.events.listenerCount == 0)
    }
}
