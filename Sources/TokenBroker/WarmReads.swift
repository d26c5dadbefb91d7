internal import BrokerCore
internal import Cryptography
internal import HTTPCodec
internal import HTTPServer
internal import OAuth
internal import Reactor

/// Answers `GET /credentials` where everything that it takes is in memory and believed: the API key, its tenant, and
/// credentials that are good. One event loop's own.
///
/// What it leaves alone goes the way of every other request. It never answers otherwise than that way would: it has the
/// same caches and the same policy. What it has found out of credentials holds for a second at most, so that the caches see
/// what is in use, and of an API key and its tenant for ten; either only as long as nothing of it changes.
final class WarmReads: Shortcut {
    /// An API key that may read credentials, with what is known of it.
    private final class Caller {
        // What every reading looks at comes first, for the processor's cache.
        let end: MonotonicInstant
        /// When the API key expires, in milliseconds of the time of day.
        let expires: Int64
        let reader: CredentialsProvider.Reader
        let storageKeys: [StorageKey]?
        let provider: Int
        let digest: SHA256.Words

        init(
            _ digest: SHA256.Words, _ key: CallerKey, _ tenant: Tenant, end: MonotonicInstant, generation: Int
        ) {
            self.digest = digest
            storageKeys = key.storageKeys
            expires = key.expires?.milliseconds ?? .max
            reader = CredentialsProvider.Reader(tenant.name, tenant.terms, configuration: generation)
            provider = ProviderPreset.all.firstIndex { $0.name == tenant.configuration.preset.name } ?? 0
            self.end = end
        }

        func mayRead(_ storageKey: Span<UInt8>) -> Bool {
            guard let storageKeys else { return true }
            return storageKeys.contains { $0.isNamed(storageKey) }
        }
    }

    /// A plain read without its storage key and its API key.
    private struct Frame {
        /// Both in one number.
        let number: Int

        /// - Parameter minimumLifetime: in seconds; nil for a read without conditions.
        init(minimumLifetime: Int64?, closes: Bool) {
            number = Int(minimumLifetime.map { $0 + 1 } ?? 0) * 2 + (closes ? 1 : 0)
        }

        init(number: Int) { self.number = number }

        var closes: Bool { number & 1 == 1 }

        /// Nil for one without conditions.
        var query: CredentialsQuery? {
            number < 2 ? nil : CredentialsQuery(minimumLifetime: .seconds(number / 2 - 1))
        }
    }

    let generation: Generation
    private let configurations: Generation
    private let broker: Broker
    private let time: any Time
    private let credentials: CredentialsProvider
    private let counts: WarmReadCounts
    private let limits: RequestLimits
    private let defaultKey = StorageKey.default.description
    private var callers = [Caller?](repeating: nil, count: callerPlaces)
    /// Whose request was answered last.
    private var lastCaller: Caller?

    /// A power of two.
    private static let callerPlaces = 32_768
    /// For how long an API key and its tenant are used without being looked at again, in nanoseconds, unless one of them
    /// changes.
    private static let callerSpan: Int64 = 10_000_000_000
    /// For how long what was found out is used without being looked at again, in nanoseconds.
    private static let span: Int64 = 1_000_000_000
    /// Room for what an answer has beside its body.
    private static let longestHead = 512

    init(_ broker: Broker, limits: RequestLimits) {
        self.broker = broker
        self.limits = limits
        time = broker.time
        credentials = broker.credentials
        generation = broker.core.bus.trust.generation
        configurations = broker.core.bus.trust.configurations
        counts = broker.metrics.warmReads()
    }

    func clocks() -> (monotonic: MonotonicInstant, milliseconds: Int64) {
        let clocks = time.clocks
        return (clocks.monotonic, clocks.now.milliseconds)
    }

    func answered(_ count: Int, kind: Int) {
        counts.add(count, isNotModified: kind & 1 == 1, provider: kind / 2)
    }

    func turnEnded(answers: Int, nanoseconds: Int64) {
        counts.answered(answers, nanoseconds: nanoseconds)
    }

    // MARK: Answering

    func answer(_ bytes: Span<UInt8>, _ answer: inout ShortcutAnswer, _ output: OutputBuffer) {
        guard let head = PlainHead(bytes, start: "GET /credentials", limits: limits),
            let authorization = head.authorization, let secret = PlainHead.bearerToken(bytes, authorization),
            let parameters = Parameters(bytes, head.query)
        else { return }
        guard let caller = caller(SHA256.words(bytes.extracting(secret)), answer) else { return }
        let frame = Frame(minimumLifetime: parameters.minimumLifetime, closes: head.closes)
        let isAnswered: Bool
        if parameters.storageKey.isEmpty {
            isAnswered = read(defaultKey.utf8.span, frame, caller, bytes, head.ifNoneMatch, &answer, output)
        } else {
            isAnswered = read(
                bytes.extracting(parameters.storageKey), frame, caller, bytes, head.ifNoneMatch, &answer, output)
        }
        guard isAnswered else { return }
        answer.consumed = head.length
        if head.ifNoneMatch == nil, head.requestLineLength + StorageKey.longest <= limits.requestLineBytes,
            head.length + StorageKey.longest <= limits.headBytes
        {
            // With whatever storage key, and whatever API key of that length, a request of these bytes is read in the same
            // way.
            answer.part = parameters.storageKey
            answer.secret = secret
            answer.frameLife = Self.span
            answer.secretLife = min(Self.span, caller.end.nanoseconds - answer.monotonic.nanoseconds)
            answer.frame = frame.number
            lastCaller = caller
        }
    }

    /// False where it is left alone.
    private func read(
        _ storageKey: Span<UInt8>, _ frame: Frame, _ caller: Caller, _ bytes: Span<UInt8>, _ tags: Range<Int>?,
        _ answer: inout ShortcutAnswer, _ output: OutputBuffer
    ) -> Bool {
        // One strong tag in full is what callers have of us; whatever else may be said there is for others to read.
        var held: Int64?
        if let tags {
            guard let version = Self.version(bytes, tags) else { return false }
            held = version
        }
        return warm(storageKey, frame, caller, answer.monotonic, answer.milliseconds) { facts, content, end in
            write(facts, content, end, facts.version == held, frame, caller, &answer, output)
        }
    }

    var lastHolder: AnyObject? { lastCaller }

    func answer(
        part: Span<UInt8>, inFrame frame: Int, of holder: AnyObject?, _ answer: inout ShortcutAnswer,
        _ output: OutputBuffer
    ) {
        let frame = Frame(number: frame)
        // What is no storage key is not found.
        guard let holder, let caller = downcastToFinalClass(holder, Caller.self), isKnown(caller, answer) else {
            return
        }
        let isAnswered = warm(part, frame, caller, answer.monotonic, answer.milliseconds) { facts, content, end in
            write(facts, content, end, false, frame, caller, &answer, output)
        }
        if isAnswered { answer.consumed = part.count }
    }

    /// False where there is no room for it.
    @inline(__always)
    private func write(
        _ facts: CachedAnswer.Facts, _ content: Span<UInt8>, _ end: MonotonicInstant, _ isNotModified: Bool,
        _ frame: Frame, _ caller: Caller, _ answer: inout ShortcutAnswer, _ output: OutputBuffer
    ) -> Bool {
        guard output.room >= Self.longestHead + content.count else { return false }
        answer.begin(isNotModified ? .notModified : .ok, closes: frame.closes, output)
        if isNotModified {
            output.append("X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nETag: \"")
            output.append(decimal: facts.version)
            output.append("\"\r\n\r\n")
        } else if facts.expires == Timestamp.never.milliseconds {
            output.append(content)
        } else {
            answer.append(
                content, secondsUntil: facts.expires, upTo: facts.secondsEnd, width: CredentialsSnapshot.secondsWidth,
                output)
        }
        answer.kind = 2 * caller.provider + (isNotModified ? 1 : 0)
        let believed = min(caller.end.nanoseconds, end.nanoseconds)
        answer.life = min(Self.span, believed - answer.monotonic.nanoseconds)
        return true
    }

    @inline(__always)
    private func warm(
        _ storageKey: Span<UInt8>, _ frame: Frame, _ caller: Caller, _ now: MonotonicInstant, _ milliseconds: Int64,
        _ serve: (CachedAnswer.Facts, Span<UInt8>, MonotonicInstant) -> Bool
    ) -> Bool {
        guard caller.mayRead(storageKey) else { return false }
        return credentials.warm(
            caller.reader, storageKey, frame.query,
            until: Timestamp(milliseconds: milliseconds + Self.span / 1_000_000), now: now, serve)
    }

    // MARK: Callers

    /// The holder of the API key with that digest, who may read credentials; nil where that is not known without asking.
    private func caller(_ digest: SHA256.Words, _ answer: borrowing ShortcutAnswer) -> Caller? {
        // Two places that belong together: the keys of ten thousand tenants seldom have three that want the same pair.
        let place = Int(truncatingIfNeeded: digest.first) & (Self.callerPlaces - 1)
        if let caller = callers[place], caller.digest == digest, isKnown(caller, answer) { return caller }
        if let caller = callers[place ^ 1], caller.digest == digest, isKnown(caller, answer) { return caller }
        // Read before what it is about.
        let generation = configurations.current
        guard let key = broker.keys.holding(digest: digest.bytes), key.value.permissions.contains(.credentialsRead),
            let tenant = broker.tenants.holding(key.value.tenant)
        else { return nil }
        var end = min(key.end, tenant.end, answer.monotonic.advanced(byNanoseconds: Self.callerSpan))
        if let expires = key.value.expires {
            let left = expires.milliseconds - answer.milliseconds
            guard left > 0 else { return nil }
            end = min(end, answer.monotonic.advanced(by: .milliseconds(left)))
        }
        let caller = Caller(digest, key.value, tenant.value, end: end, generation: generation)
        callers[callers[place] == nil || callers[place]?.digest == digest ? place : place ^ 1] = caller
        return caller
    }

    @inline(__always)
    private func isKnown(_ caller: Caller, _ answer: borrowing ShortcutAnswer) -> Bool {
        caller.reader.configuration == configurations.current
            && caller.end.nanoseconds > answer.monotonic.nanoseconds && caller.expires > answer.milliseconds
    }

    // MARK: Reading

    /// The number in an entity tag of ours.
    private static func version(_ bytes: Span<UInt8>, _ value: Range<Int>) -> Int64? {
        guard value.count > 2, value.count <= 20, bytes[value.lowerBound] == UInt8(ascii: "\""),
            bytes[value.upperBound - 1] == UInt8(ascii: "\""), bytes[value.lowerBound + 1] != UInt8(ascii: "0")
        else { return nil }
        return number(bytes, value.lowerBound + 1..<value.upperBound - 1)
    }

    /// Up to 18 digits.
    private static func number(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Int64? {
        guard (1...18).contains(range.count) else { return nil }
        var number: Int64 = 0
        for index in range {
            guard bytes[index].isDigit else { return nil }
            number = number * 10 + Int64(bytes[index] - UInt8(ascii: "0"))
        }
        return number
    }

    /// The parameters that a plain read has: `storage_key` and `min_ttl`, each once at most.
    private struct Parameters {
        /// Empty where none is named.
        var storageKey = 0..<0
        /// In seconds. Nil where there are no conditions, or none that the one without names.
        var minimumLifetime: Int64?
        private var hasMinimumLifetime = false

        /// Nil where there is anything else, or a value that is not allowed.
        init?(_ bytes: Span<UInt8>, _ query: Range<Int>?) {
            guard let query, !query.isEmpty else { return }
            var start = query.lowerBound
            while true {
                let end = take(bytes, start..<query.upperBound)
                if end == query.upperBound { return }
                guard end > start, bytes[end] == UInt8(ascii: "&"), end + 1 < query.upperBound else { return nil }
                start = end + 1
            }
        }

        /// Takes the first parameter; returns where it ends, or its start where it is none of ours.
        private mutating func take(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Int {
            let start = range.lowerBound
            if range.count > 12, ByteRun.hasExactly("storage_key=", bytes, at: start) {
                let end = StorageKey.end(bytes, from: start + 12)
                guard storageKey.isEmpty, end > start + 12, end - start - 12 <= StorageKey.longest,
                    end <= range.upperBound
                else { return start }
                storageKey = start + 12..<end
                return end
            }
            if range.count > 8, ByteRun.hasExactly("min_ttl=", bytes, at: start) {
                var end = start + 8
                while end < range.upperBound, bytes[end] != UInt8(ascii: "&") { end += 1 }
                guard !hasMinimumLifetime, let seconds = WarmReads.number(bytes, start + 8..<end),
                    CredentialsQuery.minimumLifetimeSeconds.contains(seconds)
                else { return start }
                hasMinimumLifetime = true
                if .seconds(seconds) != CredentialsQuery.defaultMinimumLifetime { minimumLifetime = seconds }
                return end
            }
            return start
        }
    }
}
