internal import BrokerCore
internal import BrokerTesting
internal import CredentialStore
internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import Reactor
internal import Testing
internal import TokenBroker

/// Brings every answer about that openapi.yaml describes, and holds each against its description.
@Suite struct `Contract of answers` {
    private let recorder = ExchangeRecorder()

    @Test func `every answer is as described, and every described answer occurs`() async throws {
        try await strangersAndBadRequests()
        try await strangersThatInsist()
        try await failingStore(.unavailable)
        try await failingStore(.damaged("a record"))
        try await refusals()
        try await operation()
        try await tenantsAndKeys()
        try await beginningLogins()
        try await endingLogins()
        try await endingUnusableLogins()
        try await boundLogins()
        try await confirmedLogins()
        try await pagesOfEnds()
        try await progress()
        try await deviceLogins()
        try await credentials()
        try await failingRenewals()
        try await settingAndRemovingCredentials()
        try await events()
        try await restoringCredentials()

        let faults = try await recorder.faults()
        #expect(faults == [])
    }

    // MARK: Every operation

    /// A call that would succeed if what it is about existed.
    private struct Sample {
        let method: Method
        let target: String
        var body: String?
        var fields: Fields = [:]
    }

    /// One sample of each operation.
    private static func samples(_ broker: BrokerHarness) -> [Sample] {
        Service.operations(of: broker.broker).map { operation in
            let target = operation.path.replacing("{tenant}", with: "t9")
                .replacing("{login_id}", with: String(repeating: "A", count: 22))
                .replacing("{device_code}", with: String(repeating: "A", count: 43))
                .replacing("{id}", with: String(repeating: "0", count: 24)).replacing("{code}", with: "gone")
            var sample = Sample(method: Method(operation.method), target: target)
            switch "\(operation.method) \(operation.path)" {
            case "PUT /tenants/{tenant}": sample.body = #"{"client_id": "c1"}"#
            case "POST /tenants/{tenant}/check": sample.body = "{}"
            case "POST /tenants/{tenant}/api-keys": sample.body = #"{"name": "k", "permissions": ["login"]}"#
            case "POST /login/initialize", "POST /device": sample.body = "{}"
            case "POST /login/finalize": sample.body = #"{"login_response_query": "code=c&state=s"}"#
            case "PUT /credentials": sample.body = #"{"credentials": {"client_id": "c1", "token": "t"}}"#
            case "POST /credentials/restore": sample.body = "{}"
            case "POST /login/start/{tenant}/{login_id}", "POST /login/confirm/{tenant}/{login_id}":
                sample.body = "decision=continue"
                sample.fields = Self.button
            case "POST /login/callback", "POST /login/callback/{tenant}":
                sample.body = "code=c&state=s"
                sample.fields = ["Content-Type": "application/x-www-form-urlencoded"]
            case "GET /login/callback", "GET /login/callback/{tenant}":
                return Sample(method: .get, target: target + "?code=c&state=s")
            default: break
            }
            return sample
        }
    }

    private func strangersAndBadRequests() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let eventsKey = await broker.makeKey("t1", #"{"name": "k", "permissions": ["events"]}"#)
        for sample in Self.samples(broker) {
            await recorder.call(
                broker, sample.method, sample.target, key: eventsKey, body: sample.body, fields: sample.fields)
            let answer = await recorder.call(
                broker, sample.method, sample.target, key: nil, body: sample.body, fields: sample.fields)
            if answer.status != 401 { continue }
            await recorder.call(broker, sample.method, sample.target + "?misspelt=1", tenant: "t1", body: sample.body)
            if sample.method != .put || sample.target != "/tenants/t9" {
                let answer = await recorder.call(
                    broker, sample.method, sample.target, tenant: "nobody", body: sample.body)
                #expect(answer.status == 404 || sample.target == "/tenants")
            }
        }
        for sample in Self.samples(broker) where sample.body != nil {
            await recorder.call(
                broker, sample.method, sample.target, tenant: "t1", body: sample.body,
                fields: ["Content-Type": "text/plain"])
            recorder.refuse(broker, sample.method, sample.target, .contentTooLarge)
        }
        await recorder.call(broker, .put, "/tenants/%FF", body: #"{"client_id": "c1"}"#)
        await recorder.call(broker, .put, "/tenants/No", body: #"{"client_id": "c1"}"#)
        for path in ["start/%FF/x", "confirm/%FF/x", "ended/%FF/x", "ended/%FF", "callback/%FF"] {
            await recorder.call(broker, .get, "/login/\(path)", key: nil)
            if !path.hasPrefix("ended") { await recorder.call(broker, .post, "/login/\(path)", key: nil) }
        }
        await recorder.call(broker, .put, "/credentials", tenant: "t1", body: #"{"a": 1, "a": 2}"#)
        await recorder.call(broker, .put, "/credentials", tenant: "t1", body: "[")
        await recorder.call(broker, .put, "/credentials", tenant: "t1", body: "[]")
        await recorder.call(broker, .get, "/credentials", tenant: "t1", fields: ["Prefer": "wait=soon"])
        await recorder.call(broker, .get, "/credentials")
        let key = await broker.makeKey()
        await recorder.call(broker, .get, "/credentials", key: key, tenant: "t2")
    }

    private func strangersThatInsist() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        let source = NetworkSource(try #require(NetworkAddress(parsing: Array("192.0.2.1".utf8)[...])))
        for _ in 0..<20 { await recorder.call(broker, .get, "/tenants", key: nil, source: source) }
        let waiting = (0..<20).map { _ in
            Task { await broker.call(.get, "/tenants", key: nil, source: source).status }
        }
        await broker.time.sleepers(of: (1...20).map { .milliseconds(50 * $0) })
        for sample in Self.samples(broker) {
            await recorder.call(
                broker, sample.method, sample.target, key: nil, body: sample.body, fields: sample.fields, source: source
            )
        }
        broker.time.advance(by: .seconds(1))
        for task in waiting { #expect(await task.value == 401) }
    }

    private func failingStore(_ error: StoreError) async throws {
        let store = FailingRecordStore()
        let broker = try await BrokerHarness(store: store)
        store.fail(error)
        for sample in Self.samples(broker) {
            await recorder.call(
                broker, sample.method, sample.target, tenant: "t9", body: sample.body, fields: sample.fields)
        }
    }

    /// What the server refuses, and what no operation is there for.
    private func refusals() async throws {
        let broker = try await BrokerHarness()
        for status in Set(RequestFault.allCases.map(\.status)).union([.requestTimeout, .serviceUnavailable]) {
            recorder.refuse(broker, .get, "/credentials/unknown", status)
        }
        await recorder.call(broker, .get, "/nothing")
        await recorder.call(broker, .get, "/")
        await recorder.call(broker, Method("PATCH"), "/credentials")
        await recorder.call(broker, .get, "/login/initialize")
        await recorder.call(broker, .head, "/login/callback", key: nil)
        await recorder.call(broker, .head, "/login/start/t1/x", key: nil)
    }

    private func operation() async throws {
        let broker = try await BrokerHarness()
        for path in ["/", "/livez", "/healthz", "/readyz", "/metrics", "/openapi.yaml"] {
            await recorder.call(broker, .get, path, key: nil)
            await recorder.call(broker, .get, path + "?verbose=true", key: nil)
        }
        await recorder.call(broker, .get, "/", key: nil, fields: ["Accept": "application/json"])
        await recorder.call(broker, .get, "/login/start/t1/x?utm=1", key: nil)
        broker.broker.health.beginDraining()
        await recorder.call(broker, .get, "/readyz", key: nil)
    }

    // MARK: Tenants and keys

    private func tenantsAndKeys() async throws {
        let broker = try await BrokerHarness()
        await recorder.call(broker, .put, "/tenants/t1", body: #"{"client_id": "c1"}"#)
        await recorder.call(
            broker, .put, "/tenants/t1",
            body: #"""
                {"provider": "tidal", "client_id": "c1", "client_secret": "s", "client_unique_key": "u",
                 "scopes": ["r_usr", "w_usr"], "login_service_base_uri": "https://login.example",
                 "auth_service_base_uri": "https://auth.example/v1", "certificate_pinning": true,
                 "pinned_certificates": ["sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI="],
                 "issuer": "https://auth.example",
                 "endpoints": {"authorization": "https://a.example/", "token": "https://t.example/",
                               "device_authorization": "https://d.example/", "revocation": "https://r.example/",
                               "jwks": "https://j.example/"},
                 "previous_issuers": ["https://old.example"],
                 "previous_token_endpoints": ["https://old.example/t"],
                 "token_endpoint_auth_method": "client_secret_basic",
                 "allowed_redirect_uris": ["app:/callback", "https://app.example/callback"],
                 "allowed_return_uris": ["https://app.example/done"], "browser_binding": "confirm",
                 "callback_uri": "per_tenant", "display_name": "Acme",
                 "session_ending_answers": [{"status": 400}, {"status": 403, "error": "gone"},
                                            {"status": 499, "error": null}],
                 "refresh_lead_time": 86400, "proactive_refresh": 86400, "default_lifetime": "never"}
                """#)
        await recorder.call(
            broker, .put, "/tenants/t2",
            body: #"""
                {"provider": null, "client_id": "c1", "client_secret": null, "client_unique_key": null,
                 "scopes": null, "login_service_base_uri": null, "certificate_pinning": null,
                 "pinned_certificates": null, "issuer": null, "endpoints": null,
                 "token_endpoint_auth_method": null, "allowed_redirect_uris": null, "allowed_return_uris": null,
                 "browser_binding": null, "callback_uri": null, "display_name": null,
                 "session_ending_answers": null, "refresh_lead_time": null, "default_lifetime": null,
                 "proactive_refresh": null, "previous_issuers": null, "previous_token_endpoints": null}
                """#)
        await recorder.call(
            broker, .put, "/tenants/t2",
            body: #"""
                {"client_id": "c1", "session_ending_answers": [{"status": 429}], "refresh_lead_time": 86401,
                 "proactive_refresh": 59, "default_lifetime": 0}
                """#)
        await recorder.call(broker, .put, "/tenants/t2", body: #"{"client_id": "c1", "default_lifetime": 60}"#)
        await recorder.call(broker, .post, "/tenants/t1/check")
        await recorder.call(broker, .post, "/tenants/t2/check", body: "{}")
        await recorder.call(broker, .get, "/tenants/t1")
        let page = await recorder.call(broker, .get, "/tenants?limit=1")
        let cursor = try #require(page.json["next_cursor"]?.text)
        await recorder.call(broker, .get, "/tenants?limit=1&cursor=\(cursor)")

        let key = await recorder.call(
            broker, .post, "/tenants/t1/api-keys",
            body: #"""
                {"name": "k", "permissions": ["login", "login", "credentials:read", "credentials:write", "events"],
                 "storage_keys": ["b", "a", "a"], "expires_in": 60}
                """#)
        await recorder.call(
            broker, .post, "/tenants/t1/api-keys",
            body: #"{"name": "k", "permissions": ["login"], "storage_keys": null, "expires_in": null}"#)
        let id = try #require(key.json["id"]?.text)
        await recorder.call(broker, .get, "/tenants/t1/api-keys?limit=1")
        await recorder.call(broker, .get, "/tenants/t1/api-keys")
        await recorder.call(broker, .get, "/tenants/t1/api-keys/\(id)")
        await recorder.call(broker, .delete, "/tenants/t1/api-keys/\(id)")
        await recorder.call(broker, .get, "/tenants/t1/api-keys/\(id)")
        await recorder.call(broker, .delete, "/tenants/t1")
    }

    // MARK: Logins

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
    private static let button: Fields = ["Content-Type": form, "Sec-Fetch-Site": "same-origin"]

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

    private func deviceLogins() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let bodies: [String?] = [
            nil, #"{"storage_key": "a"}"#, #"{"storage_key": null}"#, #"{"storage_key": "no key"}"#,
        ]
        for body in bodies { await recorder.call(broker, .post, "/device", tenant: "t1", body: body) }
        script.setCodes(
            #"""
            {"deviceCode": "d", "userCode": "U", "verificationUri": "p.example", "verificationUriComplete": null,
             "expiresIn": 60, "interval": 5}
            """#)
        await recorder.call(broker, .post, "/device", tenant: "t1")
        let outcomes: [(ScriptedTransport.Step, String)] = [
            (DeviceScript.granted(), "completed"), (.json(400, #"{"error": "access_denied"}"#), "failed"),
            (.json(403, "{}"), "failed"), (.json(400, #"{"error": "expired_token"}"#), "expired"),
        ]
        for (step, status) in outcomes {
            let (broker, script) = try await BrokerHarness.devices()
            let begun = await recorder.call(broker, .post, "/device", tenant: "t1", body: "{}")
            let handle = try #require(begun.json["device_code"]?.text)
            await recorder.call(broker, .get, "/device/\(handle)", tenant: "t1")
            await recorder.call(broker, .get, "/device/\(handle)?wait=-1", tenant: "t1")
            script.enqueue(step)
            broker.time.advance(by: .seconds(5))
            let ended = await recorder.call(broker, .get, "/device/\(handle)?wait=90", tenant: "t1")
            #expect(ended.json["status"]?.string == status)
            await recorder.call(broker, .delete, "/device/\(handle)", tenant: "t1")
            await recorder.call(broker, .get, "/device/\(handle)", tenant: "t1")
        }
        let failures: [(ScriptedTransport.Step, BrokerError.Code)] = [
            (.json(400, #"{"error": "invalid_client"}"#), .unexpectedError), (.json(200, "{}"), .tokenResponseError),
            (.failure(.untrusted(.pin)), .providerUntrusted), (.failure(.insecureTarget), .illegalConfiguration),
            (.failure(.connectFailed), .networkError), (.json(503, "{}"), .retryableError),
        ]
        for (step, code) in failures {
            let broker = try await BrokerHarness()
            await broker.makeTenant()
            broker.transport.always(step)
            #expect(await recorder.call(broker, .post, "/device", tenant: "t1").code == code.rawValue)
        }
        await broker.makeTenant(
            "t2",
            #"""
            {"client_id": "c1", "provider": "oidc",
             "endpoints": {"authorization": "https://p.example/a", "token": "https://p.example/t"}}
            """#)
        let unknown = await recorder.call(broker, .post, "/device", tenant: "t2")
        #expect(unknown.code == "illegal_configuration")
    }

    // MARK: Credentials

    private func credentials() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_unique_key": "u", "scopes": ["r_usr"]}"#)
        await recorder.call(broker, .get, "/credentials", tenant: "t1")
        await recorder.call(broker, .get, "/credentials?policy=local", tenant: "t1")
        await recorder.call(broker, .get, "/credentials?level=user", tenant: "t1")
        await recorder.call(broker, .get, "/credentials/status", tenant: "t1")
        await broker.logIn()
        let user = await recorder.call(
            broker, .get,
            "/credentials?storage_key=default&policy=create_if_needed&min_ttl=0&level=user&api_error_sub_status=1",
            tenant: "t1")
        let tag = try #require(user.fields["ETag"]?.text)
        await recorder.call(broker, .get, "/credentials", tenant: "t1", fields: ["If-None-Match": tag])
        await recorder.call(broker, .get, "/credentials/status?storage_key=default", tenant: "t1")

        await broker.makeTenant("t2", #"{"client_id": "c1", "client_secret": "s"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client")))
        let client = await recorder.call(broker, .get, "/credentials", tenant: "t2")
        #expect(client.json["level"]?.string == "client")

        // Another address is configured than the one that the user logged in at.
        await broker.makeTenant(
            "t1",
            #"""
            {"client_id": "c1", "client_secret": "s", "auth_service_base_uri": "https://auth.example",
             "certificate_pinning": false}
            """#)
        let status = await recorder.call(broker, .get, "/credentials/status", tenant: "t1")
        #expect(status.differences?.last == "token_endpoint")
        broker.time.advance(by: .seconds(3600))
        let kept = await recorder.call(broker, .get, "/credentials", tenant: "t1")
        #expect(kept.code == "illegal_configuration")
    }

    private func failingRenewals() async throws {
        let steps: [(ScriptedTransport.Step, BrokerError.Code)] = [
            (.json(400, #"{"error": "invalid_scope"}"#), .unexpectedError),
            (.json(200, "{}"), .tokenResponseError),
            (.failure(.untrusted(.hostName)), .providerUntrusted),
            (.failure(.forbiddenAddress), .illegalConfiguration),
            (.failure(.connectFailed), .networkError),
            (.json(429, "{}", fields: ["Retry-After": "30"]), .retryableError),
        ]
        for (step, code) in steps {
            let broker = try await BrokerHarness()
            await broker.makeTenant()
            await broker.logIn()
            broker.transport.always(step)
            let answer = await recorder.call(
                broker, .get, "/credentials?policy=local_force_refresh", tenant: "t1")
            #expect(answer.code == code.rawValue)
        }
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s"}"#)
        broker.transport.enqueue(.json(401, #"{"error": "invalid_client", "sub_status": 6002}"#))
        let refused = await recorder.call(broker, .get, "/credentials", tenant: "t1")
        #expect(refused.code == "illegal_configuration")
        broker.time.advance(by: .seconds(30))

        // The refusal is remembered for half a minute.
        broker.time.advance(by: .seconds(31))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("late"))))
        let late = await recorder.call(broker, .get, "/credentials", tenant: "t1", fields: ["Prefer": "wait=1"])
        #expect(late.code == "retryable_error")
        gate.open()
        try await tokensThatCannotBeRenewed()
    }

    private func tokensThatCannotBeRenewed() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        await broker.set("a1", refresh: "r1", lifetime: .seconds(40))
        broker.transport.enqueue(.json(401, #"{"error": "invalid_client"}"#))
        let degraded = await recorder.call(broker, .get, "/credentials", tenant: "t1")
        #expect(degraded.json["degraded"] != nil)
        broker.time.advance(by: .seconds(40))
        broker.transport.enqueue(
            .json(401, #"{"error": "invalid_client"}"#), .json(400, #"{"error": "invalid_grant"}"#))
        #expect(await recorder.call(broker, .get, "/credentials", tenant: "t1").code == "illegal_configuration")
        broker.time.advance(by: .seconds(30))
        #expect(await recorder.call(broker, .get, "/credentials", tenant: "t1").json["session"] != nil)
        #expect(await recorder.call(broker, .get, "/credentials?level=user", tenant: "t1").json["session"] != nil)
        #expect(await recorder.call(broker, .get, "/credentials/status", tenant: "t1").json["state"] != nil)
    }

    private func settingAndRemovingCredentials() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "scopes": ["r_usr"], "endpoints": {"revocation": "https://r.example/"}}"#)
        await broker.makeTenant("t2")
        let full = #"""
            {"storage_key": "a", "refresh_token": "r",
             "credentials": {"level": "user", "client_id": "c1", "requested_scopes": ["r_usr"],
                             "client_unique_key": null, "granted_scopes": ["r_usr"], "user_id": "1",
                             "expires": "2026-11-21T10:00:00.5+01:00", "expires_in": 3600, "token_type": "bearer",
                             "token": "t"}}
            """#
        await recorder.call(broker, .put, "/credentials", tenant: "t1", body: full)
        await recorder.call(
            broker, .put, "/credentials", tenant: "t1",
            body: #"""
                {"storage_key": null, "refresh_token": null,
                 "credentials": {"level": null, "client_id": "c1", "requested_scopes": null, "granted_scopes": null,
                                 "user_id": null, "expires": null, "expires_in": null, "token_type": null,
                                 "token": "t"}}
                """#)
        await recorder.call(
            broker, .put, "/credentials", tenant: "t1", body: #"{"credentials": {"client_id": "x", "token": "t"}}"#)
        await recorder.call(broker, .get, "/credentials?storage_key=a", tenant: "t1")
        await recorder.call(broker, .get, "/credentials/status", tenant: "t1")

        broker.transport.enqueue(.json(200, ""), .json(503, ""))
        for (tenant, expected) in [("t1", "revoked"), ("t1", "failed"), ("t2", "unsupported")] {
            _ = await broker.call(
                .put, "/credentials", tenant: tenant,
                body: #"{"refresh_token": "r", "credentials": {"client_id": "c1", "token": "t"}}"#)
            let answer = await recorder.call(broker, .delete, "/credentials?revoke=true", tenant: tenant)
            #expect(answer.fields["Token-Revocation"] == expected)
        }
        let again = await recorder.call(
            broker, .delete, "/credentials?storage_key=default&revoke=true", tenant: "t1")
        #expect(again.fields["Token-Revocation"] == nil)
    }

    // MARK: Events

    private func events() async throws {
        let broker = try await BrokerHarness { $0.listenersPerTenant = 1 }
        await broker.makeTenant()
        let key = await broker.makeKey("t1", #"{"name": "k", "permissions": ["login"]}"#)
        await recorder.call(broker, .get, "/events", key: key)
        await recorder.call(broker, .get, "/events")
        await recorder.call(broker, .get, "/events", tenant: "t1", fields: ["Last-Event-ID": "1-0"])
        await recorder.call(broker, .get, "/events", tenant: "t1", fields: ["Last-Event-ID": "later"])
        await recorder.call(broker, .get, "/events?since=1-0", tenant: "t1")
        broker.time.holdSleeps()
        let listener = await broker.listen(tenant: "t1")
        let refused = await recorder.call(broker, .get, "/events", tenant: "t1")
        #expect(refused.code == "too_many_requests")
        await listener.close()
    }

    private func restoringCredentials() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["r_usr"]}"#)
        for (storageKey, body) in [
            ("default", nil), ("default", #"{"storage_key": null}"#), ("a", #"{"storage_key": "a"}"#),
        ] {
            await broker.set("t", refresh: "r", lifetime: .zero, storageKey: storageKey)
            broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
            await recorder.call(broker, .get, "/credentials?storage_key=\(storageKey)", tenant: "t1")
            for expected in [200, 409] {
                let answer = await recorder.call(broker, .post, "/credentials/restore", tenant: "t1", body: body)
                #expect(answer.status == expected)
            }
            await recorder.call(broker, .delete, "/credentials?storage_key=\(storageKey)", tenant: "t1")
            let gone = await recorder.call(broker, .post, "/credentials/restore", tenant: "t1", body: body)
            #expect(gone.code == "not_found")
        }
        await recorder.call(broker, .post, "/credentials/restore", tenant: "t1", body: #"{"storage_key": "a b"}"#)
        for body in [#"{"storage_keys": ["default", "other"]}"#, #"{"ended_since": "2026-11-21T09:00:00Z"}"#] {
            await recorder.call(broker, .post, "/credentials/restore", tenant: "t1", body: body)
        }
        await recorder.call(broker, .get, "/credentials/list?limit=1&state=active", tenant: "t1")
        await recorder.call(broker, .get, "/credentials/list?state=lost", tenant: "t1")

        await broker.set("t", refresh: "r")
        await broker.makeTenant("t1", #"{"client_id": "c2", "client_secret": "s", "client_unique_key": "u"}"#)
        let status = await recorder.call(broker, .get, "/credentials/status", tenant: "t1")
        #expect(status.differences?.count == 4)
        broker.transport.always(.json(400, #"{"error": "unsupported_grant_type"}"#))
        let upgrade = await recorder.call(broker, .get, "/credentials", tenant: "t1")
        #expect(upgrade.code == "retryable_error")
    }
}
