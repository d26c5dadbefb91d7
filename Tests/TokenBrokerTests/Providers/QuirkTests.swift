import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Peculiarities of providers that a profile describes and no shipped profile has, or none with a test of its own.
@Suite(.timeLimit(.minutes(1))) struct `A provider that is unlike others` {
    /// A broker with a tenant of an operator's profile that has these members beside the required ones.
    private static func broker(_ members: String) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        let made = await broker.call(
            .put, "/providers/acme",
            body: #"""
                {"documentation": "https://acme.example/oauth", "as_of": "2026-11-29",
                 "required": ["client_id", "client_secret"], "notes": [], "token_endpoint_auth_method": "client_secret_post",
                 "endpoints": {"authorization": "https://acme.example/authorize", "token": "https://acme.example/token"},
                 \#(members)}
                """#)
        #expect(made.status == 201, "\(made.text)")
        await broker.makeTenant("t1", #"{"provider": "acme", "client_id": "c1", "client_secret": "secret-of-c1"}"#)
        return broker
    }

    /// A whole login whose code is answered by the step.
    /// - Returns: the request that the step answered, and the parameters of the login page.
    private static func logIn(
        _ broker: BrokerHarness, _ step: ScriptedTransport.Step
    ) async throws -> (request: ScriptedTransport.Seen, page: [String: String]) {
        let login = await broker.beginLogin()
        broker.transport.enqueue(step)
        let state = BrokerHarness.parameters(of: login.uri)["state"] ?? ""
        let ended = await broker.call(.get, "/login/callback?code=c-1&state=\(state)", key: nil)
        #expect(ended.status == 200, "\(ended.text)")
        return (try #require(broker.transport.seen.last), BrokerHarness.parameters(of: login.uri))
    }

    // MARK: Answers

    /// An answer that grants the access token `a-1` for half an hour, with the refresh token `r-1`.
    struct Row: Sendable, CustomTestStringConvertible {
        let profile: String
        /// `{end}` stands for the end of the half hour, in Unix seconds.
        let body: String
        var type = "application/json"

        var testDescription: String { profile }
    }

    @Test(arguments: [
        // Q02
        Row(
            profile: #""response_fields": {"expires_in": ["/expires_in", "/expires"]}"#,
            body: #"{"access_token": "a-1", "refresh_token": "r-1", "expires": 1800}"#),
        // Q04
        Row(
            profile: #""expires_unit": "milliseconds""#,
            body: #"{"access_token": "a-1", "refresh_token": "r-1", "expires_in": 1800000}"#),
        // Q07
        Row(
            profile: #""response_format": "form""#, body: "access_token=a-1&refresh_token=r-1&expires_in=1800",
            type: "text/plain"),
        // Q09
        Row(
            profile: #"""
                "response_fields": {"access_token": "/data/access_token", "refresh_token": "/data/refresh_token",
                "expires_in": "/data/expires_in"}
                """#,
            body: #"{"code": 0, "data": {"access_token": "a-1", "refresh_token": "r-1", "expires_in": 1800}}"#),
        // Q10
        Row(
            profile: #"""
                "response_fields": {"access_token": "/tokens/access/token", "refresh_token": "/tokens/refresh",
                "expires_in": "/TTL"}
                """#,
            body: #"{"tokens": {"access": {"token": "a-1"}, "refresh": "r-1"}, "TTL": "1800"}"#),
        // Q49
        Row(
            profile: #""response_fields": {"expires_at": "/expires_on"}"#,
            body: #"{"access_token": "a-1", "refresh_token": "r-1", "expires_on": {end}}"#),
        // Q49
        Row(
            profile: #""response_fields": {"expires_at": "/expires_on"}"#,
            body: #"{"access_token": "a-1", "refresh_token": "r-1", "expires_on": "{end}"}"#),
        Row(
            profile: #""response_fields": {"expires_at": "/expires_on"}, "expires_unit": "milliseconds""#,
            body: #"{"access_token": "a-1", "refresh_token": "r-1", "expires_on": {end}000}"#),
        Row(
            profile: #""response_fields": {"expires_at": "/expires_on"}"#,
            body: #"{"access_token": "a-1", "refresh_token": "r-1", "expires_on": {end}000}"#),
    ])
    func `says by its profile where its answers have what`(row: Row) async throws {
        let broker = try await Self.broker(row.profile)
        func granted(_ number: Int) -> ScriptedTransport.Step {
            let body = row.body.replacing("{end}", with: "\(broker.time.now.seconds + 1800)")
                .replacing("-1", with: "-\(number)")
            return .json(200, body, fields: ["Content-Type": "\(row.type)"])
        }
        _ = try await Self.logIn(broker, granted(1))
        let answer = await broker.get()
        #expect(answer.token == "a-1" && answer.json["expires_in"]?.integer == 1800, "\(answer.text)")
        broker.transport.enqueue(granted(2), granted(3))
        #expect(await broker.get("policy=local_force_refresh").token == "a-2")
        #expect(await broker.get("policy=local_force_refresh").token == "a-3")
        #expect(broker.transport.seen.dropFirst().map { $0.form["refresh_token"] } == ["r-1", "r-2"])
    }

    // Q12: a plus in a form is a blank
    @Test func `may separate scopes by a plus`() async throws {
        let broker = try await Self.broker(#""scopes": ["a", "b"]"#)
        let login = await broker.beginLogin()
        #expect(login.uri.contains("scope=a%20b"), "a blank is written so that every decoder reads it: \(login.uri)")
        broker.transport.enqueue(
            .json(
                200, "access_token=a-1&expires_in=1800&scope=b+a",
                fields: ["Content-Type": "application/x-www-form-urlencoded"]))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        let answer = await broker.get()
        #expect(answer.token == "a-1" && answer.text.contains(#""granted_scopes":["a","b"]"#), "\(answer.text)")
    }

    // Q56
    @Test(arguments: [4096, 8192])
    func `has long tokens, which are kept and sent as they are`(length: Int) async throws {
        func long(_ letter: String) -> String { String(repeating: letter, count: length) }
        let broker = try await Self.broker(#""rotation": "always""#)
        _ = try await Self.logIn(broker, .json(200, BrokerHarness.token(long("a"), refresh: long("r"))))
        #expect(await broker.get().token == long("a"))
        broker.transport.enqueue(.json(200, BrokerHarness.token(long("b"), refresh: long("s"))))
        #expect(await broker.get("policy=local_force_refresh").token == long("b"))
        #expect(broker.transport.seen.last?.form["refresh_token"] == long("r"))
        broker.transport.enqueue(.json(200, BrokerHarness.token("c")))
        #expect(await broker.get("policy=local_force_refresh").token == "c")
        #expect(broker.transport.seen.last?.form["refresh_token"] == long("s"))
    }

    // MARK: Requests

    // Q35 Q36
    @Test func `has names of its own for the address of the callback and for the kind of answer`() async throws {
        let broker = try await Self.broker(
            #""parameter_names": {"redirect_uri": "redirect_url", "response_type": "responseType"}"#)
        let (request, page) = try await Self.logIn(
            broker, .json(200, BrokerHarness.token("a-1", refresh: "r-1")))
        #expect(page["redirect_url"] == "https://broker.example/login/callback" && page["redirect_uri"] == nil)
        #expect(page["responseType"] == "code" && page["response_type"] == nil)
        #expect(request.form["redirect_url"] == page["redirect_url"] && request.form["redirect_uri"] == nil)
    }

    // Q18
    @Test(arguments: [("GET", Method.get), ("POST", .post)])
    func `wants the parameters of token requests in the query`(name: String, method: Method) async throws {
        let broker = try await Self.broker(#""request_format": "query", "token_method": "\#(name)""#)
        let (exchange, _) = try await Self.logIn(
            broker, .json(200, BrokerHarness.token("a-1", refresh: "r-1")))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-2")))
        #expect(await broker.get("policy=local_force_refresh").token == "a-2")
        let refresh = try #require(broker.transport.seen.last)
        for (request, parameter) in [(exchange, "code=c-1"), (refresh, "refresh_token=r-1")] {
            #expect(request.method == method && request.form.isEmpty)
            #expect(request.url.hasPrefix("https://acme.example/token?") && request.url.contains(parameter))
            #expect(request.url.contains("client_secret=secret-of-c1"))
        }
    }

    // Q24
    @Test func `wants its secret with the code and not with a refresh`() async throws {
        let broker = try await Self.broker(
            #"""
            "refresh": {"parameters": {"grant_type": "refresh_token", "refresh_token": "{refresh_token}", "client_id": "{client_id}"}}
            """#)
        let (exchange, _) = try await Self.logIn(
            broker, .json(200, BrokerHarness.token("a-1", refresh: "r-1")))
        #expect(exchange.form["client_secret"] == "secret-of-c1")
        for (sent, next) in [("r-1", "r-2"), ("r-2", "r-3")] {
            broker.transport.enqueue(.json(200, BrokerHarness.token("a-of-\(next)", refresh: next)))
            #expect(await broker.get("policy=local_force_refresh").token == "a-of-\(next)")
            let refresh = try #require(broker.transport.seen.last)
            #expect(refresh.url == "https://acme.example/token" && refresh.method == .post)
            #expect(refresh.form == ["grant_type": "refresh_token", "refresh_token": sent, "client_id": "c1"])
            #expect(refresh.fields["Authorization"] == nil)
        }
    }

    // MARK: Errors

    // Q51
    @Test(arguments: [("token request is already being processed", true), ("expired access/refresh token", false)])
    func `says only by the description of an error that it will pass`(description: String, passes: Bool) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "salesforce", "client_id": "c1", "client_secret": "s1"}"#)
        await broker.logIn(token: BrokerHarness.token("a-1", refresh: "r-1", expiresIn: 60))
        broker.time.advance(by: .seconds(61))
        broker.transport.always(.json(400, #"{"error": "invalid_grant", "error_description": "\#(description)"}"#))
        #expect(await broker.get().token == nil)
        #expect(await broker.status().isLoggedIn == passes)
    }
}
