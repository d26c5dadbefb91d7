import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import Testing
import TokenBroker

@Suite struct `Binding a login to a browser` {
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1")

    // MARK: The start

    // H031 H039
    @Test func `the start address sets a cookie of its own and sends the browser on`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let answer = await broker.start(login)
        #expect(answer.status == 303)
        #expect(answer.fields["Location"] == login.uri)
        #expect(answer.body.isEmpty)
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(answer.fields["Referrer-Policy"] == "no-referrer")
        let cookies = answer.fields.values("Set-Cookie").map(\.text)
        #expect(cookies.count == 1)
        let parts = try #require(cookies.first).split(separator: "; ").map(String.init)
        let pair = parts[0].split(separator: "=").map(String.init)
        #expect(pair[0] == "__Host-token-broker-login-\(login.id)")
        #expect(pair[1].utf8.count == 43)
        #expect(Set(parts.dropFirst()) == ["Path=/", "Max-Age=600", "HttpOnly", "SameSite=Lax", "Secure"])
        #expect(parts.count == 6)
        #expect(!broker.log.joined().contains(pair[1]))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `the cookie is neither Secure nor of the host prefix where the broker is reached by http`() async throws
    {
        let broker = try await BrokerHarness(publicBaseURL: "http://127.0.0.1:8080")
        await broker.makeTenant()
        let login = await broker.beginLogin()
        #expect(login.startURI == "http://127.0.0.1:8080/login/start/t1/\(login.id)")
        let cookie = try #require(await broker.start(login).fields["Set-Cookie"]?.text)
        #expect(cookie.hasPrefix("token-broker-login-\(login.id)="))
        #expect(cookie.hasSuffix("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax"))
    }

    @Test func `a reload of the start address changes nothing`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let first = await broker.start(login)
        let second = await broker.start(login, cookie: BrokerHarness.cookie(first))
        #expect(second.status == 303)
        #expect(second.fields["Set-Cookie"] == first.fields["Set-Cookie"])
        #expect(second.fields["Location"] == first.fields["Location"])
    }

    @Test(arguments: [(599_999, 303), (600_000, 410)])
    func `the start address is good as long as the state`(milliseconds: Int64, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.advance(by: .milliseconds(milliseconds))
        let answer = await broker.start(login)
        #expect(answer.status == status)
        #expect((answer.fields["Set-Cookie"] == nil) == (status == 410))
    }

    @Test func `the start address of a login that was used is answered 409`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        #expect(await broker.callback("error=access_denied&state=\(login.state)").status == 400)
        let answer = await broker.start(login)
        #expect(answer.status == 409)
        #expect(answer.fields["Set-Cookie"] == nil)
    }

    @Test func `no other start address leads anywhere`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let login = await broker.beginLogin(tenant: "t1")
        let places = [
            "t2/\(login.id)", "t3/\(login.id)", "T1/\(login.id)", "-/\(login.id)", "t1/\(login.id.dropLast())",
            "t1/\(login.id)A", "t1/..%2F\(login.id)", "t1/%00", "t1/AAAAAAAAAAAAAAAAAAAAAA", "t1/\(login.state)",
        ]
        for place in places {
            for accept in [BrokerHarness.browserAccept, "application/json"] {
                let answer = await broker.call(
                    .get, "/login/start/\(place)", key: nil, fields: ["Accept": accept])
                #expect(answer.status == 410)
                let isJSON = accept == "application/json"
                #expect(
                    answer.fields["Content-Type"]
                        == (isJSON ? "application/problem+json" : "text/html; charset=utf-8"))
                #expect(answer.fields["Location"] == nil)
            }
        }
        let head = await broker.call(.head, "/login/start/t1/\(login.id)", key: nil)
        #expect(head.status == 405)
        #expect(head.fields["Allow"] == "GET, POST")
    }

    // MARK: The callback

    // H031 H032
    @Test func `only the browser that holds the cookie finishes, and the state stays usable`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "allowed_return_uris": ["https://app.example/done"]}"#)
        let login = await broker.beginLogin(body: #"{"return_to": "https://app.example/done"}"#)
        let cookie = try #require(BrokerHarness.cookie(await broker.start(login)))
        let name = String(cookie.split(separator: "=")[0])
        let others = [nil, "a=b", "\(name)=", "\(name)", "\(cookie)A", String(cookie.dropLast()), cookie.lowercased()]
        for other in others {
            for query in ["code=c-1", "error=access_denied"] {
                let page = await broker.callback("\(query)&state=\(login.state)", cookie: other)
                #expect(page.status == 403)
                #expect(page.fields["Location"] == nil)
                let json = await broker.callback(
                    "\(query)&state=\(login.state)", cookie: other, accept: "application/json")
                #expect(json.status == 403)
                #expect(json.code == "forbidden")
            }
        }
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.token() == nil)
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.callback("code=c-1&state=\(login.state)", cookie: "a=b; \(cookie); c=d")
        #expect(answer.status == 303)
        #expect(await broker.token() == "access-1")
    }

    // H031
    @Test func `another login's cookie is not this one's`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let (mine, theirs) = (await broker.beginLogin(), await broker.beginLogin())
        let own = try #require(BrokerHarness.cookie(await broker.start(mine)))
        let other = try #require(BrokerHarness.cookie(await broker.start(theirs)))
        #expect(own != other)
        let name = own.split(separator: "=")[0]
        let value = other.split(separator: "=")[1]
        for cookie in [other, "\(name)=\(value)"] {
            #expect(await broker.callback("code=c-1&state=\(mine.state)", cookie: cookie).status == 403)
        }
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(mine.state)", cookie: "\(other); \(own)").status == 200)
    }

    @Test func `a login that was not started here needs no cookie`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
    }

    @Test func `a start that comes after the callback took the state binds nothing`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        async let callback = broker.callback("code=c-1&state=\(login.state)")
        await gate.arrivals()
        #expect(await broker.start(login).status == 409)
        gate.open()
        #expect(await callback.status == 200)
    }

    @Test func `a start that comes between a callback's look and its mark binds it`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.replaces(.login) }
        async let callback = broker.callback("code=c-1&state=\(login.state)")
        await gate.arrivals()
        #expect(await broker.start(login).status == 303)
        gate.open()
        #expect(await callback.status == 403)
        #expect(broker.transport.seen.isEmpty)
    }

    // MARK: The tenant's choice

    // H032
    @Test func `where binding is required there is no other way in`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "required"}"#)
        let login = await broker.beginLogin()
        #expect(login.uri == login.startURI)
        let start = await broker.start(login)
        let location = try #require(start.fields["Location"]?.text)
        #expect(location.hasPrefix("https://login.tidal.com/authorize?response_type=code&"))
        let state = try #require(BrokerHarness.parameters(of: location)["state"])
        #expect(await broker.callback("code=c-1&state=\(state)").status == 403)
        broker.transport.enqueue(.json(200, Self.granted))
        let cookie = BrokerHarness.cookie(start)
        #expect(await broker.callback("code=c-1&state=\(state)", cookie: cookie).status == 200)
    }

    @Test func `where binding is required a login is bound before it is started`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "required"}"#)
        let login = await broker.beginLogin()
        let record = try #require(try await broker.loginRecord(login.id))
        let uri = try #require(try JSONValue(parsing: Array(record.utf8))["login_uri"]?.text)
        let state = try #require(BrokerHarness.parameters(of: uri)["state"])
        #expect(await broker.callback("code=c-1&state=\(state)").status == 403)
    }

    @Test func `where binding is required a login that ends at the caller's own callback is refused`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"client_id": "c1", "browser_binding": "required", "allowed_redirect_uris": ["https://app.example/cb"]}"#)
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1", body: #"{"redirect_uri": "https://app.example/cb"}"#)
        #expect((answer.status, answer.code) == (422, "illegal_argument"))
        #expect(answer.json["detail"]?.text?.contains("browser_binding required") == true)
        let own = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"redirect_uri": "https://broker.example/login/callback"}"#)
        #expect(own.status == 201)
    }

    @Test func `where binding is off no cookie is set and none is looked for`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "off"}"#)
        let login = await broker.beginLogin()
        let start = await broker.start(login)
        #expect(start.status == 303)
        #expect(start.fields["Location"] == login.uri)
        #expect(start.fields["Set-Cookie"] == nil)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
    }

    // MARK: form_post

    @Test func `a form_post redeems where no browser is bound`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "allowed_return_uris": ["https://app.example/done"]}"#)
        let login = await broker.beginLogin(body: #"{"return_to": "https://app.example/done"}"#)
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.formPost("code=c+1&state=\(login.state)")
        #expect(answer.status == 303)
        #expect(answer.fields["Location"] == "https://app.example/done?login=completed")
        #expect(broker.transport.seen.first?.form["code"] == "c 1")
    }

    @Test(arguments: [
        "application/x-www-form-urlencoded; charset=utf-8", "Application/X-WWW-Form-Urlencoded",
        "application/x-www-form-urlencoded ;charset=UTF-8",
    ])
    func `the media type is read as HTTP has it`(type: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.formPost("code=c-1&state=\(login.state)", type: type).status == 200)
    }

    @Test(arguments: ["application/json", "text/plain", "multipart/form-data; boundary=x", ""])
    func `another media type is refused`(type: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let answer = await broker.formPost("code=c-1&state=\(login.state)", type: type)
        #expect(answer.status == 415)
        #expect(answer.code == "unsupported_media_type")
        #expect(broker.transport.seen.isEmpty)
    }

    // H039
    @Test func `a form_post for a bound login is taken round by GET`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let cookie = try #require(BrokerHarness.cookie(await broker.start(login)))
        let form = "code=c%2B1&state=\(login.state)"
        for sent in [nil, cookie] {
            let answer = await broker.formPost(form, cookie: sent)
            #expect(answer.status == 303)
            #expect(answer.fields["Location"] == "https://broker.example/login/callback?\(form)")
            #expect(answer.fields["Cache-Control"] == "no-store")
            #expect(answer.fields["Referrer-Policy"] == "no-referrer")
            #expect(answer.body.isEmpty)
        }
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback(form, cookie: cookie).status == 200)
        #expect(broker.transport.seen.first?.form["code"] == "c+1")
    }

    @Test func `only what the protocol names goes round`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        _ = await broker.start(login)
        let long = String(repeating: "x", count: 30_000)
        let answer = await broker.formPost(
            "error_description=\(long)&error=access_denied&state=\(login.state)&iss=https%3A%2F%2Fa&id_token=\(long)")
        #expect(answer.status == 303)
        #expect(
            answer.fields["Location"]
                == "https://broker.example/login/callback?error=access_denied&state=\(login.state)"
                + "&iss=https%3A%2F%2Fa")
    }

    @Test(arguments: ["code=a&code=b", "code=%zz", ""])
    func `a form that is no response is refused, bound or not`(form: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for isBound in [false, true] {
            let login = await broker.beginLogin()
            if isBound { _ = await broker.start(login) }
            let answer = await broker.formPost("\(form)&state=\(login.state)")
            // A bound one without code and error is whole enough to go round, and is refused there.
            #expect(answer.status == (isBound && form.isEmpty ? 303 : 400))
            #expect(await broker.progress(login.id).json["status"]?.string == "pending")
        }
        #expect(await broker.formPost("code=c-1&state=unknown").status == 410)
        #expect(await broker.formPost("code=c-1").status == 400)
    }

    @Test func `a form_post meets a store that is away with a page`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        store.isAway = true
        let answer = await broker.formPost("code=c-1&state=\(login.state)")
        #expect(answer.status == 503)
        #expect(answer.fields["Content-Type"] == "text/html; charset=utf-8")
    }
}
