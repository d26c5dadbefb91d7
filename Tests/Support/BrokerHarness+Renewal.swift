package import BrokerCore
import CredentialStore
import Cryptography
import HTTPCodec
package import JSON
package import OAuth

extension BrokerHarness {
    /// The fields of a tenant at a provider without an upgrade, in front of its own.
    package static let oidc = #"""
        "provider": "oidc", "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"},
        """#

    /// `GET /credentials/status` with the admin key.
    package func status(tenant: String = "t1", storageKey: String = "default") async -> Answer {
        await call(.get, "/credentials/status?storage_key=\(storageKey)", tenant: tenant)
    }

    /// `POST /credentials/restore` with the admin key.
    package func restore(tenant: String = "t1", storageKey: String = "default") async -> Answer {
        await call(.post, "/credentials/restore", tenant: tenant, body: #"{"storage_key": "\#(storageKey)"}"#)
    }

    /// `DELETE /credentials` with the admin key.
    @discardableResult
    package func logOut(tenant: String = "t1", storageKey: String = "default") async -> Answer {
        await call(.delete, "/credentials?storage_key=\(storageKey)", tenant: tenant)
    }

    /// Every event told so far, in order.
    package func events() async throws -> [(kind: BrokerEvent.Kind, data: JSONValue)] {
        try await vault.entries(after: 0, limit: 10_000).flatMap { entry in
            BrokerEvent.events(in: entry.content?.revealedBytes ?? []).compactMap { event in
                guard let event, let data = try? JSONValue(parsing: event.data) else { return nil }
                return (event.kind, data)
            }
        }
    }

    /// Those of `credentials.updated` and `credentials.deauthorized`, each as its cause.
    package func causes() async throws -> [String] {
        try await events().filter { [.credentialsUpdated, .credentialsDeauthorized].contains($0.kind) }
            .compactMap { $0.data["cause"]?.text }
    }

    /// The value of a series in `GET /metrics`; nil where it is missing or no whole number.
    package func metric(_ series: String) async -> Int? {
        await call(.get, "/metrics", key: nil).text.split(separator: "\n").first { $0.hasPrefix(series + " ") }
            .flatMap { Int($0.dropFirst(series.count + 1)) }
    }

    /// How often a refresh has brought another user's tokens; nil where that is not counted for the provider.
    package func subjectChanges(provider: String) async -> Int? {
        await metric(#"token_broker_subject_changed_total{provider="\#(provider)"}"#)
    }

    /// What is kept aside under a storage key; nil when nothing is.
    package func quarantined(tenant: String = "t1", storageKey: String = "default") async throws
        -> QuarantinedCredentials?
    {
        guard let name = TenantName(tenant) else { return nil }
        return try await vault.read(RecordID(.quarantine, name, key: storageKey))
            .flatMap { QuarantinedCredentials(decoding: $0.content.revealedBytes) }
    }

    /// What imports have put aside, of all tenants.
    package func asides() async throws -> [HeldCredentials] {
        try await vault.list(.aside, tenant: nil, limit: 100)
            .compactMap { QuarantinedCredentials(decoding: $0.content.revealedBytes)?.credentials }
    }
}

extension BrokerHarness.Answer {
    /// What `GET /credentials/status` says of the configuration.
    package var differences: [String]? { json["configuration_differences"]?.array?.compactMap(\.text) }
    package var isLoggedIn: Bool? {
        if case .bool(let isLoggedIn)? = json["logged_in"] { isLoggedIn } else { nil }
    }
}
