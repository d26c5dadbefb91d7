import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// A browser's address bar and history keep addresses, so that none with a code or a state in it stays there.
@Suite struct `The page of a login's end` {
    private static let tenant = #"""
        {"client_id": "c1", "display_name": "Acme", "allowed_return_uris": ["https://app.example/done"]}
        """#

    /// What a browser is answered that comes back with `query`, and the page that this leads to.
    private static func end(
        _ broker: BrokerHarness, _ query: String, isPosted: Bool = false
    ) async throws -> (address: String, page: BrokerHarness.Answer) {
        var fields: Fields = ["Accept": BrokerHarness.browserAccept]
        if isPosted { fields.append("Content-Type", "application/x-www-form-urlencoded") }
        let answer = await broker.call(
            isPosted ? .post : .get, "/login/callback" + (isPosted ? "" : "?\(query)"), key: nil,
            body: isPosted ? query : nil, fields: fields)
        #expect(answer.status == 303)
        #expect(answer.body.isEmpty)
        #expect(answer.fields["Referrer-Policy"] == "no-referrer")
        #expect(answer.fields["Cache-Control"] == "no-store")
        return (try #require(answer.fields["Location"]?.text), await broker.following(answer))
    }

    // H040
    @Test(arguments: [false, true])
    func `has the contract's status and no secret in its address`(isPosted: Bool) async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", Self.tenant)
        let cases: [(response: String, step: ScriptedTransport.Step?, status: Int, query: String)] = [
            ("code=the-code", .json(200, BrokerHarness.token("access-1")), 200, ""),
            ("error=access_denied", nil, 400, ""),
            ("code=the-code", .json(400, #"{"error": "invalid_grant"}"#), 502, ""),
            ("code=the-code", .json(200, "{}"), 502, ""), ("code=the-code", .failure(.untrusted(.pin)), 502, ""),
            ("code=the-code", .failure(.insecureTarget), 424, ""),
            ("code=the-code", .failure(.connectionLost(requestSent: true)), 503, ""),
            ("code=", nil, 400, "?error=invalid_request"),
            ("code=the-code&iss=x", nil, 400, "?error=invalid_request&cause=unexpected_issuer"),
        ]
        for (response, step, status, query) in cases {
            let login = await broker.beginLogin()
            if let step { broker.transport.enqueue(step) }
            let (address, page) = try await Self.end(broker, "\(response)&state=\(login.state)", isPosted: isPosted)
            #expect(address == "https://broker.example/login/ended/t1/\(login.id)\(query)")
            #expect(page.status == status)
            #expect(page.fields["Retry-After"] == (status == 503 ? "1" : nil))
            #expect(page.text.contains("<bdi>Acme</bdi> · <bdi>TIDAL</bdi>"))
            #expect(page.text.contains("Reference: \(login.id.prefix(8))<"))
            for secret in ["the-code", login.state] { #expect(!(address + page.text).contains(secret)) }
            // A reload repeats nothing.
            let requests = broker.transport.seen.count
            let again = await broker.call(
                .get, BrokerHarness.path(of: address), key: nil, fields: ["Accept": BrokerHarness.browserAccept])
            #expect((again.status, again.text) == (page.status, page.text))
            #expect(broker.transport.seen.count == requests)
        }
        let used = await broker.beginLogin()
        _ = await broker.callback("error=access_denied&state=\(used.state)")
        let (address, page) = try await Self.end(broker, "code=the-code&state=\(used.state)", isPosted: isPosted)
        #expect(address == "https://broker.example/login/ended/t1/\(used.id)?error=conflict")
        #expect(page.status == 409)
        for (response, code, status) in [
            ("code=the-code&state=unknown", "gone", 410), ("code=the-code", "invalid_request", 400),
            ("code=a&code=b&state=s", "invalid_request", 400), ("code=%zz&state=s", "invalid_request", 400),
        ] {
            let (address, page) = try await Self.end(broker, response, isPosted: isPosted)
            #expect(address == "https://broker.example/login/ended/\(code)?reference=0")
            #expect(page.status == status)
            #expect(page.text.contains("Reference: 0<"))
        }
        let login = await broker.beginLogin()
        store.isAway = true
        let (away, unavailable) = try await Self.end(broker, "code=c&state=\(login.state)", isPosted: isPosted)
        #expect(away == "https://broker.example/login/ended/storage_unavailable?reference=0")
        #expect((unavailable.status, unavailable.fields["Retry-After"]) == (503, "1"))
    }

    @Test func `of another browser's login tells to begin again, and nothing to copy`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        _ = await broker.start(login)
        let (address, page) = try await Self.end(broker, "code=the-code&state=\(login.state)")
        #expect(address == "https://broker.example/login/ended/t1/\(login.id)?error=forbidden")
        #expect(page.status == 403)
        #expect(page.text.contains("begin again in the browser in which you started"))
        #expect(!page.text.lowercased().contains("copy"))
        #expect(await broker.progress(login.id).json["status"]?.string == "pending")
    }

    @Test(arguments: [nil, "", "*/*", "image/png", "text/*", "application/*;q=0.5, text/*"])
    func `is the answer itself for a caller that does not name HTML`(accept: String?) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        for (state, status) in [(login.state, 200), (login.state, 409), ("unknown", 410)] {
            let answer = await broker.callback("code=c-1&state=\(state)", accept: accept, followsToEnd: false)
            #expect(answer.status == status)
            #expect(answer.fields["Location"] == nil)
            #expect(answer.fields["Content-Type"] == "text/html; charset=utf-8")
        }
    }

    @Test func `is not between the callback and a return_to`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin(body: #"{"return_to": "https://app.example/done"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        let (address, _) = try await Self.end(broker, "code=c-1&state=\(login.state)")
        #expect(address == "https://app.example/done?login=completed")
    }

    @Test func `says how far a login is that has not ended`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        let path = "/login/ended/t1/\(login.id)"
        let pending = await broker.call(.get, path, key: nil)
        #expect(pending.status == 200)
        #expect(pending.text.contains("The login is not finished yet"))
        broker.time.advance(by: .milliseconds(600_000))
        #expect(await broker.call(.get, path, key: nil).status == 410)
        #expect(await broker.call(.head, path, key: nil).status == 410)
    }

    @Test(arguments: [
        ("/login/ended/t1/AAAAAAAAAAAAAAAAAAAAAA", 410), ("/login/ended/t1/x", 410), ("/login/ended/T/x", 410),
        ("/login/ended/t2/LOGIN", 410), ("/login/ended/t1/LOGIN?error=unauthorized", 400),
        ("/login/ended/t1/LOGIN?error=<script>", 400), ("/login/ended/t1/LOGIN?x=1", 400),
        ("/login/ended/t1/LOGIN?error=conflict", 409), ("/login/ended/unauthorized", 404), ("/login/ended/x", 404),
        ("/login/ended/t1/LOGIN?error=invalid_request&cause=other_callback", 400),
        ("/login/ended/t1/LOGIN?error=conflict&cause=no_issuer", 400), ("/login/ended/t1/LOGIN?cause=no_issuer", 400),
        ("/login/ended/t1/LOGIN?error=invalid_request&cause=x", 400),
        ("/login/ended/gone?x=1", 400), ("/login/ended/gone?reference=a-b", 400),
        ("/login/ended/gone?reference=123456789", 400), ("/login/ended/gone?reference=", 400),
        ("/login/ended/gone?reference=12345678&cause=other_registration", 410), ("/login/ended/gone?cause=x", 400),
        ("/login/ended/gone?reference=12345678", 410), ("/login/ended/provider_untrusted", 502),
        ("/login/ended/illegal_configuration", 424), ("/login/ended/internal_error", 500),
    ])
    func `is one of those that there are`(path: String, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        let answer = await broker.call(.get, path.replacing("LOGIN", with: login.id), key: nil)
        #expect(answer.status == status)
        #expect(!answer.text.contains("<script"))
        if status != 404 { #expect(answer.fields["Content-Type"] == "text/html; charset=utf-8") }
    }

    @Test func `is told of by its reference in the log`() async throws {
        let broker = try await BrokerHarness()
        let (_, page) = try await Self.end(broker, "code=c-1&state=unknown")
        #expect(page.text.contains("Reference: 0<"))
        #expect(broker.log.contains { $0.contains("login_response_refused") && $0.contains(#""code":"gone""#) })
    }

    @Test func `is not reached by what only fetches ahead`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        let answer = await broker.call(
            .get, "/login/callback?code=c-1&state=\(login.state)", key: nil,
            fields: ["Accept": BrokerHarness.browserAccept, "Sec-Purpose": "prefetch"])
        #expect((answer.status, answer.fields["Retry-After"]) == (503, "1"))
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
    }
}
