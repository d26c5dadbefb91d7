internal import Cryptography
internal import OAuth

/// The presentation of one imported refresh token to the provider, and what is stored then.
final class ImportPresentation: Sendable {
    private let line: ImportLine
    private let refreshToken: SecretBytes
    private let tenant: Tenant
    private let renewer: CredentialsRenewer
    private let writer: CredentialsWriter

    private var providers: ProviderAccess { renewer.providers }
    private var clientFaults: ClientFaults { renewer.clientFaults }
    private var time: any Time { renewer.time }

    init(
        _ line: ImportLine, _ refreshToken: SecretBytes, of tenant: Tenant, by renewer: CredentialsRenewer,
        _ writer: CredentialsWriter
    ) {
        self.line = line
        self.refreshToken = refreshToken
        self.tenant = tenant
        self.renewer = renewer
        self.writer = writer
    }

    /// What a provider has granted for a refresh token.
    private struct Granted {
        let held: HeldCredentials
        /// That of the answer; nil where it has none.
        let idToken: SecretBytes?
        /// Whether the answer had an access token.
        let isWhole: Bool
    }

    /// - Throws: see `CredentialsImporter.take`.
    func run() async throws(BrokerError) -> ImportLine.Outcome {
        var server = try await providers.servers.server(for: tenant)
        (server.asked, server.proofKey) = (line.held.asked, line.held.proofKey?.ofRefreshes)
        let granted = try await exchange(at: server)
        guard granted.isWhole else { return try await settle(granted.held.unserved(at: time.now)) }
        let grant = GrantVerifier.Grant.refresh(granted.held, idToken: granted.idToken)
        switch await providers.verifier.verdict(on: grant, of: tenant.configuration, at: server, waits: false) {
        case .verified(let verified, let told) where !line.held.isOfOtherUser(than: told):
            return try await settle(verified)
        case .verified, .refused, .unavailable:
            return try await verifyStored(granted)
        }
    }

    /// Stores what is served, or what has nothing that is.
    private func settle(_ held: HeldCredentials) async throws(BrokerError) -> ImportLine.Outcome {
        var line = line
        line.held = held
        return try await told(writer.settle(line, waiting: nil).outcome, of: held)
    }

    /// Stores a set that is not known to be the user's, or whose tokens are not known to be good, and then has it judged: whatever
    /// comes of that, its refresh token is not lost.
    private func verifyStored(_ granted: Granted) async throws(BrokerError) -> ImportLine.Outcome {
        var line = line
        let (userID, now) = (line.held.userID, time.now)
        line.held = granted.held
        line.held.userID = userID ?? granted.held.userID
        let (outcome, stored) = try await writer.settle(line) { earlier in
            WaitingVerification(origin: .imported, replacing: earlier, idToken: granted.idToken, granted: now)
        }
        guard outcome == .imported, let stored, let waiting = stored.record.waiting else {
            return try await told(outcome, of: line.held.unserved(at: now))
        }
        guard case .failure(let error) = await renewer.verification.verify(line.id, of: tenant, stored),
            error.code == .tokenResponseError
        else { return outcome }
        if error == .importOfOtherUser { throw error }
        throw BrokerError(
            error.code,
            error.detail.followed(
                by: waiting.hasSessionBefore
                    ? "The refresh token that came with it is put aside: import the line again then."
                    : "The refresh token that came with it is kept: the next request for the credentials presents it."),
            errorCode: error.errorCode)
    }

    /// The outcome of storing a set. Where other credentials have come first and stay, the set is put aside.
    private func told(
        _ outcome: ImportLine.Outcome, of held: HeldCredentials
    ) async throws(BrokerError) -> ImportLine.Outcome {
        if case .conflict = outcome { try await writer.putAside(held, line.id, for: renewer.quarantine) }
        return outcome
    }

    /// Makes one refresh, and one more where the provider asks for a wait of at most `BackoffSchedule.longestWait`.
    private func exchange(at server: AuthorizationServer) async throws(BrokerError) -> Granted {
        let endpoint = providers.endpoint
        let call = try endpoint.prepare(
            .refresh(refreshToken), for: tenant.configuration.client, of: tenant.name, at: server, as: RefreshID())
        let user = ProviderPauses.User(line.id, of: call.pause)
        var isRepeated = false
        while true {
            try await endpoint.waitBeforeRetry(.zero, user)
            let answer = try await endpoint.budget.withPlace(
                for: call.client, at: server, of: tenant.name, .background, by: line.id
            ) { () async throws(BrokerError) in
                try await self.ask(call)
            }
            guard let wait = answer.retryAfter, !isRepeated, wait <= BackoffSchedule.longestWait else {
                return try await granted(answer, call)
            }
            isRepeated = true
            endpoint.budget.pauses.pause(user, for: wait, now: time.monotonic)
        }
    }

    private func ask(_ call: TokenEndpoint.Call) async throws(BrokerError) -> TokenEndpoint.Answer {
        let circuits = providers.endpoint.circuits
        if case .refused(let error) = circuits.admit(call.circuit) {
            circuits.countSpared(call.server.preset)
            throw error
        }
        if let error = await clientFaults.admit(call.shown, of: tenant) {
            circuits.giveBack(call.circuit)
            throw error
        }
        return await providers.endpoint.send(call, limit: providers.callLimit(of: tenant)).answer
    }

    private func granted(
        _ answer: TokenEndpoint.Answer, _ call: TokenEndpoint.Call
    ) async throws(BrokerError) -> Granted {
        switch answer {
        case .granted(let response):
            await clientFaults.lift(call.shown, of: tenant)
            let held = HeldCredentials(
                granted: response, level: .user, to: call.client, by: call.server, replacing: line.held, now: time.now)
            return Granted(held: held, idToken: response.idToken, isWhole: true)
        case .rotated(_, let refreshToken):
            return Granted(
                held: line.held.renewing(refreshToken: refreshToken, usableFrom: nil), idToken: nil, isWhole: false)
        case .sessionEnded(let refusal, _):
            throw BrokerError(
                .invalidTokenRequest, "The provider does not accept this refresh token.", errorCode: refusal.errorCode)
        case .clientRefused(let error, let scope):
            _ = await clientFaults.note(error, scope, of: call.shown, tenant)
            throw error
        case .refused(let error), .refusedUnclearly(let error, _), .again(let error, _): throw error
        case .rateLimited(let error, let wait):
            let user = ProviderPauses.User(line.id, of: call.pause)
            providers.endpoint.budget.pauses.pause(user, for: wait, now: time.monotonic)
            throw error
        }
    }
}
