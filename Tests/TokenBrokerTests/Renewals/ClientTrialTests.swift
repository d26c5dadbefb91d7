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

/// A provider that refuses a dead refresh token and a wrong client secret by the same answer, 400 and an empty body as Glewlwyd
/// does, and a tenant that has sessions ended by it.
@Suite struct `A session that an answer without a cause is to end` {
    private static func tenant(_ members: String = "", secret: String = "s1") -> String {
        "{" + BrokerHarness.oidc
            + #""client_id": "c1", "client_secret": "\#(secret)", "session_ending_answers": [{"status": 400}]\#(members)}"#
    }

    /// What the provider answers to each grant.
    private static func provider(
        refresh: ScriptedTransport.Step = .json(400, ""), code: ScriptedTransport.Step,
        credentials: ScriptedTransport.Step = .json(403, "")
    ) -> ScriptedTransport.Step {
        .decide { seen in
            switch seen.form["grant_type"] {
            case "refresh_token": refresh
            case "authorization_code": code
            default: credentials
            }
        }
    }

    private static let wrongSecret = provider(code: .json(403, #"{"error": "unauthorized_client"}"#))
    private static let users = (1...5).map { "user\($0)" }

    private static func make(
        _ provider: ScriptedTransport.Step, users: [String] = users, tenant: String = tenant()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        for user in users { await broker.set("a-\(user)", refresh: "r-\(user)", lifetime: .zero, storageKey: user) }
        broker.transport.always(provider)
        return broker
    }

    private static func grants(_ broker: BrokerHarness) -> [String] {
        broker.transport.seen.compactMap { $0.form["grant_type"]?.description }
    }

    private static func get(_ broker: BrokerHarness, _ user: String) async -> BrokerHarness.Answer {
        await broker.get("storage_key=\(user)")
    }

    @Test func `goes on where the provider refuses the client, which is tried once in half a minute`() async throws {
        let broker = try await Self.make(Self.wrongSecret)
        for round in 1...2 {
            for user in Self.users {
                let answer = await Self.get(broker, user)
                #expect((answer.status, answer.code, answer.retryAfter) == (424, "illegal_configuration", 30))
                #expect(answer.json["detail"]?.text?.contains("client_secret") == true)
            }
            #expect(Self.grants(broker).filter { $0 == "refresh_token" }.count == round)
            #expect(Self.grants(broker).filter { $0 == "authorization_code" }.count == round)
            #expect(Self.grants(broker).count == 2 * round)
            broker.time.advance(by: .seconds(30))
        }
        for user in Self.users { #expect(await broker.status(storageKey: user).isLoggedIn == true) }
        let notices = try await broker.events().filter { $0.kind == .providerDegraded }
        #expect(notices.count == 1)
        #expect(broker.log.filter { $0.contains(#""event":"client_refused""#) }.count == 1)
        // The secret that is put is the provider's.
        await broker.makeTenant("t1", Self.tenant(secret: "s2"))
        broker.transport.always(.json(200, BrokerHarness.token("new")))
        for user in Self.users { #expect(await Self.get(broker, user).token == "new") }
    }

    @Test(
        arguments: [
            (.json(403, #"{"error": "invalid_code"}"#), .json(403, ""), true),
            (.json(400, #"{"error": "invalid_grant"}"#), .json(401, ""), true),
            (.json(401, #"{"error": "invalid_grant"}"#), .json(401, ""), true),
            (.json(404, #"{"error": "code_not_found"}"#), .json(401, ""), true),
            (.json(200, BrokerHarness.token("x")), .json(403, ""), true),
            (.json(400, #"{"error": "unauthorized_client"}"#), .json(400, #"{"error": "unauthorized_client"}"#), true),
            (.json(401, ""), .json(403, ""), false),
            (.json(401, #"{"error": "invalid_client"}"#), .json(403, ""), false),
            (.json(400, #"{"error": "invalid_client"}"#), .json(403, ""), false),
            (.json(403, #"{"error": "unauthorized_client"}"#), .json(403, ""), false),
            (.json(400, #"{"error": "incorrect_client_credentials"}"#), .json(403, ""), false),
            (.json(400, ""), .json(401, #"{"error": "invalid_client"}"#), false),
            (.json(400, #"{"error": "invalid_request"}"#), .json(401, ""), false),
        ] as [(ScriptedTransport.Step, ScriptedTransport.Step, Bool)])
    func `ends unless a trial shows that the client is refused`(
        code: ScriptedTransport.Step, credentials: ScriptedTransport.Step, ends: Bool
    ) async throws {
        let broker = try await Self.make(Self.provider(code: code, credentials: credentials), users: ["user1"])
        let answer = await Self.get(broker, "user1")
        #expect(await broker.status(storageKey: "user1").isLoggedIn == !ends)
        #expect(try await (broker.quarantined(storageKey: "user1") != nil) == ends)
        if !ends { #expect(answer.code == "illegal_configuration") }
    }

    @Test(
        arguments: [
            (.failure(.connectFailed), "retryable_error"),
            (.failure(.connectionLost(requestSent: true)), "retryable_error"),
            (.json(429, ""), "retryable_error"), (.json(425, ""), "retryable_error"),
            (.json(500, ""), "retryable_error"), (.json(503, "<html>"), "retryable_error"),
        ] as [(ScriptedTransport.Step, String)])
    func `goes on where the provider does not answer a trial, until it does`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let broker = try await Self.make(Self.provider(code: step), users: ["user1"])
        #expect(await Self.get(broker, "user1").code == code)
        #expect(await broker.status(storageKey: "user1").isLoggedIn == true)
        broker.time.advance(by: .seconds(60))
        broker.transport.always(Self.provider(code: .json(403, #"{"error": "invalid_code"}"#)))
        _ = await Self.get(broker, "user1")
        #expect(await broker.status(storageKey: "user1").isLoggedIn == false)
    }

    /// A trial shows nothing of a refusal that came after it.
    @Test func `is tried for by each refusal that came after the last trial began`() async throws {
        let broker = try await Self.make(Self.provider(code: .json(403, #"{"error": "invalid_code"}"#)))
        _ = await Self.get(broker, "user1")
        #expect(await broker.status(storageKey: "user1").isLoggedIn == false)
        broker.transport.always(Self.wrongSecret)
        #expect(await Self.get(broker, "user2").code == "illegal_configuration")
        for user in Self.users.dropFirst() { #expect(await broker.status(storageKey: user).isLoggedIn == true) }
    }

    @Test func `shares its trial with the others whose refusals came before it`() async throws {
        let (refreshes, gate) = (Gate(), Gate())
        let broker = try await Self.make(
            Self.provider(
                refresh: .after(refreshes, .json(400, "")),
                code: .after(gate, .json(403, #"{"error": "unauthorized_client"}"#))))
        let statuses = await withTaskGroup(of: Int.self) { group in
            for user in Self.users { group.addTask { await Self.get(broker, user).status } }
            await refreshes.arrivals(Self.users.count)
            refreshes.open()
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(statuses == Array(repeating: 424, count: 5))
        #expect(Self.grants(broker).filter { $0 == "authorization_code" }.count == 1)
        for user in Self.users { #expect(await broker.status(storageKey: user).isLoggedIn == true) }
    }

    // MARK: An answer to whatever is asked

    private static let usersTokens = Set(users.map { "r-\($0)" })

    private static func tokens(_ broker: BrokerHarness, invented: Bool) -> Int {
        broker.transport.seen.count { seen in
            seen.form["refresh_token"].map { usersTokens.contains($0.description) != invented } ?? false
        }
    }

    @Test(arguments: [(403, ""), (400, "{}"), (404, #"{"error": null}"#)])
    func `goes on where made-up grants get the same answer, as from a firewall, which is found out once for all users`(
        status: Int, body: String
    ) async throws {
        let tenant = Self.tenant().replacing(#"{"status": 400}"#, with: #"{"status": \#(status)}"#)
        let broker = try await Self.make(.json(status, body), tenant: tenant)
        for round in 1...2 {
            for user in Self.users {
                let answer = await Self.get(broker, user)
                #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 30))
                #expect(answer.json["detail"]?.text?.contains("firewall") == true)
            }
            #expect(Self.grants(broker).count { $0 == "authorization_code" } == round)
            #expect(Self.tokens(broker, invented: true) == round)
            // The users' own.
            #expect(Self.tokens(broker, invented: false) == 5 * round)
            broker.time.advance(by: .seconds(30))
        }
        #expect(broker.log.contains { $0.contains("refusal_proves_nothing") })
        for user in Self.users { #expect(await broker.status(storageKey: user).isLoggedIn == true) }
        #expect(try await broker.events().allSatisfy { $0.kind != .credentialsDeauthorized })
        broker.transport.always(.json(200, BrokerHarness.token("new")))
        for user in Self.users { #expect(await Self.get(broker, user).token == "new") }
    }

    @Test func `goes on for the callers of a token that lives`() async throws {
        let broker = try await Self.make(.json(400, ""), users: [])
        await broker.set("a1", refresh: "r-1", lifetime: .seconds(30), storageKey: "user1")
        let answer = await Self.get(broker, "user1")
        #expect((answer.token, answer.json["degraded"]?["code"]) == ("a1", .string("retryable_error")))
    }

    /// The answers to a made-up code and to a made-up refresh token, and whether the user's answer, 400 without a body, is believed.
    @Test(
        arguments: [
            (.json(400, ""), .json(400, ""), false), (.json(400, ""), .json(400, #"{"error": "invalid_grant"}"#), true),
            (.json(400, #"{"error": "invalid_grant"}"#), .json(400, ""), true),
            // A firewall that refuses in several ways.
            (.json(400, ""), .json(404, ""), false), (.json(403, ""), .json(400, ""), false),
            (.json(403, "<p>"), .json(403, ""), false),
            (.json(401, "<html>"), .json(400, ""), false), (.json(200, "<p>"), .json(400, ""), false),
            (.json(403, ""), .json(400, #"{"error": "invalid_grant"}"#), true),
            // An error counts whatever the status that bears it.
            (.json(200, #"{"error": "bad_verification_code"}"#), .json(400, ""), true),
            (.json(400, ""), .json(200, #"{"error": "bad_refresh_token"}"#), true),
            (.json(200, #"{"error": "incorrect_client_credentials"}"#), .json(400, ""), false),
            (.json(400, ""), .json(503, ""), false), (.json(400, ""), .failure(.connectFailed), false),
            (.json(400, ""), .json(429, ""), false),
        ] as [(ScriptedTransport.Step, ScriptedTransport.Step, Bool)])
    func `ends unless both made-up grants get the user's answer`(
        code: ScriptedTransport.Step, token: ScriptedTransport.Step, ends: Bool
    ) async throws {
        let refresh = ScriptedTransport.Step.decide { seen in
            seen.form["refresh_token"].map { Self.usersTokens.contains($0.description) } == true
                ? .json(400, "") : token
        }
        let broker = try await Self.make(Self.provider(refresh: refresh, code: code), users: ["user1"])
        let answer = await Self.get(broker, "user1")
        #expect(await broker.status(storageKey: "user1").isLoggedIn == !ends)
        if !ends { #expect([424, 503].contains(answer.status)) }
    }

    @Test func `ends without a trial by an answer that names its cause`() async throws {
        let broker = try await Self.make(
            Self.provider(refresh: .json(400, #"{"error": "invalid_grant"}"#), code: .json(500, "")), users: ["user1"],
            tenant: Self.tenant(#", "client_credentials": "off""#))
        #expect(await Self.get(broker, "user1").level == "basic")
        #expect(Self.grants(broker) == ["refresh_token"])
    }
}
