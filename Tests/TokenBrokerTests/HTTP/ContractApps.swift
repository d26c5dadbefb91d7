import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// Brings the answers about that apps get, and operators that look after apps.
struct ContractApps {
    let recorder: ExchangeRecorder

    static let unknownSession = String(repeating: "A", count: 22) + "." + String(repeating: "A", count: 22)

    func run() async throws {
        try await registrations()
        try await logins()
        try await linkFiles()
        try await limits()
        try await failingStore()
    }

    private func registrations() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeTenant("t2")
        let path = "/tenants/t1/clients/app"
        await recorder.call(broker, .put, path, body: #"{"redirect_uris": ["https://app.example/cb"]}"#)
        let fingerprint = Array(repeating: "0A", count: 32).joined(separator: ":")
        await recorder.call(
            broker, .put, path,
            body: #"""
                {"name": "Player", "client_secret": "0123456789abcdef", "redirect_uris": ["https://app.example/cb", "com.example:/cb"],
                 "storage_key": "k", "refresh_token_rotation": false, "session_days": 3650, "session_idle_days": 1,
                 "x_app2app_enabled": true, "x_app2app_insecure_device_key_binding_enabled": true,
                 "x_app2app_biometric_protection_required": true, "biometric_enabled": true,
                 "android_apps": [{"package_name": "com.example.app", "sha256_cert_fingerprints": ["\#(fingerprint)"]}],
                 "apple_apps": ["ABCDE12345.com.example.app"]}
                """#)
        await recorder.call(
            broker, .put, "/tenants/t1/clients/other",
            body: #"""
                {"name": null, "client_secret": null, "redirect_uris": ["https://app.example/cb"], "storage_key": null,
                 "refresh_token_rotation": null, "session_days": null, "session_idle_days": null,
                 "x_app2app_enabled": null, "x_app2app_insecure_device_key_binding_enabled": null,
                 "x_app2app_biometric_protection_required": null, "biometric_enabled": null, "android_apps": null, "apple_apps": null}
                """#)
        await recorder.call(broker, .put, "/tenants/t2/clients/app", body: #"{"redirect_uris": ["https://a.example"]}"#)
        await recorder.call(broker, .put, path, body: #"{"redirect_uris": []}"#)
        await recorder.call(broker, .put, "/tenants/t1/clients/%40", body: #"{"redirect_uris": ["https://a.example"]}"#)
        await recorder.call(broker, .get, path)
        let page = await recorder.call(broker, .get, "/tenants/t1/clients?limit=1")
        let cursor = try #require(page.json["next_cursor"]?.text)
        await recorder.call(broker, .get, "/tenants/t1/clients?cursor=\(cursor)")
        await recorder.call(broker, .get, "/tenants/t1/clients/unknown")
        let ofUser = StorageKey(user: "ada", of: "https://op.example").description
        await recorder.call(
            broker, .put, path, body: #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "\#(ofUser)"}"#)
        await recorder.call(broker, .post, "/device", tenant: "t1", body: #"{"storage_key": "\#(ofUser)"}"#)
        await recorder.call(
            broker, .post, "/credentials/activate", tenant: "t1",
            body: #"{"storage_key": "\#(ofUser)", "platform_signature": "s"}"#)
        await recorder.call(broker, .delete, path)
        await recorder.call(broker, .delete, path)
    }

    private func logins() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient()
        await recorder.call(broker, .get, BrokerHarness.authorization(), key: nil)
        await recorder.call(broker, .get, BrokerHarness.authorization(["code_challenge": nil]), key: nil)
        await carriedLogins(broker)
        await recorder.call(broker, .get, BrokerHarness.authorization(["client_id": "unknown"]), key: nil)
        let code = await broker.appCode()
        let exchange =
            "grant_type=authorization_code&client_id=app&code=\(code)&redirect_uri=https%3A%2F%2Fapp.example%2Fcb"
            + "&code_verifier=\(BrokerHarness.appVerifier)"
        let begun = await post(broker, "/oauth2/token", exchange)
        let token = try #require(begun.json["refresh_token"]?.text)
        await post(broker, "/oauth2/token", "grant_type=refresh_token&client_id=app&refresh_token=\(token)")
        await post(broker, "/oauth2/token", "grant_type=refresh_token&client_id=app&refresh_token=x")
        await post(broker, "/oauth2/token", "grant_type=refresh_token&client_id=unknown&refresh_token=x")
        for path in ["/oauth2/token", "/oauth2/revoke"] {
            await post(broker, path, "token=x", authorization: "Basic dW5rbm93bjp4")
            await post(broker, path, "client_id=unknown&token=x")
        }
        let key = try AppKey()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "biometric_enabled": true}"#)
        let proof = try key.proof(
            await broker.challenge("biometric_request"), now: broker.time.now, type: "vnd.authgear.biometric-request",
            action: "setup")
        #expect(await broker.biometric(proof, ["refresh_token": token]).status == 200)
        await recorder.call(broker, .get, "/tenants/t1/sessions?storage_key=default&client_id=app")
        let keys = await broker.call(.get, "/tenants/t1/sessions").json["biometric_keys"]?.array ?? []
        for keyID in [keys.first?["key_id"]?.text ?? "", "unknown"] {
            await recorder.call(broker, .delete, "/tenants/t1/biometric-keys/\(keyID)")
        }
        await recorder.call(broker, .get, "/tenants/t1/sessions?limit=1")
        let id = await broker.sessions().first?["session_id"]?.text ?? ""
        await recorder.call(broker, .delete, "/tenants/t1/sessions/\(id)")
        await recorder.call(broker, .delete, "/tenants/t1/sessions/\(Self.unknownSession)")
        await post(broker, "/oauth2/revoke", "client_id=app&token=\(token)")
        let metadata = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]
        for path in metadata {
            await recorder.call(broker, .get, path, key: nil)
            await recorder.call(broker, .get, path + "?x=1", key: nil)
        }
        for path in metadata + ["/oauth2/token", "/oauth2/revoke"] {
            await recorder.call(broker, .options, path, key: nil)
        }
    }

    /// From the cookie to the end, and the answers of a callback that makes no record.
    private func carriedLogins(_ broker: BrokerHarness) async {
        let long = ["state": String(repeating: "s", count: 1500)]
        let login = await broker.beginAppLogin(BrokerHarness.authorization(long))
        let two = await broker.beginAppLogin(BrokerHarness.authorization(long))
        let target = "/login/callback?code=c-1&state=\(login.state)"
        await recorder.call(
            broker, .get, BrokerHarness.authorization(long), key: nil,
            fields: ["Cookie": "\(login.cookie); \(two.cookie)"])
        for accept in [BrokerHarness.browserAccept, "application/json"] {
            await recorder.call(broker, .get, target, key: nil, fields: ["Accept": accept])
            await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
            let changed = await recorder.call(
                broker, .get, target, key: nil, fields: ["Accept": accept, "Cookie": login.cookie])
            if let location = changed.fields["Location"]?.text {
                await recorder.call(broker, .get, BrokerHarness.path(of: location), key: nil)
            }
            await broker.makeTenant()
        }
        let asked = await recorder.call(
            broker, .get, target, key: nil, fields: ["Accept": BrokerHarness.browserAccept, "Cookie": login.cookie])
        let both = [login.cookie, BrokerHarness.cookie(asked) ?? ""].joined(separator: "; ")
        await recorder.call(
            broker, .post, BrokerHarness.path(of: asked.fields["Location"]?.text ?? "///"), key: nil,
            body: "decision=cancel",
            fields: [
                "Accept": BrokerHarness.browserAccept, "Content-Type": "application/x-www-form-urlencoded",
                "Sec-Fetch-Site": "same-origin", "Cookie": both,
            ])
        await recorder.call(
            broker, .get, "/login/callback?error=access_denied&state=\(two.state)", key: nil,
            fields: ["Cookie": two.cookie])
    }

    private func linkFiles() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for path in Self.linkFiles {
            await recorder.call(broker, .get, path + "?x=1", key: nil)
            await recorder.call(broker, .get, path, key: nil)
        }
        let fingerprint = Array(repeating: "0A", count: 32).joined(separator: ":")
        await broker.makeClient(
            "app", of: "t1",
            #"""
            {"redirect_uris": ["https://app.example/cb"], "apple_apps": ["ABCDE12345.com.example.app"],
             "android_apps": [{"package_name": "com.example.app", "sha256_cert_fingerprints": ["\#(fingerprint)"]}]}
            """#)
        broker.time.advance(by: .seconds(60))
        for path in Self.linkFiles { await recorder.call(broker, .get, path, key: nil) }
    }

    private func limits() async throws {
        let broker = try await BrokerHarness { $0.core.appRequests.perUser = 1 }
        await broker.makeTenant()
        await broker.makeClient()
        let token = await broker.appSession()
        await post(broker, "/oauth2/token", "grant_type=refresh_token&client_id=app&refresh_token=\(token)")
    }

    private static let linkFiles = ["/.well-known/assetlinks.json", "/.well-known/apple-app-site-association"]

    private func failingStore() async throws {
        for error in [StoreError.unavailable, .damaged("a record")] {
            let store = FailingRecordStore()
            let broker = try await BrokerHarness(store: store)
            store.fail(error)
            await recorder.call(broker, .get, BrokerHarness.authorization(), key: nil)
            for path in Self.linkFiles { await recorder.call(broker, .get, path, key: nil) }
            for path in ["/oauth2/token", "/oauth2/revoke"] {
                await post(broker, path, "grant_type=refresh_token&client_id=app&refresh_token=x&token=x")
            }
        }
    }

    @discardableResult
    private func post(
        _ broker: BrokerHarness, _ path: String, _ form: String, authorization: String? = nil
    ) async -> BrokerHarness.Answer {
        var fields: Fields = ["Content-Type": "application/x-www-form-urlencoded"]
        if let authorization { fields.append("Authorization", authorization) }
        return await recorder.call(broker, .post, path, key: nil, body: form, fields: fields)
    }
}
