internal import Containers
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
internal import OAuth
internal import Reactor
internal import Synchronization
internal import Waiting

/// What an answer of the token endpoint shows about the client.
enum ClientVerdict: Sendable {
    /// The provider has authenticated the client.
    case accepted
    /// The provider does not authenticate the client.
    case refused
    /// The answer can mean either.
    case unclear

    /// The verdict of an answer that refuses a made-up code: a provider authenticates the client before it checks the code
    /// (RFC 6749 §4.1.3).
    init(ofMadeUpCode answer: TokenErrorResponse, status: Int) {
        let isUnauthorized = status == 401
        guard RefusalPattern.isAllowed(status: status) else {
            self = .unclear
            return
        }
        switch answer.error {
        case nil: self = isUnauthorized && answer.isReadable ? .refused : .unclear
        // By RFC 6749 §5.2 it is sent with 400 to a client that is authenticated and may not use the grant. Glewlwyd sends it
        // with 403 to a client with a wrong secret.
        case "unauthorized_client"?: self = status == 400 ? .unclear : .refused
        // These concern neither the client nor the code, or some providers send them for both.
        case "unsupported_grant_type"?, "authorization_type_invalid"?, "invalid_request"?, "invalid_scope"?,
            "invalid_target"?, "access_denied"?, "redirect_uri_mismatch"?, "invalid_redirect_uri"?, "unauthorized"?,
            "forbidden"?:
            self = .unclear
        case let error? where error.contains("client"): self = .refused
        case let error? where isUnauthorized && !error.contains("code") && !error.contains("grant"): self = .unclear
        case _?: self = .accepted
        }
    }

    /// The verdict of an answer that refuses client credentials.
    init(ofClientCredentials answer: TokenErrorResponse, status: Int) {
        let isUnnamed = answer.error == nil && answer.isReadable
        let isRefused =
            RefusalPattern.isAllowed(status: status) && (answer.isInvalidClient || isUnnamed && status == 401)
        self = isRefused ? .refused : .unclear
    }
}

/// Finds out whether a provider accepts a client, by calls that need no user and change nothing at the provider.
///
/// Some providers refuse an invalid refresh token and a wrong client secret with the same answer, which names no cause (Glewlwyd
/// sends 400 and an empty body for both). For a made-up code, their answers differ.
final class ClientTrials: Sendable {
    enum Result: Sendable {
        case verdict(ClientVerdict)
        /// The provider asks for a pause.
        case later(Duration?)
        /// There was no answer.
        case unanswered
    }

    /// One client of one version of a tenant.
    private struct Key: Hashable {
        let tenant: TenantName
        let version: Int64
        let clientID: WireText
        let secretDigest: [UInt8]?
    }

    /// A trial that callers wait for.
    private struct Standing {
        let question: CoalescedCall<Result>
        var askers = 0
    }

    /// Whether the trial that several callers share has shown that the client is refused.
    private final class Finding: Sendable {
        let isRefused = Mutex(false)
    }

    private let endpoint: TokenEndpoint
    private let publicBaseURL: String
    private let callLimit: Duration
    private let log: Log
    private let time: any Time
    private let standing = Mutex<[Key: Standing]>([:])
    /// When a trial last showed that a client is refused, of the newest 1024. A client whose refusal is forgotten is tried
    /// once more than needed.
    private let refusals = Mutex(BoundedTable<Key, MonotonicInstant>(capacity: 1024))

    /// - Parameter callLimit: the longest that one call takes.
    init(endpoint: TokenEndpoint, publicBaseURL: String, callLimit: Duration, time: any Time, log: Log) {
        self.endpoint = endpoint
        self.publicBaseURL = publicBaseURL
        self.callLimit = callLimit
        self.time = time
        self.log = log
    }

    /// Whether the provider accepts the client now. A trial that began before this call proves nothing about a later refusal, so
    /// this call waits until that trial has ended, and then for the next one, which all calls share that came meanwhile. So one
    /// trial of a client is under way at a time, and each trial makes two requests at most.
    /// - Parameter sent: when the request was sent that the provider refused. If a trial has shown since then that the client is
    ///   refused, that is the result.
    func result(
        of client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer, sentAt sent: MonotonicInstant
    ) async -> Result {
        let fingerprint = client.fingerprint
        let key = Key(
            tenant: tenant.name, version: tenant.version, clientID: fingerprint.clientID,
            secretDigest: fingerprint.clientSecretDigest)
        if let refused = refusals.withLock({ $0[key] }), refused >= sent { return .verdict(.refused) }
        let question = standing.withLock { standing in
            var entry = standing[key] ?? Standing(question: newQuestion(key, client, of: tenant, at: server))
            entry.askers += 1
            standing[key] = entry
            return entry.question
        }
        defer {
            standing.withLock { standing in
                standing[key]?.askers -= 1
                if standing[key]?.askers == 0 { standing[key] = nil }
            }
        }
        return await question.value() ?? .unanswered
    }

    private func newQuestion(
        _ key: Key, _ client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer
    ) -> CoalescedCall<Result> {
        let finding = Finding()
        return CoalescedCall {
            // Callers that wait for a second trial get the refusal that the first one has found.
            if finding.isRefused.withLock({ $0 }) { return .verdict(.refused) }
            let result = await self.attempt(client, of: tenant, at: server)
            if case .verdict(.refused) = result {
                finding.isRefused.withLock { $0 = true }
                let now = self.time.monotonic
                self.refusals.withLock { _ = $0.setNewest(now, forKey: key) }
            }
            return result
        }
    }

    /// A made-up code of the tenant's login.
    func madeUpCode(of tenant: Tenant) throws(BrokerError) -> TokenRequest {
        let callback = publicBaseURL + "/login/callback"
        let redirectURI = tenant.configuration.callbackURI == .perTenant ? "\(callback)/\(tenant.name)" : callback
        return .authorizationCode(
            code: try Self.random(), redirectURI: redirectURI, codeVerifier: try Self.random())
    }

    /// Tries a made-up code. If the answer is unclear and the client may have client credentials, tries those as well.
    private func attempt(
        _ client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer
    ) async -> Result {
        var result = Result.verdict(.unclear)
        do throws(BrokerError) {
            result = try await attempt(try madeUpCode(of: tenant), client, of: tenant, at: server)
            if case .verdict(.unclear) = result, tenant.terms.canObtainClientCredentials {
                result = try await attempt(.clientCredentials, client, of: tenant, at: server)
            }
        } catch {
            // The configuration does not allow the request, as it did not allow the refused one.
            result = .unanswered
        }
        log.info("client_tried", [.tenant(tenant.name), .provider(server.preset), .outcome(result.name)])
        return result
    }

    private func attempt(
        _ request: TokenRequest, _ client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer
    ) async throws(BrokerError) -> Result {
        let isCode = request.grant == .authorizationCode
        switch try await endpoint.tryClient(by: request, for: client, of: tenant.name, at: server, within: callLimit) {
        case .unanswered: return .unanswered
        case .answered(.granted): return .verdict(isCode ? .unclear : .accepted)
        case .answered(.unusable): return .verdict(.unclear)
        case .answered(.refused(status: Status.tooManyRequests.code, _, let retryAfter)): return .later(retryAfter)
        case .answered(.refused(let status, let answer, _)):
            return .verdict(
                isCode
                    ? ClientVerdict(ofMadeUpCode: answer, status: status)
                    : ClientVerdict(ofClientCredentials: answer, status: status))
        }
    }

    private static func random() throws(BrokerError) -> SecretBytes {
        do {
            return SecretBytes(utf8: Base64URL.encode(try SecureRandom.bytes(32)))
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
    }
}

extension ClientTrials.Result {
    fileprivate var name: StaticString {
        switch self {
        case .verdict(.accepted): "accepted"
        case .verdict(.refused): "refused"
        case .verdict(.unclear): "unclear"
        case .later: "later"
        case .unanswered: "unanswered"
        }
    }
}
