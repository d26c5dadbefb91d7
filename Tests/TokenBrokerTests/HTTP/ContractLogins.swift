import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Reactor
import Testing
import TokenBroker

/// Makes logins in a browser end in every way that openapi.yaml describes.
struct ContractLogins {
    let recorder: ExchangeRecorder

    func run() async throws {
        try await beginningLogins()
        try await endingLogins()
        try await endingUnusableLogins()
        try await boundLogins()
        try await confirmedLogins()
        try await loginsAfterTheEndOfASession()
        try await pagesOfEnds()
        try await progress()
    }

    private func beginningLogins() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"client_id": "c1", "allowed_redirect_uris": ["app:/back"], "allowed_return_uris": ["https://a.example/b"]}
            """#)
        let bodies: [String?] = [
            nil,
            #"""
            {"storage_key": "a", "redirect_uri": "app:/back", "return_to": "https://a.example/b?c=d",
             "login_config": {"language": "sv", "email": "e@example.org", "custom_parameters": {"a": "b"}}}
            """#,
            #"{"storage_key": null, "login_config": {"language": null, "email": null, "custom_parameters": null}}"#,
            #"{"redirect_uri": "app:/other"}"#, #"{"return_to": "https://a.example/other"}"#,
            #"{"login_config": {"custom_parameters": {"State": "x"}}}"#, #"{"storage_key": "no key"}"#,
            #"{"scopes": ["unknown"], "upgrade": true}"#,
            #"{"scopes": null, "upgrade": false, "resource": ["https://api.example"], "audience": "api"}"#,
            #"{"upgrade": null, "resource": null, "audience": null}"#,
        ]
        for body in bodies { await recorder.call(broker, .post, "/login/initialize", tenant: "t1", body: body) }
        await broker.makeTenant("t2", #"{"client_id": "c1", "browser_binding": "required"}"#)
        await recorder.call(broker, .post, "/login/initialize", tenant: "t2")
        await broker.makeTenant(
            "t3", #"{"client_id": "c1", "provider": "oidc", "issuer": "https://login.example"}"#)
        let metadata = #"""
            {"issuer": "https://login.example", "authorization_endpoint": "https://login.example/a",
             "token_endpoint": "https://login.example/t"}
            """#
        let steps: [ScriptedTransport.Step] = [
            .json(404, "{}"), .json(503, "{}"), .failure(.connectFailed), .failure(.untrusted(.chain)),
            .json(200, metadata),
        ]
        for step in steps {
            broker.transport.always(step)
            await recorder.call(broker, .post, "/login/initialize", tenant: "t3")
        }
    }

    /// The ways in which a response can reach the broker.
    private enum Way: CaseIterable {
        case finalize
        case page
        case json
        case other
        case form
        case formJSON
        case formOther
    }

    /// The two callbacks, and what a tenant says in its configuration to get them.
    private static let callbacks = [
        (path: "/login/callback", member: #""callback_uri": "shared""#),
        (path: "/login/callback/t1", member: #""callback_uri": "per_tenant""#),
    ]

    /// What a browser says of a form that comes from a page of the broker's.
    private static let form = "application/x-www-form-urlencoded"
    static let button: Fields = ["Content-Type": form, "Sec-Fetch-Site": "same-origin"]

    @discardableResult
    private func end(
        _ broker: BrokerHarness, _ response: String, _ way: Way, at path: String = "/login/callback",
        key: String = BrokerHarness.adminKey
    ) async -> BrokerHarness.Answer {
        let answer = await bring(broker, response, way, at: path, key: key)
        guard let location = answer.fields["Location"]?.text, location.contains("/login/ended/") else { return answer }
        return await recorder.call(broker, .get, BrokerHarness.path(of: location), key: nil)
    }

    @discardableResult
    private func bring(
        _ broker: BrokerHarness, _ response: String, _ way: Way, at path: String, key: String
    ) async -> BrokerHarness.Answer {
        let html = "text/html,application/xhtml+xml,*/*;q=0.8"
        let form = "application/x-www-form-urlencoded"
        switch way {
        case .finalize:
            return await recorder.call(
                broker, .post, "/login/finalize", key: key, tenant: "t1",
                body: #"{"login_response_query": "\#(response)"}"#)
        case .page:
            return await recorder.call(
                broker, .get, "\(path)?\(response)", key: nil, fields: ["Accept": html])
        case .json:
            return await recorder.call(
                broker, .get, "\(path)?\(response)", key: nil, fields: ["Accept": "application/json"])
        case .other:
            return await recorder.call(broker, .get, "\(path)?\(response)", key: nil)
        case .form:
            return await recorder.call(
                broker, .post, path, key: nil, body: response,
                fields: ["Accept": html, "Content-Type": form])
        case .formJSON:
            return await recorder.call(
                broker, .post, path, key: nil, body: response,
                fields: ["Accept": "application/json", "Content-Type": form])
        case .formOther:
            return await recorder.call(
                broker, .post, path, key: nil, body: response, fields: ["Content-Type": form])
        }
    }

    private func endingLogins() async throws {
        let steps: [(ScriptedTransport.Step, BrokerError.Code?)] = [
            (.json(200, BrokerHarness.token("a", refresh: "r", scope: "r_usr", userID: 1)), nil),
            (.json(400, #"{"error": "invalid_grant"}"#), .unexpectedError),
            (.json(200, "{}"), .tokenResponseError),
            (.failure(.untrusted(.pin)), .providerUntrusted),
            (.failure(.insecureTarget), .illegalConfiguration),
            (.failure(.connectionLost(requestSent: true)), .networkError),
            (.json(503, "{}"), .retryableError),
        ]
        for (path, member) in Self.callbacks {
            for way in Way.allCases {
                for (step, code) in steps {
                    let broker = try await BrokerHarness()
                    await broker.makeTenant(
                        "t1", #"{"client_id": "c1", \#(member), "allowed_return_uris": ["https://a.example/b"]}"#)
                    broker.transport.always(step)
                    for body in ["{}", #"{"return_to": "https://a.example/b?c=d"}"#] {
                        let login = await broker.beginLogin(body: body)
                        let answer = await end(broker, "code=c&state=\(login.state)", way, at: path)
                        #expect(
                            answer.status == 303 || answer.fields["Content-Type"]?.text.hasPrefix("text/html") == true
                                || answer.code == code?.rawValue)
                        await end(broker, "code=c&state=\(login.state)", way, at: path)
                        await recorder.call(broker, .get, "/login/start/t1/\(login.id)", key: nil)
                        await recorder.call(broker, .get, "/login/\(login.id)", tenant: "t1")
                    }
                }
            }
        }
    }

    private func endingUnusableLogins() async throws {
        for ((path, member), way) in Self.callbacks.flatMap({ callback in Way.allCases.map { (callback, $0) } }) {
            let broker = try await BrokerHarness()
            await broker.makeTenant(
                "t1",
                #"""
                {"client_id": "c1", \#(member), "issuer": "https://login.example",
                 "login_service_base_uri": "https://login.example", "auth_service_base_uri": "https://login.example"}
                """#)
            let login = await broker.beginLogin()
            for response in [
                "code=c", "state=\(login.state)", "code=c&state=\(login.state)&iss=https://other.example",
                "code=c&code=c&state=\(login.state)", "code=c&state=unknown",
                "error=access_denied&state=\(login.state)",
            ] {
                await end(broker, response, way, at: path)
            }
        }
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let narrowed = await broker.makeKey(
            "t1", #"{"name": "k", "permissions": ["login"], "storage_keys": ["other"]}"#)
        let login = await broker.beginLogin()
        let answer = await end(broker, "code=c&state=\(login.state)", .finalize, key: narrowed)
        #expect(answer.code == "forbidden")
    }

    private func boundLogins() async throws {
        for publicBaseURL in ["https://broker.example", "http://127.0.0.1:8080"] {
            let broker = try await BrokerHarness(publicBaseURL: publicBaseURL)
            for (path, member) in Self.callbacks {
                await broker.makeTenant("t1", #"{"client_id": "c1", \#(member)}"#)
                for way in Way.allCases {
                    let login = await broker.beginLogin()
                    let start = await recorder.call(broker, .get, "/login/start/t1/\(login.id)", key: nil)
                    #expect(start.fields["Set-Cookie"] != nil)
                    await end(broker, "code=c&state=\(login.state)", way, at: path)
                }
            }
            await takingOver(broker)
            let login = await broker.beginLogin()
            await recorder.call(broker, .get, "/login/start/T/\(login.id)", key: nil)
            broker.time.advance(by: .seconds(600))
            for accepted in ["text/html", "application/json"] {
                await recorder.call(
                    broker, .get, "/login/start/t1/\(login.id)", key: nil, fields: ["Accept": accepted])
            }
        }
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "browser_binding": "off"}"#)
        let login = await broker.beginLogin()
        let start = await recorder.call(broker, .get, "/login/start/t1/\(login.id)", key: nil)
        #expect(start.fields["Set-Cookie"] == nil)
    }

    /// A second browser opens the start address.
    private func takingOver(_ broker: BrokerHarness) async {
        let login = await broker.beginLogin()
        let path = "/login/start/t1/\(login.id)"
        await recorder.call(broker, .get, path, key: nil)
        for accept in [BrokerHarness.browserAccept, "*/*", "application/json"] {
            let fields: Fields = ["Accept": accept]
            await recorder.call(broker, .get, path, key: nil, fields: fields)
            for type in [Self.form, "text/plain"] {
                await recorder.call(
                    broker, .post, path, key: nil, body: "decision=continue",
                    fields: ["Accept": accept, "Content-Type": type])
            }
            await recorder.call(
                broker, .get, path, key: nil, fields: ["Accept": accept, "Sec-Purpose": "prefetch"])
            var pressing = Self.button
            pressing.append("Accept", accept)
            await recorder.call(broker, .post, path, key: nil, body: "decision=no", fields: pressing)
            await recorder.call(broker, .post, path, key: nil, body: "decision=continue", fields: pressing)
        }
        let used = await broker.beginLogin()
        _ = await broker.callback(
            "error=e&state=\(used.state)",
            at: BrokerHarness.path(of: BrokerHarness.parameters(of: used.uri)["redirect_uri"] ?? ""))
        await recorder.call(
            broker, .post, "/login/start/t1/\(used.id)", key: nil, body: "decision=continue", fields: Self.button)
    }

    private func loginsAfterTheEndOfASession() async throws {
        for publicBaseURL in ["https://broker.example", "http://127.0.0.1:8080"] {
            let broker = try await BrokerHarness(publicBaseURL: publicBaseURL)
            await broker.makeTenant()
            await broker.set("a1", refresh: "r1", lifetime: .zero)
            broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
            let ended = await recorder.call(broker, .get, "/credentials", tenant: "t1")
            let path = BrokerHarness.path(of: ended.json["session"]?["reconnect_uri"]?.text ?? "")
            #expect(await recorder.call(broker, .get, path, key: nil).status == 303)
            for accept in ["text/html", "application/json"] {
                let fields: Fields = ["Accept": .init(accept)]
                await recorder.call(broker, .get, path + "A", key: nil, fields: fields)
                await recorder.call(broker, .get, path + "?a=b", key: nil, fields: fields)
            }
            await recorder.call(broker, .get, path, key: nil, fields: ["Sec-Purpose": "prefetch"])
            await broker.makeTenant("t1", #"{"provider": "duckduckgo", "client_id": "c1"}"#)
            #expect(await recorder.call(broker, .get, path, key: nil).status == 424)
        }
    }

    /// Logins that their users confirm.
    private func confirmedLogins() async throws {
        let granted = BrokerHarness.token("a", refresh: "r", scope: "r_usr", userID: 1)
        let steps: [ScriptedTransport.Step] = [
            .json(200, granted), .json(400, #"{"error": "invalid_grant"}"#), .failure(.insecureTarget),
            .json(503, "{}"),
        ]
        for (path, member) in Self.callbacks {
            let broker = try await BrokerHarness()
            await broker.makeTenant(
                "t1",
                #"""
                {"client_id": "c1", \#(member), "browser_binding": "confirm",
                 "allowed_return_uris": ["https://a.example/b"]}
                """#)
            await recorder.call(
                broker, .post, "/login/initialize", tenant: "t1", body: #"{"redirect_uri": "https://a.example/b"}"#)
            for way in Way.allCases {
                let login = await broker.beginLogin()
                await bring(broker, "code=c&state=\(login.state)", way, at: path, key: BrokerHarness.adminKey)
            }
            for (step, accept) in steps.flatMap({ step in
                [BrokerHarness.browserAccept, "*/*", "application/json"].map { (step, $0) }
            }) {
                broker.transport.always(step)
                for body in ["{}", #"{"return_to": "https://a.example/b?c=d"}"#] {
                    for decision in ["continue", "cancel"] {
                        let login = await broker.beginLogin(body: body)
                        let way: Way = accept == "*/*" ? .other : .page
                        let brought = await bring(
                            broker, "code=c&state=\(login.state)", way, at: path, key: BrokerHarness.adminKey)
                        let cookie = try #require(BrokerHarness.cookie(brought))
                        let confirm = "/login/confirm/t1/\(login.id)"
                        await recorder.call(broker, .get, confirm, key: nil, fields: ["Accept": accept])
                        await recorder.call(
                            broker, .get, confirm, key: nil, fields: ["Accept": accept, "Cookie": cookie])
                        await recorder.call(broker, .get, confirm + "?x=1", key: nil, fields: ["Accept": accept])
                        var fields = Self.button
                        fields.append("Accept", accept)
                        fields.append("Cookie", cookie)
                        await recorder.call(broker, .post, confirm, key: nil, body: "", fields: fields)
                        for type in [Self.form, "text/plain"] {
                            await recorder.call(
                                broker, .post, confirm, key: nil, body: "decision=\(decision)",
                                fields: ["Accept": accept, "Content-Type": type])
                        }
                        for _ in 0..<2 {
                            await recorder.call(
                                broker, .post, confirm, key: nil, body: "decision=\(decision)", fields: fields)
                        }
                        await recorder.call(broker, .get, confirm, key: nil, fields: ["Accept": accept])
                        await recorder.call(broker, .get, "/login/ended/t1/\(login.id)", key: nil)
                    }
                }
            }
            let login = await broker.beginLogin()
            broker.time.advance(by: .seconds(600))
            for accept in [BrokerHarness.browserAccept, "application/json"] {
                var fields = Self.button
                fields.append("Accept", accept)
                await recorder.call(
                    broker, .post, "/login/confirm/t1/\(login.id)", key: nil, body: "decision=cancel", fields: fields)
                await recorder.call(
                    broker, .get, "/login/confirm/t1/\(login.id)", key: nil, fields: ["Accept": accept])
            }
        }
    }

    private func pagesOfEnds() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let codes: [BrokerError.Code] = [
            .authorizationError, .invalidRequest, .forbidden, .conflict, .gone, .illegalConfiguration,
            .tokenResponseError, .unexpectedError, .providerUntrusted, .retryableError, .networkError,
            .storageUnavailable, .internalError,
        ]
        for code in codes {
            let unknown = await recorder.call(
                broker, .get, "/login/ended/\(code.rawValue)?reference=0123abcd", key: nil)
            #expect(unknown.status == code.status.code)
            let known = await recorder.call(
                broker, .get, "/login/ended/t1/\(login.id)?error=\(code.rawValue)", key: nil)
            #expect(known.status == code.status.code)
        }
        await recorder.call(broker, .get, "/login/ended/t1/\(login.id)", key: nil)
        await recorder.call(broker, .get, "/login/ended/t1/\(login.id)?error=x", key: nil)
        await recorder.call(broker, .get, "/login/ended/unheard_of", key: nil)
        await recorder.call(broker, .get, "/login/ended/gone?x=1", key: nil)
    }

    private func progress() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        await recorder.call(broker, .get, "/login/\(login.id)?wait=90", tenant: "t1")
        broker.time.advance(by: .seconds(600))
        await recorder.call(broker, .get, "/login/\(login.id)", tenant: "t1")
        await recorder.call(broker, .get, "/login/\(login.id)?wait=-1", tenant: "t1")
    }
}
