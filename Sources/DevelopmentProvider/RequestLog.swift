import Containers
import ExternalText
import HTTPCodec
import HTTPServer
import Waiting

/// The counters of all requests at the endpoints, the records of the newest requests, and the callers that wait for
/// requests.
struct RequestLog: Sendable {
    /// What a caller waits for: so many requests at an endpoint, or with a grant.
    private struct Awaited: Sendable {
        let endpoint: Endpoint
        let grant: GrantType?
        let count: Int

        func isReached(by counters: RequestCounters) -> Bool {
            (grant.map(counters.requests) ?? counters.requests(endpoint)) >= count
        }
    }

    private(set) var counters = RequestCounters()
    private var records: BoundedTable<Int, RequestRecord>
    private var lastNumber = 0
    /// Each gets true when what it waits for has come, and false when its task is cancelled.
    private var waiters = WaitList<Awaited, Bool>()

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
        let counters = counters
        for waiter in waiters.removeAll(where: { $0.isReached(by: counters) }) { waiter.resume(returning: true) }
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

    /// Adds a caller that waits for requests; nil where `count` of them have been counted already.
    mutating func wait(for count: Int, endpoint: Endpoint, grant: GrantType?) -> Waiter<Bool>? {
        let awaited = Awaited(endpoint: endpoint, grant: grant, count: count)
        return awaited.isReached(by: counters) ? nil : waiters.enter(awaited)
    }

    mutating func stopWaiting(_ waiter: Waiter<Bool>) -> Waiter<Bool>? { waiters.remove(waiter) }

    // MARK: Values

    private static func shown(_ pair: FormEncoding.Pair) -> String {
        Parameters.secretNames.contains(pair.name) ? "sha256:" + Secrets.digest(pair.value.text) : cut(pair.value)
    }

    private static func cut(_ text: WireText) -> String { text.prefix(maximumLength).text }
}
