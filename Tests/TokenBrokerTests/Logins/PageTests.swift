import BrokerCore
import BrokerTesting
import Cryptography
import HTTPCodec
import HTTPSClient
import JSON
import Testing
import TokenBroker

@Suite struct `What a browser is shown` {
    private static let returning = #"""
        {"client_id": "c1", "client_secret": "the-secret", "allowed_return_uris": ["https://app.example/done"]}
        """#

    private static let styleDigest = "aaIyawuHQMF6+EHWrz3zAhJBZfH5kMqFqjjoppVL3gM="

    /// - Parameter hasButton: the page asks the user something.
    private static func expectSafe(_ answer: BrokerHarness.Answer, hasButton: Bool = false) {
        #expect(answer.fields.values("Cache-Control") == ["no-store"])
        #expect(answer.fields.values("Referrer-Policy") == ["no-referrer"])
        #expect(
            answer.fields.values("Content-Security-Policy") == [
                "default-src 'none'; style-src 'sha256-\(styleDigest)'; base-uri 'none'; "
                    + "form-action \(hasButton ? "'self'" : "'none'"); frame-ancestors 'none'"
            ])
        if answer.status == 303 {
            #expect(answer.body.isEmpty)
        } else {
            #expect(answer.fields.values("Content-Type") == ["text/html; charset=utf-8"])
            #expect(answer.fields["Location"] == nil)
            // The style that the policy lets pass is the page's.
            let style = answer.text.components(between: "<style>", and: "</style>")
            #expect(style.count == 1 && Base64.encode(SHA256.digest(Array(style[0].utf8))) == styleDigest)
            // A form goes to the broker; Fetch has no-referrer send `Origin: null` with it, so its page lifts that.
            let form = "<form method=\"post\" action=\"https://broker.example/login/"
            #expect(answer.text.components(between: form, and: "</form>").count == (hasButton ? 1 : 0))
            #expect(answer.text.contains("<meta name=\"referrer\" content=\"same-origin\">") == hasButton)
            let rest = answer.text.replacing(form, with: "")
            for active in ["<script", "<link", "<img", "<form", "<a ", "http:", "https:", "style=", "onload"] {
                #expect(!rest.lowercased().contains(active))
            }
        }
    }

    // H039 H040 H041
    @Test func `every page and every redirect is inert and kept nowhere`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", Self.returning)
        let returning = #"{"return_to": "https://app.example/done"}"#
        var statuses: [Int] = []
        func show(_ answer: BrokerHarness.Answer) {
            Self.expectSafe(answer)
            statuses.append(answer.status)
        }
        var login = await broker.beginLogin()
        show(await broker.callback("code=c-1"))
        show(await broker.callback("code=c-1&state=unknown"))
        show(await broker.callback("state=\(login.state)"))
        show(await broker.start(login))
        show(await broker.callback("code=c-1&state=\(login.state)"))
        login = await broker.beginLogin()
        show(await broker.callback("error=access_denied&state=\(login.state)"))
        show(await broker.callback("error=access_denied&state=\(login.state)"))
        login = await broker.beginLogin()
        broker.transport.enqueue(.json(400, ""))
        show(await broker.callback("code=c-1&state=\(login.state)"))
        login = await broker.beginLogin()
        broker.transport.enqueue(.failure(.connectionLost(requestSent: true)))
        show(await broker.callback("code=c-1&state=\(login.state)"))
        login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        show(await broker.callback("code=c-1&state=\(login.state)"))
        login = await broker.beginLogin(body: returning)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        show(await broker.callback("code=c-1&state=\(login.state)"))
        login = await broker.beginLogin(body: returning)
        show(await broker.callback("error=x&state=\(login.state)"))
        login = await broker.beginLogin()
        _ = await broker.start(login)
        show(await broker.formPost("code=c-1&state=\(login.state)"))
        Self.expectSafe(await broker.start(login), hasButton: true)
        await broker.makeTenant("t2", #"{"client_id": "c1", "browser_binding": "confirm"}"#)
        let confirmed = await broker.beginLogin(tenant: "t2")
        let brought = await broker.callback("code=c-1&state=\(confirmed.state)")
        Self.expectSafe(brought)
        let cookie = try #require(BrokerHarness.cookie(brought))
        Self.expectSafe(
            await broker.call(.get, "/login/confirm/t2/\(confirmed.id)", key: nil, fields: ["Cookie": cookie]),
            hasButton: true)
        Self.expectSafe(await broker.press("cancel", at: "/login/confirm/t2/\(confirmed.id)", cookie: cookie))
        store.isAway = true
        show(await broker.callback("code=c-1&state=\(login.state)"))
        show(await broker.start(login))
        #expect(statuses == [400, 410, 400, 303, 403, 400, 409, 502, 503, 200, 303, 303, 303, 503, 503])
    }

    private static let hostile = [
        "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "javascript:alert(1)", "{{7*7}}",
        "a\r\nSet-Cookie: evil=1", "%3Cscript%3E", "\u{202E}evil", String(repeating: "A", count: 100_000),
    ]

    // H041 H042
    @Test(arguments: hostile)
    func `nothing that came with the response comes out again`(text: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        let value = FormEncoding.percentEncode(text)
        // A longer name is refused with the whole response.
        let name = value.utf8.count > 128 ? String(repeating: "A", count: 128) : value
        let query = "error=\(value)&error_description=\(value)&error_uri=\(value)&\(name)=\(value)&lang=\(value)"
        for body in ["{}", #"{"return_to": "https://app.example/done"}"#] {
            for accept in [BrokerHarness.browserAccept, "application/json"] {
                let login = await broker.beginLogin(body: body)
                let answer = await broker.callback("\(query)&state=\(login.state)", accept: accept)
                let seen = Self.everything(of: answer)
                #expect(!seen.contains(text))
                #expect(!seen.contains(value))
                #expect(!seen.contains("alert"))
                #expect(!seen.contains("evil"))
                #expect(answer.body.count < 2000)
                #expect(await broker.callback("code=c-1&state=\(login.state)").status == 409)
            }
        }
        // Nor with a state that was never issued.
        let page = await broker.callback("\(query)&state=\(value)")
        #expect(page.status == 410)
        #expect(!Self.everything(of: page).contains(text))
        #expect(!broker.log.joined().contains(text))
    }

    // H075
    @Test(arguments: hostile)
    func `nothing that the token endpoint says comes out again`(text: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        var json = JSONWriter()
        json.object { json in
            json.member("error", text)
            json.member("error_description", text)
            json.member("userMessage", text)
        }
        for body in ["{}", #"{"return_to": "https://app.example/done"}"#] {
            for accept in [BrokerHarness.browserAccept, "application/json"] {
                let login = await broker.beginLogin(body: body)
                broker.transport.enqueue(.json(400, String(decoding: json.bytes, as: UTF8.self)))
                let answer = await broker.callback("code=c-1&state=\(login.state)", accept: accept)
                #expect(!Self.everything(of: answer).contains(text))
            }
        }
        #expect(!broker.log.joined().contains(text))
    }

    // K31 H033 H040 H056 H057
    @Test func `no token, code, state or verifier is in anything that is sent or logged`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        let code = "canary-code-0123456789"
        let token = BrokerHarness.token("canary-access", refresh: "canary-refresh")
        var answers: [BrokerHarness.Answer] = []
        var canaries = ["canary-access", "canary-refresh", code, "the-secret"]
        for body in ["{}", #"{"return_to": "https://app.example/done"}"#] {
            for accept in [BrokerHarness.browserAccept, "application/json"] {
                for step in [ScriptedTransport.Step.json(200, token), .json(400, "{}"), .json(200, "{}")] {
                    let login = await broker.beginLogin(body: body)
                    canaries.append(login.state)
                    broker.transport.enqueue(step)
                    for _ in 0..<2 {
                        answers.append(await broker.callback("code=\(code)&state=\(login.state)", accept: accept))
                    }
                    answers.append(await broker.progress(login.id))
                }
                let login = await broker.beginLogin(body: body)
                canaries.append(login.state)
                answers.append(
                    await broker.callback("code=\(code)&error=no&state=\(login.state)", accept: accept))
            }
        }
        canaries += broker.transport.seen.compactMap { $0.form["code_verifier"] }
        let everything = answers.map(Self.everything).joined() + broker.log.joined()
        for canary in canaries { #expect(!everything.contains(canary)) }
    }

    @Test(arguments: [
        (503, "The login could not be finished now"), (400, "The login could not be finished"),
    ])
    func `a page says in plain words what happened`(status: Int, title: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.always(.json(status, ""))
        let answer = await broker.callback("code=c-1&state=\(login.state)")
        #expect(answer.text.contains("<title>\(title)</title>"))
        #expect(answer.text.contains("<h1>\(title)</h1>"))
        #expect((answer.fields["Retry-After"] != nil) == (status == 503))
    }

    private static func everything(of answer: BrokerHarness.Answer) -> String {
        answer.fields.all.map { "\($0.name): \($0.value)\n" }.joined() + answer.text
    }
}

extension String {
    /// What stands between each pair of the two texts.
    fileprivate func components(between start: String, and end: String) -> [String] {
        split(separator: start).dropFirst().compactMap { $0.split(separator: end).first.map(String.init) }
    }
}
