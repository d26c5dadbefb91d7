internal import BrokerTesting
internal import HTTPCodec
internal import Testing

/// Requests that waited in the sockets of a process which stood still, and whose callers may have gone on at another replica.
@Suite struct `Late changes of credentials` {
    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        broker.time.advance(by: .seconds(60))
        return broker
    }

    private static let body = #"""
        {"storage_key": "default", "credentials": {"client_id": "c1", "token": "old", "level": "user"}, "refresh_token": "r-old"}
        """#

    /// For how long the request waited, when the credentials were changed before now, and whether it is carried out.
    private static let cases: [(waited: Int, changed: Int, isDone: Bool)] = [
        (0, 0, true), (10, 1, true), (11, 1, false), (11, 11, true), (11, 12, true), (50, 49, false), (50, 51, true),
    ]

    @Test(arguments: cases)
    func `a PUT does not replace what was stored while it waited for more than ten seconds`(
        waited: Int, changed: Int, isDone: Bool
    ) async throws {
        let broker = try await Self.broker()
        await broker.set("a2", refresh: "r2")
        broker.time.advance(by: .seconds(changed))
        let answer = await broker.call(
            .put, "/credentials", tenant: "t1", body: Self.body, waited: .seconds(waited))
        #expect(answer.status == (isDone ? 200 : 409), "\(answer.text)")
        #expect(await broker.get().token == (isDone ? "old" : "a2"))
        if !isDone { #expect(answer.code == "conflict") }
    }

    @Test(arguments: cases, ["", "?revoke=true"])
    func `a DELETE does not remove what was stored while it waited for more than ten seconds`(
        _ timing: (waited: Int, changed: Int, isDone: Bool), query: String
    ) async throws {
        let broker = try await Self.broker()
        await broker.set("a2", refresh: "r2")
        broker.time.advance(by: .seconds(timing.changed))
        let answer = await broker.call(
            .delete, "/credentials" + query, tenant: "t1", waited: .seconds(timing.waited))
        #expect(answer.status == (timing.isDone ? 204 : 409), "\(answer.text)")
        #expect(await broker.get().token == (timing.isDone ? nil : "a2"))
    }

    @Test func `a DELETE that waited is carried out where nothing is left to remove`() async throws {
        let broker = try await Self.broker()
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        broker.time.advance(by: .seconds(20))
        #expect(await broker.call(.delete, "/credentials", tenant: "t1", waited: .seconds(30)).status == 204)
    }
}
