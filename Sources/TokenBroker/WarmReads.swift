internal import BrokerCore
internal import Cryptography
internal import HTTPCodec
internal import HTTPServer
internal import OAuth
internal import Reactor

/// Answers `GET /credentials` where everything that it takes is in memory and believed: the API key, its tenant, and
/// credentials that are good. One event loop's own.
///
/// What it leaves alone goes the way of every other request, and so does each request again after a second, so that the
/// caches see what is in use. It never answers otherwise than that way would: it has the same caches and the same policy,
/// and forgets what it has made of an entry of a cache with that entry.
final class WarmReads: Shortcut {
    /// An API key with what is known of it.
    private final class Caller {
        let digest: SHA256.Words
        let key: CallerKey
        let keyFact: CachedFact
        let tenant: Tenant
        let tenantFact: CachedFact
        let end: MonotonicInstant
        let counter: WarmReadCounts.Provider

        init(
            _ digest: SHA256.Words, _ key: CallerKey, _ keyFact: CachedFact, _ tenant: Tenant, _ tenantFact: CachedFact,
            end: MonotonicInstant, counter: WarmReadCounts.Provider
        ) {
            self.digest = digest
            self.key = key
            self.keyFact = keyFact
            self.tenant = tenant
            self.tenantFact = tenantFact
            self.end = end
            self.counter = counter
        }

        func holds(_ now: MonotonicInstant) -> Bool { end > now && keyFact.isCurrent && tenantFact.isCurrent }

        func mayRead(_ storageKey: Span<UInt8>) -> Bool {
            guard let narrowed = key.storageKeys else { return true }
            return narrowed.contains { WarmReads.equal($0.description.utf8.span, storageKey) }
        }
    }

    /// What the head at one place of the memory is answered. An object, so that whoever looks at it counts one reference
    /// and not one for each of its parts.
    private final class Known {
        let caller: Caller
        let credentials: CredentialsProvider.Warm
        let isNotModified: Bool
        let closes: Bool
        let end: MonotonicInstant
        let disturbances: Int

        init(
            _ caller: Caller, _ credentials: CredentialsProvider.Warm, isNotModified: Bool, closes: Bool,
            end: MonotonicInstant, disturbances: Int
        ) {
            self.caller = caller
            self.credentials = credentials
            self.isNotModified = isNotModified
            self.closes = closes
            self.end = end
            self.disturbances = disturbances
        }
    }

    private let broker: Broker
    private let counts: WarmReadCounts
    private let limits: RequestLimits
    private let hasher = SHA256.Engine()
    private let defaultKey = StorageKey.default.description
    private let heads = HeadMemory(places: places)
    private var known = [Known?](repeating: nil, count: places)
    /// The place of the head that was answered last without being kept: a head is kept when it comes twice in a row
    /// there, so that one which comes once pushes nothing out.
    private var candidates = [UInt32](repeating: 0, count: places)
    private var callers = [Caller?](repeating: nil, count: callerPlaces)
    private var turn: UInt64?
    private var now = MonotonicInstant(nanoseconds: 0)
    private var time = Timestamp(milliseconds: 0)

    private static let places = 512
    private static let callerPlaces = 256
    /// For how long what was found out is used without being looked at again, in nanoseconds.
    private static let span: Int64 = 1_000_000_000
    /// What an answer has beside its body.
    private static let longestHead = 512

    init(_ broker: Broker, limits: RequestLimits) {
        self.broker = broker
        self.limits = limits
        counts = broker.metrics.warmReads()
    }

    // MARK: Answering

    func answer(_ bytes: Span<UInt8>, _ exchange: inout ShortcutExchange) {
        begin(exchange.turn)
        if exchange.note >= 0 {
            let place = Int(exchange.note)
            let length = heads.recognise(bytes, at: place)
            if length > 0, repeatAnswer(place, length, &exchange) { return }
        }
        guard let head = PlainHead(bytes, limits: limits), isCredentials(bytes, head.path) else { return }
        let (place, mark) = heads.place(of: bytes.extracting(0..<head.length))
        if heads.recognise(bytes, at: place) == head.length, repeatAnswer(place, head.length, &exchange) {
            exchange.note = Int32(place)
            return
        }
        make(bytes, head, place, mark, &exchange)
    }

    /// Reads the clocks, once in a turn.
    private func begin(_ turn: UInt64) {
        if self.turn == turn { return }
        self.turn = turn
        now = broker.time.monotonic
        time = broker.time.now
    }

    /// Answers what the head at that place was answered before, if that still holds.
    private func repeatAnswer(_ place: Int, _ length: Int, _ exchange: inout ShortcutExchange) -> Bool {
        guard let known = known[place], known.end > now, known.caller.holds(now), known.credentials.fact.isCurrent,
            known.disturbances == broker.core.bus.trust.disturbances,
            exchange.output.room >= Self.longestHead + HeadMemory.longestOpening + known.credentials.encoded.count
        else { return false }
        exchange.stamp.begin(
            known.isNotModified ? .notModified : .ok, closes: known.closes, in: exchange.turn, exchange.output)
        heads.append(openingAt: place, to: exchange.output)
        finish(known.credentials.encoded, known.isNotModified, known.caller.counter, exchange.output)
        exchange.consumed = length
        exchange.closes = known.closes
        return true
    }

    /// Appends what follows the opening, and counts the answer.
    private func finish(
        _ encoded: EncodedCredentials, _ isNotModified: Bool, _ counter: WarmReadCounts.Provider,
        _ output: OutputBuffer
    ) {
        if isNotModified { return counter.notModified() }
        counter.fresh()
        output.append(decimal: encoded.seconds(at: time), width: EncodedCredentials.secondsWidth)
        output.append(EncodedCredentials.beforeToken)
        encoded.token.withRevealed { output.append($0) }
        output.append(EncodedCredentials.afterToken)
    }

    /// Finds out what the answer is. Leaves the request alone where that takes more than memory.
    private func make(
        _ bytes: Span<UInt8>, _ head: PlainHead, _ place: Int, _ mark: UInt32, _ exchange: inout ShortcutExchange
    ) {
        let disturbances = broker.core.bus.trust.disturbances
        guard let authorization = head.authorization, let secret = Self.bearerToken(bytes, authorization),
            let parameters = Parameters(bytes, head.query),
            let caller = caller(hasher.digest(bytes.extracting(secret)))
        else { return }
        let found: CredentialsProvider.Warm?
        if parameters.storageKey.isEmpty {
            found = credentials(caller, defaultKey.utf8.span, parameters)
        } else {
            found = credentials(caller, bytes.extracting(parameters.storageKey), parameters)
        }
        guard let credentials = found else { return }
        var isNotModified = false
        if let tags = head.ifNoneMatch {
            // One strong tag in full is what callers have of us; whatever else may be said there is for others to read.
            guard let version = Self.version(bytes, tags) else { return }
            isNotModified = version == credentials.snapshot.version
        }
        let output = exchange.output
        guard output.room >= Self.longestHead + credentials.encoded.count,
            credentials.encoded.count <= HeadMemory.longestOpening * 16
        else { return }
        exchange.stamp.begin(isNotModified ? .notModified : .ok, closes: head.closes, in: exchange.turn, output)
        let opening = output.count
        if isNotModified {
            output.append("Cache-Control: no-store\r\nETag: \"")
            output.append(decimal: credentials.snapshot.version)
            output.append("\"\r\n\r\n")
        } else {
            output.append("Content-Type: application/json\r\nCache-Control: no-store\r\nETag: \"")
            output.append(decimal: credentials.snapshot.version)
            output.append("\"\r\nContent-Length: ")
            output.append(decimal: Int64(credentials.encoded.count))
            output.append("\r\n\r\n")
            output.append(credentials.encoded.opening)
        }
        if candidates[place] != mark {
            candidates[place] = mark
        } else if heads.keep(bytes.extracting(0..<head.length), output, from: opening, at: place) {
            known[place] = Known(
                caller, credentials, isNotModified: isNotModified, closes: head.closes,
                end: min(credentials.end, now.advanced(byNanoseconds: Self.span)), disturbances: disturbances)
            exchange.note = Int32(place)
        }
        finish(credentials.encoded, isNotModified, caller.counter, output)
        exchange.consumed = head.length
        exchange.closes = head.closes
    }

    private func credentials(
        _ caller: Caller, _ storageKey: Span<UInt8>, _ parameters: Parameters
    ) -> CredentialsProvider.Warm? {
        guard caller.mayRead(storageKey) else { return nil }
        var query = CredentialsQuery()
        if let seconds = parameters.minimumSeconds { query.minimumLifetime = .seconds(seconds) }
        let end = Timestamp(milliseconds: time.milliseconds + Self.span / 1_000_000)
        return broker.credentials.warm(caller.tenant, storageKey, query, until: end, now: now)
    }

    // MARK: Callers

    /// The holder of the API key with that digest, who may read credentials; nil where that is not known without asking.
    private func caller(_ digest: SHA256.Words) -> Caller? {
        let place = Int(truncatingIfNeeded: digest.first) & (Self.callerPlaces - 1)
        if let caller = callers[place], caller.digest == digest, caller.holds(now) { return caller }
        callers[place] = nil
        guard let key = broker.keys.holding(digest: digest.bytes), key.value.permissions.contains(.credentialsRead),
            let tenant = broker.tenants.holding(key.value.tenant)
        else { return nil }
        var end = min(key.end, tenant.end, now.advanced(byNanoseconds: Self.span))
        if let expires = key.value.expires {
            guard expires > time else { return nil }
            end = min(end, now.advanced(by: time.duration(to: expires)))
        }
        let caller = Caller(
            digest, key.value, key.fact, tenant.value, tenant.fact, end: end,
            counter: counts.provider(tenant.value.configuration.preset))
        callers[place] = caller
        return caller
    }

    // MARK: Reading

    private func isCredentials(_ bytes: Span<UInt8>, _ path: Range<Int>) -> Bool {
        Self.equal(bytes.extracting(path), "/credentials".utf8.span)
    }

    private static func equal(_ left: Span<UInt8>, _ right: Span<UInt8>) -> Bool {
        guard left.count == right.count else { return false }
        for index in left.indices where left[index] != right[index] { return false }
        return true
    }

    /// `Bearer`, in whatever case, a space, and a token of the length that our keys have at most.
    private static func bearerToken(_ bytes: Span<UInt8>, _ value: Range<Int>) -> Range<Int>? {
        let scheme = "bearer ".utf8.span
        guard value.count > 7, value.count <= 7 + 512 else { return nil }
        for index in 0..<7 {
            let byte = bytes[value.lowerBound + index]
            guard (byte.isUppercaseLetter ? byte | 0x20 : byte) == scheme[index] else { return nil }
        }
        let token = value.lowerBound + 7..<value.upperBound
        for index in token where bytes[index] == UInt8(ascii: " ") { return nil }
        return token
    }

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
        var minimumSeconds: Int64?

        /// Nil where there is anything else, or a value that is not allowed.
        init?(_ bytes: Span<UInt8>, _ query: Range<Int>?) {
            guard let query, !query.isEmpty else { return }
            var start = query.lowerBound
            while true {
                var end = start
                while end < query.upperBound, bytes[end] != UInt8(ascii: "&") { end += 1 }
                guard take(bytes, start..<end) else { return nil }
                if end == query.upperBound { return }
                start = end + 1
            }
        }

        private mutating func take(_ bytes: Span<UInt8>, _ pair: Range<Int>) -> Bool {
            if pair.count > 12, WarmReads.equal(bytes.extracting(pair.lowerBound..<pair.lowerBound + 12), "storage_key=".utf8.span) {
                let value = pair.lowerBound + 12..<pair.upperBound
                guard storageKey.isEmpty, value.count <= 200 else { return false }
                for index in value where !Self.isStorageKeyByte(bytes[index]) { return false }
                storageKey = value
                return true
            }
            if pair.count > 8, WarmReads.equal(bytes.extracting(pair.lowerBound..<pair.lowerBound + 8), "min_ttl=".utf8.span) {
                guard minimumSeconds == nil,
                    let seconds = WarmReads.number(bytes, pair.lowerBound + 8..<pair.upperBound), seconds <= 86_400
                else { return false }
                minimumSeconds = seconds
                return true
            }
            return false
        }

        /// As `StorageKey` has it.
        private static func isStorageKeyByte(_ byte: UInt8) -> Bool {
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "~"),
                UInt8(ascii: ":"), UInt8(ascii: "@"), UInt8(ascii: "-"):
                true
            default: false
            }
        }
    }

    // MARK: Living on

    func answered(_ count: Int) {
        counts.answered(count, nanoseconds: broker.time.monotonic.nanoseconds - now.nanoseconds)
    }

    func tidy() {
        let now = broker.time.monotonic
        for place in known.indices {
            guard let entry = known[place], entry.end <= now || !entry.caller.holds(now) else { continue }
            known[place] = nil
            heads.wipe(place)
        }
        for place in callers.indices {
            if let caller = callers[place], !caller.holds(now) { callers[place] = nil }
        }
    }
}
