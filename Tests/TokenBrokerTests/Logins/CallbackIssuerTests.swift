import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing
import TokenBroker

/// RFC 9207.
@Suite struct `The issuer of a response` {
    private static let issuer = "https://op.example/K"

    /// A tenant of the issuer whose metadata says whether `iss` is sent.
    private static func broker(announces: String) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "oidc", "client_id": "c1", "issuer": "\#(issuer)"}"#)
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "\#(issuer)", "authorization_endpoint": "https://op.example/auth",
                 "token_endpoint": "https://op.example/token"\#(announces)}
                """#))
        return broker
    }

    private static let announcing = #", "authorization_response_iss_parameter_supported": true"#

    /// Exactly one request was made: the metadata's.
    private static func nothingWasRedeemed(_ broker: BrokerHarness) -> Bool { broker.transport.seen.count == 1 }

    // H035
    @Test(arguments: [announcing, ""])
    func `is right`(announces: String) async throws {
        let broker = try await Self.broker(announces: announces)
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        let answer = await broker.callback("code=c-1&state=\(login.state)&iss=https%3A%2F%2Fop.example%2FK")
        #expect(answer.status == 200)
    }

    // H035
    @Test(arguments: [
        "https://evil.example/K", "https://op.example/K/", "https://OP.example/K", "https://op.example/k",
        "https://op.example", "http://op.example/K", "", "https://op.example/%4B", " https://op.example/K",
        // Equal to the right one for Unicode, but not octet by octet.
        "https://op.example/\u{212A}",
    ])
    func `is wrong, and the state stays usable`(other: String) async throws {
        for announces in [Self.announcing, ""] {
            let broker = try await Self.broker(announces: announces)
            let login = await broker.beginLogin()
            let iss = FormEncoding.percentEncode(other)
            let answer = await broker.callback("code=c-1&state=\(login.state)&iss=\(iss)", accept: "application/json")
            #expect(answer.status == 400)
            #expect(answer.code == "invalid_request")
            #expect(Self.nothingWasRedeemed(broker))
            broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
            let right = FormEncoding.percentEncode(Self.issuer)
            #expect(await broker.callback("code=c-1&state=\(login.state)&iss=\(right)").status == 200)
        }
    }

    @Test func `is wrong beside an error too`() async throws {
        let broker = try await Self.broker(announces: "")
        let login = await broker.beginLogin()
        let answer = await broker.callback("error=access_denied&state=\(login.state)&iss=x", accept: "application/json")
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
        #expect(await broker.progress(login.id).json["status"]?.string == "pending")
    }

    // H035
    @Test func `is missing where the provider announces it`() async throws {
        let broker = try await Self.broker(announces: Self.announcing)
        let login = await broker.beginLogin()
        for query in ["code=c-1", "error=access_denied"] {
            let answer = await broker.callback("\(query)&state=\(login.state)", accept: "application/json")
            #expect(answer.status == 400)
            #expect(answer.code == "invalid_request")
        }
        #expect(Self.nothingWasRedeemed(broker))
        #expect(await broker.progress(login.id).json["status"]?.string == "pending")
    }

    /// Responses that are not accepted, and the sentence of the page that says why.
    private static let untold: [(announces: String, response: String, cause: String, sentence: String)] = [
        (announcing, "code=c-1", "no_issuer", "It does not say which login service it comes from (iss)"),
        (announcing, "error=login_required", "no_issuer", "It does not say which login service it comes from (iss)"),
        (announcing, "error=login_required&iss=x", "other_issuer", "It comes from another login service"),
        ("", "code=c-1&iss=x", "other_issuer", "It comes from another login service"),
    ]

    @Test(arguments: untold.indices)
    func `that is wrong or missing is what the page tells, and the login goes on`(index: Int) async throws {
        let (announces, response, cause, sentence) = Self.untold[index]
        let broker = try await Self.broker(announces: announces)
        let login = await broker.beginLogin()
        let sent = await broker.callback("\(response)&state=\(login.state)", followsToEnd: false)
        #expect(sent.status == 303)
        #expect(
            sent.fields["Location"]?.text
                == "https://broker.example/login/ended/t1/\(login.id)?error=invalid_request&cause=\(cause)")
        let page = await broker.following(sent)
        #expect(page.status == 400)
        #expect(page.text.contains("The login service's answer was not accepted") && page.text.contains(sentence))
        #expect(!page.text.contains("This address is not complete"))
        // Another reader gets the page at once, and a program the error that the response reports.
        let direct = await broker.callback("\(response)&state=\(login.state)", accept: nil)
        #expect(direct.status == 400 && direct.text.contains(sentence))
        let told = await broker.callback("\(response)&state=\(login.state)", accept: "application/json")
        #expect((told.status, told.code) == (400, "invalid_request"))
        let isError = response.hasPrefix("error=")
        #expect(told.json["error_code"]?.text == (isError ? "login_required" : nil))
        #expect(told.json["detail"]?.text?.contains("It reports the error login_required.") == isError)
        #expect(await broker.progress(login.id).json["status"]?.text == "pending")
        #expect(Self.nothingWasRedeemed(broker))
    }

    @Test(arguments: ["", #", "authorization_response_iss_parameter_supported": false"#])
    func `may be missing elsewhere`(announces: String) async throws {
        let broker = try await Self.broker(announces: announces)
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
    }

    @Test(arguments: ["https://login.tidal.com", "https://evil.example", ""])
    func `is refused where the tenant has none to compare it with`(issuer: String) async throws {
        for provider in [
            #"{"client_id": "c1"}"#,
            #"""
            {"provider": "oidc", "client_id": "c1",
             "endpoints": {"authorization": "https://op.example/auth", "token": "https://op.example/token"}}
            """#,
        ] {
            let broker = try await BrokerHarness()
            await broker.makeTenant("t1", provider)
            let login = await broker.beginLogin()
            let iss = FormEncoding.percentEncode(issuer)
            for outcome in ["code=c-1", "error=access_denied"] {
                let answer = await broker.callback(
                    "\(outcome)&state=\(login.state)&iss=\(iss)", accept: "application/json")
                #expect((answer.status, answer.code) == (400, "invalid_request"))
                #expect(answer.json["detail"]?.text?.contains("configure the issuer") == true)
            }
            #expect(broker.transport.seen.isEmpty)
            broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
            #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        }
    }

    @Test func `is compared with a configured one too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://op.example",
             "endpoints": {"authorization": "https://op.example/auth", "token": "https://op.example/token"}}
            """#)
        let login = await broker.beginLogin()
        #expect(await broker.callback("code=c-1&state=\(login.state)&iss=https%3A%2F%2Fevil.example").status == 400)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)&iss=https%3A%2F%2Fop.example").status == 200)
    }
}
