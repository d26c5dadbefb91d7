import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

/// What the keys of operators may do.
@Suite struct `The roles of operators' keys` {
    private static let keys: [(role: String, key: String)] = [
        ("admin", "0123456789abcdef0123456789abcdef-1"), ("operator", "0123456789abcdef0123456789abcdef-2"),
        ("auditor", "0123456789abcdef0123456789abcdef-3"),
    ]

    private static func key(_ role: String) -> String { keys.first { $0.role == role }?.key ?? "" }

    private static func broker(_ adjust: (inout Broker.Settings) -> Void = { _ in }) async throws -> BrokerHarness {
        let text =
            "\(BrokerHarness.adminKey)," + keys.map { "\($0.role)-1/\($0.role):\($0.key)" }.joined(separator: ",")
        let adminKeys = try AdminKeys(parsing: SecretBytes(utf8: text))
        let broker = try await BrokerHarness { settings in
            settings.adminKeys = adminKeys
            adjust(&settings)
        }
        await broker.makeTenant()
        return broker
    }

    /// The operations that need a key, with a word for each role that may use them: `a` for admin alone, `o` for the operator as
    /// well, `r` for the auditor as well.
    private static let table: [String: String] = [
        "GET /tenants": "r", "GET /tenants/{tenant}": "r", "PUT /tenants/{tenant}": "a",
        "DELETE /tenants/{tenant}": "a",
        "POST /tenants/{tenant}/check": "o", "GET /tenants/{tenant}/api-keys": "r",
        "POST /tenants/{tenant}/api-keys": "a",
        "GET /tenants/{tenant}/api-keys/{id}": "r", "DELETE /tenants/{tenant}/api-keys/{id}": "o",
        "POST /tenants/{tenant}/api-keys/{id}/rotate": "a", "GET /tenants/{tenant}/clients": "r",
        "GET /tenants/{tenant}/clients/{client_id}": "r", "PUT /tenants/{tenant}/clients/{client_id}": "a",
        "DELETE /tenants/{tenant}/clients/{client_id}": "a", "GET /tenants/{tenant}/sessions": "r",
        "DELETE /tenants/{tenant}/sessions/{session_id}": "o",
        "DELETE /tenants/{tenant}/biometric-keys/{key_id}": "o", "POST /login/initialize": "o",
        "POST /login/finalize": "o",
        "GET /login/{login_id}": "o", "POST /device": "o", "GET /device/{device_code}": "o",
        "DELETE /device/{device_code}": "o", "POST /app2app/requests": "o", "POST /app2app/approve": "o",
        "POST /app2app/reject": "o", "GET /credentials": "o", "PUT /credentials": "o", "DELETE /credentials": "o",
        "GET /credentials/status": "r", "GET /credentials/claims": "o", "GET /credentials/list": "r",
        "POST /credentials/import": "a", "POST /credentials/export": "a",
        "POST /credentials/restore": "o", "POST /credentials/activate": "o", "GET /events": "r",
        "GET /providers": "r", "GET /providers/{name}": "r", "PUT /providers/{name}": "a",
        "DELETE /providers/{name}": "a", "PATCH /tenants/{tenant}": "a",
    ]

    @Test func `open what the table says, and no operation is missing in it`() async throws {
        let broker = try await Self.broker()
        var seen: Set<String> = []
        for operation in Service.operations(of: broker.broker) {
            let path = operation.path.replacing("{tenant}", with: "t1")
                .replacing(/\{[a-z_]+\}/, with: "000000000000000000000000")
            let method = Method(operation.method)
            let name = "\(operation.method) \(operation.path)"
            // HEAD gets the same head as GET, and runs no event stream.
            let asked = method == .get && operation.path == "/events" ? .head : method
            let stranger = await broker.call(asked, path, key: nil)
            guard let need = Self.table[name] else {
                #expect(stranger.code != "unauthorized", "\(name) is not in the table")
                continue
            }
            seen.insert(name)
            #expect(stranger.status == 401, "\(name)")
            for (role, key) in Self.keys {
                let isAllowed = role == "admin" || need == "r" || need == "o" && role == "operator"
                let answer = await broker.call(asked, path, key: key, tenant: "t1", body: "{ no JSON")
                #expect((answer.status == 403) == !isAllowed, "\(role) \(name): \(answer.status) \(answer.text)")
                #expect(answer.status != 401)
                if asked == .head { continue }
                #expect((answer.code == "forbidden") == !isAllowed)
                guard !isAllowed else { continue }
                let detail = try #require(answer.json["detail"]?.text)
                #expect(
                    detail
                        == "The admin key '\(role)-1' has the role \(role), which may not use \(name). That needs the role "
                        + (need == "a" ? "admin." : "admin or operator."))
                #expect(broker.log.last?.contains(#""admin":"\#(role)-1""#) == true)
            }
        }
        #expect(seen == Set(Self.table.keys))
    }

    @Test func `leave an auditor without tokens and secrets, and without changes`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "canary-secret"}"#)
        _ = await broker.makeKey()
        await broker.set("canary-token", refresh: "canary-refresh", storageKey: "alice")
        let auditor = Self.key("auditor")
        for path in [
            "/tenants", "/tenants/t1", "/tenants/t1/api-keys", "/tenants/t1/clients", "/tenants/t1/sessions",
            "/credentials/list", "/credentials/status?storage_key=alice",
        ] {
            for method in [Method.get, .head] {
                let answer = await broker.call(
                    method, path, key: auditor, tenant: path.hasPrefix("/credentials") ? "t1" : nil)
                #expect(answer.status == 200, "\(path) \(answer.text)")
                #expect(!answer.text.contains("canary"))
            }
        }
        for (method, path) in [
            (.get, "/credentials?storage_key=alice"), (.head, "/credentials?storage_key=alice"),
            (.delete, "/credentials?storage_key=alice"), (.get, "/credentials/claims?storage_key=alice"),
        ] as [(Method, String)] {
            #expect(await broker.call(method, path, key: auditor, tenant: "t1").status == 403)
        }
        #expect(await broker.get("storage_key=alice").token == "canary-token")
        let stream = await broker.listen(key: auditor, lastID: "0-9999")
        #expect(await stream.events(1).count == 1)
        await stream.close()
    }

    @Test func `are checked before the body is read`() async throws {
        let broker = try await Self.broker()
        for role in ["operator", "auditor"] {
            let answer = await broker.call(
                .put, "/tenants/t1", key: Self.key(role), body: "{}", fields: ["Content-Type": "text/plain"])
            #expect((answer.status, answer.code) == (403, "forbidden"))
        }
    }

    @Test func `leave the name of the operator in the audit log`() async throws {
        let broker = try await Self.broker { $0.core.audit.changes = true }
        let made = await broker.call(
            .post, "/tenants/t1/api-keys", key: Self.key("admin"), body: #"{"name": "k", "permissions": ["login"]}"#)
        let id = try #require(made.json["id"]?.text)
        let path = "/tenants/t1/api-keys/\(id)"
        #expect(await broker.call(.post, path + "/rotate", key: Self.key("operator")).status == 403)
        #expect(await broker.call(.post, path + "/rotate", key: Self.key("admin")).status == 201)
        #expect(await broker.call(.delete, path, key: Self.key("auditor")).status == 403)
        #expect(await broker.call(.delete, path, key: Self.key("operator")).status == 204)
        let lines = Mutex<[[UInt8]]>([])
        let unreadable = try await AuditExport().run(broker.store) { line in lines.withLock { $0.append(Array(line)) } }
        #expect(unreadable == (entries: 0, chains: 0))
        let entries = try lines.withLock { $0 }.map { try JSONValue(parsing: $0) }
        let told = entries.compactMap { entry -> String? in
            guard let action = entry["action"]?.text, action.hasPrefix("api-key.") else { return nil }
            return "\(action) \(entry["caller"]?.text ?? "")"
        }
        #expect(
            told == [
                "api-key.created admin:admin-1", "api-key.rotated admin:admin-1", "api-key.removed admin:operator-1",
            ])
    }
}
