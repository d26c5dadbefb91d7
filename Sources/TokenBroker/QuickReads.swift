import BrokerCore
import Cryptography
import HTTPCodec
import HTTPServer
import OAuth
import Reactor
import Synchronization

/// Answers `GET /credentials` within the turn of the event loop that read the request. It does so if the API key, its
/// tenant and the credentials are in memory and fresh, and if the policy serves the credentials without a refresh.
///
/// It uses the same functions to parse, authenticate and decide as `CredentialsRoutes`, which answers all other
/// requests of the route, and both send the same bytes.
final class QuickReads: Sendable {
    private static let path: StaticString = "/credentials"

    /// The counters that an answer adds to.
    private struct Counters {
        let requests: Metrics.Counter
        let reads: Metrics.Counter
    }

    // Copies of the broker's members. Access through the broker would retain and release it for each request.
    private let time: any Time
    private let authenticator: CallerAuthenticator
    private let tenants: TenantDirectory
    private let credentials: CredentialsProvider
    private let route: Route
    /// Two kinds of answers for each provider in use: those with content, and 304 Not Modified. Made when they are first counted.
    private let counters = Mutex([Counters?](repeating: nil, count: NowAnswer.kinds))
    private let metrics: Metrics
    private let durations: Metrics.Durations

    /// - Parameter route: `GET /credentials`.
    init(_ broker: Broker, _ route: Route) {
        time = broker.time
        authenticator = broker.authenticator
        tenants = broker.tenants
        credentials = broker.credentials
        self.route = route
        metrics = broker.metrics
        durations = metrics.durations(ofRequests: Self.path)
    }

    /// Whether the route is `GET /credentials`.
    static func answers(_ route: Route) -> Bool {
        route.method == .get && ByteRun.equal(route.path.description.utf8.span, path.description.utf8.span)
    }

    /// As `RequestHandler.answerNow`.
    func answer(
        _ head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, into answer: NowAnswer
    ) -> Int? {
        guard head.isRequest("GET", for: Self.path, in: bytes) else { return nil }
        // `CredentialsRoutes` handles these fields.
        if head.has(.tenant) || head.has(.prefer) || head.has(.proof) { return nil }
        let clocks = clocks(for: answer)
        guard let digest = digest(of: head, bytes, from: peer, at: clocks.now),
            case .key(let key) = authenticator.find(digest, at: clocks), (try? route.authorize(key)) != nil,
            let tenant = tenants.inMemory(of: key, now: clocks.monotonic),
            // Reads at further providers are answered, and counted, by `CredentialsRoutes`.
            tenant.configuration.preset.number < NowAnswer.kinds / 2
        else { return nil }
        let text = bytes.extracting(head.query ?? 0..<0)
        guard let parameters = try? CredentialsParameters(text), !parameters.query.refusedByAPI,
            parameters.query.policy != .localForceRefresh
        else { return nil }
        var isModified = true
        let isAnswered = parameters.withStorageKey(in: text) { storageKey in
            guard key.isFor(storageKey) else { return false }
            return credentials.answerFromMemory(storageKey, of: tenant, parameters.query, at: clocks) {
                isModified = Self.write($0, $1, head, bytes, at: clocks.now, into: answer)
            }
        }
        guard isAnswered else { return nil }
        return 2 * tenant.configuration.preset.number + (isModified ? 0 : 1)
    }

    private func counters(of kind: Int) -> Counters {
        counters.withLock { counters in
            if let known = counters[kind] { return known }
            let (status, outcome): (Int, Metrics.TokenRead) = kind % 2 == 0 ? (200, .fresh) : (304, .notModified)
            let made = Counters(
                requests: metrics.counter(ofRequests: Self.path, method: "GET", status: status),
                reads: metrics.counter(ofReads: outcome, provider: ProviderPreset.inUse[kind / 2]))
            counters[kind] = made
            return made
        }
    }

    /// The digest of the bearer token. It is kept with the field section, so that the token of an identical section is not
    /// hashed again; without a token, that of the connection. Whether the key is valid is checked for each request.
    private func digest(
        of head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, at now: Timestamp
    ) -> SHA256.Words? {
        if let note = head.section.note { return SHA256.Words(note) }
        if !head.has(.authorization) { return CallerAuthenticator.digest(peer, at: now) }
        let lines = head.section.lines
        let digest = authenticator.digest(lines.span, bytes.extracting(head.fields))
        head.section.note = digest?.vector
        return digest
    }

    /// The time of both clocks. They are read once in a turn.
    private func clocks(for answer: NowAnswer) -> (now: Timestamp, monotonic: MonotonicInstant) {
        if let (now, monotonic) = answer.note {
            return (Timestamp(milliseconds: now), MonotonicInstant(nanoseconds: monotonic))
        }
        let clocks = time.clocks
        answer.note = (clocks.now.milliseconds, clocks.monotonic.nanoseconds)
        return clocks
    }

    /// Writes the answer. Returns false for 304 Not Modified, if the caller has this version already.
    private static func write(
        _ facts: CachedAnswer.Facts, _ text: Span<UInt8>, _ head: borrowing RequestHead, _ bytes: Span<UInt8>,
        at now: Timestamp, into answer: NowAnswer
    ) -> Bool {
        let output = answer.output
        if head.has(.ifNoneMatch), Self.hasTag(text.extracting(facts.tag), head, bytes) {
            answer.begin(.notModified, contentLength: 0)
            let start = CredentialsSnapshot.notModifiedStart
            output.append(text.extracting(start..<facts.fieldLines.upperBound))
            return false
        }
        let (before, after) = (facts.bodyBeforeSeconds, facts.bodyAfterSeconds)
        if facts.expires == Timestamp.never.milliseconds {
            answer.begin(.ok, contentLength: before.count + after.count)
            output.append(text)
        } else {
            let seconds = CredentialsSnapshot.seconds(until: facts.expires, at: now)
            answer.begin(.ok, contentLength: before.count + OutputBuffer.digits(of: seconds) + after.count)
            output.append(text.extracting(0..<before.upperBound))
            output.append(decimal: seconds)
            output.append(text.extracting(after))
        }
        return true
    }

    private static func hasTag(_ tag: Span<UInt8>, _ head: borrowing RequestHead, _ bytes: Span<UInt8>) -> Bool {
        let lines = head.section.lines
        return EntityTags.contain(tag, lines.span, bytes.extracting(head.fields))
    }

    /// As `RequestHandler.answeredNow`.
    func answered(_ count: Int, kind: Int) {
        let counters = counters(of: kind)
        counters.requests.add(count)
        counters.reads.add(count)
    }

    /// As `RequestHandler.turnEnded`.
    func turnEnded(answers count: Int, took: Duration) {
        durations.add(took, count: count)
    }
}
