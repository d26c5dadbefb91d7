import HTTPCodec
import Reactor

/// Faults that are chosen at random for each request at an endpoint. The same seed and the same sequence of requests
/// give the same faults. Scripted faults take precedence, and a request with a scripted fault draws no random number.
package struct RandomFaults: Sendable, Equatable {
    package var seed: UInt64
    package var endpoint: Endpoint
    /// Applies to requests with this `grant_type` only; nil means all requests at the endpoint.
    package var grant: GrantType?
    /// How many of a thousand requests get each kind of fault. `answer` is a 503 without processing the request,
    /// `answer_after_work` a 500 after processing it. `malformed` is a 200 with the first half of the correct body, an
    /// empty body, an empty JSON object, or an HTML page.
    package var perMille: [Fault.Mode: Int]
    /// How many of a thousand requests are delayed before they are processed, and how many between processing and
    /// response.
    package var delayedPerMille: Int
    package var answerDelayedPerMille: Int
    /// Delays are chosen between zero and this duration.
    package var longestDelay: Duration

    package init(
        seed: UInt64, endpoint: Endpoint = .token, grant: GrantType? = nil, perMille: [Fault.Mode: Int] = [:],
        delayedPerMille: Int = 0, answerDelayedPerMille: Int = 0, longestDelay: Duration = .seconds(1)
    ) {
        self.seed = seed
        self.endpoint = endpoint
        self.grant = grant
        self.perMille = perMille
        self.delayedPerMille = delayedPerMille
        self.answerDelayedPerMille = answerDelayedPerMille
        self.longestDelay = longestDelay
    }

    func applies(to endpoint: Endpoint, grant: GrantType?) -> Bool {
        self.endpoint == endpoint && (self.grant == nil || self.grant == grant)
    }

    /// The sum of all rates, which must not exceed a thousand.
    var total: Int { perMille.values.reduce(delayedPerMille + answerDelayedPerMille, +) }

    /// The fault for the next matching request; nil for none. Always draws two numbers, so that a changed rate does not
    /// change the faults of later requests.
    func draw(using generator: inout SplitMix64) -> Fault? {
        var lot = Int.random(in: 0..<1000, using: &generator)
        let delay = Duration.milliseconds(
            Int64.random(in: 0...longestDelay.milliseconds, using: &generator))
        for mode in Fault.Mode.allCases {
            let share = perMille[mode] ?? 0
            if lot < share {
                var fault = Fault(endpoint, grant: grant, mode: mode)
                if mode == .answer { fault.status = .serviceUnavailable }
                if mode == .malformed { fault.body = Self.content(delay) }
                return fault
            }
            lot -= share
        }
        if lot < delayedPerMille { return Fault(endpoint, grant: grant, delay: delay) }
        lot -= delayedPerMille
        return lot < answerDelayedPerMille ? Fault(endpoint, grant: grant, answerDelay: delay) : nil
    }

    /// The body of a malformed response; nil means the first half of the correct body.
    private static func content(_ lot: Duration) -> [UInt8]? {
        switch lot.milliseconds % 4 {
        case 0: nil
        case 1: []
        case 2: Array("{}".utf8)
        default: Array("<html><body>Bad gateway</body></html>".utf8)
        }
    }
}
