import Containers
import Cryptography
import ExternalText
import HTTPCodec
import OAuth
import Reactor
import Synchronization
import Waiting

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
        // An error counts whatever the status that bears it: some providers send 200.
        let isNamed = (200...299).contains(status) && answer.error != nil
        guard RefusalPattern.isAllowed(status: status) || isNamed else {
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

/// An answer without a token, as far as answers are compared.
struct RefusedAnswer: Hashable, Sendable {
    let status: Int
    /// Nil for an answer without one.
    let error: WireText?
    /// Whether the body cannot be understood.
    private let isMalformed: Bool

    init(status: Int, _ answer: TokenErrorResponse) {
        self.status = status
        error = answer.error.map { WireText($0) }
        isMalformed = answer.isMalformed
    }

    /// Whether the same request may be answered otherwise in a moment.
    fileprivate var isPassing: Bool { [408, 425, 429].contains(status) || status >= 500 }
}

/// Finds out what a provider's refusal of a refresh token is about, by calls that need no user and change nothing at the provider:
/// it is given grants that are made up.
///
/// Some providers refuse an invalid refresh token and a wrong client secret with the same answer, which names no cause (Glewlwyd
/// sends 400 and an empty body for both). For a made-up code, their answers differ. A firewall in front of a provider refuses
/// whatever it is asked in one way.
final class ClientTrials: Sendable {
    enum Result: Sendable {
        /// The answer is about the user's refresh token.
        case aboutGrant
        /// The provider does not accept the client.
        case aboutClient
        /// A made-up code and a made-up refresh token get the same answer.
        case aboutNothing
        /// The provider asks for a pause.
        case later(Duration?)
        /// There was no answer.
        case unanswered
    }

    /// An answer to one client of one version of a tenant.
    private struct Key: Hashable {
        let tenant: TenantName
        let version: Int64
        let clientID: WireText
        let secretDigest: [UInt8]?
        let answer: RefusedAnswer
    }

    /// For how long it counts that made-up grants get an answer, so that not each refused user costs a trial.
    static let validity: Duration = .seconds(30)
    /// For how long an operator is told what a trial has found.
    private static let explanationValidity: Duration = .seconds(600)
    /// For how long no further trial is made where one has had no answer.
    private static let pauseAfterSilence: Duration = .seconds(5)

    /// A trial that callers wait for.
    private struct Standing {
        let question: CoalescedCall<Result>
        var askers = 0
    }

    /// What a trial has found.
    private struct Finding {
        let result: Result
        let at: MonotonicInstant
        /// Until when it holds for refusals that came later; nil where only earlier ones are concerned.
        let until: MonotonicInstant?

        /// Whether no session ends by an answer to a request of that time, without another trial.
        func holds(for sent: MonotonicInstant, now: MonotonicInstant) -> Bool {
            if case .aboutGrant = result { return false }
            return at >= sent || until.map { $0 > now } ?? false
        }
    }

    private let endpoint: TokenEndpoint
    private let publicBaseURL: String
    private let callLimit: Duration
    private let log: Log
    private let time: any Time
    private let standing = Mutex<[Key: Standing]>([:])
    /// What trials have found, of the newest 1024. For a finding that is forgotten, one more trial is made than needed.
    private let findings = Mutex(BoundedTable<Key, Finding>(capacity: 1024))

    /// - Parameter callLimit: the longest that one call takes.
    init(endpoint: TokenEndpoint, publicBaseURL: String, callLimit: Duration, time: any Time, log: Log) {
        self.endpoint = endpoint
        self.publicBaseURL = publicBaseURL
        self.callLimit = callLimit
        self.time = time
        self.log = log
    }

    /// What an answer to a refresh is about. A trial that began before this call does not show that a later refusal is about the
    /// grant, so this call waits until that trial has ended, and then for the next one, which all calls share that came meanwhile.
    /// So one trial is under way at a time, and each trial makes three requests at most. What speaks against the answer is kept for
    /// a while, and then the answer to a later refresh needs no trial.
    /// - Parameter sent: when the request was sent that the provider refused.
    func result(
        of answer: RefusedAnswer, to client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer,
        sentAt sent: MonotonicInstant
    ) async -> Result {
        let key = Self.key(answer, client, tenant)
        if let known = finding(key, sent) { return known }
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

    /// The same for an operator who is told what the answer is about, by a trial of the last ten minutes if there was one.
    func explanation(
        of answer: RefusedAnswer, to client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer,
        sentAt sent: MonotonicInstant
    ) async -> Result {
        let (key, now) = (Self.key(answer, client, tenant), time.monotonic)
        if let known = findings.withLock({ $0[key] }), known.at.advanced(by: Self.explanationValidity) > now {
            switch known.result {
            case .aboutGrant, .aboutNothing: return known.result
            case .aboutClient, .later, .unanswered: break
            }
        }
        return await result(of: answer, to: client, of: tenant, at: server, sentAt: sent)
    }

    private static func key(_ answer: RefusedAnswer, _ client: ClientConfiguration, _ tenant: Tenant) -> Key {
        let fingerprint = client.fingerprint
        return Key(
            tenant: tenant.name, version: tenant.version, clientID: fingerprint.clientID,
            secretDigest: fingerprint.clientSecretDigest, answer: answer)
    }

    /// What speaks against the answer to a request that was sent at that time; nil where a trial has to show it.
    private func finding(_ key: Key, _ sent: MonotonicInstant) -> Result? {
        let now = time.monotonic
        return findings.withLock { $0[key].flatMap { $0.holds(for: sent, now: now) ? $0.result : nil } }
    }

    private func newQuestion(
        _ key: Key, _ client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer
    ) -> CoalescedCall<Result> {
        let began = time.monotonic
        return CoalescedCall {
            // Callers that wait for a second trial get what the first one has found against the answer.
            if let known = self.finding(key, began) { return known }
            let result = await self.attempt(key.answer, client, of: tenant, at: server)
            let now = self.time.monotonic
            let validity: Duration?
            switch result {
            case .aboutNothing: validity = Self.validity
            case .aboutGrant, .aboutClient, .later: validity = nil
            case .unanswered: validity = Self.pauseAfterSilence
            }
            let finding = Finding(result: result, at: now, until: validity.map { now.advanced(by: $0) })
            self.findings.withLock { _ = $0.setNewest(finding, forKey: key) }
            return result
        }
    }

    /// How a provider refuses a client.
    enum ClientRefusal: Sendable {
        /// By the error for a client that it does not know, or by the one of the MCP SDK for Python before its second version.
        case named
        /// In another way, which may also be that of a gateway in front of the provider, such as 401 with an empty body.
        case unnamed
    }

    /// How the provider refuses a client, found out by a made-up code; nil where the answer shows no refusal of the client.
    func refusal(
        of client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer
    ) async throws(BrokerError) -> ClientRefusal? {
        let code = try await reply(to: try madeUpCode(of: tenant), client, of: tenant, at: server)
        guard case .refused(let status, let answer) = code else { return nil }
        if answer.isInvalidClient || status == 401 && answer.isUnauthorizedClient { return .named }
        guard case .refused = ClientVerdict(ofMadeUpCode: answer, status: status) else { return nil }
        return .unnamed
    }

    /// A made-up code of the tenant's login.
    func madeUpCode(of tenant: Tenant) throws(BrokerError) -> TokenRequest {
        .authorizationCode(
            code: try Self.random(),
            redirectURI: tenant.configuration.callbackURI.address(below: publicBaseURL, of: tenant.name),
            codeVerifier: try Self.random())
    }

    /// Tries a made-up code. If the answer does not show whether the client is accepted, and the client may have client
    /// credentials, tries those as well. Where the code gets the user's answer, tries a made-up refresh token.
    private func attempt(
        _ refusal: RefusedAnswer, _ client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer
    ) async -> Result {
        var result = Result.aboutGrant
        do throws(BrokerError) {
            result = try await compare(refusal, client, of: tenant, at: server)
        } catch {
            // The configuration does not allow the request, as it did not allow the refused one.
            result = .unanswered
        }
        log.info("client_tried", [.tenant(tenant.name), .provider(server.preset), .outcome(result.name)])
        return result
    }

    private func compare(
        _ refusal: RefusedAnswer, _ client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer
    ) async throws(BrokerError) -> Result {
        let code = try await reply(to: try madeUpCode(of: tenant), client, of: tenant, at: server)
        if let end = code.end { return end }
        var verdict = code.verdict(ClientVerdict.init(ofMadeUpCode:status:))
        if case .unclear = verdict, tenant.terms.canObtainClientCredentials {
            let credentials = try await reply(to: .clientCredentials, client, of: tenant, at: server)
            if let end = credentials.end { return end }
            verdict = credentials.verdict(ClientVerdict.init(ofClientCredentials:status:))
        }
        if case .refused = verdict { return .aboutClient }
        // A firewall that refuses everything may do so in several ways, of which none names an error.
        guard code.isLike(refusal) else { return .aboutGrant }
        let token = try await reply(to: .refresh(try Self.random()), client, of: tenant, at: server)
        return token.end ?? (token.isLike(refusal) ? .aboutNothing : .aboutGrant)
    }

    /// What the provider says to a made-up grant.
    private enum Reply {
        case granted
        case unusable
        case refused(status: Int, TokenErrorResponse)
        /// It says nothing of it.
        case silent(Result)

        var end: Result? {
            if case .silent(let result) = self { result } else { nil }
        }

        var answer: RefusedAnswer? {
            if case .refused(let status, let answer) = self { RefusedAnswer(status: status, answer) } else { nil }
        }

        /// Whether it is the same answer, or, like that one, does not show that an authorization server has looked at the grant.
        func isLike(_ refusal: RefusedAnswer) -> Bool {
            switch self {
            case .granted, .silent: false
            case .unusable: refusal.error == nil
            case .refused(_, let answer): self.answer == refusal || answer.error == nil && refusal.error == nil
            }
        }

        func verdict(_ read: (TokenErrorResponse, Int) -> ClientVerdict) -> ClientVerdict {
            if case .refused(let status, let answer) = self { read(answer, status) } else { .unclear }
        }
    }

    private func reply(
        to request: TokenRequest, _ client: ClientConfiguration, of tenant: Tenant, at server: AuthorizationServer
    ) async throws(BrokerError) -> Reply {
        switch try await endpoint.tryClient(by: request, for: client, of: tenant.name, at: server, within: callLimit) {
        case .unanswered: .silent(.unanswered)
        case .answered(.granted): .granted
        case .answered(.unusable): .unusable
        case .answered(.refused(let status, let answer, let retryAfter)):
            switch status {
            case _ where !RefusedAnswer(status: status, answer).isPassing: .refused(status: status, answer)
            case 500...: .silent(.unanswered)
            default: .silent(.later(retryAfter))
            }
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
        case .aboutGrant: "about_grant"
        case .aboutClient: "about_client"
        case .aboutNothing: "about_nothing"
        case .later: "later"
        case .unanswered: "unanswered"
        }
    }
}
