import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

@Suite struct `Control interface` {
    @Test func `faults are scripted, listed and removed`() async throws {
        let fixture = ProviderFixture()
        let answer = await fixture.driver.control(
            .post, "/faults",
            """
            {"endpoint":"token","grant":"refresh_token","times":2,"delay_ms":5,"answer_delay_ms":6,"status":503,\
            "headers":{"Retry-After":"9"},"body":{"a":1},"mode":"answer_after_work"}
            """)
        #expect(answer.status == .noContent)
        let fault = try #require(fixture.provider.faults.first)
        #expect(fault.endpoint == .token)
        #expect(fault.grant == .refreshToken)
        #expect(fault.times == 2)
        #expect(fault.delay == .milliseconds(5))
        #expect(fault.answerDelay == .milliseconds(6))
        #expect(fault.status == .serviceUnavailable)
        #expect(fault.fields["Retry-After"] == "9")
        #expect(fault.body == Array(#"{"a":1}"#.utf8))
        #expect(fault.mode == .answerAfterWork)
        let listed = try #require(await fixture.driver.control(.get, "/faults").json?["faults"]?.array?.first)
        #expect(listed["times"]?.integer == 2)
        #expect(listed["delay_ms"]?.integer == 5)
        #expect(await fixture.driver.control(.delete, "/faults").status == .noContent)
        #expect(fixture.provider.faults.isEmpty)
    }

    @Test(arguments: Fault.Mode.allCases)
    func `every mode has a name`(mode: Fault.Mode) async throws {
        let fixture = ProviderFixture()
        let body = #"{"endpoint":"revoke","mode":"\#(mode.rawValue)","body":"text"}"#
        #expect(await fixture.driver.control(.post, "/faults", body).status == .noContent)
        #expect(fixture.provider.faults.first?.mode == mode)
        #expect(fixture.provider.faults.first?.times == 1)
        #expect(fixture.provider.faults.first?.body == Array("text".utf8))
    }

    @Test(arguments: [
        "", "[]", "{}", "{", #"{"endpoint":"nowhere"}"#, #"{"endpoint":1}"#, #"{"endpoint":"token","grant":"x"}"#,
        #"{"endpoint":"token","times":0}"#, #"{"endpoint":"token","times":1000001}"#,
        #"{"endpoint":"token","times":"1"}"#,
        #"{"endpoint":"token","delay_ms":-1}"#, #"{"endpoint":"token","delay_ms":3600001}"#,
        #"{"endpoint":"token","status":199}"#, #"{"endpoint":"token","status":600}"#,
        #"{"endpoint":"token","mode":"x"}"#,
        #"{"endpoint":"token","headers":[]}"#, #"{"endpoint":"token","headers":{"a":1}}"#,
        #"{"endpoint":"token","headers":{"a":"b\r\nc: d"}}"#, #"{"endpoint":"token","headers":{"a b":"c"}}"#,
        #"{"endpoint":"token","statos":500}"#,
    ])
    func `a malformed fault is refused`(body: String) async {
        let fixture = ProviderFixture()
        let answer = await fixture.driver.control(.post, "/faults", body)
        #expect(answer.status == .badRequest)
        #expect(answer.fields["Content-Type"] == "application/problem+json")
        #expect(fixture.provider.faults.isEmpty)
    }

    @Test func `a web page cannot script faults`() async {
        let fixture = ProviderFixture()
        let answer = await fixture.driver.post("/_control/faults", body: #"{"endpoint":"token"}"#)
        #expect(answer.status == .unsupportedMediaType)
    }

    @Test func `requests and counters are shown without secrets and can be deleted`() async throws {
        let fixture = ProviderFixture()
        let token = try await fixture.refreshToken()
        _ = await fixture.driver.refresh(token)
        let answer = await fixture.driver.control(.get, "/requests")
        #expect(!answer.text.contains(token))
        #expect(!answer.text.contains(ProviderDriver.verifier))
        let requests = try #require(answer.json?["requests"]?.array)
        #expect(requests.count == 4)
        let last = try #require(requests.last)
        #expect(last["endpoint"]?.string == "token")
        #expect(last["grant"]?.string == "refresh_token")
        #expect(last["status"]?.integer == 200)
        #expect(last["outcome"]?.string == "answered")
        #expect(last["client_authentication"]?.string == "none")
        #expect(last["refresh"]?["family"]?.integer == 1)
        #expect(last["refresh"]?["presented_generation"]?.integer == 1)
        #expect(last["refresh"]?["outcome"]?.string == "kept")
        let counters = try #require(answer.json?["counters"])
        #expect(counters["endpoints"]?["token"]?.integer == 2)
        #expect(counters["grants"]?["refresh_token"]?.integer == 1)
        #expect(counters["statuses"]?["200"]?.integer == 3)
        #expect(await fixture.driver.control(.delete, "/requests").status == .noContent)
        #expect(await fixture.driver.control(.get, "/requests").json?["requests"]?.array?.isEmpty == true)
    }

    @Test func `the ledger shows families and generations without tokens`() async throws {
        let fixture = ProviderFixture { $0.rotation = .rotate(grace: .zero) }
        let first = try await fixture.refreshToken(user: "4711")
        let second = try #require(await fixture.driver.refresh(first).json?["refresh_token"]?.text)
        fixture.clock.advance(by: .milliseconds(7))
        _ = await fixture.driver.refresh(first)
        let answer = await fixture.driver.control(.get, "/ledger")
        #expect(!answer.text.contains(first))
        #expect(!answer.text.contains(second))
        let ledger = try #require(answer.json)
        #expect(ledger["reuse_detections"]?.integer == 1)
        let user = try #require(ledger["users"]?.array?.first)
        #expect(user["user_id"]?.integer == 4711)
        let family = try #require(user["families"]?.array?.first)
        #expect(family["alive"]?.bool == false)
        #expect(family["revoked_because"]?.string == "refresh_token_reuse")
        #expect(family["revoked_at_ms"]?.integer == fixture.clock.milliseconds)
        #expect(family["reuses_detected_at_ms"]?.array?.count == 1)
        let tokens = try #require(family["refresh_tokens"]?.array)
        #expect(tokens.map { $0["generation"]?.integer } == [1, 2])
        #expect(tokens[0]["presentations"]?.integer == 2)
        #expect(
            tokens[0]["presented_at_ms"]?.array?.map(\.integer) == [
                fixture.clock.milliseconds - 7, fixture.clock.milliseconds,
            ])
        #expect(tokens[1]["predecessor"]?.integer == 1)
    }

    @Test(arguments: [#"{"user_id":4711}"#, #"{"user":"4711"}"#])
    func `the sessions of one user are revoked and those of others are not`(body: String) async throws {
        let fixture = ProviderFixture()
        let one = try await fixture.refreshToken(user: "4711")
        let two = try await fixture.refreshToken(user: "4711")
        let other = try await fixture.refreshToken(user: "4712")
        let answer = await fixture.driver.control(.post, "/revoke", body)
        #expect(answer.json?["revoked"]?.integer == 2)
        expectError(await fixture.driver.refresh(one), "invalid_grant", subStatus: 11101)
        expectError(await fixture.driver.refresh(two), "invalid_grant", subStatus: 11101)
        #expect(await fixture.driver.refresh(other).status == .ok)
        #expect(fixture.provider.revokeAll(userID: 4711) == 0)
        #expect(fixture.provider.ledger.families(userID: 4711).first?.family.revocation?.cause == .control)
    }

    @Test func `access tokens expire on demand`() async throws {
        let fixture = ProviderFixture()
        let alice = try #require(await fixture.driver.session(user: "4711")?["access_token"]?.text)
        let bob = try #require(await fixture.driver.session(user: "4712")?["access_token"]?.text)
        #expect(await fixture.driver.control(.post, "/expire", #"{"user_id":4711}"#).status == .noContent)
        #expect(fixture.provider.introspect(accessToken: alice) == nil)
        #expect(fixture.provider.introspect(accessToken: bob) != nil)
        #expect(await fixture.driver.control(.post, "/expire", "{}").status == .noContent)
        #expect(fixture.provider.introspect(accessToken: bob) == nil)
    }

    @Test func `refresh tokens and codes expire on demand`() async throws {
        let fixture = ProviderFixture()
        let token = try await fixture.refreshToken()
        let code = try #require(await fixture.driver.login())
        let device = try #require(
            await fixture.driver.post(fixture.driver.devicePath, [.init("client_id", "app")]).json?["deviceCode"]?
                .text)
        for what in Expirable.allCases {
            _ = await fixture.driver.control(.post, "/expire", #"{"what":"\#(what.rawValue)"}"#)
        }
        expectError(await fixture.driver.refresh(token), "invalid_grant", subStatus: 11101)
        expectError(await fixture.driver.redeem(code), "invalid_grant")
        expectError(
            await fixture.driver.token(.deviceCode, [.init("device_code", device)]), "expired_token", subStatus: 11003)
    }

    @Test func `time can be moved`() async throws {
        let fixture = ProviderFixture()
        let before = fixture.provider.now
        let answer = await fixture.driver.control(.post, "/advance", #"{"seconds":14400}"#)
        #expect(answer.json?["now_ms"]?.integer == before + 14_400_000)
    }

    @Test(arguments: [(14_399_999, true), (14_400_000, false)])
    func `an access token can be introspected until it expires`(milliseconds: Int, isActive: Bool) async throws {
        let fixture = ProviderFixture()
        let token = try #require(await fixture.driver.session(user: "4711", scope: "a b")?["access_token"]?.text)
        fixture.provider.advance(by: .milliseconds(milliseconds))
        let answer = await fixture.driver.control(.post, "/introspect", #"{"token":"\#(token)"}"#)
        #expect(answer.json?["active"]?.bool == isActive)
        #expect(answer.json?["user_id"]?.integer == (isActive ? 4711 : nil))
        #expect(answer.json?["scope"]?.string == (isActive ? "a b" : nil))
        #expect(answer.json?["family"]?.integer == (isActive ? 1 : nil))
    }

    @Test func `everything can be deleted`() async throws {
        let fixture = ProviderFixture()
        let token = try await fixture.refreshToken()
        fixture.provider.script(Fault(.token, times: 5, status: Status(500)))
        #expect(await fixture.driver.control(.delete, "").status == .noContent)
        expectError(await fixture.driver.refresh(token), "invalid_grant", subStatus: 11101)
        #expect(fixture.provider.ledger.users.isEmpty)
        #expect(fixture.provider.requests.count == 1)
    }

    @Test(arguments: [
        (Method.post, "", 405), (.put, "/faults", 405), (.post, "/requests", 405), (.post, "/ledger", 405),
        (.get, "/revoke", 405), (.get, "/expire", 405), (.get, "/advance", 405), (.get, "/introspect", 405),
        (.post, "/random_faults", 405), (.get, "/sessions", 405), (.post, "/ledger/summary", 405),
        (.get, "/ledger/users", 404), (.get, "/other", 404), (.get, "/faults/1", 404), (.post, "/revoke", 400),
        (.post, "/introspect", 400),
        (.post, "/advance", 400),
    ])
    func `unknown paths and methods are refused`(method: Method, path: String, status: Int) async {
        #expect(await ProviderFixture().driver.control(method, path, "{}").status.code == status)
    }

    @Test func `what it can do is listed, and in the program's help`() async throws {
        let listed = try #require(await ProviderFixture().driver.control(.get, "").json?["controls"]?.array)
        #expect(listed.count == 22)
        for control in listed {
            let (method, path) = (try #require(control["method"]?.string), try #require(control["path"]?.string?.text))
            #expect(ProviderOptions.help.contains("  \(method) \(path) "))
            let place = path.split(separator: "/").dropFirst().map { $0.hasPrefix("{") ? "/1" : "/\($0)" }.joined()
            let status = await ProviderFixture().driver.control(Method(method.text), place, "{}").status.code
            #expect(status != 404 && status != 405, "\(method) \(path)")
        }
    }
}
