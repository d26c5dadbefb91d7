import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// What becomes of a revocation by the provider's answer.
@Suite struct `A provider's answer to a revocation` {
    private static func tenant(_ secret: String? = "s1") -> String {
        let secret = secret.map { #""client_secret": "\#($0)", "client_credentials": "off", "# } ?? ""
        return #"""
            {"provider": "oidc", "client_id": "c1", \#(secret)"endpoints": {"authorization": "https://op.example/a",
             "token": "https://op.example/t", "revocation": "https://op.example/revoke"}}
            """#
    }

    private static func loggedOut(
        _ step: ScriptedTransport.Step, tenant: String = tenant()
    ) async throws -> (broker: BrokerHarness, told: String?) {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1")
        broker.transport.always(step)
        return (broker, await logOut(broker))
    }

    private static func logOut(_ broker: BrokerHarness, _ key: String = "default") async -> String? {
        let answer = await broker.call(.delete, "/credentials?revoke=true&storage_key=\(key)", tenant: "t1")
        #expect(answer.status == 204)
        return answer.fields["Token-Revocation"]?.text
    }

    private static func failures(_ broker: BrokerHarness) async throws -> [JSONValue] {
        try await broker.events().filter { $0.kind == .revocationFailed }.map(\.data)
    }

    @Test(arguments: [
        (200, ""), (200, "{}"), (204, ""), (400, #"{"error": "invalid_token"}"#),
        (400, #"{"error": "invalid_token", "error_description": "unknown"}"#),
    ])
    func `is success where the token is revoked, or not known`(status: Int, body: String) async throws {
        let (broker, told) = try await Self.loggedOut(.json(status, body))
        #expect(told == "revoked")
        #expect(try await broker.count(.revocation) == 0)
        #expect(try await Self.failures(broker).isEmpty)
    }

    @Test(arguments: [
        (201, ""), (202, ""), (400, ""), (400, #"{"error": "invalid_request"}"#), (401, #"{"error": "invalid_token"}"#),
        (400, "<p>invalid_token</p>"), (404, ""), (500, #"{"error": "invalid_token"}"#), (503, ""),
    ])
    func `is a failure that is tried again otherwise, and named in the log`(status: Int, body: String) async throws {
        let (broker, told) = try await Self.loggedOut(.json(status, body))
        #expect(told == "failed")
        #expect(try await broker.count(.revocation) == 1)
        let line = try #require(broker.log.last { $0.contains("revocation_failed") })
        #expect(line.contains("\(status)"))
        if body.hasPrefix("{") { #expect(line.contains("invalid_")) }
        #expect(try await Self.failures(broker).isEmpty)
    }

    /// The answer to a client with a secret and to a public one, and whether it is final.
    @Test(
        arguments: [
            (nil, 401, #"{"error": "invalid_client"}"#, true), ("s1", 401, #"{"error": "invalid_client"}"#, false),
            (nil, 400, #"{"error": "invalid_client"}"#, true), (nil, 401, "", true), ("s1", 401, "", false),
            (nil, 403, #"{"error": "unauthorized_client"}"#, true),
            (nil, 400, #"{"error": "unsupported_token_type"}"#, true),
            ("s1", 400, #"{"error": "unsupported_token_type"}"#, true),
            (nil, 400, #"{"error": "invalid_request"}"#, false), (nil, 503, #"{"error": "invalid_client"}"#, false),
            (nil, 429, #"{"error": "invalid_client"}"#, false),
        ] as [(String?, Int, String, Bool)])
    func `that will not change is told at once and not tried again`(
        secret: String?, status: Int, body: String, isFinal: Bool
    ) async throws {
        let (broker, told) = try await Self.loggedOut(.json(status, body), tenant: Self.tenant(secret))
        #expect(told == "failed")
        #expect(try await broker.count(.revocation) == (isFinal ? 0 : 1))
        let failures = try await Self.failures(broker)
        #expect(failures.count == (isFinal ? 1 : 0))
        guard isFinal, let data = failures.first else { return }
        #expect(data["status"]?.integer == Int64(status))
        #expect(data["error_code"] == (try? JSONValue(parsing: Array(body.utf8)))?["error"])
        #expect(broker.log.contains { $0.contains("revocation_given_up") && $0.contains("\(status)") })
    }

    @Test func `is in the event that tells the end of the tries`() async throws {
        let (broker, _) = try await Self.loggedOut(.json(400, #"{"error": "invalid_request"}"#))
        while try await broker.count(.revocation) > 0 {
            let next = try #require(try await broker.vault.nextDue(.revocation))
            broker.time.advance(by: broker.time.now.duration(to: next) + .milliseconds(1))
            _ = await broker.broker.core.revocations.handleAllDue()
        }
        let data = try #require(try await Self.failures(broker).first)
        #expect((data["status"]?.integer, data["error_code"]) == (400, .string("invalid_request")))
        #expect(data["error"] == .string("unexpected_error"))
    }

    @Test func `has no status in the event where there was no answer`() async throws {
        let (broker, _) = try await Self.loggedOut(.failure(.connectFailed))
        while try await broker.count(.revocation) > 0 {
            broker.time.advance(by: .seconds(3601))
            _ = await broker.broker.core.revocations.handleAllDue()
        }
        let data = try #require(try await Self.failures(broker).first)
        #expect(data["status"] == nil && data["error"] == .string("network_error"))
    }

    @Test func `that refuses the client spares the provider for half a minute`() async throws {
        let (broker, told) = try await Self.loggedOut(.json(401, #"{"error": "invalid_client"}"#))
        #expect(told == "failed")
        for key in ["k1", "k2"] {
            await broker.set("a1", refresh: "r1", storageKey: key)
            #expect(await Self.logOut(broker, key) == "failed")
        }
        #expect(broker.transport.seen.count == 1)
        #expect(try await broker.count(.revocation) == 3)
        broker.time.advance(by: .milliseconds(29_999))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(broker.transport.seen.count == 1)
        broker.transport.always(.json(200, ""))
        broker.time.advance(by: .seconds(60))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(broker.transport.seen.count > 1)
        // One call is let through after the pause. Another one that was begun meanwhile has waited once more.
        broker.time.advance(by: .seconds(120))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(try await broker.count(.revocation) == 0)
        #expect(try await Self.failures(broker).isEmpty)
    }

    @Test func `is not asked for while the token endpoint does not accept the client`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        await broker.set("a2", refresh: "r2", storageKey: "other")
        broker.transport.always(.json(401, #"{"error": "invalid_client"}"#))
        #expect(await broker.get().status == 424)
        #expect(await Self.logOut(broker, "other") == "failed")
        #expect(broker.transport.seen.count == 1)
        // Configured anew, it is asked at once.
        await broker.makeTenant("t1", Self.tenant("s2"))
        broker.transport.always(.json(200, ""))
        broker.time.advance(by: .seconds(60))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(broker.transport.seen.last?.url == "https://op.example/revoke")
        #expect(try await broker.count(.revocation) == 0)
    }

    @Test func `says when to ask again`() async throws {
        let (broker, _) = try await Self.loggedOut(.json(503, "", fields: ["Retry-After": "40"]))
        let next = try #require(try await broker.vault.nextDue(.revocation))
        #expect(broker.time.now.duration(to: next) == .seconds(40))
    }

    // MARK: An endpoint in another document

    private static func metadata(_ members: String = "", issuer: String = "https://op.example/o")
        -> ScriptedTransport.Step
    {
        .json(
            200,
            #"""
            {"issuer": "\#(issuer)", "authorization_endpoint": "https://op.example/o/a",
             "token_endpoint": "https://op.example/o/t"\#(members)}
            """#)
    }

    private static let below = "https://op.example/o/.well-known/oauth-authorization-server"

    /// The OAuth metadata below the issuer, as django-oauth-toolkit has it, and what the logout tells.
    @Test(
        arguments: [
            (metadata(#", "revocation_endpoint": "https://op.example/o/revoke""#), "revoked"),
            (metadata(), "unsupported"), (.json(404, ""), "unsupported"), (.json(200, "<html>"), "unsupported"),
            (
                metadata(#", "revocation_endpoint": "https://op.example/o/revoke""#, issuer: "https://evil.example"),
                "unsupported"
            ),
        ] as [(ScriptedTransport.Step, String)])
    func `comes from an endpoint that the OAuth metadata below the issuer announces`(
        document: ScriptedTransport.Step, told: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "oidc", "client_id": "c1", "issuer": "https://op.example/o"}"#)
        broker.transport.always(
            .decide { seen in
                switch seen.url {
                case Self.below: document
                case "https://op.example/o/.well-known/openid-configuration": Self.metadata()
                case "https://op.example/o/revoke": .json(200, "")
                default: .json(404, "")
                }
            })
        for (key, lookUps) in [("k1", 1), ("k2", 1)] {
            await broker.set("a1", refresh: "r1", storageKey: key)
            #expect(await Self.logOut(broker, key) == told)
            #expect(broker.transport.seen.count { $0.url == Self.below } == lookUps)
        }
        #expect(try await broker.count(.revocation) == 0)
        #expect(broker.transport.seen.count { $0.url == "https://op.example/o/revoke" } == (told == "revoked" ? 2 : 0))
    }
}
