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
        try await ContractProviders(recorder: recorder).run()
        try await ContractLogins(recorder: recorder).run()
        try await ContractPushedLogins(recorder: recorder).run()
        try await deviceLogins()
        try await ContractCredentials(recorder: recorder).run()
        try await ContractTransfers(recorder: recorder).run()
        try await ContractAppToApp(recorder: recorder).run()
        try await events()
        try await ContractApps(recorder: recorder).run()

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
                .replacing("{client_id}", with: "app")
                .replacing("{session_id}", with: ContractApps.unknownSession).replacing("{key_id}", with: "unknown")
                .replacing("{link}", with: "AAAA").replacing("{name}", with: "nobody")
                .replacing("{id}", with: String(repeating: "0", count: 24)).replacing("{code}", with: "gone")
            var sample = Sample(method: Method(operation.method), target: target)
            switch "\(operation.method) \(operation.path)" {
            case "PUT /tenants/{tenant}/clients/{client_id}":
                sample.body = #"{"redirect_uris": ["https://app.example/"]}"#
            case "POST /oauth2/challenge": sample.body = #"{"purpose": "app2app_request"}"#
            case "POST /oauth2/token", "POST /oauth2/revoke":
                sample.body = "grant_type=refresh_token&token=t"
                sample.fields = ["Content-Type": "application/x-www-form-urlencoded"]
            case "PUT /providers/{name}": sample.body = ContractProviders.profile
            case "PUT /tenants/{tenant}": sample.body = #"{"client_id": "c1"}"#
            case "PATCH /tenants/{tenant}": sample.body = #"{"display_name": "Acme"}"#
            case "POST /tenants/{tenant}/check": sample.body = "{}"
            case "POST /tenants/{tenant}/api-keys/{id}/rotate": sample.body = #"{"overlap": 60}"#
            case "POST /tenants/{tenant}/api-keys": sample.body = #"{"name": "k", "permissions": ["login"]}"#
            case "POST /login/initialize", "POST /device": sample.body = "{}"
            case "POST /login/finalize": sample.body = #"{"login_response_query": "code=c&state=s"}"#
            case "PUT /credentials": sample.body = #"{"credentials": {"client_id": "c1", "token": "t"}}"#
            case "POST /credentials/restore": sample.body = "{}"
            case "POST /credentials/export": sample.body = ContractTransfers.order
            case "POST /credentials/activate": sample.body = #"{"platform_signature": "s"}"#
            case "POST /app2app/requests", "POST /app2app/approve", "POST /app2app/reject":
                sample.body =
                    #"{"uri": "https://a.example/x?client_id=b&redirect_uri=https%3A%2F%2Fb.example%2Fr&code_challenge=c"}"#
            case "POST /login/start/{tenant}/{login_id}", "POST /login/confirm/{tenant}/{login_id}":
                sample.body = "decision=continue"
                sample.fields = ContractLogins.button
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
                #expect(answer.status == 404 || ["/tenants", "/providers"].contains { sample.target.hasPrefix($0) })
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
        for path in ["start/%FF/x", "confirm/%FF/x", "ended/%FF/x", "ended/%FF", "callback/%FF", "reconnect/%FF/x"] {
            await recorder.call(broker, .get, "/login/\(path)", key: nil)
            if !path.hasPrefix("ended"), !path.hasPrefix("reconnect") {
                await recorder.call(broker, .post, "/login/\(path)", key: nil)
            }
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
        // What an API key may read without a tenant.
        for target in ["/providers", "/providers/slack"] {
            await recorder.call(broker, .get, target, key: "tb_" + String(repeating: "A", count: 43))
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
        await recorder.call(broker, .head, "/login/reconnect/t1/x", key: nil)
    }

    private func operation() async throws {
        let broker = try await BrokerHarness()
        for path in ["/", "/livez", "/healthz", "/readyz", "/metrics", "/openapi.yaml", "/docs"] {
            await recorder.call(broker, .get, path, key: nil)
            await recorder.call(broker, .get, path + "?verbose=true", key: nil)
        }
        await recorder.call(broker, .get, "/", key: nil, fields: ["Accept": "application/json"])
        await recorder.call(broker, .get, "/login/start/t1/x?utm=1", key: nil)
        await recorder.call(broker, .get, "/login/reconnect/t1/x?utm=1", key: nil)
        broker.broker.health.beginDraining()
        await recorder.call(broker, .get, "/readyz", key: nil)
    }

    // MARK: Tenants and keys

    private func tenantsAndKeys() async throws {
        let broker = try await BrokerHarness()
        await recorder.call(broker, .put, "/tenants/t1", body: #"{"client_id": "c1"}"#)
        await recorder.call(broker, .get, "/providers/slack")
        await recorder.call(broker, .put, "/tenants/t1", body: #"{"client_id": "c1"}"#, fields: ["If-Match": #""1""#])
        await recorder.call(broker, .patch, "/tenants/t1", body: "{}", fields: ["If-Match": #""1""#])
        await recorder.call(
            broker, .put, "/tenants/t1", body: #"{"client_id": "c1"}"#, fields: ["If-None-Match": "*"])
        await recorder.call(
            broker, .patch, "/tenants/t1", body: #"{"display_name": "Acme", "scopes": null}"#,
            fields: ["Content-Type": "application/merge-patch+json"])
        await recorder.call(
            broker, .put, "/tenants/t3",
            body: #"""
                {"provider": "slack", "client_id": "c1", "client_secret": "s1", "pkce": "required",
                 "authorize_parameters": {"team": "T1"}, "token_parameters": {"a": "b"}, "refresh_parameters": {"a": "b"},
                 "scopes": ["chat:write"], "user_scopes": ["search:read"], "token_use": "user",
                 "endpoints": {"pushed_authorization_request": "https://p.example/"},
                 "pushed_authorization_requests": "required", "dpop": true,
                 "resource": ["https://api.example", "urn:x:y"], "audience": "api", "nonce": "off",
                 "outbound_proxy": "http://u:p@proxy.example:3128",
                 "omit_empty": true, "repeat_scope": true, "client_credentials": "on",
                 "revocation": {"method": "DELETE", "format": "json", "token_in": "body", "token": "access",
                                "auth_method": "client_secret_basic", "parameter_names": {"token": "t"}},
                 "refresh_token_lifetime": 2592000, "consent_lifetime": 2592000, "idle_expiry": 2592000,
                 "no_refresh_while_valid": true,
                 "refresh": {"endpoint": "https://id.example/r", "method": "GET", "parameters": {"t": "{access_token}"}},
                 "exchange_for_long_lived": {"parameters": {"t": "{access_token}"}},
                 "wave": {"users": 3, "share": 0.25, "window": 30, "trial": 5}}
                """#)
        await recorder.call(
            broker, .put, "/tenants/t4",
            body:
                #"{"provider": "zendesk", "client_id": "c1", "client_secret": "s1", "parameters": {"subdomain": "acme"}}"#
        )
        await recorder.call(
            broker, .put, "/tenants/t5",
            body: #"""
                {"provider": "oidc", "client_id": "c1", "client_secrets": ["s1", "s2"], "issuer": "https://op.example",
                 "client_assertion_file": "/run/a", "private_key": \#(ClientKeys.jwk(ClientKeys.p256, keyID: "k1")),
                 "client_assertion_audience": "issuer", "token_endpoint_auth_method": "private_key_jwt"}
                """#)
        await recorder.call(
            broker, .put, "/tenants/t6",
            body:
                #"{"provider": "oidc", "client_id": "c1", "client_secret_file": "/s", "issuer": "https://op.example"}"#)
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
                 "refresh_lead_time": 86400, "proactive_refresh": 86400, "default_lifetime": "never",
                 "request_headers": {"X-Partner": "acme"},
                 "retry": {"tries": 3, "first_pause_ms": 200, "factor": 1.5, "longest_pause_ms": 250,
                           "rate_limit_retries": 2, "follow_retry_after": false}}
                """#)
        await recorder.call(
            broker, .put, "/tenants/t2",
            body: #"""
                {"provider": null, "client_id": "c1", "client_secret": null, "client_unique_key": null,
                 "scopes": null, "login_service_base_uri": null, "certificate_pinning": null,
                 "pinned_certificates": null, "issuer": null, "endpoints": null,
                 "token_endpoint_auth_method": null, "allowed_redirect_uris": null, "allowed_return_uris": null,
                 "browser_binding": null, "callback_uri": null, "display_name": null,
                 "session_ending_answers": null, "refresh_lead_time": null, "default_lifetime": null, "request_headers": null,
                 "retry": null,
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
                 "storage_keys": ["b", "a", "a", "team-a.*"], "expires_in": 60}
                """#)
        await recorder.call(
            broker, .post, "/tenants/t1/api-keys",
            body: #"{"name": "k", "permissions": ["login"], "storage_keys": null, "expires_in": null}"#)
        let id = try #require(key.json["id"]?.text)
        // The second one names the first.
        for _ in 0..<2 {
            await recorder.call(
                broker, .post, "/tenants/t1/api-keys",
                body: #"{"name": "k", "identity": "spiffe://example.org/a", "permissions": ["login"]}"#)
        }
        for tenants in [#"["t1", "t2", "t1"]"#, #"["t1"]"#, #"["t1", "t9"]"#, #"["t2"]"#, "null"] {
            await recorder.call(
                broker, .post, "/tenants/t1/api-keys",
                body: #"{"name": "k", "permissions": ["login"], "tenants": \#(tenants)}"#)
        }
        await recorder.call(broker, .get, "/tenants/t1/api-keys?limit=1")
        await recorder.call(broker, .get, "/tenants/t1/api-keys")
        await recorder.call(broker, .get, "/tenants/t1/api-keys/\(id)")
        for body in [nil, #"{"overlap": 3600, "replaces": 2, "expires_in": 60}"#, #"{"replaces": 9}"#] {
            await recorder.call(broker, .post, "/tenants/t1/api-keys/\(id)/rotate", body: body)
        }
        await recorder.call(broker, .get, "/tenants/t1/api-keys")
        await recorder.call(broker, .get, "/tenants/t1/api-keys/\(id)")
        await recorder.call(broker, .delete, "/tenants/t1/api-keys/\(id)")
        await recorder.call(broker, .get, "/tenants/t1/api-keys/\(id)")
        #expect(await recorder.call(broker, .delete, "/tenants/t1", fields: ["If-Match": #""1""#]).status == 412)
        await recorder.call(broker, .delete, "/tenants/t1")
    }

    // MARK: Device logins

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

    // MARK: Events

    private func events() async throws {
        let broker = try await BrokerHarness { $0.core.listenersPerTenant = 1 }
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
}
