import BrokerCore
import BrokerTesting
import CredentialStore
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Reactor
import Testing
import TokenBroker

/// Brings about the answers of `/credentials…` that openapi.yaml describes.
struct ContractCredentials {
    let recorder: ExchangeRecorder

    func run() async throws {
        try await credentials()
        try await failingRenewals()
        try await settingAndRemovingCredentials()
        try await restoringCredentials()
        try await claims()
        try await accounts()
    }

    private func claims() async throws {
        let provider = SigningProvider()
        let broker = try await BrokerHarness()
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        await broker.makeTenant(
            "t1",
            #"""
            {"client_id": "c1", \#(SigningProvider.members), "token_verification":
             {"access_token": {"audience": "api", "algorithms": ["ES256"], "leeway": 30}}}
            """#)
        await recorder.call(broker, .get, "/tenants/t1")
        await recorder.call(broker, .get, "/credentials/claims", tenant: "t1")
        let token = provider.signed("read", audience: "api", at: broker.time.now)
        await broker.logIn(token: BrokerHarness.token(token, refresh: "r1"))
        await recorder.call(broker, .get, "/credentials/claims?storage_key=default", tenant: "t1")
        await broker.makeTenant("t2")
        await broker.set("opaque", tenant: "t2")
        await recorder.call(broker, .get, "/credentials/claims", tenant: "t2")
    }

    private func accounts() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        let path = "/credentials/activate"
        provider.setAccount("alice", to: .active)
        let body = #"{"storage_key": null, "platform_signature": "alice", "source": null}"#
        #expect(await recorder.call(broker, .post, path, tenant: "t1", body: body).status == 200)
        let full = #"{"storage_key": "k", "platform_signature": "alice", "source": "google_play_store"}"#
        #expect(await recorder.call(broker, .post, path, tenant: "t1", body: full).status == 200)
        #expect(await recorder.call(broker, .post, path, tenant: "t1", body: "{}").status == 400)
        #expect(await recorder.call(broker, .post, path, tenant: "t2", body: body).status == 404)
        provider.setAccount("alice", to: .suspended)
        #expect(await recorder.call(broker, .post, path, tenant: "t1", body: body).code == "unexpected_error")
        provider.setAccount("alice", to: .removed)
        #expect(await recorder.call(broker, .post, path, tenant: "t1", body: body).code == "unknown_account")
        provider.script(Fault(.authorize, status: .internalServerError))
        #expect(await recorder.call(broker, .post, path, tenant: "t1", body: body).code == "retryable_error")
        await broker.makeTenant("t3")
        #expect(await recorder.call(broker, .post, path, tenant: "t3", body: body).code == "illegal_configuration")

        let create = "/credentials?policy=create_if_needed&storage_key=new"
        #expect(await recorder.call(broker, .get, create, tenant: "t1").status == 200)
        let keyOfUser = "u-" + String(repeating: "A", count: 43)
        let another = "/credentials?policy=create_if_needed&storage_key=\(keyOfUser)"
        #expect(await recorder.call(broker, .get, another, tenant: "t1").code == "illegal_argument")
        provider.script(
            Fault(.token, status: .badRequest, body: Array(#"{"error":"invalid_token_request","error_code":2}"#.utf8)))
        let refresh = "/credentials?policy=local_force_refresh&storage_key=new"
        #expect(await recorder.call(broker, .get, refresh, tenant: "t1").json["error_code"]?.text == "reused")
        #expect(await recorder.call(broker, .get, refresh, tenant: "t1").code == "missing_token_container")
        await recorder.call(broker, .get, "/tenants/t1")
    }

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

        await broker.set("t", refresh: "r")
        broker.time.advance(by: .seconds(1))
        let body = #"{"refresh_token": "r", "credentials": {"client_id": "c1", "token": "t"}}"#
        for (method, body) in [(Method.put, body), (.delete, nil)] {
            let late = await recorder.call(
                broker, method, "/credentials", tenant: "t1", body: body, waited: .seconds(20))
            #expect(late.status == 409)
        }
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
        for body in [
            #"{"storage_keys": ["default", "other"]}"#, #"{"ended_since": "2026-11-21T09:00:00Z"}"#,
            #"{"ended_since": "2026-11-21T09:00:00Z", "ended_until": "2026-11-21T10:00:00Z", "dry_run": true}"#,
            #"{"dry_run": true, "verify": true}"#, #"{"ended_until": "2026-11-21T10:00:00Z"}"#,
        ] {
            await recorder.call(broker, .post, "/credentials/restore", tenant: "t1", body: body)
        }
        await broker.set("t", refresh: "r", lifetime: .zero, members: #""level": "user", "user_id": "42", "#)
        let refused = ScriptedTransport.Step.json(400, #"{"error": "invalid_grant"}"#)
        broker.transport.enqueue(
            refused, refused, .json(200, BrokerHarness.token("t1", userID: 43)),
            .json(200, BrokerHarness.token("t2", userID: 42)))
        await recorder.call(broker, .get, "/credentials", tenant: "t1")
        await recorder.call(broker, .get, "/credentials/list?state=quarantined", tenant: "t1")
        for (body, status) in [
            (#"{"dry_run": true}"#, 200), (#"{"verify": true}"#, 424), (#"{"verify": true}"#, 502),
            (#"{"storage_keys": ["default"], "verify": true}"#, 200),
        ] {
            let answer = await recorder.call(broker, .post, "/credentials/restore", tenant: "t1", body: body)
            #expect(answer.status == status)
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
