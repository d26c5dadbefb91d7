import CredentialStore
package import Cryptography
package import ExternalText
package import OAuth
import Reactor
import Waiting

/// Logs users in at a provider that has no login page.
///
/// Activates accounts with the signature of a platform. The other way to an account, its creation, is a renewal (`CredentialsRenewer.ask`)
/// of a storage key under which nothing is stored, so that all replicas together create one account.
///
/// Safe to use from any task.
package final class AccountFlow: Sendable {
    /// The credentials of an activated account, and the record that has them.
    package typealias Activated = (held: HeldCredentials, snapshot: CredentialsSnapshot)

    private let records: CredentialsRecords
    private let providers: ProviderAccess
    private let intake: GrantIntake
    private let time: any Time
    private let log: Log
    private let flights: SingleFlight<RefreshID, Result<Activated, BrokerError>>

    init(records: CredentialsRecords, providers: ProviderAccess, intake: GrantIntake) {
        self.records = records
        self.providers = providers
        self.intake = intake
        (time, log) = (records.time, records.log)
        flights = SingleFlight(on: providers.endpoint.executor)
    }

    /// Activates the account that a platform's signature names, and stores its credentials in place of any others. Goes on when
    /// the caller's task is cancelled: the provider has opened a session by then.
    /// - Parameters:
    ///   - platformSignature: the signature of a platform, such as the receipt of an application store.
    ///   - source: the name of the platform; nil for the one of the provider's preset.
    /// - Throws: what `AccountEndpoint.grant` does; `token_response_error` where a token is not believed, and `network_error` where
    ///   the provider's keys do not answer: the credentials are stored then, and served once they are verified; `not_found`
    ///   where the tenant is gone; `storage_unavailable` where the broker is stopped before the store answers.
    package func activate(
        _ id: CredentialsID, of tenant: Tenant, platformSignature: SecretBytes, source: WireText?
    ) async throws(BrokerError) -> Activated {
        let refreshID = RefreshID()
        let login = AccountEndpoint.Login.activation(signature: platformSignature, source: source)
        return try await flights.runToEnd(
            refreshID, on: providers.endpoint.executor,
            interruption: "The request ended before the account was activated.",
            work: { () async throws(BrokerError) in
                try await self.logIn(by: login, id, of: tenant, as: refreshID)
            },
            reporting: { error in
                self.log.warning(
                    "account_activation_failed",
                    LogField.credentials(id) + [.refresh(refreshID)] + LogField.reason(of: error))
            })
    }

    private func logIn(
        by login: AccountEndpoint.Login, _ id: CredentialsID, of tenant: Tenant, as refreshID: RefreshID
    ) async throws(BrokerError) -> Activated {
        let client = tenant.configuration.client
        let server = try await providers.servers.server(for: tenant)
        let response = try await providers.accounts.grant(
            by: login, for: client, of: tenant.name, at: server, as: refreshID)
        let grant = GrantIntake.Grant(
            response, origin: .activation, to: tenant.configuration, by: server, now: time.now)
        let outcome = try await intake.take(grant, for: id) { _, _ async throws(StoreError) in
            try await self.records.tenantExists(id) ? ([], []) : nil
        } stalled: {
            self.flights.answer(refreshID, with: .failure(.grantNotStored))
        }
        let stored: Activated
        switch outcome {
        case .stored(let snapshot, _):
            guard let held = snapshot.record.held else {
                throw BrokerError(.retryableError, "The credentials kept changing. Ask again.", retryAfter: 1)
            }
            stored = (held, snapshot)
        // The credentials are stored, and served once the provider's keys are there.
        case .waits(let error), .refused(let error): throw error
        case .dropped: throw BrokerError.noSuchTenant
        }
        log.info(
            "account_activated", LogField.credentials(id) + [.refresh(refreshID), .version(stored.snapshot.version)])
        return stored
    }

    /// Suspends until no account is being activated.
    func finish() async {
        await flights.finish()
    }

    /// Cancels the activations in flight.
    /// - Returns: how many activations were in flight.
    func cancelAll() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }
}
