internal import Cryptography
internal import OAuth

/// The presentation of one imported refresh token to the provider, and what is stored then.
final class ImportPresentation: Sendable {
    struct Parts: Sendable {
        let providers: ProviderAccess
        let writer: CredentialsWriter
        let clientFaults: ClientFaults
    }

    private let line: ImportLine
    private let refreshToken: SecretBytes
    private let tenant: Tenant
    private let parts: Parts

    private var providers: ProviderAccess { parts.providers }
    private var writer: CredentialsWriter { parts.writer }
    private var clientFaults: ClientFaults { parts.clientFaults }
    private var time: any Time { parts.writer.time }

    init(_ line: ImportLine, _ refreshToken: SecretBytes, of tenant: Tenant, by parts: Parts) {
        self.line = line
        self.refreshToken = refreshToken
        self.tenant = tenant
        self.parts = parts
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
        var line = line
        line.held = granted.held
        guard granted.isWhole else { return try await writer.settle(line, waiting: nil) }
        let now = time.now
        let grant = GrantVerifier.Grant.refresh(granted.held, idToken: granted.idToken)
        switch await providers.verifier.verdict(on: grant, of: tenant.configuration, at: server, waits: true) {
        case .verified(let verified, let told):
            // `line.held` names the user of the line where the answer names none.
            if granted.held.isOfOtherUser(than: told) { throw Self.otherUser }
            line.held = verified
            return try await writer.settle(line, waiting: nil)
        case .refused(let error): throw error
        case .unavailable:
            return try await writer.settle(line) { earlier in
                WaitingVerification(origin: .refresh, replacing: earlier, idToken: granted.idToken, granted: now)
            }
        }
    }

    /// Makes one refresh, and one more where the provider asks for a wait of at most `BackoffSchedule.longestWait`.
    private func exchange(at server: AuthorizationServer) async throws(BrokerError) -> Granted {
        let endpoint = providers.endpoint
        let call = try endpoint.prepare(
            .refresh(refreshToken), for: tenant.configuration.client, of: tenant.name, at: server, as: RefreshID())
        let user = ProviderPauses.User(line.id, of: call.pause)
        var isRepeated = false
        while true {
            try await endpoint.waitBeforeRetry(CallWaits(server.schedule, heeding: user))
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
            // The user whom the line names, to be compared with the one whom the answer names.
            if let named = line.held.userID, let told = response.userID, named != told { throw Self.otherUser }
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

    private static let otherUser = BrokerError(
        .tokenResponseError,
        "The provider says that this refresh token is of another user than the line's user_id, so nothing was stored.")
}
