import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing
import TokenBroker

@Suite struct `Finishing a login with the caller's own redirect_uri` {
    private static let tenant = #"""
        {"client_id": "c1", "scopes": ["r_usr"], "allowed_redirect_uris": ["https://app.example/cb"],
         "allowed_return_uris": ["https://app.example/done"]}
        """#
    private static let own = #"{"redirect_uri": "https://app.example/cb", "return_to": "https://app.example/done"}"#
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)

    private static func finalize(
        _ broker: BrokerHarness, _ query: String, key: String = BrokerHarness.adminKey, tenant: String? = "t1"
    ) async -> BrokerHarness.Answer {
        await broker.call(
            .post, "/login/finalize", key: key, tenant: tenant, body: #"{"login_response_query": "\#(query)"}"#)
    }

    // T07
    @Test(arguments: ["", "?"])
    func `the caller gets the summary, with or without the question mark`(mark: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let key = await broker.makeKey("t1", #"{"name": "l", "permissions": ["login"]}"#)
        let login = await broker.beginLogin(body: Self.own)
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await Self.finalize(
            broker, "\(mark)lang=en&code=c%2B1&state=\(login.state)", key: key, tenant: nil)
        #expect(answer.status == 200)
        #expect(
            answer.text == #"{"status":"completed","login_id":"\#(login.id)","storage_key":"default","level":"user","#
                + #""client_id":"c1","granted_scopes":["r_usr"],"user_id":"42","expires":"2026-11-21T10:00:00Z","#
                + #""refreshable":true}"#)
        #expect(answer.fields["Cache-Control"] == "no-store")
        let request = try #require(broker.transport.seen.first)
        #expect(request.form["redirect_uri"] == "https://app.example/cb")
        #expect(request.form["code"] == "c+1")
        #expect(await broker.token() == "access-1")
        #expect(await Self.finalize(broker, "code=c-1&state=\(login.state)").status == 409)
    }

    // T06 T63
    @Test func `errors are problems`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let denied = await broker.beginLogin(body: Self.own)
        let error = await Self.finalize(broker, "error=access_denied&code=c-1&state=\(denied.state)")
        #expect(error.status == 400)
        #expect(error.fields["Content-Type"] == "application/problem+json")
        #expect(error.code == "authorization_error")
        #expect(error.json["error_code"]?.string == "access_denied")
        #expect(error.fields["Location"] == nil)
        #expect(broker.transport.seen.isEmpty)

        let refused = await broker.beginLogin(body: Self.own)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant", "error_description": "canary"}"#))
        let unexpected = await Self.finalize(broker, "code=c-1&state=\(refused.state)")
        #expect(unexpected.status == 502)
        #expect(unexpected.code == "unexpected_error")
        #expect(unexpected.json["error_code"]?.string == "invalid_grant")
        #expect(!unexpected.text.contains("canary"))

        let away = await broker.beginLogin(body: Self.own)
        broker.transport.always(.json(503, ""))
        let retryable = await Self.finalize(broker, "code=c-1&state=\(away.state)")
        #expect(retryable.status == 503)
        #expect(retryable.code == "retryable_error")
        #expect(retryable.fields["Retry-After"] != nil)
    }

    // T61 K02
    @Test(arguments: [
        ("code=c-1", 400), ("", 400), ("code=c-1&state=unknown", 410), ("code=%zz&state=STATE", 400),
        ("state=STATE", 400), ("code=&state=STATE", 400), ("code=a&code=b&state=STATE", 400),
        ("code=c-1&state=STATE&state=STATE", 400), ("https://app.example/cb?code=c-1&state=STATE", 400),
    ])
    func `a query that is no response leaves the state usable`(query: String, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin(body: Self.own)
        let answer = await Self.finalize(broker, query.replacing("STATE", with: login.state))
        #expect(answer.status == status)
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await Self.finalize(broker, "code=c-1&state=\(login.state)").status == 200)
    }

    @Test(arguments: [
        ("{}", "/login_response_query"), (#"{"login_response_query": 7}"#, "/login_response_query"),
        (#"{"login_response_query": ""}"#, "/login_response_query"),
        (#"{"login_response_query": "a=b", "x": 1}"#, "/x"),
    ])
    func `a body that is wrong is told where`(body: String, pointer: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(.post, "/login/finalize", tenant: "t1", body: body)
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
        #expect(answer.json["errors"]?.array?.compactMap { $0["pointer"]?.text } == [pointer])
    }

    @Test func `the rest of the request is checked too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let body = #"{"login_response_query": "code=a&state=b"}"#
        #expect(await broker.call(.post, "/login/finalize?a=1", tenant: "t1", body: body).status == 400)
        let text = await broker.call(
            .post, "/login/finalize", tenant: "t1", body: body, fields: ["Content-Type": "text/plain"])
        #expect(text.status == 415)
        #expect(await broker.call(.post, "/login/finalize", key: nil, body: body).status == 401)
        let reader = await broker.makeKey("t1", #"{"name": "r", "permissions": ["credentials:read"]}"#)
        #expect(await broker.call(.post, "/login/finalize", key: reader, body: body).status == 403)
        // A GET of this path asks for the progress of a login of that name, which there is none of.
        #expect(await broker.call(.get, "/login/finalize", tenant: "t1").status == 405)
    }

    // H022 H023
    @Test func `another tenant's login is unknown`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await broker.makeTenant("t2", Self.tenant)
        let key = await broker.makeKey("t2")
        let login = await broker.beginLogin(tenant: "t1", body: Self.own)
        let stolen = await Self.finalize(broker, "code=c-1&state=\(login.state)", key: key, tenant: nil)
        let unknown = await Self.finalize(broker, "code=c-1&state=unknown", key: key, tenant: nil)
        #expect(stolen.status == 410)
        #expect(stolen.body == unknown.body)
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await Self.finalize(broker, "code=c-1&state=\(login.state)").status == 200)
        // Used by now, which the other tenant is not told either.
        #expect(await Self.finalize(broker, "code=c-1&state=\(login.state)", key: key, tenant: nil).status == 410)
    }

    @Test func `a narrowed key finishes logins of its storage keys only`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let key = await broker.makeKey("t1", #"{"name": "n", "permissions": ["login"], "storage_keys": ["a"]}"#)
        let other = await broker.beginLogin(body: #"{"storage_key": "b"}"#)
        let refused = await Self.finalize(broker, "code=c-1&state=\(other.state)", key: key, tenant: nil)
        #expect(refused.status == 403)
        #expect(broker.transport.seen.isEmpty)
        let own = await broker.beginLogin(body: #"{"storage_key": "a"}"#)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await Self.finalize(broker, "code=c-1&state=\(own.state)", key: key, tenant: nil).status == 200)
    }

    @Test func `a bound login is its browser's`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin()
        let cookie = BrokerHarness.cookie(await broker.start(login))
        let answer = await Self.finalize(broker, "code=c-1&state=\(login.state)")
        #expect(answer.status == 403)
        #expect(answer.code == "forbidden")
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)", cookie: cookie).status == 200)
    }

    @Test(arguments: [(599_999, 200), (600_000, 410)])
    func `ten minutes are the limit here too`(milliseconds: Int64, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let login = await broker.beginLogin(body: Self.own)
        broker.time.advance(by: .milliseconds(milliseconds))
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await Self.finalize(broker, "code=c-1&state=\(login.state)").status == status)
    }
}
