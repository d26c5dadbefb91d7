import CredentialStore
import HTTPCodec
package import OAuth
import Synchronization

/// Counters in Prometheus' text format. Label values come from route tables and enumerations, never from requests, so that the
/// number of series is bounded.
package final class Metrics: Sendable {
    /// A counter's name and its labels, in the order in which they are written.
    private struct Series: Hashable {
        let name: String
        let labels: String
    }

    private struct State {
        var counters: [Series: Counter] = [:]
        var durations: [Series: Durations] = [:]
        /// The routes whose series are in every text, whether or not a request has come.
        var expectedRoutes: [(route: StaticString, method: String)] = []
        /// For how many of them the series have been made.
        var madeRoutes = 0
        /// Whether the series that concern no provider have been made.
        var hasEnumerable = false
        /// For how many of `ProviderPreset.inUse` the series have been made.
        var madeProviders = 0

        mutating func counter(_ series: Series) -> Counter {
            if let counter = counters[series] { return counter }
            let counter = Counter()
            counters[series] = counter
            return counter
        }

        mutating func durations(_ series: Series) -> Durations {
            if let durations = durations[series] { return durations }
            let new = Durations()
            durations[series] = new
            return new
        }
    }

    /// The count of one series. Code that counts often keeps the counter, instead of looking it up each time.
    package final class Counter: Sendable {
        private let count = Atomic<Int>(0)

        fileprivate init() {}

        package func add(_ added: Int) { count.add(added, ordering: .relaxed) }

        fileprivate var current: Int { count.load(ordering: .relaxed) }
    }

    /// The durations of one series.
    package final class Durations: Sendable {
        private let histogram = Mutex(Histogram())

        fileprivate init() {}

        /// Adds `count` durations of that length.
        package func add(_ duration: Duration, count: Int = 1) {
            let (whole, attoseconds) = duration.components
            let seconds = Double(whole) + Double(attoseconds) / 1e18
            histogram.withLock { $0.add(count, seconds: seconds) }
        }

        fileprivate var current: Histogram { histogram.withLock { $0 } }
    }

    fileprivate struct Histogram {
        var counts = [Int](repeating: 0, count: Metrics.bounds.count + 1)
        var sum = 0.0

        mutating func add(_ count: Int, seconds: Double) {
            counts[Metrics.bounds.firstIndex { seconds <= $0 } ?? Metrics.bounds.count] += count
            sum += seconds * Double(count)
        }
    }

    /// Upper bounds in seconds: from the microseconds of a warm read to a provider for which all retries are used up.
    private static let bounds = [0.0001, 0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120]

    private let state = Mutex(State())
    private let shown = Mutex<[Shown: @Sendable () -> [LabelledValue]?]>([:])

    package init() {}

    // MARK: Metrics that their owners count

    /// A value, and its labels as they are written; "" for a metric without labels.
    package typealias LabelledValue = (labels: String, value: Int)

    /// Has each text show a metric that its owner counts. Replaces what was shown as that metric.
    /// - Parameter read: the value; nil leaves the metric out. Called for each text.
    package func show(_ metric: Shown, _ read: @escaping @Sendable () -> Int?) {
        showEach(metric) { read().map { [("", $0)] } }
    }

    /// The same for a metric with several values, which are shown in their order.
    package func showEach(_ metric: Shown, _ read: @escaping @Sendable () -> [LabelledValue]?) {
        shown.withLock { $0[metric] = read }
    }

    /// Adds these routes to those whose series are in every text, with every status that an answer can have.
    package func expect(_ routes: [(route: StaticString, method: String)]) {
        state.withLock { $0.expectedRoutes += routes }
    }

    /// Makes the series that are known in advance and that no event has made yet. A Prometheus rule on an increase does not
    /// see the first increment of a series that begins with it. They are made for the first text and not at the start,
    /// of which they would take a tenth.
    private func makeExpected() {
        let providers = ProviderPreset.inUse
        let (routes, made, isFirst, known) = state.withLock { state in
            (state.expectedRoutes, state.madeRoutes, !state.hasEnumerable, state.madeProviders)
        }
        // Each request counts under the lock, so the series are named before it is taken.
        var counters = isFirst ? Self.enumerableCounters : []
        var durations = isFirst ? [Series(name: "refresh_lease_wait_seconds", labels: "")] : []
        for provider in providers.dropFirst(known) {
            counters += Self.counters(of: provider)
            durations += Self.histograms(of: provider)
        }
        let codes = made == routes.count ? [] : Set(BrokerError.Code.allCases.map(\.status.code) + Self.successes)
        for (route, method) in routes.dropFirst(made) {
            counters += codes.map { Self.requests(route, method, $0) }
            durations.append(Self.requestDuration(route))
        }
        if counters.isEmpty { return }
        state.withLock { state in
            state.counters.reserveCapacity(state.counters.count + counters.count)
            for series in counters { _ = state.counter(series) }
            for series in durations { _ = state.durations(series) }
            // Not before: a text that is written at the same time makes the same series, so that none lacks them.
            state.hasEnumerable = true
            state.madeProviders = max(state.madeProviders, providers.count)
            state.madeRoutes = max(state.madeRoutes, routes.count)
        }
    }

    private static let successes = [200, 201, 204, 303, 304]

    private func increment(_ name: String, _ labels: String) {
        increment(Series(name: name, labels: labels))
    }

    private func increment(_ series: Series) { counter(series).add(1) }

    private func counter(_ series: Series) -> Counter { state.withLock { $0.counter(series) } }

    private func observe(_ name: String, _ labels: String, _ duration: Duration) {
        durations(Series(name: name, labels: labels)).add(duration)
    }

    private func durations(_ series: Series) -> Durations { state.withLock { $0.durations(series) } }

    // MARK: Counting

    package func requestAnswered(route: StaticString, method: String, status: Int, took duration: Duration) {
        counter(ofRequests: route, method: method, status: status).add(1)
        durations(ofRequests: route).add(duration)
    }

    /// The counter of a route's answers with that status.
    package func counter(ofRequests route: StaticString, method: String, status: Int) -> Counter {
        counter(Self.requests(route, method, status))
    }

    /// The durations of a route's answers.
    package func durations(ofRequests route: StaticString) -> Durations { durations(Self.requestDuration(route)) }

    private static func requests(_ route: StaticString, _ method: String, _ code: Int) -> Series {
        Series(name: "http_requests_total", labels: #"route="\#(route)",method="\#(method)",code="\#(code)""#)
    }

    private static func requestDuration(_ route: StaticString) -> Series {
        Series(name: "http_request_duration_seconds", labels: #"route="\#(route)""#)
    }

    /// How a `GET /credentials` was answered.
    package enum TokenRead: String, CaseIterable {
        /// From the cache or the store, without a renewal.
        case fresh
        /// After a call to the provider that this request caused.
        case renewed
        /// After a call that another request had caused.
        case joined
        /// From the cache or the store, with a shorter lifetime than the caller asked for: it could not be renewed.
        case degraded
        /// Basic credentials: no token.
        case basic
        case notModified = "not_modified"
        case refused
        case failed
    }

    package func tokenRead(provider: String, _ outcome: TokenRead) {
        counter(ofReads: outcome, provider: provider).add(1)
    }

    /// The counter of reads of one provider's credentials with that outcome.
    package func counter(ofReads outcome: TokenRead, provider: String) -> Counter {
        counter(Series(name: "token_reads_total", labels: Self.labels(provider, outcome)))
    }

    private static func labels(_ provider: String, _ outcome: TokenRead) -> String {
        #"provider="\#(provider)",outcome="\#(outcome.rawValue)""#
    }

    /// How a renewal ended.
    package enum Renewal: String, CaseIterable {
        case succeeded
        /// The provider ended the session.
        case sessionEnded = "session_ended"
        /// The provider refused a refresh token that may have been spent by a call whose answer was lost. Neither the provider
        /// nor the user need have ended the session.
        case sessionLost = "session_lost"
        /// A login, a logout or another replica was faster; the result was dropped or not needed.
        case overtaken
        /// Expired credentials that cannot be renewed were removed.
        case retired
        case failed
    }

    /// - Parameter grant: nil where the provider was not asked.
    package func renewalEnded(
        provider: String, _ grant: TokenRequest.Grant?, _ outcome: Renewal, took duration: Duration
    ) {
        increment("refresh_total", Self.labels(provider, grant, outcome))
        observe("refresh_duration_seconds", #"provider="\#(provider)""#, duration)
    }

    private static func labels(_ provider: String, _ grant: TokenRequest.Grant?, _ outcome: Renewal) -> String {
        #"provider="\#(provider)",grant="\#(grant?.rawValue ?? "none")",outcome="\#(outcome.rawValue)""#
    }

    /// A refresh token is presented once more although an earlier call may have spent it.
    package func repeatedAfterUnknownOutcome(provider: String) {
        increment("refresh_outcome_unknown_total", #"provider="\#(provider)""#)
    }

    /// A provider has not accepted a tenant's client.
    package func clientRefused(provider: String) { increment("client_refused_total", #"provider="\#(provider)""#) }

    /// A call was not made because the provider has left the last ones without an answer.
    package func callSpared(provider: String) { increment("provider_calls_spared_total", #"provider="\#(provider)""#) }

    /// A user's credentials are held because of a wave.
    package func credentialsHeld(provider: String) { increment("credentials_held_total", #"provider="\#(provider)""#) }

    /// A refresh has brought another user's token.
    package func subjectChanged(provider: String) { increment("subject_changed_total", #"provider="\#(provider)""#) }

    /// A renewal has waited for another replica's renewal.
    package func waitedForLease(_ duration: Duration) {
        observe("refresh_lease_wait_seconds", "", duration)
    }

    /// How an attempt ended to renew a token before a caller asks for it.
    package enum RenewalAhead: String, CaseIterable {
        case renewed
        /// The credentials were changed meanwhile, or another replica renews them.
        case overtaken
        case failed
        /// The broker was stopped while it waited; the renewal may have succeeded.
        case cancelled
        /// Too many were under way at the provider.
        case postponed
    }

    package func renewedAhead(_ outcome: RenewalAhead) {
        increment("proactive_refresh_total", #"outcome="\#(outcome.rawValue)""#)
    }

    /// One exchange with a provider; `code` is the status, or `error` where there was no answer.
    package func providerAnswered(
        provider: String, endpoint: ProviderEndpoint, code: String, took duration: Duration
    ) {
        increment(
            "provider_requests_total", #"provider="\#(provider)",endpoint="\#(endpoint.rawValue)",code="\#(code)""#)
        observe(
            "provider_request_duration_seconds", #"provider="\#(provider)",endpoint="\#(endpoint.rawValue)""#, duration)
    }

    /// The kind of a request to a provider.
    package enum ProviderEndpoint: String, CaseIterable {
        case token
        case deviceAuthorization = "device_authorization"
        case revocation
        case metadata
        case jwks
        case userInfo = "userinfo"
        case authorization
        case accountCreation = "account_creation"
        case activation
        case logout
        case challenge
        case pushedAuthorization = "pushed_authorization_request"
        case registration
    }

    package func loginEnded(_ kind: LoginKind, _ outcome: String) {
        increment("logins_total", #"flow="\#(kind.rawValue)",outcome="\#(outcome)""#)
    }

    package func devicePolled(_ outcome: DevicePolling.Outcome) {
        let poll: DevicePoll =
            switch outcome {
            case .granted: .granted
            case .unreachable: .unreachable
            case .answered(500..., _, _): .serverError
            case .answered(429, _, _): .rateLimited
            case .answered(_, let answer, _) where answer.error == "authorization_pending": .pending
            case .answered(_, let answer, _) where answer.error == "slow_down": .slowDown
            case .answered: .refused
            }
        increment("device_polls_total", #"outcome="\#(poll.rawValue)""#)
    }

    private enum DevicePoll: String, CaseIterable {
        case granted, unreachable, pending, refused
        case serverError = "server_error"
        case rateLimited = "rate_limited"
        case slowDown = "slow_down"
    }

    /// A request was answered `too_many_requests`.
    package func refused(over quota: Quota) {
        increment(Self.series(quota))
    }

    /// A login that a browser without a key had begun has failed, and no event tells of it.
    package func leftUntold() {
        increment(Self.loginFailuresUntold)
    }

    private static func series(_ quota: Quota) -> Series {
        Series(name: "quota_refusals_total", labels: #"quota="\#(quota.rawValue)""#)
    }

    /// How a request without a valid key was answered.
    package enum AuthenticationFailure: String, CaseIterable {
        /// With 401, at once.
        case answered
        /// With 401, after a wait.
        case delayed
        /// With 429.
        case refused
    }

    package func authenticationFailed(_ outcome: AuthenticationFailure) {
        increment(Self.series(outcome))
    }

    private static func series(_ outcome: AuthenticationFailure) -> Series {
        Series(name: "authentication_failures_total", labels: #"outcome="\#(outcome.rawValue)""#)
    }

    /// A request was answered 503, because no key was there that could verify its workload's token.
    package func workloadTokenUnverified() { increment(Self.unverifiedTokens) }

    /// A record was read that had ended before, and was not used.
    func recordPutBack() { increment(Self.recordsPutBack) }

    private static let loginFailuresUntold = Series(name: "login_failures_untold_total", labels: "")
    private static let recordsPutBack = Series(name: "records_put_back_total", labels: "")

    private static let unverifiedTokens = Series(name: "workload_tokens_unverified_total", labels: "")

    /// The store did not answer a call, or could not do what it was asked.
    func storeFailed(_ access: StoreAccess) {
        increment(Self.series(access))
    }

    private static func series(_ access: StoreAccess) -> Series {
        Series(name: "store_failures_total", labels: #"access="\#(access.rawValue)""#)
    }

    // MARK: Series that are known in advance

    /// The usual statuses of providers' answers. Another status has a series from its first answer on.
    private static let providerCodes = [
        "200", "302", "400", "401", "403", "404", "405", "429", "500", "502", "503", "504", "error",
    ]

    /// How a login can end: with an error code, or as listed here.
    private static let loginOutcomes = BrokerError.Code.allCases.map(\.rawValue) + ["completed", "expired"]

    private static var enumerableCounters: [Series] {
        var series =
            Quota.allCases.map { Self.series($0) } + AuthenticationFailure.allCases.map { Self.series($0) }
            + [Self.unverifiedTokens, Self.recordsPutBack, Self.loginFailuresUntold]
        func add(_ name: String, _ labels: String) { series.append(Series(name: name, labels: labels)) }
        for outcome in RenewalAhead.allCases { add("proactive_refresh_total", #"outcome="\#(outcome.rawValue)""#) }
        for kind in LoginKind.allCases {
            for outcome in loginOutcomes { add("logins_total", #"flow="\#(kind.rawValue)",outcome="\#(outcome)""#) }
        }
        series += StoreAccess.allCases.map { Self.series($0) }
        for poll in DevicePoll.allCases { add("device_polls_total", #"outcome="\#(poll.rawValue)""#) }
        return series
    }

    /// The counters of a provider.
    private static func counters(of provider: String) -> [Series] {
        var series: [Series] = []
        func add(_ name: String, _ labels: String) { series.append(Series(name: name, labels: labels)) }
        for outcome in TokenRead.allCases { add("token_reads_total", labels(provider, outcome)) }
        for grant in [TokenRequest.Grant.refreshToken, .upgrade, .clientCredentials, .accountCreation, nil] {
            for outcome in Renewal.allCases { add("refresh_total", labels(provider, grant, outcome)) }
        }
        for name in [
            "refresh_outcome_unknown_total", "client_refused_total", "subject_changed_total",
            "provider_calls_spared_total", "credentials_held_total",
        ] {
            add(name, #"provider="\#(provider)""#)
        }
        for endpoint in ProviderEndpoint.allCases {
            for code in providerCodes {
                add(
                    "provider_requests_total",
                    #"provider="\#(provider)",endpoint="\#(endpoint.rawValue)",code="\#(code)""#)
            }
        }
        return series
    }

    private static func histograms(of provider: String) -> [Series] {
        [Series(name: "refresh_duration_seconds", labels: #"provider="\#(provider)""#)]
            + ProviderEndpoint.allCases.map { endpoint in
                Series(
                    name: "provider_request_duration_seconds",
                    labels: #"provider="\#(provider)",endpoint="\#(endpoint.rawValue)""#)
            }
    }

    // MARK: Text

    /// The text of `GET /metrics`.
    package func text() -> String {
        makeExpected()
        let state = self.state.withLock { $0 }
        var text = ""
        for (name, type, help) in Self.help {
            text += "# HELP token_broker_\(name) \(help)\n# TYPE token_broker_\(name) \(type)\n"
            for (series, count) in state.counters.filter({ $0.key.name == name }).sorted(by: Self.order) {
                text += "token_broker_\(name)\(Self.braces(series.labels)) \(count.current)\n"
            }
            for (series, durations) in state.durations.filter({ $0.key.name == name }).sorted(by: Self.order) {
                let histogram = durations.current
                var total = 0
                for (bound, count) in zip(Self.bounds.map(\.description) + ["+Inf"], histogram.counts) {
                    total += count
                    let labels = series.labels.isEmpty ? "" : series.labels + ","
                    text += "token_broker_\(name)_bucket{\(labels)le=\"\(bound)\"} \(total)\n"
                }
                let labels = Self.braces(series.labels)
                text += "token_broker_\(name)_sum\(labels) \(histogram.sum)\n"
                text += "token_broker_\(name)_count\(labels) \(total)\n"
            }
        }
        let shown = self.shown.withLock { $0 }
        for metric in Shown.allCases {
            guard let values = shown[metric]?() else { continue }
            let name = metric.rawValue
            text += "# HELP token_broker_\(name) \(metric.help)\n# TYPE token_broker_\(name) \(metric.type)\n"
            for (labels, value) in values { text += "token_broker_\(name)\(Self.braces(labels)) \(value)\n" }
        }
        return text
    }

    private static func braces(_ labels: String) -> String { labels.isEmpty ? "" : "{\(labels)}" }

    private static func order<T>(_ left: (key: Series, value: T), _ right: (key: Series, value: T)) -> Bool {
        left.key.labels < right.key.labels
    }
}
