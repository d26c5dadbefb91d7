import BrokerCore
import BrokerTesting
import ExternalText
import Foundation
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Providers by their names: each with what its profile asks for and nothing else, and with answers as its documentation has them.
@Suite(.timeLimit(.minutes(1))) struct `A provider by its name` {
    /// A tenant with what the profile requires.
    private static func tenant(_ name: String, _ more: [String: Any] = [:]) throws -> String {
        let document = try #require(ShippedProfiles.document(WireText(name)))
        var members: [String: Any] = ["provider": name]
        for required in (document["required"]?.array ?? []).compactMap(\.string?.text) {
            let parts = required.split(separator: ".").map(String.init)
            switch parts[0] {
            case "client_id": members["client_id"] = "c1"
            case "client_secret": members["client_secret"] = "secret-of-c1"
            case "issuer": members["issuer"] = "https://id.example"
            case "resource": members["resource"] = "https://mcp.example/mcp"
            case "endpoints":
                var endpoints = members["endpoints"] as? [String: String] ?? [:]
                endpoints[parts[1]] = "https://id.example/\(parts[1])"
                members["endpoints"] = endpoints
            default:
                var parameters = members["parameters"] as? [String: String] ?? [:]
                parameters[parts[1]] = document["parameters"]?[WireText(parts[1])]?["example"]?.string?.text
                members["parameters"] = parameters
            }
        }
        members.merge(more) { $1 }
        return String(decoding: try JSONSerialization.data(withJSONObject: members), as: UTF8.self)
    }

    @Test(arguments: ShippedProfiles.names)
    func `needs what the profile asks for and nothing else`(name: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: try Self.tenant(name))
        #expect(answer.status == 201, "\(answer.text)")
        #expect(answer.json["redirect_uri"]?.text == "https://broker.example/login/callback")
        #expect(answer.json["warnings"] != nil && answer.json["dropped"] == nil)
        let read = await broker.call(.get, "/tenants/t1")
        #expect(read.status == 200 && read.json["provider"]?.text == name && read.json["warnings"] != nil)
        let shown = await broker.call(.get, "/providers/\(name)", key: await broker.makeKey())
        #expect(shown.status == 200 && shown.json["name"]?.text == name, "\(shown.text)")
    }

    @Test func `is listed for those who choose, with any key`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for key in [BrokerHarness.adminKey, await broker.makeKey()] {
            let list = await broker.call(.get, "/providers", key: key)
            #expect(list.status == 200)
            let text = list.text
            for name in ShippedProfiles.names { #expect(text.contains(#""name":"\#(name)""#)) }
            #expect(text.contains(#""documentation":"https://docs.slack.dev"#))
        }
        #expect(await broker.call(.get, "/providers/nobody").status == 404)
        #expect(await broker.call(.get, "/providers", key: nil).status == 401)
        #expect(await broker.call(.get, "/providers?a=1").status == 400)
    }

    /// A login and a read at a provider whose answer to the code is given.
    private static func logIn(
        _ broker: BrokerHarness, _ tenant: String, _ token: ScriptedTransport.Step, callback: String = "code=c-1"
    ) async throws -> (uri: [String: String], request: ScriptedTransport.Seen, answer: BrokerHarness.Answer) {
        await broker.makeTenant("t1", tenant)
        let login = await broker.beginLogin()
        broker.transport.enqueue(token)
        let ended = await broker.call(.get, "/login/callback?\(callback)&state=\(login.state)", key: nil)
        #expect(ended.status == 200, "\(ended.text)")
        let uri = BrokerHarness.parameters(of: login.uri)
        return (uri, try #require(broker.transport.seen.last), await broker.get())
    }

    // MARK: Requests

    // Q11 Q34 Q37
    @Test func `gets scopes with commas, its own names and no PKCE where it has none`() async throws {
        let broker = try await BrokerHarness()
        let (uri, request, answer) = try await Self.logIn(
            broker, try Self.tenant("tiktok", ["scopes": ["user.info.basic", "video.list"]]),
            .json(
                200,
                #"{"access_token": "act.1", "expires_in": 7200, "open_id": "u-1", "refresh_token": "rft.1", "scope": "user.info.basic,video.list", "token_type": "Bearer"}"#
            ))
        #expect(uri["client_key"] == "c1" && uri["client_id"] == nil && uri["scope"] == "user.info.basic,video.list")
        #expect(uri["code_challenge"] == nil && uri["code_challenge_method"] == nil)
        #expect(request.form["client_key"] == "c1" && request.form["client_secret"] == "secret-of-c1")
        #expect(request.form["client_id"] == nil && request.form["code_verifier"] == nil)
        #expect(answer.json["token"]?.text == "act.1" && answer.json["user_id"]?.text == "u-1")
        #expect(answer.text.contains(#""granted_scopes":["user.info.basic","video.list"]"#))
    }

    // Q13 Q17 Q40 Q48
    @Test func `gets JSON with its own header, and is authenticated to by HTTP Basic alone`() async throws {
        let broker = try await BrokerHarness()
        let (uri, request, answer) = try await Self.logIn(
            broker, try Self.tenant("notion"),
            .json(
                200,
                #"{"access_token": "ntn_1", "refresh_token": "nrt_1", "token_type": "bearer", "bot_id": "b-1", "workspace_id": "w-1", "workspace_name": "Acme", "owner": {"type": "user", "user": {"id": "p-1"}}}"#
            ))
        #expect(uri["owner"] == "user" && uri["scope"] == nil)
        #expect(request.fields["Content-Type"] == "application/json" && request.fields["Notion-Version"] != nil)
        #expect(request.fields["Authorization"]?.starts(with: "Basic ") == true)
        #expect(request.form["grant_type"] == "authorization_code" && request.form["client_id"] == nil)
        #expect(answer.json["token"]?.text == "ntn_1" && answer.json["user_id"]?.text == "p-1")
        #expect(
            answer.text.contains(#""extra":{"bot_id":"b-1","workspace_id":"w-1","workspace_name":"Acme"}"#),
            "\(answer.text)")
    }

    // Q32
    @Test func `is asked for lasting access by the profile's parameters, which a tenant can replace`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", try Self.tenant("google", ["authorize_parameters": ["prompt": "select_account"]]))
        let uri = BrokerHarness.parameters(of: await broker.beginLogin().uri)
        #expect(uri["access_type"] == "offline" && uri["prompt"] == "select_account" && uri["code_challenge"] != nil)
        let other = await broker.beginLogin(
            body: #"{"login_config": {"custom_parameters": {"prompt": "none"}}}"#)
        #expect(BrokerHarness.parameters(of: other.uri)["prompt"] == "none", "\(other.uri)")
    }

    // Q16
    @Test func `gets a secret as a bearer token`() async throws {
        let broker = try await BrokerHarness()
        let (_, request, _) = try await Self.logIn(
            broker,
            #"{"provider": "oauth2", "client_id": "c1", "client_secret": "s1", "token_endpoint_auth_method": "client_secret_bearer", "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"}}"#,
            .json(200, BrokerHarness.token("a", refresh: "r")))
        #expect(request.fields["Authorization"] == "Bearer s1" && request.form["client_secret"] == nil)
    }

    // Q20
    @Test func `is refreshed at an address of its own where it has one`() async throws {
        let broker = try await BrokerHarness()
        let (_, request, _) = try await Self.logIn(
            broker, try Self.tenant("figma"), .json(200, BrokerHarness.token("a", refresh: "r", expiresIn: 60)))
        #expect(request.url == "https://api.figma.com/v1/oauth/token")
        broker.transport.enqueue(.json(200, #"{"access_token": "b", "expires_in": 7776000}"#))
        #expect(await broker.get("policy=local_force_refresh").token == "b")
        #expect(broker.transport.seen.last?.url == "https://api.figma.com/v1/oauth/refresh")
    }

    // MARK: Answers

    private static let slack =
        #"{"ok": true, "access_token": "xoxb-1", "token_type": "bot", "scope": "chat:write", "bot_user_id": "U0", "app_id": "A1", "team": {"id": "T1", "name": "Acme"}, "enterprise": null, "authed_user": {"id": "U1", "scope": "search:read", "access_token": "xoxp-1", "token_type": "user"}}"#

    // Q08
    @Test(arguments: [("bot", "xoxb-1", "chat:write"), ("user", "xoxp-1", "search:read")])
    func `answers with two tokens, of which the tenant chooses`(use: String, token: String, scope: String) async throws
    {
        let broker = try await BrokerHarness()
        let (uri, request, answer) = try await Self.logIn(
            broker,
            try Self.tenant(
                "slack", ["token_use": use, "scopes": ["chat:write", "users:read"], "user_scopes": ["search:read"]]),
            .json(200, Self.slack))
        #expect(uri["scope"] == "chat:write,users:read" && uri["user_scope"] == "search:read")
        #expect(request.form["client_id"] == nil && request.fields["Authorization"]?.starts(with: "Basic ") == true)
        #expect(answer.json["token"]?.text == token && answer.json["user_id"]?.text == "U1")
        #expect(answer.text.contains(#""granted_scopes":["\#(scope)"]"#), "\(answer.text)")
        #expect(answer.text.contains(#""expires":null"#), "a token without a lifetime is good until it is refused")
        #expect(answer.text.contains(#""team_id":"T1","team_name":"Acme""#))
    }

    // Q39
    @Test func `tells in its callback what its API needs, which is kept over refreshes`() async throws {
        let broker = try await BrokerHarness()
        let (_, _, answer) = try await Self.logIn(
            broker, try Self.tenant("quickbooks"), .json(200, BrokerHarness.token("a", refresh: "r", expiresIn: 60)),
            callback: "code=c-1&realmId=123145")
        #expect(answer.text.contains(#""extra":{"realm_id":"123145"}"#), "\(answer.text)")
        broker.transport.enqueue(.json(200, BrokerHarness.token("b", refresh: "r2")))
        let renewed = await broker.get("policy=local_force_refresh")
        #expect(renewed.token == "b" && renewed.text.contains(#""extra":{"realm_id":"123145"}"#), "\(renewed.text)")
    }

    // Q38
    @Test func `has another name for the code`() async throws {
        let broker = try await BrokerHarness()
        let (_, request, answer) = try await Self.logIn(
            broker, try Self.tenant("amazon-seller"), .json(200, BrokerHarness.token("a", refresh: "r")),
            callback: "spapi_oauth_code=c-9&selling_partner_id=A9")
        #expect(request.form["code"] == "c-9" && answer.text.contains(#""extra":{"selling_partner_id":"A9"}"#))
    }

    // Q07
    @Test func `answers with a form`() async throws {
        let broker = try await BrokerHarness()
        let (_, _, answer) = try await Self.logIn(
            broker, try Self.tenant("github"),
            .json(
                200, "access_token=gho_1&scope=repo%2Cgist&token_type=bearer",
                fields: ["Content-Type": "application/x-www-form-urlencoded; charset=utf-8"]))
        #expect(answer.json["token"]?.text == "gho_1" && answer.text.contains(#""granted_scopes":["gist","repo"]"#))
    }

    // Q40
    @Test func `tells a fact beside its tokens`() async throws {
        let broker = try await BrokerHarness()
        let (_, _, answer) = try await Self.logIn(
            broker, try Self.tenant("salesforce"),
            .json(
                200,
                #"{"access_token": "00D!1", "instance_url": "https://acme.my.salesforce.com", "id": "https://login.salesforce.com/id/1/2", "token_type": "Bearer", "refresh_token": "r", "issued_at": "1"}"#
            ))
        #expect(answer.text.contains(#""instance_url":"https://acme.my.salesforce.com""#), "\(answer.text)")
        #expect(answer.json["expires_in"]?.integer == 900, "\(answer.text)")
    }

    // Q49
    @Test func `names the end of a token as a time`() async throws {
        let broker = try await BrokerHarness()
        let end = Timestamp(seconds: broker.time.now.seconds + 1800).description
        let (_, _, answer) = try await Self.logIn(
            broker, try Self.tenant("square"),
            .json(
                200,
                #"{"access_token": "EAAA", "token_type": "bearer", "expires_at": "\#(end)", "merchant_id": "M1", "refresh_token": "r"}"#
            ))
        #expect(answer.json["expires_in"]?.integer == 1800, "\(answer.text)")
    }

    // MARK: Errors

    // Q05 Q51
    @Test(arguments: [
        ("github", #"{"error": "bad_refresh_token"}"#, true),
        ("github", #"{"error": "incorrect_client_credentials"}"#, false),
        ("github", #"{"error": "odd"}"#, false), ("slack", #"{"ok": false, "error": "invalid_refresh_token"}"#, true),
        ("slack", #"{"ok": false, "error": "ratelimited"}"#, false),
    ])
    func `ends a session by an error with the status 200 only where that says so`(
        name: String, body: String, ends: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        _ = try await Self.logIn(
            broker, try Self.tenant(name, name == "slack" ? ["token_use": "bot"] : [:]),
            .json(
                200,
                #"{"ok": true, "access_token": "a", "refresh_token": "r", "expires_in": 60, "token_type": "bearer"}"#))
        broker.time.advance(by: .seconds(61))
        broker.transport.always(.json(200, body))
        let answer = await broker.get()
        #expect(answer.token == nil, "\(answer.text)")
        let status = await broker.call(.get, "/credentials/status", tenant: "t1")
        #expect(status.json["logged_in"]?.bool == !ends, "\(status.text)")
    }

    // Q05
    @Test func `refuses a code by an error with the status 200`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", try Self.tenant("github"))
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, #"{"error": "bad_verification_code"}"#))
        let ended = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(ended.status == 502 && ended.text.contains("bad_verification_code"), "\(ended.text)")
    }

    // MARK: Tenants

    @Test(arguments: [
        (#"{"provider": "zendesk", "client_id": "c", "client_secret": "s"}"#, "/parameters/subdomain"),
        (#"{"provider": "zendesk", "client_id": "c", "parameters": {"subdomain": "a/b"}}"#, "/parameters/subdomain"),
        (#"{"provider": "zendesk", "client_id": "c", "parameters": {"subdomain": "a", "x": "y"}}"#, "/parameters/x"),
        (#"{"provider": "google", "client_id": "c", "user_scopes": ["a"]}"#, "/user_scopes"),
        (
            #"{"provider": "google", "client_id": "c", "authorize_parameters": {"redirect_uri": "x"}}"#,
            "/authorize_parameters/redirect_uri"
        ),
        (#"{"provider": "gogle", "client_id": "c"}"#, "/provider"),
    ])
    func `refuses what it cannot use, with the place`(body: String, pointer: String) async throws {
        let answer = await (try await BrokerHarness()).call(.put, "/tenants/t1", body: body)
        #expect(answer.status == 400 && answer.text.contains(#""pointer":"\#(pointer)""#), "\(answer.text)")
    }

    // Q32
    @Test func `warns of what will surprise`() async throws {
        let broker = try await BrokerHarness()
        func codes(_ name: String, _ more: [String: Any] = [:]) async throws -> [String] {
            let answer = await broker.call(.put, "/tenants/t1", body: try Self.tenant(name, more))
            let text = answer.text.split(separator: #""warnings":"#).last.map(String.init) ?? ""
            return text.matches(of: /"code":"([a-z_]+)"/).map { String($0.output.1) }
        }
        #expect(try await codes("x") == ["no_refresh_token"])
        #expect(try await codes("x", ["scopes": ["offline.access"]]) == [])
        #expect(try await codes("github").contains("token_never_expires"))
        #expect(try await codes("atlassian", ["scopes": ["offline_access"]]).contains("consent_ends"))
        #expect(try await codes("hubspot").contains("provider_changes"))
        #expect(try await codes("spotify") == [])
    }

    @Test func `keeps a secret that is not named, unless it would go elsewhere, and tells what was dropped`()
        async throws
    {
        let broker = try await BrokerHarness()
        func put(_ body: String) async -> (isSet: Bool?, dropped: String) {
            let answer = await broker.call(.put, "/tenants/t1", body: body)
            let dropped = answer.text.firstMatch(of: /"dropped":\[([^\]]*)\]/).map { String($0.output.1) } ?? "none"
            return (answer.json["client_secret_set"]?.bool, dropped)
        }
        let oidc = #""provider": "oidc", "issuer": "https://id.example", "client_id": "c1""#
        #expect(
            await put(#"{\#(oidc), "client_secret": "s1", "display_name": "D", "rotation": "always"}"#) == (
                true, "none"
            ))
        #expect(await put("{\(oidc)}") == (true, #""display_name","rotation""#))
        #expect(await put(#"{\#(oidc), "client_secret": null}"#) == (false, #""client_secret""#))
        #expect(await put(#"{\#(oidc), "client_secret": "s2"}"#) == (true, ""))
        #expect(
            await put(#"{"provider": "oidc", "issuer": "https://id.example", "client_id": "c2"}"#)
                == (false, #""client_secret""#))
        _ = await put(#"{\#(oidc), "client_secret": "s2"}"#)
        #expect(
            await put(#"{"provider": "oidc", "issuer": "https://other.example", "client_id": "c1"}"#)
                == (false, #""client_secret""#))
    }

    // MARK: Keys that do not come by OAuth

    @Test func `has keys that do not come by OAuth, which are served as they were brought`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "static"}"#)
        let stored = await broker.call(
            .put, "/credentials", tenant: "t1",
            body: #"{"storage_key": "u1", "credentials": {"token": "sk-1", "extra": {"region": "eu"}}}"#)
        #expect(stored.status == 200, "\(stored.text)")
        broker.time.advance(by: .seconds(400 * 86_400))
        let answer = await broker.get("storage_key=u1")
        #expect(answer.token == "sk-1" && answer.json["level"]?.text == "user", "\(answer.text)")
        #expect(answer.text.contains(#""expires":null"#) && answer.text.contains(#""extra":{"region":"eu"}"#))
        let login = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect(login.code == "illegal_configuration" && login.text.contains("PUT /credentials"), "\(login.text)")
        let other = await broker.get("storage_key=u2")
        #expect(other.json["level"]?.text == "basic" || other.status == 404, "\(other.text)")
        #expect(broker.transport.seen.isEmpty)
    }

    // MARK: Ends

    // Q29 Q31
    @Test(
        arguments: [
            ("atlassian", [:], "r", 90, "idle"), ("linkedin", [:], "r", 365, "consent"), ("spotify", [:], "r", 0, ""),
            ("spotify", ["refresh_token_lifetime": 86_400 * 3], "r", 3, "idle"),
            ("atlassian", ["consent_lifetime": 86_400 * 2], "r", 2, "consent"), ("spotify", [:], "", 1, "token"),
        ] as [(String, [String: Int], String, Int, String)])
    func `tells when credentials end`(
        name: String, more: [String: Int], refresh: String, days: Int, why: String
    ) async throws {
        let broker = try await BrokerHarness()
        _ = try await Self.logIn(
            broker, try Self.tenant(name, more),
            .json(200, BrokerHarness.token("a", refresh: refresh.isEmpty ? nil : refresh, expiresIn: 86_400)))
        let ends = await broker.call(.get, "/credentials/status", tenant: "t1").json["ends"]
        let expected = why.isEmpty ? nil : broker.time.now.advanced(by: .seconds(days * 86_400)).description
        #expect(ends?["at"]?.text == expected && ends?["why"]?.text == (why.isEmpty ? nil : why))
        let list = await broker.call(.get, "/credentials/list", tenant: "t1")
        if let expected {
            #expect(list.text.contains(#""ends":{"at":"\#(expected)","why":"\#(why)"}"#), "\(list.text)")
        }
    }

    @Test func `tells of an idle end as it is, which each refresh moves`() async throws {
        let broker = try await BrokerHarness()
        _ = try await Self.logIn(broker, try Self.tenant("xero"), .json(200, BrokerHarness.token("a", refresh: "r")))
        broker.time.advance(by: .seconds(86_400))
        broker.transport.enqueue(.json(200, BrokerHarness.token("b", refresh: "r2")))
        #expect(await broker.get().token == "b")
        let ends = await broker.call(.get, "/credentials/status", tenant: "t1").json["ends"]
        #expect(ends?["at"]?.text == broker.time.now.advanced(by: .seconds(60 * 86_400)).description)
    }

    // MARK: Changes of members

    // Q41
    @Test func `has single members of its tenant changed, and the others stay`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"provider": "zendesk", "client_id": "c1", "client_secret": "s1", "parameters": {"subdomain": "acme"}, "display_name": "D"}"#
        )
        let patch: Fields = ["Content-Type": "application/merge-patch+json"]
        let first = await broker.call(
            .patch, "/tenants/t1", body: #"{"parameters": {"subdomain": "other"}, "display_name": null}"#, fields: patch
        )
        #expect(first.status == 200 && first.json["parameters"]?["subdomain"]?.text == "other", "\(first.text)")
        #expect(first.json["client_secret_set"]?.bool == true && first.json["display_name"] == nil)
        #expect(first.text.contains(#""dropped":["display_name"]"#))
        let tag = try #require(first.fields["ETag"])
        #expect(await broker.call(.get, "/tenants/t1").fields["ETag"] == tag)
        let second = await broker.call(
            .patch, "/tenants/t1", body: #"{"display_name": "E"}"#, fields: ["If-Match": "\(tag)"])
        #expect(second.status == 200, "\(second.text)")
        let refused = await broker.call(
            .patch, "/tenants/t1", body: #"{"display_name": "F"}"#, fields: ["If-Match": "\(tag)"])
        #expect((refused.status, refused.code) == (412, "precondition_failed"))
        #expect(
            await broker.call(.put, "/tenants/t9", body: #"{"client_id": "c"}"#, fields: ["If-Match": "*"]).status
                == 412)
        #expect(await broker.call(.patch, "/tenants/t9", body: "{}").status == 404)
        let wrong = await broker.call(.patch, "/tenants/t1", body: #"{"parameters": {"subdomain": "a/b"}}"#)
        #expect(wrong.status == 400 && wrong.text.contains("/parameters/subdomain"))
        #expect(await broker.call(.patch, "/tenants/t1", body: "[]").status == 400)
        #expect(await broker.call(.put, "/tenants/t1", body: "{}", fields: patch).status == 415)
    }
}
