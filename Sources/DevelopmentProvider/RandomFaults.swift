internal import HTTPCodec
internal import Reactor

/// Disturbances that are drawn by lot for each request at an endpoint, from a seed: the same requests in the same order
/// are disturbed in the same way. Scripted faults come first; a request that one of them disturbs draws nothing.
package struct RandomFaults: Sendable, Equatable {
    package var seed: UInt64
    package var endpoint: Endpoint
    /// Disturbs requests with this `grant_type` only; nil disturbs any request at the endpoint.
    package var grant: GrantType?
    /// How many of a thousand requests are disturbed in each way. `answer` is 503 without the work, `answer_after_work`
    /// 500 with it; `malformed` is 200 with the first half of the right content, or with none, an empty object, or a
    /// page.
    package var perMille: [Fault.Mode: Int]
    /// How many of a thousand requests wait before the work is done, and how many between the work and the answer.
    package var delayedPerMille: Int
    package var answerDelayedPerMille: Int
    /// The waits are drawn between nothing and this.
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

    func concerns(_ endpoint: Endpoint, grant: GrantType?) -> Bool {
        self.endpoint == endpoint && (self.grant == nil || self.grant == grant)
    }

    /// All ways together; more than a thousand cannot be.
    var total: Int { perMille.values.reduce(delayedPerMille + answerDelayedPerMille, +) }

    /// The disturbance of the next request that it concerns; nil for none. Takes two numbers whatever comes of it, so
    /// that a changed rate does not change the lots of all that follow.
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

    /// What a malformed answer holds; nil for the first half of the right content.
    private static func content(_ lot: Duration) -> [UInt8]? {
        switch lot.milliseconds % 4 {
        case 0: nil
        case 1: []
        case 2: Array("{}".utf8)
        default: Array("<html><body>Bad gateway</body></html>".utf8)
        }
    }
}
