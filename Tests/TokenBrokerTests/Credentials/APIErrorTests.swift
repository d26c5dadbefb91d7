import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Refusals by the API` {
    private static let forcing = ["11003", "6001", "11001", "11002", "11101"]
    private static let others = ["4005", "1002", "6004", "999", "1005", "11100", "11004", "011003", "11003.0", ""]

    private static func make() async throws -> (BrokerHarness, tag: String) {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        return (broker, await broker.set("a1", refresh: "r1", lifetime: .seconds(86_400)))
    }

    private static func report(
        _ broker: BrokerHarness, _ subStatus: String, of tag: String? = nil
    ) async -> BrokerHarness.Answer {
        await broker.get("api_error_sub_status=\(subStatus)", fields: tag.map { ["If-None-Match": $0] } ?? [:])
    }

    // T26
    @Test(arguments: forcing, [false, true])
    func `of the design's force one refresh of a token that is good for hours`(
        subStatus: String, isTagged: Bool
    ) async throws {
        let (broker, tag) = try await Self.make()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        let answer = await Self.report(broker, subStatus, of: isTagged ? tag : nil)
        #expect((answer.status, answer.token) == (200, "a2"))
        #expect(broker.transport.seen.count == 1)
    }

    // T27
    @Test(arguments: others, [false, true])
    func `of any other kind refresh nothing`(subStatus: String, isTagged: Bool) async throws {
        let (broker, tag) = try await Self.make()
        let answer = await Self.report(broker, subStatus, of: isTagged ? tag : nil)
        #expect(answer.status == (isTagged ? 304 : 200))
        #expect(answer.tag == tag)
        #expect(broker.transport.seen.isEmpty)
    }

    // T41
    // T74
    @Test func `of one version by a hundred callers, some of whom report nothing, are one refresh`() async throws {
        let (broker, tag) = try await Self.make()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        let answers = await withTaskGroup(of: BrokerHarness.Answer.self) { group in
            for index in 0..<100 {
                group.addTask {
                    index % 4 == 0
                        ? await broker.get()
                        : await Self.report(broker, Self.forcing[index % 5], of: tag)
                }
            }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(answers.count { $0.token == "a2" } >= 75)
        #expect(answers.allSatisfy { $0.token == "a1" || $0.token == "a2" })
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `of an old version, a hundred one after the other, are no further refresh`() async throws {
        let (broker, tag) = try await Self.make()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        for index in 0..<100 {
            #expect(await Self.report(broker, Self.forcing[index % 5], of: tag).token == "a2")
        }
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `of the new version are another refresh`() async throws {
        let (broker, first) = try await Self.make()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")), .json(200, BrokerHarness.token("a3")))
        let second = await Self.report(broker, "11003", of: first)
        #expect(await Self.report(broker, "11003", of: second.tag).token == "a3")
        #expect(await Self.report(broker, "11003", of: first).token == "a3")
        #expect(broker.transport.seen.count == 2)
    }

    // T39
    @Test func `during a read that finds nothing to do are a refresh of their own`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        await sibling.set("b1", refresh: "r2")
        // The reader's renewal is about to find that a sibling has stored what is good.
        let gate = Gate()
        store.holdNextRead(of: .credentials, gate)
        async let reader = broker.get()
        await gate.arrivals()
        broker.transport.enqueue(.json(200, BrokerHarness.token("b2")))
        async let forced = broker.get(
            "api_error_sub_status=11003", fields: ["If-None-Match": "\"9223372036854775807\""])
        gate.open()
        #expect(["b1", "b2"].contains(await reader.token))
        #expect(await forced.token == "b2")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `may find that the session is over`() async throws {
        let (broker, tag) = try await Self.make()
        broker.transport.enqueue(.json(401, #"{"error": "invalid_grant", "sub_status": 11101}"#))
        let answer = await Self.report(broker, "6001", of: tag)
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(await Self.report(broker, "6001", of: tag).level == "basic")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `of client credentials have them made anew`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1")), .json(200, BrokerHarness.token("client-2")))
        let first = await broker.get()
        #expect(await Self.report(broker, "4005", of: first.tag).status == 304)
        #expect(await Self.report(broker, "11002", of: first.tag).token == "client-2")
        #expect(await Self.report(broker, "11002", of: first.tag).token == "client-2")
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `keep the token and the session when the refresh fails`() async throws {
        let (broker, tag) = try await Self.make()
        broker.transport.always(.json(503, ""))
        #expect(await Self.report(broker, "11003", of: tag).code == "retryable_error")
        #expect(await broker.get().tag == tag)
        #expect(broker.transport.seen.count == 6)
    }

    // T26
    @Test(arguments: ["11003", "6001", "11001", "11002", "11101"])
    func `a refusal that the design names forces a refresh`(subStatus: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        let answer = await broker.get("api_error_sub_status=\(subStatus)")
        #expect((answer.status, answer.token) == (200, "a2"))
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1"])
    }

    // T27
    @Test(arguments: ["4005", "50123", "11004", "11000", "6002", "1002", "", "011003", "11003%20", "abc"])
    func `any other refusal changes nothing`(subStatus: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let tag = await broker.set("a1", refresh: "r1")
        let answer = await broker.get("api_error_sub_status=\(subStatus)")
        #expect((answer.status, answer.token) == (200, "a1"))
        let unchanged = await broker.get(
            "api_error_sub_status=\(subStatus)", fields: ["If-None-Match": tag])
        #expect(unchanged.status == 304)
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `a refusal of the present version refreshes and one of an older version gets the present one`()
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let old = await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        let renewed = await broker.get("api_error_sub_status=11003", fields: ["If-None-Match": old])
        #expect((renewed.status, renewed.token) == (200, "a2"))
        let late = await broker.get("api_error_sub_status=11003", fields: ["If-None-Match": old])
        #expect((late.status, late.token, late.tag) == (200, "a2", renewed.tag))
        #expect(broker.transport.seen.count == 1)
    }

    // T41
    @Test func `a hundred reports of one version cause one refresh`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let tag = await broker.set("a1", refresh: "r1")
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        let answers = await withTaskGroup(of: BrokerHarness.Answer.self) { group in
            for _ in 0..<100 {
                group.addTask { await broker.get("api_error_sub_status=11003", fields: ["If-None-Match": tag]) }
            }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(answers.allSatisfy { $0.status == 200 && $0.token == "a2" })
        #expect(broker.transport.seen.count == 1)
    }
}
