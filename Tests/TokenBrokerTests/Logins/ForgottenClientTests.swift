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

/// What has another client registered in place of one, and what does not: a client that stays although its server has forgotten it
/// lets no user log in, and each client that is replaced for nothing stays registered at the server.
@Suite struct `A registered client that its server may have forgotten` {
    private static let tenant = #"{"provider": "mcp", "resource": "https://mcp.example/mcp"}"#
    private static let registration = "https://as.example/register/c-1"

    private static func registered(_ client: String = "c-1", secret: String) -> ScriptedTransport.Step {
        .json(
            201,
            #"""
            {"client_id": "\#(client)", "client_secret": "\#(secret)", "registration_client_uri": "\#(registration)",
             "registration_access_token": "token-1"}
            """#)
    }

    private static func client(of login: (id: String, uri: String, startURI: String, state: String)) -> String? {
        BrokerHarness.parameters(of: login.uri)["client_id"]
    }

    /// Logs in anew where the server answers so about the registration, and so to a made-up code.
    /// - Returns: the client of that login.
    private static func clientAfter(_ registration: (Int, String), _ code: (Int, String)) async throws -> String? {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        Servers.publish(at: broker.transport)
        broker.transport.standing(at: Servers.registration, registered(secret: "secret-1"))
        _ = await broker.beginLogin()
        broker.transport.standing(at: Self.registration, .json(registration.0, registration.1))
        broker.transport.standing(at: Servers.registration, .json(201, #"{"client_id": "c-2"}"#))
        broker.transport.always(.json(code.0, code.1))
        broker.time.advance(by: .seconds(601))
        return client(of: await broker.beginLogin())
    }

    @Test(
        arguments: [
            (400, #"{"error": "invalid_client"}"#, "c-2"), (401, #"{"error": "invalid_client"}"#, "c-2"),
            (401, #"{"error": "unauthorized_client"}"#, "c-2"), (400, #"{"error": "unauthorized_client"}"#, "c-1"),
            (401, "", "c-1"), (401, "{}", "c-1"), (401, #"{"error": "no_such_client"}"#, "c-1"),
            (401, "<html>", "c-1"), (404, "", "c-1"), (503, #"{"error": "invalid_client"}"#, "c-1"),
        ], [500, 403])
    func `is replaced by an error that says so, and by no other answer alone`(
        code: (status: Int, text: String, client: String), registration: Int
    ) async throws {
        #expect(try await Self.clientAfter((registration, ""), (code.status, code.text)) == code.client)
    }

    @Test(
        arguments: [
            (401, "", "c-2"), (401, "{}", "c-2"), (401, #"{"message": "no such client"}"#, "c-2"),
            (400, #"{"error": "no_such_client"}"#, "c-2"), (403, #"{"error": "unauthorized_client"}"#, "c-2"),
            (400, #"{"error": "invalid_client"}"#, "c-2"),
            // None of these refuses the client.
            (400, #"{"error": "invalid_grant"}"#, "c-1"), (400, #"{"error": "unauthorized_client"}"#, "c-1"),
            (401, #"{"error": "unauthorized"}"#, "c-1"), (401, "<html>", "c-1"), (403, "", "c-1"), (404, "", "c-1"),
            (410, "", "c-1"), (503, #"{"error": "invalid_client"}"#, "c-1"),
        ], [401, 404, 410])
    func `is replaced where its registration is gone and a made-up code is refused because of it`(
        code: (status: Int, text: String, client: String), registration: Int
    ) async throws {
        #expect(try await Self.clientAfter((registration, ""), (code.status, code.text)) == code.client)
    }

    @Test func `is not replaced where a made-up code is refused because of it and its registration is there`()
        async throws
    {
        #expect(try await Self.clientAfter((200, #"{"client_id": "c-1"}"#), (401, "")) == "c-1")
    }

    @Test(arguments: [
        (#""token_endpoint_auth_method": "none", "#, "c-1"),
        (#""token_endpoint_auth_method": "none", "client_secret": "s", "#, "c-1"), (#""client_secret": "s", "#, "c-2"),
    ])
    func `is not replaced at the end of a secret that it has not`(members: String, client: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        Servers.publish(at: broker.transport)
        let end = broker.time.now.milliseconds / 1000 + 300
        broker.transport.standing(
            at: Servers.registration,
            .json(201, #"{"client_id": "c-1", \#(members)"client_secret_expires_at": \#(end)}"#))
        _ = await broker.beginLogin()
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        broker.transport.standing(at: Servers.registration, .json(201, #"{"client_id": "c-2"}"#))
        for _ in 1...2 {
            #expect(Self.client(of: await broker.beginLogin()) == client)
            // The record has it so, too.
            broker.time.advance(by: .seconds(601))
        }
    }

    @Test func `has the secret that was answered last to one of two replicas`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(1))
        await one.makeTenant("t1", Self.tenant)
        for broker in [one, two] {
            Servers.publish(at: broker.transport)
            broker.transport.standing(at: Servers.registration, Self.registered(secret: "secret-1"))
        }
        _ = await one.beginLogin()
        // Both have the server learn of a redirect URI, and each change replaces the secret.
        await one.makeTenant(
            "t1",
            #"{"provider": "mcp", "resource": "https://mcp.example/mcp", "allowed_redirect_uris": ["https://app.example/cb"]}"#
        )
        let gate = Gate()
        one.transport.standing(
            at: Self.registration,
            .decide { seen in
                seen.method == .put
                    ? .after(gate, .json(200, #"{"client_id": "c-1", "client_secret": "secret-3"}"#))
                    : .json(200, #"{"client_id": "c-1"}"#)
            })
        two.transport.standing(
            at: Self.registration,
            .decide { seen in
                .json(
                    200,
                    seen.method == .put
                        ? #"{"client_id": "c-1", "client_secret": "secret-2"}"# : #"{"client_id": "c-1"}"#)
            })
        async let late = one.beginLogin()
        await gate.arrivals()
        #expect(Self.client(of: await two.beginLogin(body: #"{"storage_key": "other"}"#)) == "c-1")
        gate.open()
        let login = await late
        #expect(Self.client(of: login) == "c-1")
        one.transport.enqueue(.json(200, BrokerHarness.token("a-1", refresh: "r-1", expiresIn: 60)))
        #expect(await one.callback("code=c&state=\(login.state)").status == 200)
        one.time.advance(by: .seconds(61))
        one.transport.enqueue(.json(200, BrokerHarness.token("a-2", refresh: "r-2")))
        #expect(await one.token() == "a-2")
        let shown = one.transport.seen.last?.fields["Authorization"]
        #expect(shown?.text == "Basic " + Base64.encode(Array("c-1:secret-3".utf8)))
    }
}
