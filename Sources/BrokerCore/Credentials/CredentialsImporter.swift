import Cryptography
import OAuth
import Waiting

/// Takes over sets of credentials that another broker has kept.
package final class CredentialsImporter: Sendable {
    package enum Mode: Sendable {
        /// Stores nothing and asks no provider.
        case dry
        /// Stores what is brought.
        case plain
        /// Presents each refresh token to the provider, and stores what that grants.
        case verifying
    }

    private let renewer: CredentialsRenewer
    private let writer: CredentialsWriter
    /// The presentations under way, each of one line.
    private let flights: SingleFlight<RefreshID, Result<ImportLine.Outcome, BrokerError>>

    private var providers: ProviderAccess { renewer.providers }

    init(renewer: CredentialsRenewer, writer: CredentialsWriter) {
        self.renewer = renewer
        self.writer = writer
        flights = SingleFlight(on: renewer.providers.endpoint.executor)
    }

    /// Suspends until no refresh token is being presented: what was granted is stored by then.
    func finish() async { await flights.finish() }

    /// Cancels the presentations in flight, so that they wait for nothing any more.
    /// - Returns: how many were in flight.
    func cancelAll() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }

    /// Takes one set over. Where an earlier import has had its refresh token exchanged and has put the result aside, that is taken
    /// up.
    /// - Throws: what `ProviderAccess.adopt` throws; when verifying, `invalid_token_request` where the provider refuses the refresh
    ///   token, and the errors of a renewal; `storage_unavailable`; `not_found` where the tenant was deleted meanwhile.
    package func take(
        _ line: ImportLine, of tenant: Tenant, _ mode: Mode
    ) async throws(BrokerError) -> ImportLine.Outcome {
        var line = line
        if line.held.refreshToken != nil, let aside = try await writer.putAside(by: line) {
            line = line.resuming(aside)
        }
        let presented = mode == .verifying ? line.held.refreshToken : nil
        // An access token that no caller gets before a refresh need not be verified: the refresh brings a verified one.
        let adopts = !line.held.accessToken.isEmpty && providers.verifier.verifies(line.held, for: tenant.configuration)
        var current = CredentialsSnapshot.nothing
        if mode == .dry || presented != nil || adopts {
            let outcome: ImportLine.Outcome
            (outcome, current) = try await writer.examine(line)
            if mode == .dry || outcome != .imported { return outcome }
        }
        guard presented != nil else {
            if adopts {
                line.held = try await providers.adopt(line.held, of: tenant)
                line.held.imported = line.grant
            }
            return try await writer.take(line)
        }
        if renewer.draining.isClosed { throw Self.draining }
        let (renewer, writer) = (renewer, writer)
        // A refresh token that was exchanged is stored even where the client of the import has gone.
        return try await flights.runToEnd(
            RefreshID(), on: renewer.providers.endpoint.executor,
            interruption: "The request ended before the line was dealt with.",
            work: { [line, current] () async throws(BrokerError) in
                try await ImportPresentation(line, over: current, of: tenant, by: renewer, writer).run()
            },
            reporting: { _ in })
    }

    private static let draining = BrokerError(
        .retryableError, "The broker is shutting down. Import the line again.", retryAfter: 1)
}
