import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing

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
        (0, 0, true), (2, 1, true), (3, 1, false), (4, 1, false), (4, 4, true), (4, 5, true), (50, 49, false),
        (50, 51, true),
    ]

    @Test(arguments: cases)
    func `a PUT does not replace what was stored while it waited for three seconds`(
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
    func `a DELETE does not remove what was stored while it waited for three seconds`(
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

/// The same of what operators ask for: it may have been asked for again since, and more may have been done.
@Suite struct `Late requests of operators` {
    private static let requests: [(method: HTTPCodec.Method, path: String, body: String?)] = [
        (.put, "/tenants/t1", #"{"client_id": "old"}"#), (.delete, "/tenants/t1", nil),
        (.put, "/tenants/t1/clients/app", #"{"redirect_uris": ["https://old.example/cb"]}"#),
        (.delete, "/tenants/t1/clients/app", nil), (.post, "/tenants/t1/api-keys/KEY/rotate", "{}"),
        (.delete, "/tenants/t1/api-keys/KEY", nil),
        (.post, "/credentials/restore", "{}"), (.post, "/credentials/import", nil),
    ]

    @Test(arguments: requests, [(2, false), (3, true), (60, true)])
    func `are not begun after three seconds`(
        request: (method: HTTPCodec.Method, path: String, body: String?), waited: (seconds: Int, isLate: Bool)
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient()
        let key = await broker.makeKey()
        await broker.set("a1")
        let listed = await broker.call(.get, "/tenants/t1/api-keys").json["api_keys"]?.array?.first
        let path = request.path.replacing("KEY", with: try #require(listed?["id"]?.text))
        let answer = await broker.call(
            request.method, path, tenant: "t1", body: request.body, waited: .seconds(waited.seconds))
        if waited.isLate {
            #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 1), "\(answer.text)")
            #expect(await broker.call(.get, "/credentials", key: key).token == "a1")
            #expect(await broker.call(.get, "/tenants/t1").json["client_id"]?.text == "c1")
            let client = await broker.call(.get, "/tenants/t1/clients/app")
            #expect(client.json["redirect_uris"]?.array?.first?.text == "https://app.example/cb")
        } else {
            #expect(answer.status != 503, "\(answer.text)")
        }
    }

    @Test func `are answered where they only read`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await broker.call(.get, "/tenants/t1", waited: .seconds(60)).status == 200)
    }
}
