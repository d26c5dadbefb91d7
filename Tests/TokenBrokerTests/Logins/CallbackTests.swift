import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Coming back from the login service` {
    private static let returning = #"""
        {"client_id": "c1", "scopes": ["r_usr"], "allowed_return_uris": ["https://app.example/done"]}
        """#
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)

    // MARK: Success

    // T07
    @Test func `a browser is shown that it is done`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.callback("code=c-1&state=\(login.state)")
        #expect(answer.status == 200)
        #expect(answer.fields["Content-Type"] == "text/html; charset=utf-8")
        #expect(answer.text.contains("<h1>You are logged in</h1>"))
        #expect(await broker.token() == "access-1")
        #expect(broker.transport.seen.count == 1)
    }

    // H040
    @Test(arguments: [
        ("https://app.example/done", "https://app.example/done?login=completed"),
        ("https://app.example/done?", "https://app.example/done?login=completed"),
        ("https://app.example/done?a=1&b=%20", "https://app.example/done?a=1&b=%20&login=completed"),
    ])
    func `with return_to a browser is sent there, its query kept`(returnTo: String, location: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        let login = await broker.beginLogin(body: #"{"return_to": "\#(returnTo)"}"#)
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.callback("code=c-1&state=\(login.state)")
        #expect(answer.status == 303)
        #expect(answer.fields["Location"] == location)
        #expect(answer.body.isEmpty)
        #expect(await broker.token() == "access-1")
    }

    @Test(arguments: ["{}", #"{"return_to": "https://app.example/done"}"#])
    func `a caller that prefers JSON gets it in either case`(body: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        let login = await broker.beginLogin(body: body)
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.callback("code=c-1&state=\(login.state)", accept: "application/json")
        #expect(answer.status == 200)
        #expect(
            answer.text == #"{"status":"completed","login_id":"\#(login.id)","storage_key":"default","level":"user","#
                + #""client_id":"c1","granted_scopes":["r_usr"],"user_id":"42","expires":"2026-11-21T10:00:00Z","#
                + #""refreshable":true}"#)
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(answer.fields["Location"] == nil)
    }

    @Test func `the credentials go to the storage key that the login named`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn(storageKey: "user:7", token: Self.granted)
        #expect(await broker.token(storageKey: "user:7") == "access-1")
        #expect(await broker.token() == nil)
    }

    // MARK: What the provider reports

    // T06 X08 H042
    @Test(arguments: ["error=access_denied", "error=access_denied&code=c-1", "code=c-1&error=access_denied"])
    func `a provider error ends the login, also beside a code`(query: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let page = await broker.beginLogin()
        let answer = await broker.callback("\(query)&error_description=no&state=\(page.state)")
        #expect(answer.status == 400)
        #expect(answer.text.contains("<h1>The login did not succeed</h1>"))
        let problem = await broker.beginLogin()
        let json = await broker.callback("\(query)&state=\(problem.state)", accept: "application/json")
        #expect(json.status == 400)
        #expect(json.fields["Content-Type"] == "application/problem+json")
        #expect(json.code == "authorization_error")
        #expect(json.json["error_code"]?.string == "access_denied")
        #expect(await broker.callback("code=c-1&state=\(page.state)").status == 409)
        #expect(await broker.progress(page.id).json["error"]?.string == "authorization_error")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test(arguments: ["error=access_denied", "error=access_denied&code=c-1", "error="])
    func `with return_to a provider error is taken there by its code`(query: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        let login = await broker.beginLogin(body: #"{"return_to": "https://app.example/done?a=1"}"#)
        let answer = await broker.callback("\(query)&state=\(login.state)")
        #expect(answer.status == 303)
        #expect(
            answer.fields["Location"] == "https://app.example/done?a=1&login=failed&error=authorization_error")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `with return_to a failed exchange is taken there by its code`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        let login = await broker.beginLogin(body: #"{"return_to": "https://app.example/done"}"#)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let answer = await broker.callback("code=c-1&state=\(login.state)")
        #expect(answer.status == 303)
        #expect(answer.fields["Location"] == "https://app.example/done?login=failed&error=unexpected_error")
    }

    // MARK: What cannot be a response

    // T56 T61 X09 H015
    @Test(arguments: [
        "", "&code=", "&xcode=1", "&Code=c-1", "&code=c-1&code=c-2", "&code=c-1&code=c-1", "&code=%zz",
        "&code=c-1&iss=a&iss=a",
        "&error=a&error=b", "&code=%ff",
    ])
    func `a response that is not one leaves the state usable`(rest: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        let login = await broker.beginLogin(body: #"{"return_to": "https://app.example/done"}"#)
        let answer = await broker.callback("state=\(login.state)\(rest)", accept: "application/json")
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
        let page = await broker.callback("state=\(login.state)\(rest)")
        #expect(page.status == 400)
        #expect(page.fields["Location"] == nil)
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("state=\(login.state)&code=c-1").status == 303)
    }

    @Test(arguments: ["", "code=c-1", "code=c-1&state=", "code=c-1&State=x", "error=access_denied"])
    func `a response without a state is refused`(query: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.callback(query, accept: "application/json")
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
    }

    // H015
    @Test func `a state is taken once`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let answer = await broker.callback(
            "state=\(login.state)&state=\(login.state)&code=c-1", accept: "application/json")
        #expect(answer.status == 400)
        #expect(broker.transport.seen.isEmpty)
    }

    // H038
    @Test func `an unknown state is answered 410 and nowhere else`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.returning)
        let login = await broker.beginLogin(body: #"{"return_to": "https://app.example/done"}"#)
        for state in ["x", String(login.state.dropLast()), login.state + "A", login.state.lowercased(), login.id] {
            let json = await broker.callback("code=c-1&state=\(state)", accept: "application/json")
            #expect(json.status == 410)
            #expect(json.code == "gone")
            let page = await broker.callback("code=c-1&state=\(state)")
            #expect(page.status == 410)
            #expect(page.fields["Location"] == nil)
        }
        #expect(broker.transport.seen.isEmpty)
    }

    // X09
    @Test func `parameters that the protocol does not name are let pass`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.callback(
            "xcode=0&lang=en&lang=de&appMode=web&code=c%2B1%20&state=\(login.state)&session_state=s&scope=r_usr")
        #expect(answer.status == 200)
        #expect(broker.transport.seen.last?.form["code"] == "c+1 ")
    }

    @Test func `HEAD redeems nothing`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let answer = await broker.call(.head, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(answer.status == 405)
        #expect(answer.fields["Allow"] == "GET, POST")
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
    }

    @Test func `a key is neither needed nor looked at`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: "not a key")
        #expect(answer.status == 200)
    }
}
