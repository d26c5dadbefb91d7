internal import ExternalText
internal import HTTPCodec
internal import HTTPServer

/// The counters of all requests at the endpoints, the records of the newest requests, and the callers that wait for
/// requests.
struct RequestLog: Sendable {
    private struct Waiter: Sendable {
        let endpoint: Endpoint
        let grant: GrantType?
        let count: Int
        let continuation: CheckedContinuation<Void, any Error>
    }

    private(set) var counters = RequestCounters()
    private var records: BoundedTable<Int, RequestRecord>
    private var lastNumber = 0
    private var waiters: [Int: Waiter] = [:]

    private static let maximumParameters = 64
    private static let maximumLength = 512

    /// - Parameter capacity: the number of records that are kept.
    init(capacity: Int) {
        records = BoundedTable(capacity: max(1, capacity))
    }

    var all: [RequestRecord] { records.all.map(\.value) }

    /// Records the begin of a request and returns its number.
    mutating func begin(
        _ request: Request, endpoint: Endpoint, received: ReceivedParameters, now: Int64
    ) -> Int {
        let parameters = Parameters(received.query ?? [], toleratesEqual: true)
            .adding(Parameters(received.form ?? [], toleratesEqual: true))
        let authentication = ClientAuthentication(request.fields, parameters)
        lastNumber += 1
        records[lastNumber] = RequestRecord(
            number: lastNumber, receivedAt: now, endpoint: endpoint, method: Self.cut(WireText(request.method.name)),
            grant: parameters["grant_type"].map(Self.cut), clientID: authentication.clientID.map(Self.cut),
            clientAuthentication: authentication.method,
            parameters: Dictionary(
                parameters.all.prefix(Self.maximumParameters).map { ($0.name, Self.shown($0)) },
                uniquingKeysWith: { first, _ in first }),
            queryParameters: Set((received.query ?? []).map(\.name)).sorted().prefix(Self.maximumParameters)
                .map(\.text),
            contentType: request.fields["Content-Type"].map(Self.cut), accept: request.fields["Accept"].map(Self.cut),
            userAgent: request.fields["User-Agent"].map(Self.cut))
        counters.endpoints[endpoint, default: 0] += 1
        if let grant = parameters["grant_type"].flatMap({ GrantType($0) }) { counters.grants[grant, default: 0] += 1 }
        resumeWaiters()
        return lastNumber
    }

    /// The `grant_type` of a request; nil when it is absent or not supported.
    func grant(_ number: Int) -> GrantType? { records[number]?.grant.flatMap { GrantType(WireText($0)) } }

    mutating func disturb(_ number: Int, _ fault: Fault.Mode) {
        records[number]?.fault = fault
        counters.faults += 1
    }

    mutating func finish(_ number: Int, with response: Response, now: Int64) {
        records[number]?.finishedAt = now
        if response.abortsConnection {
            records[number]?.outcome = .dropped
            counters.dropped += 1
        } else {
            records[number]?.outcome = .answered(status: response.status.code)
            counters.statuses[response.status.code, default: 0] += 1
        }
    }

    mutating func note(_ number: Int, error: String?, refresh: RefreshTrace?) {
        records[number]?.error = error
        records[number]?.refresh = refresh
    }

    mutating func reset(capacity: Int) {
        counters = RequestCounters()
        records = BoundedTable(capacity: max(1, capacity))
    }

    // MARK: Waiting

    /// Resumes the continuation once `count` requests have been counted, which may be at once.
    mutating func wait(
        _ id: Int, for count: Int, endpoint: Endpoint, grant: GrantType?,
        continuation: CheckedContinuation<Void, any Error>
    ) {
        waiters[id] = Waiter(endpoint: endpoint, grant: grant, count: count, continuation: continuation)
        resumeWaiters()
    }

    mutating func stopWaiting(_ id: Int) {
        waiters.removeValue(forKey: id)?.continuation.resume(throwing: CancellationError())
    }

    private mutating func resumeWaiters() {
        for (id, waiter) in waiters {
            let count = waiter.grant.map(counters.requests) ?? counters.requests(waiter.endpoint)
            if count >= waiter.count {
                waiters[id] = nil
                waiter.continuation.resume()
            }
        }
    }

    // MARK: Values

    private static func shown(_ pair: FormEncoding.Pair) -> String {
        Parameters.secretNames.contains(pair.name) ? "sha256:" + Secrets.digest(pair.value.text) : cut(pair.value)
    }

    private static func cut(_ text: WireText) -> String { text.prefix(maximumLength).text }
}
