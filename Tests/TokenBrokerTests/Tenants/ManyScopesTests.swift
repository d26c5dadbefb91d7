import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `A client with many scopes` {
    private static func list(_ count: Int) -> [String] {
        (0..<count).map { "https://api.example/auth/scope.number.\($0 + 1000)" }
    }

    private static func json(_ scopes: [String]) -> String { "[\(scopes.map { "\"\($0)\"" }.joined(separator: ","))]" }

    @Test(arguments: [(101, 201), (999, 201), (1000, 201), (1001, 400)])
    func `has up to a thousand`(count: Int, status: Int) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1", "scopes": \#(Self.json(Self.list(count)))}"#)
        #expect(answer.status == status)
        #expect(answer.pointers == (status == 201 ? [] : ["/scopes"]))
    }

    @Test(arguments: ["when_started_here", "confirm"])
    func `logs users in with all of them, and takes credentials with all of them`(binding: String) async throws {
        let broker = try await BrokerHarness()
        let scopes = Self.list(400)
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "browser_binding": "\#(binding)", "scopes": \#(Self.json(scopes))}"#)
        let login = await broker.beginLogin()
        #expect(BrokerHarness.parameters(of: login.uri)["scope"] == scopes.joined(separator: " "))
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a1", refresh: "r1", scope: scopes.joined(separator: " "))))
        let callback = await broker.callback("code=c-1&state=\(login.state)", followsToEnd: false)
        #expect(callback.status == 303)
        if binding == "confirm" {
            let path = "/login/confirm/t1/\(login.id)"
            #expect(await broker.press(at: path, cookie: BrokerHarness.cookie(callback), accept: nil).status == 200)
        }
        let answer = await broker.get()
        #expect(answer.token == "a1")
        #expect(answer.json["granted_scopes"]?.array?.compactMap(\.text) == scopes)
        await broker.set(
            "a2", storageKey: "other",
            members: #""level": "user", "granted_scopes": \#(Self.json(scopes)), "#)
        #expect(await broker.get("storage_key=other").json["granted_scopes"]?.array?.count == 400)
    }
}
