import AuthTesting
import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// The sessions of a client that the broker had registered, once the next login has got it another one.
@Suite struct `A registered client that another one has replaced` {
    private static let registration = "https://as.example/register/c-1"
    private static let revocation = "https://as.example/revoke"
    private static let refusal = ScriptedTransport.Step.json(401, #"{"error": "invalid_client"}"#)

    /// The answer to a made-up code.
    private static let knownClient = ScriptedTransport.Step.json(400, #"{"error": "invalid_grant"}"#)

    /// A broker whose user `default` was logged in with the client c-1, and whose user `new` with c-2, after the server had
    /// answered that it has no c-1.
    private func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "mcp", "resource": "https://mcp.example/mcp"}"#)
        Servers.publish(at: broker.transport, members: #", "revocation_endpoint": "\#(Self.revocation)""#)
        broker.transport.standing(
            at: Servers.registration,
            .json(
                201,
                #"""
                {"client_id": "c-1", "client_secret": "secret-1", "registration_client_uri": "\#(Self.registration)",
                 "registration_access_token": "token-1"}
                """#))
        await broker.logIn(token: BrokerHarness.token("old-1", refresh: "old-r-1"))
        broker.transport.standing(at: Self.registration, .json(404, ""))
        broker.transport.standing(at: Servers.registration, .json(201, #"{"client_id": "c-2"}"#))
        broker.time.advance(by: .seconds(601))
        // The answer to the made-up code.
        broker.transport.always(Self.refusal)
        await broker.logIn(storageKey: "new", token: BrokerHarness.token("new-1", refresh: "new-r-1"))
        broker.transport.always(nil)
        broker.time.advance(by: .seconds(3600))
        return broker
    }

    /// The client of the last request to the script, with its secret; nil where it shows none by HTTP Basic.
    private func shown(_ broker: BrokerHarness) -> String? {
        broker.transport.seen.last?.fields["Authorization"]?.text
    }

    private static func basic(_ pair: String) -> String { "Basic " + Base64.encode(Array(pair.utf8)) }

    @Test func `refreshes the sessions that it has got on`() async throws {
        let broker = try await broker()
        for turn in 2...3 {
            broker.transport.enqueue(
                .json(200, BrokerHarness.token("old-\(turn)", refresh: "old-r-\(turn)")),
                .json(200, BrokerHarness.token("new-\(turn)", refresh: "new-r-\(turn)")))
            let old = await broker.get()
            #expect(old.token == "old-\(turn)" && old.json["client_id"]?.text == "c-1", "\(old.text)")
            #expect(shown(broker) == Self.basic("c-1:secret-1"))
            #expect(broker.transport.seen.last?.form["refresh_token"] == "old-r-\(turn - 1)")
            let new = await broker.get("storage_key=new")
            #expect(new.token == "new-\(turn)" && new.json["client_id"]?.text == "c-2", "\(new.text)")
            #expect(shown(broker) == nil && broker.transport.seen.last?.form["client_id"] == "c-2")
            broker.time.advance(by: .seconds(3601))
        }
        #expect(await broker.status().json["logged_in"] == .bool(true))
    }

    @Test func `says that the user has to log in where the server takes it no more, and stops no other user`()
        async throws
    {
        let broker = try await broker()
        broker.transport.enqueue(Self.refusal)
        for _ in 1...2 {
            let refused = await broker.get()
            #expect((refused.status, refused.code) == (424, "illegal_configuration"))
            #expect(refused.json["error_code"]?.text == "invalid_client")
            #expect(refused.text.contains("Have the user log in anew"), "\(refused.text)")
        }
        let calls = broker.transport.seen.count
        #expect(await broker.status().json["state"]?.text == "degraded")
        #expect(await broker.status().json["logged_in"] == .bool(true))
        broker.transport.enqueue(.json(200, BrokerHarness.token("new-2", refresh: "new-r-2")))
        #expect(await broker.token(storageKey: "new") == "new-2")
        #expect(broker.transport.seen.count == calls + 1)
        // The next login is asked of the same client as before.
        broker.transport.always(Self.knownClient)
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["client_id"] == "c-2")
        #expect(await broker.status(storageKey: "new").json["state"]?.text == "active")
        // The server has its data back.
        broker.time.advance(by: .seconds(30))
        broker.transport.enqueue(.json(200, BrokerHarness.token("old-2", refresh: "old-r-2")))
        #expect(await broker.token() == "old-2")
        #expect(await broker.status().json["state"]?.text == "active")
    }

    @Test func `ends a session that it has got`() async throws {
        let broker = try await broker()
        broker.transport.standing(at: Self.revocation, .json(200, ""))
        let answer = await broker.call(.delete, "/credentials?storage_key=default&revoke=true", tenant: "t1")
        #expect(answer.fields["Token-Revocation"] == "revoked", "\(answer.text)")
        let sent = try #require(broker.transport.standingSeen.last { $0.url == Self.revocation })
        #expect(sent.form["token"] == "old-r-1")
        #expect(sent.fields["Authorization"]?.text == Self.basic("c-1:secret-1"))
    }

    @Test func `is replaced by the login of its own user`() async throws {
        let broker = try await broker()
        broker.transport.always(Self.knownClient)
        await broker.logIn(token: BrokerHarness.token("again-1", refresh: "again-r-1", expiresIn: 60))
        broker.time.advance(by: .seconds(61))
        broker.transport.enqueue(.json(200, BrokerHarness.token("again-2", refresh: "again-r-2")))
        let read = await broker.get()
        #expect(read.token == "again-2" && read.json["client_id"]?.text == "c-2")
    }

    @Test func `refreshes its sessions also beside a client that the operator has set since`() async throws {
        let broker = try await broker()
        await broker.makeTenant(
            "t1",
            #"{"provider": "mcp", "resource": "https://mcp.example/mcp", "client_id": "own", "client_secret": "own-secret"}"#
        )
        broker.transport.enqueue(.json(200, BrokerHarness.token("old-2", refresh: "old-r-2")))
        #expect(await broker.token() == "old-2")
        #expect(shown(broker) == Self.basic("c-1:secret-1"))
        broker.transport.enqueue(.json(200, BrokerHarness.token("new-2", refresh: "new-r-2")))
        #expect(await broker.token(storageKey: "new") == "new-2")
        #expect(shown(broker) == nil && broker.transport.seen.last?.form["client_id"] == "c-2")
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["client_id"] == "own")
    }

    // MARK: The record

    private static func client(_ number: Int) throws -> FoundAuthorization.Client {
        let json = try JSONValue(parsing: Array(#"{"client_id": "c-\#(number)"}"#.utf8))
        return .registered(try #require(RegisteredClient(json, asked: nil)))
    }

    @Test func `is kept with the seven latest others`() throws {
        var found = FoundAuthorization(resource: "r", issuer: "https://as.example", scopes: .empty)
        for number in 1...9 { found.keep(try Self.client(number)) }
        #expect(found.registeredClients.map(\.clientID) == (2...9).map { WireText("c-\($0)") })
        // A client that is there already becomes the present one, and is there once.
        found.keep(try Self.client(5))
        #expect(found.client == (try Self.client(5)) && found.clients.count == 8)
        // The clients of one issuer are no other one's.
        var other = FoundAuthorization(resource: "r", issuer: "https://other.example", scopes: .empty)
            .withClients(of: found)
        #expect(other.client == nil && other.clients.count == 8)
        other.keep(try Self.client(5))
        #expect(other.clients.map(\.issuer).suffix(2) == ["https://as.example", "https://other.example"])
    }
}
