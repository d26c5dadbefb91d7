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

/// Who gets a start address from another person is asked before the login becomes that browser's.
@Suite struct `A start address that a second browser opens` {
    private static let tenant = #"{"client_id": "c1", "display_name": "Acme <Music> & 'Co'"}"#

    private static func startPath(_ login: BrokerHarness.Login) -> String { BrokerHarness.path(of: login.startURI) }

    @Test func `shows who asks, for which account of which provider, and sets no cookie`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin(body: #"{"storage_key": "user:7"}"#)
        #expect(await broker.start(login).status == 303)
        for accept in [BrokerHarness.browserAccept, "*/*", nil] {
            let page = await broker.start(login, accept: accept)
            #expect(page.status == 200)
            #expect(page.fields["Set-Cookie"] == nil)
            #expect(page.fields["Location"] == nil)
            #expect(page.fields["Content-Type"] == "text/html; charset=utf-8")
            #expect(page.fields["Content-Security-Policy"]?.text.contains("form-action 'self';") == true)
            #expect(page.fields["Referrer-Policy"] == "no-referrer")
            #expect(page.fields["Cache-Control"] == "no-store")
            for text in [
                "<html lang=\"en\">", "<bdi>Acme &lt;Music&gt; &amp; &#39;Co&#39;</bdi>", "<bdi>TIDAL</bdi>",
                "<bdi>user:7</bdi>", "<form method=\"post\" action=\"\(login.startURI)\">",
                "<button name=\"decision\" value=\"continue\" autofocus>", "Reference: \(login.id.prefix(8))<",
            ] { #expect(page.text.contains(text)) }
            for secret in [login.state, login.uri, "code_challenge"] { #expect(!page.text.contains(secret)) }
        }
        let json = await broker.start(login, accept: "application/json")
        #expect((json.status, json.code) == (403, "forbidden"))
        #expect(json.fields["Set-Cookie"] == nil)
    }

    @Test func `names the tenant where it has no display name, and the host of a provider without a title`()
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1",
             "endpoints": {"authorization": "https://op.example/a", "token": "https://tokens.example/t"}}
            """#)
        let login = await broker.beginLogin()
        _ = await broker.start(login)
        let page = await broker.start(login)
        for text in ["<bdi>t1</bdi>", "<bdi>op.example</bdi>", "<bdi>default</bdi>"] {
            #expect(page.text.contains(text))
        }
    }

    @Test func `becomes that browser's when its user presses the button, and the first one's no more`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let first = try #require(BrokerHarness.cookie(await broker.start(login)))
        let pressed = await broker.press(at: Self.startPath(login))
        // A page and no redirect: Chromium would hold the provider's address against form-action.
        #expect(pressed.status == 200)
        #expect(pressed.text.contains("<meta http-equiv=\"refresh\" content=\"0; url=\(login.startURI)\">"))
        #expect(!pressed.text.contains(login.state))
        let second = try #require(BrokerHarness.cookie(pressed))
        #expect(second.prefix { $0 != "=" } == first.prefix { $0 != "=" })
        #expect(second != first)
        let on = await broker.start(login, cookie: second)
        #expect(on.status == 303)
        #expect(on.fields["Location"] == login.uri)
        // The first one is a second one by now.
        #expect(await broker.start(login, cookie: first).status == 200)
        #expect(await broker.callback("code=c-1&state=\(login.state)", cookie: first).status == 403)
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)", cookie: second).status == 200)
    }

    @Test func `leads a caller that is no browser straight on when it confirms`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        _ = await broker.start(login)
        for accept in [nil, "*/*"] {
            let pressed = await broker.press(at: Self.startPath(login), accept: accept)
            #expect(pressed.status == 303)
            #expect(pressed.fields["Location"] == login.uri)
            #expect(pressed.fields["Set-Cookie"] != nil)
        }
    }

    @Test func `changes hands as often as a button is pressed, and the last one finishes`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        var cookies = [try #require(BrokerHarness.cookie(await broker.start(login)))]
        for _ in 0..<3 {
            cookies.append(
                try #require(BrokerHarness.cookie(await broker.press(at: Self.startPath(login)))))
        }
        #expect(Set(cookies).count == 4)
        for cookie in cookies.dropLast() {
            #expect(await broker.callback("code=c-1&state=\(login.state)", cookie: cookie).status == 403)
        }
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)", cookie: cookies[3]).status == 200)
    }

    @Test(
        arguments: [
            ([:], false), (["Origin": "https://evil.example"], false), (["Origin": "null"], false),
            (["Origin": "http://broker.example"], false), (["Origin": "https://broker.example:8443"], false),
            (["Origin": "https://broker.example.evil.example"], false), (["Origin": "https://broker.example"], true),
            (["Origin": "https://broker.example:443"], true), (["Sec-Fetch-Site": "same-origin"], true),
            (["Sec-Fetch-Site": "same-origin", "Origin": "null"], true),
            (["Sec-Fetch-Site": "cross-site", "Origin": "https://broker.example"], false),
            (["Sec-Fetch-Site": "same-site"], false), (["Sec-Fetch-Site": "none"], false),
            (["Sec-Fetch-Site": ""], false),
            (["Sec-Fetch-Site": "same-origin", "sec-fetch-site": "cross-site"], false),
            (["Origin": "https://broker.example", "origin": "https://evil.example"], false),
        ] as [(Fields, Bool)])
    func `takes the button only of the broker's own page`(origin: Fields, isOwn: Bool) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let first = try #require(BrokerHarness.cookie(await broker.start(login)))
        let pressed = await broker.press(at: Self.startPath(login), origin: origin)
        #expect(pressed.status == (isOwn ? 200 : 403))
        #expect((pressed.fields["Set-Cookie"] != nil) == isOwn)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        let answer = await broker.callback("code=c-1&state=\(login.state)", cookie: first)
        #expect(answer.status == (isOwn ? 403 : 200))
    }

    @Test(arguments: ["", "decision=cancel", "decision=continue&decision=cancel", "continue", "decision=Continue"])
    func `takes no other form`(body: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let first = try #require(BrokerHarness.cookie(await broker.start(login)))
        let answer = await broker.call(
            .post, Self.startPath(login), key: nil, body: body,
            fields: ["Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"])
        #expect(answer.status == 400)
        #expect(await broker.start(login, cookie: first).status == 303)
    }

    @Test(
        arguments: [
            ["Sec-Purpose": "prefetch"], ["Sec-Purpose": "prefetch;prerender"], ["Purpose": "prefetch"],
        ] as [Fields])
    func `is not opened by what only fetches ahead`(fields: Fields) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        for accept in [BrokerHarness.browserAccept, "*/*", "application/json"] {
            let ahead = await broker.start(login, accept: accept, fields: fields)
            #expect(ahead.status == 503)
            #expect(ahead.fields["Retry-After"] == "1")
            #expect(ahead.fields["Set-Cookie"] == nil)
            #expect(ahead.fields["Location"] == nil)
        }
        #expect(await broker.call(.head, Self.startPath(login), key: nil).status == 405)
        let first = await broker.start(login)
        #expect(first.status == 303)
        #expect(first.fields["Set-Cookie"] != nil)
    }

    @Test func `has one first browser among fifty at two replicas`() async throws {
        let store = MemoryRecordStore()
        let time = ManualTime()
        let one = try await BrokerHarness(store: store, time: time)
        let two = try await BrokerHarness(store: store, transport: one.transport, time: time)
        await one.makeTenant()
        let login = await one.beginLogin()
        let answers = await withTaskGroup(of: BrokerHarness.Answer.self) { group in
            for number in 0..<50 { group.addTask { await (number % 2 == 0 ? one : two).start(login) } }
            return await group.reduce(into: []) { $0.append($1) }
        }
        let firsts = answers.filter { $0.status == 303 }
        #expect(firsts.count == 1)
        #expect(answers.count { $0.status == 200 && $0.fields["Set-Cookie"] == nil } == 49)
        one.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        let cookie = BrokerHarness.cookie(try #require(firsts.first))
        #expect(await two.callback("code=c-1&state=\(login.state)", cookie: cookie).status == 200)
    }

    @Test func `is taken over at any replica, by the last of those that press at once`() async throws {
        let store = MemoryRecordStore()
        let time = ManualTime()
        let one = try await BrokerHarness(store: store, time: time)
        let two = try await BrokerHarness(store: store, transport: one.transport, time: time)
        await one.makeTenant()
        let login = await one.beginLogin()
        _ = await one.start(login)
        let answers = await withTaskGroup(of: BrokerHarness.Answer.self) { group in
            for number in 0..<10 {
                group.addTask { await (number % 2 == 0 ? one : two).press(at: Self.startPath(login)) }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        let cookies = answers.compactMap(BrokerHarness.cookie)
        #expect(Set(cookies).count == 10)
        one.transport.always(.json(200, BrokerHarness.token("access-1")))
        var statuses: [Int] = []
        // The holder is found by going on, which changes nothing.
        for cookie in cookies { statuses.append(await two.start(login, cookie: cookie).status) }
        #expect(statuses.count { $0 == 303 } == 1)
        #expect(statuses.count { $0 == 200 } == 9)
    }

    @Test func `asks again where the first browser's cookie was lost with its answer`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        store.disturb([.loseAnswer]) { $0.replaces(.login) }
        #expect(await broker.start(login).status == 503)
        #expect(await broker.start(login).status == 200)
        let cookie = BrokerHarness.cookie(await broker.press(at: Self.startPath(login)))
        #expect(await broker.start(login, cookie: cookie).status == 303)
    }

    @Test func `does not interrupt a code that is being redeemed`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let cookie = BrokerHarness.cookie(await broker.start(login))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("access-1"))))
        async let answer = broker.callback("code=c-1&state=\(login.state)", cookie: cookie)
        await gate.arrivals()
        #expect(await broker.press(at: Self.startPath(login)).status == 409)
        gate.open()
        #expect(await answer.status == 200)
    }

    @Test func `keeps a callback out that it overtakes`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let cookie = BrokerHarness.cookie(await broker.start(login))
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.replaces(.login) }
        async let answer = broker.callback("code=c-1&state=\(login.state)", cookie: cookie)
        await gate.arrivals()
        #expect(await broker.press(at: Self.startPath(login)).status == 200)
        gate.open()
        #expect(await answer.status == 403)
        #expect(broker.transport.seen.isEmpty)
    }

    @Test(arguments: ["required", "when_started_here", "confirm"])
    func `asks under each kind of binding`(binding: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "\#(binding)"}"#)
        let login = await broker.beginLogin()
        let first = await broker.start(login)
        #expect(first.status == 303)
        #expect(await broker.start(login).status == 200)
        #expect(await broker.start(login, cookie: BrokerHarness.cookie(first)).status == 303)
    }

    @Test func `leads on where browsers are not bound`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "off"}"#)
        let login = await broker.beginLogin()
        for _ in 0..<2 { #expect(await broker.start(login).status == 303) }
        let pressed = await broker.press(at: Self.startPath(login), accept: nil)
        #expect((pressed.status, pressed.fields["Set-Cookie"]) == (303, nil))
    }

    @Test func `of a login that is over, used or unknown cannot be taken over`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let used = await broker.beginLogin()
        _ = await broker.start(used)
        #expect(await broker.press(at: "/login/start/t1/AAAAAAAAAAAAAAAAAAAAAA").status == 410)
        #expect(await broker.press(at: "/login/start/t1/x").status == 410)
        let cookie = BrokerHarness.cookie(await broker.press(at: Self.startPath(used)))
        _ = await broker.callback("error=access_denied&state=\(used.state)", cookie: cookie)
        #expect(await broker.press(at: Self.startPath(used)).status == 409)
        let old = await broker.beginLogin()
        _ = await broker.start(old)
        broker.time.advance(by: .milliseconds(599_999))
        #expect(await broker.press(at: Self.startPath(old)).status == 200)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.press(at: Self.startPath(old)).status == 410)
    }

    @Test(arguments: [false, true])
    func `is told from the first by the record of an earlier version, too`(isStarted: Bool) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let cookie = isStarted ? BrokerHarness.cookie(await broker.start(login)) : nil
        try await broker.rewriteLogin(login.id, leavingOut: ["callback", "started"])
        let second = await broker.start(login)
        #expect(second.status == (isStarted ? 200 : 303))
        if isStarted { #expect(await broker.start(login, cookie: cookie).status == 303) }
    }
}
