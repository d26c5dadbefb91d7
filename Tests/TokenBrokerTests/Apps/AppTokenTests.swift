import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// `/oauth2/token` with codes and refresh tokens, and `/oauth2/revoke`.
@Suite struct `Tokens of apps` {
    private static func broker(
        _ client: String = #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default"}"#,
        store: (any RecordStore)? = nil
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.makeClient("app", of: "t1", client)
        return broker
    }

    private static let steady =
        #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "refresh_token_rotation": false}"#
    private static let tenant = TenantName("t1")!

    private static func error(_ answer: BrokerHarness.Answer) -> String? { answer.json["error"]?.text }

    private static func causes(_ broker: BrokerHarness) async throws -> [String] {
        try await broker.events(named: "session.ended", of: tenant).compactMap { $0["cause"]?.text }
    }

    // MARK: Codes

    @Test(
        arguments: [
            ("other verifier", ["code_verifier": String(repeating: "x", count: 43)], "invalid_grant"),
            ("short verifier", ["code_verifier": String(repeating: "x", count: 42)], "invalid_grant"),
            ("no verifier", ["code_verifier": nil], "invalid_request"),
            ("other redirect URI", ["redirect_uri": "https://app.example/cb/"], "invalid_grant"),
            ("no redirect URI", ["redirect_uri": nil], "invalid_grant"), ("no code", ["code": nil], "invalid_request"),
            ("unknown code", ["code": "x"], "invalid_grant"), ("no grant type", ["grant_type": nil], "invalid_request"),
            ("other grant type", ["grant_type": "password"], "unsupported_grant_type"),
            ("no client", ["client_id": nil], "invalid_request"),
            ("other client", ["client_id": "other"], "invalid_grant"),
        ] as [(String, [String: String?], String)])
    func `a wrong exchange is refused, and the code stays usable`(
        _ name: String, _ changes: [String: String?], _ error: String
    ) async throws {
        let broker = try await Self.broker()
        await broker.makeClient("other")
        let code = await broker.appCode()
        let refused = await broker.exchange(code, changes)
        #expect(refused.status == 400, "\(name): \(refused.text)")
        #expect(Self.error(refused) == error)
        #expect(refused.fields["Cache-Control"] == "no-store")
        #expect(await broker.exchange(code).status == 200)
    }

    @Test(arguments: [(299, 200), (300, 400), (301, 400)])
    func `a code is valid for five minutes`(_ age: Int, _ status: Int) async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        broker.time.advance(by: .seconds(age))
        #expect(await broker.exchange(code).status == status)
    }

    @Test func `a code that is used again ends the session that was made of it`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        let token = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        #expect(await broker.sessions().count == 1)
        #expect(Self.error(await broker.exchange(code)) == "invalid_grant")
        #expect(await broker.sessions().isEmpty)
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        #expect(try await Self.causes(broker) == ["replay"])
        // The login itself stays.
        #expect(await broker.token() == "access-1")
    }

    @Test func `neither codes nor refresh tokens are in the store as they are`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        let token = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        for kind in [RecordKind.code, .session, .sessionToken] {
            for record in try await broker.store.list(kind, tenant: nil, after: nil, limit: 100) {
                let open = try broker.vault.open(record)
                #expect(!open.content.revealedText.contains(code) && !open.content.revealedText.contains(token))
                #expect(!record.id.key.contains(code) && !record.id.key.contains(token.prefix(64)))
            }
        }
        #expect(!broker.log.contains { $0.contains(code) || $0.contains(token) })
    }

    @Test func `a code of a user who was replaced before the exchange is worth nothing`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        await broker.logIn(token: BrokerHarness.token("access-2", refresh: "refresh-2", userID: 43))
        #expect(Self.error(await broker.exchange(code)) == "invalid_grant")
    }

    // MARK: Authentication

    private static let confidential =
        #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "client_secret": "p+ss w:rd 012345"}"#

    // A12 A13
    @Test(
        arguments: [
            ("secret in the form", ["client_secret": "p+ss w:rd 012345"], nil, 200),
            ("wrong secret in the form", ["client_secret": "wrong"], nil, 401), ("no secret", [:], nil, 401),
            ("Basic alone", ["client_id": nil], "app:p%2Bss+w%3Ard+012345", 200),
            ("Basic beside the identifier", [:], "app:p%2Bss+w%3Ard+012345", 200),
            ("wrong Basic", ["client_id": nil], "app:wrong", 401),
            ("form before Basic", ["client_secret": "p+ss w:rd 012345"], "app:wrong", 200),
            ("wrong form before Basic", ["client_secret": "wrong"], "app:p%2Bss+w%3Ard+012345", 401),
            ("Basic of another client", [:], "other:p%2Bss+w%3Ard+012345", 401),
        ] as [(String, [String: String?], String?, Int)])
    func `a client with a secret authenticates`(
        _ name: String, _ changes: [String: String?], _ basic: String?, _ status: Int
    ) async throws {
        let broker = try await Self.broker(Self.confidential)
        var parameters: [String: String?] = ["client_id": "app", "token": "x"]
        for (name, value) in changes { parameters.updateValue(value, forKey: name) }
        let answer = await broker.app(
            "/oauth2/revoke", parameters.compactMap { name, value in value.map { (name, $0) } },
            authorization: basic.map { "Basic " + Base64.encode(Array($0.utf8)) })
        #expect(answer.status == status, "\(name): \(answer.text)")
        if status == 401 {
            #expect(Self.error(answer) == "invalid_client")
            #expect((answer.fields["WWW-Authenticate"] != nil) == (basic != nil))
        }
    }

    @Test(arguments: ["Basic", "Basic !", "Basic YXBw", "Bearer x"])
    func `a broken Authorization field is no crash`(_ value: String) async throws {
        let broker = try await Self.broker(Self.confidential)
        #expect(
            await broker.app("/oauth2/revoke", [("token", "x"), ("client_id", "app")], authorization: value).status
                == 401)
    }

    // MARK: Refreshes

    // A05 A06
    @Test func `a refresh with rotation gives another refresh token`() async throws {
        let broker = try await Self.broker()
        let first = await broker.appSession()
        let answer = await broker.refresh(first)
        #expect(answer.status == 200)
        #expect(answer.json["access_token"]?.text == "access-1")
        let second = try #require(answer.json["refresh_token"]?.text)
        #expect(second != first)
        #expect(second.split(separator: ".").first == first.split(separator: ".").first)
        #expect(await broker.refresh(second).status == 200)
    }

    // A07
    @Test func `a refresh without rotation has no refresh token, and the one before stays good`() async throws {
        let broker = try await Self.broker(Self.steady)
        let token = await broker.appSession()
        for _ in 0..<3 {
            let answer = await broker.refresh(token)
            #expect(answer.status == 200)
            #expect(answer.json["refresh_token"] == nil)
        }
    }

    // B01
    @Test(arguments: [(0, true), (10, true), (11, false)])
    func `a repeated refresh gets the same answer for ten seconds, and ends the session later`(
        _ seconds: Int, _ isSame: Bool
    ) async throws {
        let broker = try await Self.broker()
        let first = await broker.appSession()
        let answer = await broker.refresh(first)
        broker.time.advance(by: .seconds(seconds))
        let again = await broker.refresh(first)
        let second = try #require(answer.json["refresh_token"]?.text)
        if isSame {
            #expect(again.text == answer.text)
            #expect(await broker.refresh(second).status == 200)
        } else {
            #expect(Self.error(again) == "invalid_grant")
            #expect(Self.error(await broker.refresh(second)) == "invalid_grant")
            #expect(try await Self.causes(broker) == ["replay"])
        }
    }

    /// The store holds the answer up, the app gives up, and comes again after ten seconds.
    @Test(arguments: [(1000, false), (1001, true), (4600, true)])
    func `an app whose answer was late is not late that presents its token again`(
        milliseconds: Int, isAnswered: Bool
    ) async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store)
        let token = await broker.appSession()
        let gate = Gate()
        store.onCommit(of: .session, .hold(gate))
        let held = Task { await broker.refresh(token) }
        await gate.arrivals()
        broker.time.advance(by: .milliseconds(milliseconds))
        gate.open()
        #expect(await held.value.status == 200)
        broker.time.advance(by: .milliseconds(11_000 - milliseconds))
        let again = await broker.refresh(token)
        #expect(again.status == (isAnswered ? 200 : 400), "\(again.text)")
        #expect(try await Self.causes(broker) == (isAnswered ? [] : ["replay"]))
    }

    @Test(arguments: [("app", true), ("another", false)])
    func `a refusal is logged with the client that is named, if there is one`(
        client: String, isKnown: Bool
    ) async throws {
        let broker = try await Self.broker()
        let answer = await broker.app(
            "/oauth2/token", [("grant_type", "refresh_token"), ("client_id", client), ("refresh_token", "x")])
        #expect(answer.status == (isKnown ? 400 : 401))
        let lines = broker.log.filter { $0.contains(#""event":"app_request_refused""#) }
        #expect(lines.count == 1)
        #expect(lines.allSatisfy { $0.contains(#""tenant":"t1""#) == isKnown })
        #expect(lines.allSatisfy { $0.contains("\"client_id\":\"\(client)\"") == isKnown })
    }

    @Test func `a guess ends no session`() async throws {
        let broker = try await Self.broker()
        let token = await broker.appSession()
        let id = try #require(await broker.sessions().first?["session_id"]?.text)
        let guess = Base64URL.encode(Array(repeating: 7, count: 32))
        for text in [
            "", "x", id, id + "." + guess, guess + "." + guess, token + ".", token + "x", String(token.dropLast()),
        ] {
            #expect(Self.error(await broker.refresh(text)) != nil)
        }
        #expect(await broker.refresh(token).status == 200)
    }

    @Test func `another client's refresh token is an invalid grant, and stays good`() async throws {
        let broker = try await Self.broker()
        await broker.makeClient("other")
        await broker.makeTenant("t2")
        await broker.makeClient("foreign", of: "t2")
        let token = await broker.appSession()
        #expect(Self.error(await broker.refresh(token, client: "other")) == "invalid_grant")
        #expect(Self.error(await broker.refresh(token, client: "foreign")) == "invalid_grant")
        #expect(await broker.refresh(token).status == 200)
    }

    @Test func `an access token that expires is refreshed, and the provider's refresh token stays here`() async throws {
        let broker = try await Self.broker()
        let token = await broker.appSession()
        broker.time.advance(by: .seconds(3560))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        let answer = await broker.refresh(token)
        #expect(answer.json["access_token"]?.text == "access-2")
        #expect(!answer.text.contains("refresh-2"))
    }

    @Test func `a logout ends the sessions of its storage key`() async throws {
        let broker = try await Self.broker()
        let token = await broker.appSession()
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        #expect(await broker.sessions().isEmpty)
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        #expect(try await Self.causes(broker) == ["logout"])
        // Even if the same user logs in again.
        await broker.logIn()
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
    }

    @Test
    func `a login that the provider has ended is an invalid grant, and its session stays ended when it is restored`()
        async throws
    {
        let broker = try await Self.broker()
        let token = await broker.appSession()
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(400, #"{"error":"invalid_grant","status":400,"sub_status":11003}"#))
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        #expect(await broker.call(.post, "/credentials/restore", tenant: "t1", body: "{}").status == 200)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().isEmpty)
        #expect(try await Self.causes(broker) == ["revoked"])
    }

    @Test func `a provider that is away is 503, and the session goes on`() async throws {
        let broker = try await Self.broker()
        let token = await broker.appSession()
        broker.time.advance(by: .seconds(3600))
        for _ in 0..<6 { broker.transport.enqueue(.json(503, "")) }
        let answer = await broker.refresh(token)
        #expect(answer.status == 503)
        #expect(Self.error(answer) == "temporarily_unavailable")
        #expect(answer.fields["Retry-After"] != nil)
        broker.time.advance(by: .seconds(61))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.refresh(token).status == 200)
    }

    @Test func `another user's login ends the sessions of the one before`() async throws {
        let broker = try await Self.broker()
        let token = await broker.appSession()
        await broker.logIn(token: BrokerHarness.token("access-2", refresh: "refresh-2", userID: 43))
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().isEmpty)
        #expect(try await Self.causes(broker) == ["replaced"])
    }

    @Test func `the same user's login on another device leaves the sessions`() async throws {
        let broker = try await Self.broker()
        let token = await broker.appSession()
        let other = await broker.appSession()
        #expect(await broker.sessions().count == 2)
        #expect(await broker.refresh(token).status == 200)
        #expect(await broker.refresh(other).status == 200)
    }

    // MARK: Ends

    @Test(arguments: [(1, 30, 86_400), (365, 2, 2 * 86_400)])
    func `a session ends after its days or after its idle days`(_ days: Int, _ idle: Int, _ end: Int) async throws {
        let broker = try await Self.broker(
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "session_days": \#(days), "session_idle_days": \#(idle)}"#
        )
        await broker.makeTenant("t1", #"{"client_id": "c1", "default_lifetime": "never"}"#)
        let token = await broker.appSession()
        let created = broker.time.now
        #expect(await broker.sessions().first?["expires"]?.text == created.advanced(by: .seconds(end)).description)
        broker.time.advance(by: .seconds(end - 1))
        #expect(await broker.sessions().count == 1)
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().count == 1)
        broker.time.advance(by: .seconds(1))
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        #expect(try await Self.causes(broker) == ["expired"])
    }

    @Test func `the job ends a session that expires unused, and follows its client's settings`() async throws {
        let broker = try await Self.broker()
        _ = await broker.appSession()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "session_idle_days": 60}"#)
        broker.time.advance(by: .seconds(31 * 86_400))
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().count == 1)
        broker.time.advance(by: .seconds(30 * 86_400))
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(await broker.sessions().isEmpty)
        #expect(try await Self.causes(broker) == ["expired"])
    }

    @Test func `a use puts the idle end off, without rotation at most once in an hour`() async throws {
        let broker = try await Self.broker(Self.steady)
        await broker.makeTenant("t1", #"{"client_id": "c1", "default_lifetime": "never"}"#)
        let (parameters, _) = await broker.logIn(
            app: BrokerHarness.authorization(),
            token: BrokerHarness.token("access-1", refresh: "refresh-1", expiresIn: nil, userID: 42))
        let exchanged = await broker.exchange(parameters["code"] ?? "")
        #expect(exchanged.status == 200, "\(exchanged.text)")
        let token = try #require(exchanged.json["refresh_token"]?.text)
        #expect(exchanged.json["expires_in"] == nil)
        func lastUsed() async -> String? { await broker.sessions().first?["last_used"]?.text }
        let first = await lastUsed()
        broker.time.advance(by: .seconds(3599))
        #expect(await broker.refresh(token).status == 200)
        #expect(await lastUsed() == first)
        broker.time.advance(by: .seconds(1))
        #expect(await broker.refresh(token).status == 200)
        #expect(await lastUsed() == broker.time.now.description)
    }

    @Test func `a client that is removed takes its sessions and codes along`() async throws {
        let broker = try await Self.broker()
        await broker.makeClient("other")
        let token = await broker.appSession()
        let kept = await broker.appSession(client: "other")
        let code = await broker.appCode()
        #expect(await broker.call(.delete, "/tenants/t1/clients/app").status == 204)
        #expect(Self.error(await broker.refresh(token)) == "invalid_client")
        // A client that is made anew under the same identifier does not get them.
        broker.time.advance(by: .seconds(1))
        await broker.makeClient()
        _ = await broker.broker.core.sessionEndings.handleAllDue()
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        #expect(Self.error(await broker.exchange(code)) == "invalid_grant")
        #expect(await broker.sessions().count == 1)
        #expect(await broker.refresh(kept, client: "other").status == 200)
        #expect(try await Self.causes(broker) == ["client_removed"])
    }

    @Test func `an operator lists and ends sessions`() async throws {
        let broker = try await Self.broker()
        await broker.makeClient(
            "other", of: "t1", #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "k2"}"#)
        let token = await broker.appSession()
        _ = await broker.appSession(client: "other")
        let all = await broker.sessions()
        #expect(all.count == 2)
        #expect(await broker.sessions(query: "?client_id=other").map { $0["storage_key"]?.text } == ["k2"])
        let found = await broker.sessions(query: "?storage_key=default")
        #expect(found.count == 1)
        let session = try #require(found.first)
        #expect(session["client_id"]?.text == "app")
        #expect(session["user_id"]?.text == "42")
        #expect(session["created"]?.text == broker.time.now.description)
        #expect(session["device_key"] == .null && session["biometric"] == .null && session["device_info"] == .null)
        let page = await broker.call(.get, "/tenants/t1/sessions?limit=1")
        let next = await broker.call(
            .get, "/tenants/t1/sessions?limit=1&cursor=\(page.json["next_cursor"]?.text ?? "")")
        let both = [page, next].flatMap { $0.json["sessions"]?.array ?? [] }.compactMap { $0["session_id"]?.text }
        #expect(Set(both) == Set(all.compactMap { $0["session_id"]?.text }))
        let path = "/tenants/t1/sessions/\(session["session_id"]?.text ?? "")"
        #expect(await broker.call(.delete, path).status == 204)
        #expect(await broker.call(.delete, path).status == 404)
        #expect(Self.error(await broker.refresh(token)) == "invalid_grant")
        #expect(try await Self.causes(broker) == ["revoked"])
        #expect(try await broker.events(named: "session.started", of: Self.tenant).count == 2)
    }

    @Test func `a revocation ends the session, is 200 for any token, and leaves the login`() async throws {
        let broker = try await Self.broker()
        await broker.makeClient("other")
        let token = await broker.appSession()
        func revoke(_ token: String, _ client: String = "app") async -> Int {
            await broker.app("/oauth2/revoke", [("client_id", client), ("token", token)]).status
        }
        #expect(await revoke("x") == 200)
        #expect(await revoke("access-1") == 200)
        // Another client's token stays (RFC 7009 §2.1).
        #expect(await revoke(token, "other") == 200)
        #expect(await broker.sessions().count == 1)
        #expect(await revoke(token) == 200)
        #expect(await revoke(token) == 200)
        #expect(await broker.sessions().isEmpty)
        #expect(await broker.token() == "access-1")
        #expect(try await Self.causes(broker) == ["revoked"])
        #expect(Self.error(await broker.app("/oauth2/revoke", [("client_id", "app")])) == "invalid_request")
    }

    // MARK: Forms and the metadata

    @Test func `errors of these paths have the form of RFC 6749`() async throws {
        let broker = try await Self.broker()
        let get = await broker.call(.get, "/oauth2/token", key: nil)
        #expect(get.status == 405)
        #expect(Self.error(get) == "invalid_request")
        #expect(get.fields["Allow"] == "POST, OPTIONS")
        let json = await broker.call(.post, "/oauth2/token", key: nil, body: "{}")
        #expect(json.status == 415)
        #expect(Self.error(json) == "invalid_request")
        let twice = await broker.app("/oauth2/token", [("client_id", "app"), ("client_id", "app")])
        #expect(twice.status == 400)
        #expect(twice.json["error_description"]?.text == "client_id occurs more than once")
        for answer in [get, json, twice] {
            #expect(answer.fields["Content-Type"] == "application/json")
            #expect(answer.fields["Cache-Control"] == "no-store")
            #expect(answer.fields["Pragma"] == "no-cache")
        }
        let empty = await broker.call(.post, "/oauth2/token", key: nil)
        #expect(Self.error(empty) == "invalid_request")
    }

    @Test func `the metadata names what there is`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(.get, "/.well-known/oauth-authorization-server", key: nil)
        #expect(answer.status == 200)
        #expect(answer.json["issuer"]?.text == "https://broker.example")
        #expect(answer.json["token_endpoint"]?.text == "https://broker.example/oauth2/token")
        #expect(answer.json["code_challenge_methods_supported"]?.array?.map(\.text) == ["S256"])
        #expect(answer.json["authorization_response_iss_parameter_supported"]?.bool == true)
    }

    @Test func `a logout during the exchange of a code leaves no session`() async throws {
        let records = MemoryRecordStore()
        let (exchanging, ending) = (
            FaultyStore(records, revalidateAfter: .seconds(60)), FaultyStore(records, revalidateAfter: .seconds(60))
        )
        let time = ManualTime()
        let one = try await BrokerHarness(store: exchanging, time: time)
        let two = try await BrokerHarness(store: ending, time: time)
        await one.makeTenant()
        await one.makeClient()
        let code = await one.appCode()
        let gate = Gate()
        exchanging.onCommit(of: .session, .hold(gate))
        let exchange = Task { await one.exchange(code) }
        await gate.arrivals()
        #expect(await two.call(.delete, "/credentials", tenant: "t1").status == 204)
        gate.open()
        #expect(Self.error(await exchange.value) == "invalid_grant")
        #expect(await two.sessions().isEmpty)
    }

    // MARK: Replicas and the store

    @Test func `two replicas that get the same refresh token at once give one answer`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(60))
        await one.makeTenant()
        await one.makeClient()
        let token = await one.appSession()
        async let first = one.refresh(token)
        async let second = two.refresh(token)
        let (a, b) = await (first, second)
        #expect(a.status == 200 && b.status == 200)
        #expect(a.text == b.text)
    }

    @Test func `a replica that has not heard of a rotation gives its answer`() async throws {
        let records = MemoryRecordStore()
        let stores = (0..<2).map { _ in FaultyStore(records, revalidateAfter: .seconds(3600)) }
        let time = ManualTime()
        let one = try await BrokerHarness(store: stores[0], time: time)
        let two = try await BrokerHarness(store: stores[1], time: time)
        await one.makeTenant()
        await one.makeClient()
        let token = await one.appSession()
        let gate = Gate()
        stores[1].onCommit(of: .session, .hold(gate))
        let late = Task { await two.refresh(token) }
        await gate.arrivals()
        let answer = await one.refresh(token)
        gate.open()
        let repeated = await late.value
        #expect((answer.status, repeated.status) == (200, 200))
        #expect(answer.text == repeated.text)
    }

    // B09
    @Test(arguments: [false, true])
    func `a replica that has not heard of a login yet refuses no session of it`(isOfOtherUser: Bool) async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(60))
        await one.makeTenant()
        await one.makeClient()
        await one.logIn(token: BrokerHarness.token("access-0", refresh: "refresh-0", userID: 41))
        if !isOfOtherUser { #expect(await one.call(.delete, "/credentials", tenant: "t1").status == 204) }
        // In the other one's memory for a minute.
        #expect(await two.token() == (isOfOtherUser ? "access-0" : nil))
        let code = await one.appCode()
        let exchanged = await two.exchange(code)
        let token = try #require(exchanged.json["refresh_token"]?.text, "\(exchanged.text)")
        #expect(exchanged.json["access_token"]?.text == "access-1")
        #expect(await two.refresh(token).status == 200)
        #expect(try await Self.causes(one).isEmpty)
    }

    @Test func `two replicas that get the same code at once make one session at most`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(60))
        await one.makeTenant()
        await one.makeClient()
        let code = await one.appCode()
        async let first = one.exchange(code)
        async let second = two.exchange(code)
        let statuses = await [first.status, second.status].sorted()
        #expect(statuses == [200, 400])
        #expect(await one.sessions().count <= 1)
    }

    @Test func `a store whose answer is lost once is asked what became of the change`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store)
        store.onCommit(of: .session, .loseAnswer)
        let token = await broker.appSession()
        store.onCommit(of: .session, .loseAnswer)
        let next = try #require(await broker.refresh(token).json["refresh_token"]?.text)
        #expect(await broker.refresh(next).status == 200)
        #expect(await broker.sessions().count == 1)
    }

    @Test func `a store that is away is 503, and without rotation a known session goes on`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store)
        let token = await broker.appSession()
        store.setDown(true)
        #expect(await broker.refresh(token).status == 503)
        store.setDown(false)
        #expect(await broker.refresh(token).status == 200)
        await broker.makeClient("app", of: "t1", Self.steady)
        let steady = await broker.appSession()
        store.setDown(true)
        #expect(await broker.refresh(steady).status == 200)
    }
}
