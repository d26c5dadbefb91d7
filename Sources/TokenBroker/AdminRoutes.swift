import BrokerCore
import ExternalText
import HTTPCodec

/// Which operations admin keys with the roles `operator` and `auditor` may use. An admin key with the role `admin` may use all.
enum AdminRoutes {
    private static let both: [AdminRole] = [.operator, .auditor]

    /// Every operation that needs a key, with the roles beside `admin` that may use it. A test compares the operations with
    /// those of the API.
    ///
    /// An operator runs the service: looks at everything, logs users in and out, ends sessions, restores credentials, and
    /// revokes API keys. Who may log in and call, at which providers, with which secrets, is the admin's to say. An auditor
    /// looks, and gets no token, no claims of a user and no secret.
    static let table: [(method: Method, path: String, roles: [AdminRole])] = [
        (.get, "/tenants", both), (.get, "/tenants/{tenant}", both), (.put, "/tenants/{tenant}", []),
        (.patch, "/tenants/{tenant}", []),
        (.delete, "/tenants/{tenant}", []), (.post, "/tenants/{tenant}/check", [.operator]),
        (.get, "/tenants/{tenant}/api-keys", both), (.post, "/tenants/{tenant}/api-keys", []),
        (.get, "/tenants/{tenant}/api-keys/{id}", both), (.delete, "/tenants/{tenant}/api-keys/{id}", [.operator]),
        (.post, "/tenants/{tenant}/api-keys/{id}/rotate", []), (.get, "/tenants/{tenant}/clients", both),
        (.get, "/tenants/{tenant}/clients/{client_id}", both), (.put, "/tenants/{tenant}/clients/{client_id}", []),
        (.delete, "/tenants/{tenant}/clients/{client_id}", []), (.get, "/tenants/{tenant}/sessions", both),
        (.delete, "/tenants/{tenant}/sessions/{session_id}", [.operator]),
        (.delete, "/tenants/{tenant}/biometric-keys/{key_id}", [.operator]), (.post, "/login/initialize", [.operator]),
        (.post, "/login/finalize", [.operator]), (.get, "/login/{login_id}", [.operator]),
        (.post, "/device", [.operator]), (.get, "/device/{device_code}", [.operator]),
        (.delete, "/device/{device_code}", [.operator]), (.post, "/app2app/requests", [.operator]),
        (.post, "/app2app/approve", [.operator]), (.post, "/app2app/reject", [.operator]),
        (.get, "/credentials", [.operator]), (.put, "/credentials", [.operator]),
        (.delete, "/credentials", [.operator]), (.get, "/credentials/status", both),
        (.get, "/credentials/claims", [.operator]), (.get, "/credentials/list", both),
        (.post, "/credentials/import", []), (.post, "/credentials/export", []),
        (.post, "/credentials/restore", [.operator]), (.post, "/credentials/activate", [.operator]),
        (.get, "/events", both), (.get, "/providers", both), (.get, "/providers/{name}", both),
        (.put, "/providers/{name}", []), (.delete, "/providers/{name}", []),
    ]

    /// The roles that may use an operation. Only `admin` for one that is not in the table.
    static func roles(_ method: Method, _ path: StaticString) -> [AdminRole] {
        let path = WireText(path.description)
        return [.admin] + (table.first { $0.method == method && WireText($0.path) == path }?.roles ?? [])
    }
}
