import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Postgres
import Testing
import TokenBroker

/// `"browser_binding": "confirm"`: a code is redeemed once its user has said yes on the broker's own page.
@Suite struct `The confirm step` {
    private static let tenant = #"""
        {"client_id": "c1", "browser_binding": "confirm", "display_name": "Acme",
         "allowed_redirect_uris": ["https://app.example/cb"], "allowed_return_uris": ["https://app.example/done"]}
        """#
    private static let returning = #"{"return_to": "https://app.example/done"}"#
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)

    private static func broker(_ store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant)
        return broker
    }

    private static func path(_ login: BrokerHarness.Login) -> String { "/login/confirm/t1/\(login.id)" }

    /// The cookie of a browser that has brought the code.
    private static func bring(
        _ code: String = "c-1", of login: BrokerHarness.Login, to broker: BrokerHarness, cookie: String? = nil
    ) async throws -> String {
        let answer = await broker.callback("code=\(code)&state=\(login.state)", cookie: cookie)
        #expect(answer.status == 303)
        return try #require(BrokerHarness.cookie(answer))
    }

    private static func page(_ login: BrokerHarness.Login, of broker: BrokerHarness, cookie: String?) async
        -> BrokerHarness.Answer
    {
        var fields: Fields = ["Accept": BrokerHarness.browserAccept]
        if let cookie { fields.append("Cookie", cookie) }
        return await broker.call(.get, path(login), key: nil, fields: fields)
    }

    // MARK: The page

    @Test func `shows who asks, for which account of which provider, before anything is redeemed`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin(body: #"{"storage_key": "user:7"}"#)
        let callback = await broker.callback("code=the-code&state=\(login.state)")
        #expect(callback.status == 303)
        #expect(callback.fields["Location"] == "https://broker.example/login/confirm/t1/\(login.id)")
        let set = try #require(callback.fields["Set-Cookie"]?.text)
        #expect(set.hasPrefix("__Host-token-broker-confirm-\(login.id)="))
        #expect(set.hasSuffix("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"))
        let cookie = try #require(BrokerHarness.cookie(callback))
        let page = await Self.page(login, of: broker, cookie: cookie)
        #expect(page.status == 200)
        #expect(page.fields["Content-Security-Policy"]?.text.contains("form-action 'self';") == true)
        #expect(page.fields["Referrer-Policy"] == "no-referrer")
        #expect(page.fields["Cache-Control"] == "no-store")
        for text in [
            "<bdi>Acme</bdi>", "<bdi>TIDAL</bdi>", "<bdi>user:7</bdi>", "Reference: \(login.id.prefix(8))<",
            "<form method=\"post\" action=\"https://broker.example\(Self.path(login))\">",
            "<button name=\"decision\" value=\"continue\" autofocus>", "<button name=\"decision\" value=\"cancel\">",
        ] { #expect(page.text.contains(text)) }
        // The code is in the sealed record, and neither in the cookie nor in the page.
        #expect(try await broker.loginRecord(login.id)?.contains("the-code") == true)
        for secret in ["the-code", login.state] { #expect(!(page.text + set).contains(secret)) }
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.progress(login.id).json["status"]?.string == "pending")

        broker.transport.enqueue(.json(200, Self.granted))
        let pressed = await broker.press(at: Self.path(login), cookie: cookie)
        #expect(pressed.status == 303)
        #expect(pressed.fields["Location"] == "https://broker.example/login/ended/t1/\(login.id)")
        #expect(await broker.following(pressed).status == 200)
        #expect(broker.transport.seen.map { $0.form["code"] } == ["the-code"])
        #expect(await broker.token(storageKey: "user:7") == "access-1")
        #expect(try await broker.loginRecord(login.id)?.contains("the-code") == false)
        #expect(!broker.log.joined().contains("the-code"))
    }

    @Test func `is the answer itself for a caller that is no browser`() async throws {
        let broker = try await Self.broker()
        for accept in [nil, "*/*"] {
            let login = await broker.beginLogin()
            let page = await broker.callback("code=c-1&state=\(login.state)", accept: accept)
            #expect(page.status == 200)
            #expect(page.text.contains("<form method=\"post\""))
            broker.transport.enqueue(.json(200, Self.granted))
            let cookie = BrokerHarness.cookie(page)
            #expect(await broker.press(at: Self.path(login), cookie: cookie, accept: accept).status == 200)
        }
    }

    @Test func `leaves out no caller that prefers JSON`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let answer = await broker.callback("code=c-1&state=\(login.state)", accept: "application/json")
        #expect((answer.status, answer.code) == (403, "forbidden"))
        #expect(answer.json["detail"]?.text?.contains("a browser must finish this login") == true)
        #expect(answer.fields["Set-Cookie"] == nil)
        let finalize = await broker.call(
            .post, "/login/finalize", tenant: "t1",
            body: #"{"login_response_query": "code=c-1&state=\#(login.state)"}"#)
        #expect((finalize.status, finalize.code) == (403, "forbidden"))
        #expect(broker.transport.seen.isEmpty)
        // The state stays usable.
        let cookie = try await Self.bring(of: login, to: broker)
        broker.transport.enqueue(.json(200, Self.granted))
        let pressed = await broker.press(at: Self.path(login), cookie: cookie, accept: "application/json")
        #expect(pressed.status == 200)
        #expect(pressed.json["status"]?.string == "completed")
    }

    @Test func `needs the broker's own callback`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1", body: #"{"redirect_uri": "https://app.example/cb"}"#)
        #expect((answer.status, answer.code) == (422, "illegal_argument"))
        let own = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"redirect_uri": "https://broker.example/login/callback"}"#)
        #expect(own.status == 201)
    }

    @Test func `comes after a posted response, too`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let posted = await broker.formPost("code=c-1&state=\(login.state)")
        #expect(posted.fields["Location"] == "https://broker.example/login/confirm/t1/\(login.id)")
        broker.transport.enqueue(.json(200, Self.granted))
        let pressed = await broker.press(at: Self.path(login), cookie: BrokerHarness.cookie(posted))
        #expect(await broker.following(pressed).status == 200)
    }

    @Test func `is not asked for where the provider reports an error`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        #expect(await broker.callback("error=access_denied&state=\(login.state)").status == 400)
        #expect(await broker.progress(login.id).json["error"]?.string == "authorization_error")
    }

    // MARK: The decision

    @Test func `ends the login as failed where the user says no`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        // A short code could stand in the record by chance: the record has random text.
        let cookie = try await Self.bring("the-code", of: login, to: broker)
        let pressed = await broker.press("cancel", at: Self.path(login), cookie: cookie)
        #expect(pressed.status == 303)
        #expect(await broker.following(pressed).status == 400)
        #expect(
            await broker.progress(login.id).text
                == #"{"status":"failed","error":"authorization_error","detail":"The user has cancelled the login."}"#)
        #expect(await broker.press(at: Self.path(login), cookie: cookie, accept: nil).status == 409)
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.loginRecord(login.id)?.contains("the-code") == false)
    }

    @Test func `leads to the login's return_to either way`() async throws {
        let broker = try await Self.broker()
        broker.transport.always(.json(200, Self.granted))
        for (decision, query) in [
            ("continue", "login=completed"), ("cancel", "login=failed&error=authorization_error"),
        ] {
            let address = "https://app.example/done?\(query)"
            var login = await broker.beginLogin(body: Self.returning)
            var cookie = try await Self.bring(of: login, to: broker)
            let page = await broker.press(decision, at: Self.path(login), cookie: cookie)
            // A page and no redirect: Chromium would hold the other origin against form-action.
            #expect(page.status == 200)
            let escaped = address.replacing("&", with: "&amp;")
            #expect(page.text.contains("<meta http-equiv=\"refresh\" content=\"0; url=\(escaped)\">"))
            login = await broker.beginLogin(body: Self.returning)
            cookie = try await Self.bring(of: login, to: broker)
            let direct = await broker.press(decision, at: Self.path(login), cookie: cookie, accept: nil)
            #expect((direct.status, direct.fields["Location"]?.text) == (303, address))
        }
    }

    // H032
    @Test func `is the browser's that brought the code`() async throws {
        let broker = try await Self.broker()
        let (login, other) = (await broker.beginLogin(), await broker.beginLogin())
        let cookie = try await Self.bring(of: login, to: broker)
        let others = try await Self.bring(of: other, to: broker)
        let name = cookie.prefix { $0 != "=" }
        let value = others.split(separator: "=")[1]
        for wrong in [nil, others, "\(name)=", "\(name)=\(value)", cookie + "A", String(cookie.dropLast())] {
            #expect(await Self.page(login, of: broker, cookie: wrong).status == 403)
            for decision in ["continue", "cancel"] {
                #expect(await broker.press(decision, at: Self.path(login), cookie: wrong).status == 403)
            }
        }
        for origin in [[:], ["Origin": "null"], ["Sec-Fetch-Site": "cross-site"]] as [Fields] {
            #expect(await broker.press(at: Self.path(login), cookie: cookie, origin: origin).status == 403)
        }
        for decision in ["", "yes", "continue&x=1"] {
            #expect(await broker.press(decision, at: Self.path(login), cookie: cookie).status == 400)
        }
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.press(at: Self.path(login), cookie: cookie, accept: nil).status == 200)
    }

    @Test func `is of the last browser that brought a code, each with its own`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let first = try await Self.bring("code-1", of: login, to: broker)
        let second = try await Self.bring("code-2", of: login, to: broker)
        #expect(await broker.press(at: Self.path(login), cookie: first).status == 403)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.press(at: Self.path(login), cookie: second, accept: nil).status == 200)
        #expect(broker.transport.seen.map { $0.form["code"] } == ["code-2"])
    }

    @Test func `is asked for again where the browser comes back to the callback`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let cookie = try await Self.bring(of: login, to: broker)
        #expect(try await Self.bring(of: login, to: broker, cookie: cookie) == cookie)
        #expect(try await Self.bring("another", of: login, to: broker, cookie: cookie) != cookie)
    }

    @Test func `needs the cookie of the start, too, where there was one`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let binding = try #require(BrokerHarness.cookie(await broker.start(login)))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 403)
        let cookie = try await Self.bring(of: login, to: broker, cookie: binding)
        #expect(await broker.press(at: Self.path(login), cookie: cookie).status == 403)
        broker.transport.enqueue(.json(200, Self.granted))
        let pressed = await broker.press(at: Self.path(login), cookie: "\(binding); \(cookie)", accept: nil)
        #expect(pressed.status == 200)
    }

    @Test func `is over for a browser whose place another one takes`() async throws {
        let broker = try await Self.broker()
        for isStarted in [true, false] {
            let login = await broker.beginLogin()
            let binding = isStarted ? BrokerHarness.cookie(await broker.start(login)) : nil
            let cookie = try await Self.bring("the-code", of: login, to: broker, cookie: binding)
            let taken = await broker.press(at: BrokerHarness.path(of: login.startURI))
            #expect(BrokerHarness.cookie(taken) != nil)
            let both = [binding, cookie].compactMap(\.self).joined(separator: "; ")
            #expect(await broker.press(at: Self.path(login), cookie: both).status == 403)
            #expect(try await broker.loginRecord(login.id)?.contains("the-code") == false)
        }
        #expect(broker.transport.seen.isEmpty)
    }

    @Test(arguments: [(4096, 303), (4097, 400)])
    func `keeps codes of up to 4 KiB`(length: Int, status: Int) async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let code = String(repeating: "c", count: length)
        #expect(await broker.callback("code=\(code)&state=\(login.state)").status == status)
        #expect(await broker.progress(login.id).json["status"]?.string == "pending")
    }

    @Test func `leaves room for a code in the login's record`() async throws {
        let broker = try await Self.broker()
        // Each byte becomes three in the address.
        let value = String(repeating: "é", count: 2000)
        let body = #"{"login_config": {"custom_parameters": {"a": "\#(value)"}}}"#
        let refused = await broker.call(.post, "/login/initialize", tenant: "t1", body: body)
        #expect((refused.status, refused.code) == (422, "illegal_argument"))
        await broker.makeTenant("t2")
        #expect(await broker.call(.post, "/login/initialize", tenant: "t2", body: body).status == 201)
        let login = await broker.beginLogin(
            body: #"{"login_config": {"custom_parameters": {"a": "\#(String(repeating: "x", count: 4000))"}}}"#)
        #expect(
            await broker.callback("code=\(String(repeating: "c", count: 4096))&state=\(login.state)").status == 303)
        let record = try #require(try await broker.loginRecord(login.id))
        #expect(record.utf8.count <= 16_384)
        // One whose every character takes more room in the record than it has itself.
        let other = await broker.callback(
            "code=\(String(repeating: "%01", count: 4000))&state=\(login.state)", accept: nil)
        #expect(other.status == 400)
    }

    // MARK: Time, replicas, races

    @Test(arguments: [(599_999, 200), (600_000, 410)])
    func `is there as long as the state`(milliseconds: Int64, status: Int) async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        broker.time.advance(by: .seconds(300))
        let cookie = try await Self.bring(of: login, to: broker)
        broker.time.advance(by: .milliseconds(milliseconds - 300_000))
        #expect(await Self.page(login, of: broker, cookie: cookie).status == status)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.press(at: Self.path(login), cookie: cookie, accept: nil).status == status)
        #expect(broker.transport.seen.count == (status == 200 ? 1 : 0))
    }

    @Test func `goes on at another replica, which has just started`() async throws {
        let store = MemoryRecordStore()
        let first = try await Self.broker(store)
        let login = await first.beginLogin()
        let cookie = try await Self.bring(of: login, to: first)
        let second = try await BrokerHarness(store: store, transport: first.transport, time: first.time)
        #expect(await Self.page(login, of: second, cookie: cookie).status == 200)
        second.transport.enqueue(.json(200, Self.granted))
        #expect(await second.press(at: Self.path(login), cookie: cookie, accept: nil).status == 200)
        #expect(await first.press(at: Self.path(login), cookie: cookie, accept: nil).status == 409)
        #expect(await first.token() == "access-1")
    }

    @Test func `redeems once for fifty presses over three replicas`() async throws {
        let store = MemoryRecordStore()
        try await Self.pressFiftyTimes { time, transport in
            try await BrokerHarness(store: store, transport: transport, time: time)
        }
    }

    @Test func `redeems once for fifty presses over three replicas on PostgreSQL`() async throws {
        let server = try await PostgresServer.shared.value
        var configuration = try PostgresConfiguration(server.uri(database: try await server.makeDatabase()))
        // More at once than two slow cores serve within the defaults.
        configuration.waitTimeout = .seconds(20)
        configuration.statementTimeout = .seconds(20)
        let opened = configuration
        try await Self.pressFiftyTimes { time, transport in
            let store = try await PostgresRecordStore.open(
                opened, on: PostgresServer.loop, resolver: PostgresServer.resolver)
            return try await BrokerHarness(store: store, transport: transport, time: time)
        }
    }

    private static func pressFiftyTimes(
        _ makeReplica: (ManualTime, ScriptedTransport) async throws -> BrokerHarness
    ) async throws {
        let (time, transport) = (ManualTime(), ScriptedTransport())
        var replicas: [BrokerHarness] = []
        for _ in 0..<3 { replicas.append(try await makeReplica(time, transport)) }
        await replicas[0].makeTenant("t1", tenant)
        let login = await replicas[0].beginLogin()
        let cookie = try await bring(of: login, to: replicas[0])
        transport.always(.json(200, granted))
        let statuses = await withTaskGroup(of: Int.self) { group in
            for number in 0..<50 {
                let replica = replicas[number % 3]
                group.addTask { await replica.press(at: path(login), cookie: cookie, accept: nil).status }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(statuses.count { $0 == 200 } == 1)
        #expect(statuses.count { $0 == 409 } == 49)
        #expect(transport.seen.count == 1)
        for replica in replicas {
            #expect(await replica.token() == "access-1")
            await replica.vault.close()
        }
    }

    @Test func `shows the outcome where a button is pressed twice`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        let cookie = try await Self.bring(of: login, to: broker)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        async let first = broker.press(at: Self.path(login), cookie: cookie)
        await gate.arrivals()
        let second = await broker.press(at: Self.path(login), cookie: cookie)
        #expect(second.status == 303)
        let meanwhile = await broker.following(second)
        #expect(meanwhile.status == 200)
        #expect(meanwhile.text.contains("The login is not finished yet"))
        gate.open()
        #expect(await first.fields["Location"] == second.fields["Location"])
        #expect(await broker.following(second).text.contains("You are logged in"))
    }

    @Test func `survives a store whose answer is lost`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.broker(store)
        let login = await broker.beginLogin()
        store.disturb([.loseAnswer]) { $0.replaces(.login) }
        let cookie = try await Self.bring(of: login, to: broker)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.press(at: Self.path(login), cookie: cookie, accept: nil).status == 200)
    }

    @Test func `is what the login began with, whatever the tenant becomes`() async throws {
        let broker = try await Self.broker()
        let login = await broker.beginLogin()
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "off"}"#)
        let cookie = try await Self.bring(of: login, to: broker)
        #expect(await Self.page(login, of: broker, cookie: cookie).text.contains("<bdi>Acme</bdi>"))
        #expect(broker.transport.seen.isEmpty)
    }
}
