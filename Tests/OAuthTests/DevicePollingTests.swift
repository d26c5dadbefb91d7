import OAuth
import Testing

@Suite struct `Device polling` {
    typealias Outcome = DevicePolling.Outcome
    typealias Step = DevicePolling.Step

    static let long: Duration = .seconds(86_400)

    static func answer(
        _ status: Int, _ error: String? = nil, subStatus: String? = nil, retryAfter: Duration? = nil
    ) -> Outcome {
        .answered(status: status, TokenErrorResponse(error: error, subStatus: subStatus), retryAfter: retryAfter)
    }

    static let pending = answer(400, "authorization_pending", subStatus: "1002")
    static let slowDown = answer(400, "slow_down")

    /// The steps after each of the outcomes, in order.
    private func steps(
        _ outcomes: [Outcome], interval: Int64 = 5, remaining: Duration = long
    ) -> [Step] {
        var polling = DevicePolling(interval: .seconds(interval))
        return outcomes.map { polling.next(after: $0, remaining: remaining) }
    }

    // MARK: The interval

    @Test(arguments: [1, 2, 5, 600] as [Int64])
    func `each poll comes after one interval while the authorization is pending`(interval: Int64) {
        #expect(DevicePolling(interval: .seconds(interval)).interval == .seconds(interval))
        let waits = steps([Self.pending, Self.pending, Self.pending], interval: interval)
        #expect(waits == Array(repeating: .wait(.seconds(interval)), count: 3))
    }

    @Test(
        arguments: [
            (.seconds(-1), 1), (.zero, 1), (.milliseconds(999), 1), (.seconds(1), 1), (.seconds(2), 2),
            (.seconds(999_999), 999_999), (.seconds(1_000_000), 1_000_000), (.seconds(Int64.max), 1_000_000),
        ] as [(Duration, Int64)])
    func `an interval is at least a second, and adding to it cannot overflow`(interval: Duration, seconds: Int64) {
        var polling = DevicePolling(interval: interval)
        #expect(polling.intervalSeconds == seconds)
        _ = polling.next(after: Self.slowDown, remaining: Self.long)
        #expect(polling.intervalSeconds == min(seconds + 5, 1_000_000))
    }

    @Test(arguments: [400, 401, 403, 428, 499])
    func `authorization_pending counts with every 4xx status`(status: Int) {
        #expect(steps([Self.answer(status, "authorization_pending")]) == [.wait(.seconds(5))])
    }

    @Test(arguments: [400, 401, 403, 499])
    func `slow_down adds five seconds permanently`(status: Int) {
        let slowDown = Self.answer(status, "slow_down")
        #expect(
            steps([Self.pending, slowDown, Self.pending, slowDown, Self.pending, Self.pending], interval: 2) == [
                .wait(.seconds(2)), .wait(.seconds(7)), .wait(.seconds(7)), .wait(.seconds(12)), .wait(.seconds(12)),
                .wait(.seconds(12)),
            ])
    }

    // MARK: Endings

    @Test(
        arguments: [
            (400, "expired_token", nil, .expired(after: .zero)), (401, "expired_token", nil, .expired(after: .zero)),
            (403, "expired_token", nil, .expired(after: .zero)), (400, nil, "11003", .expired(after: .zero)),
            (401, nil, "11003", .expired(after: .zero)), (400, "invalid_grant", "11003", .expired(after: .zero)),
            (399, nil, "11003", .failed(.tokenResponseError)), (402, nil, "11003", .failed(.tokenResponseError)),
            (403, nil, "11003", .failed(.tokenResponseError)), (400, nil, "11002", .failed(.tokenResponseError)),
            (400, nil, "1002", .failed(.tokenResponseError)), (400, nil, "11101", .failed(.tokenResponseError)),
            (400, "authorization_pending", "11003", .wait(.seconds(5))),
            (400, "access_denied", nil, .failed(.authorizationError)),
            (401, "access_denied", nil, .failed(.authorizationError)),
            (403, "access_denied", nil, .failed(.authorizationError)),
            (400, "access_denied", "11003", .failed(.authorizationError)),
            (400, "invalid_grant", nil, .failed(.tokenResponseError)),
            (400, "invalid_request", nil, .failed(.tokenResponseError)),
            (401, "invalid_client", "1005", .failed(.tokenResponseError)),
            (400, "unsupported_grant_type", nil, .failed(.tokenResponseError)),
            (400, "AUTHORIZATION_PENDING", nil, .failed(.tokenResponseError)),
            (400, "made_up", nil, .failed(.tokenResponseError)), (400, nil, nil, .failed(.tokenResponseError)),
            (404, nil, nil, .failed(.tokenResponseError)), (407, nil, nil, .failed(.tokenResponseError)),
            (408, nil, nil, .wait(.milliseconds(500))), (425, nil, nil, .wait(.milliseconds(500))),
            (400, "temporarily_unavailable", nil, .wait(.milliseconds(500))),
            (400, "server_error", nil, .wait(.milliseconds(500))),
            (428, nil, nil, .failed(.tokenResponseError)), (430, nil, nil, .failed(.tokenResponseError)),
            (499, nil, nil, .failed(.tokenResponseError)),
        ] as [(Int, String?, String?, Step)])
    func `each error has one meaning`(status: Int, error: String?, subStatus: String?, step: Step) {
        #expect(steps([Self.answer(status, error, subStatus: subStatus)]) == [step])
    }

    @Test(arguments: [100, 101, 199, 200, 201, 204, 299, 300, 302, 304, 399])
    func `a response that is neither a token nor an error ends the login`(status: Int) {
        for error in [nil, "authorization_pending", "slow_down", "expired_token", "access_denied"] {
            #expect(steps([Self.answer(status, error)]) == [.failed(.tokenResponseError)])
        }
    }

    @Test func `a token completes the login, however late it comes`() {
        for remaining in [Self.long, .seconds(1), .zero, .seconds(-1)] {
            #expect(steps([Self.pending, .granted], remaining: remaining).last == .granted)
        }
    }

    // MARK: Failures that may pass

    static let schedule: [Step] = [
        .wait(.milliseconds(500)), .wait(.seconds(1)), .wait(.seconds(2)), .wait(.seconds(4)), .wait(.seconds(8)),
    ]

    @Test(
        arguments: [
            .unreachable, answer(500), answer(502), answer(503), answer(599), answer(999), answer(500, "server_error"),
            answer(500, "access_denied"), answer(503, "expired_token"), answer(500, "slow_down"),
            answer(500, "authorization_pending"), answer(500, subStatus: "11003"),
        ] as [Outcome])
    func `five retries by the schedule, then the interval and five more`(outcome: Outcome) {
        let round = Self.schedule + [.wait(.seconds(5))]
        #expect(steps(Array(repeating: outcome, count: 17)) == round + round + Self.schedule)
    }

    @Test func `kinds of failure share the schedule, and any other response restarts it`() {
        #expect(
            steps([.unreachable, Self.answer(503), .unreachable]) == [
                .wait(.milliseconds(500)), .wait(.seconds(1)), .wait(.seconds(2)),
            ])
        for (answer, wait) in [
            (Self.pending, 5), (Self.slowDown, 10), (Self.answer(429), 10),
        ] as [(Outcome, Int64)] {
            #expect(
                steps([.unreachable, .unreachable, answer, .unreachable]) == [
                    .wait(.milliseconds(500)), .wait(.seconds(1)), .wait(.seconds(wait)), .wait(.milliseconds(500)),
                ])
        }
    }

    @Test(
        arguments: [
            (.zero, .milliseconds(500)), (.milliseconds(499), .milliseconds(500)),
            (.milliseconds(501), .milliseconds(501)), (.seconds(30), .seconds(30)), (.seconds(31), .seconds(31)),
            (.seconds(3600), .seconds(3600)),
        ] as [(Duration, Duration)])
    func `a failing server may ask for a longer wait`(retryAfter: Duration, wait: Duration) {
        #expect(steps([Self.answer(503, retryAfter: retryAfter)]) == [.wait(wait)])
    }

    @Test func `a failing server may ask for a longer wait when the schedule is used up`() {
        let failing = Array(repeating: Outcome.unreachable, count: 5)
        #expect(steps(failing + [Self.answer(503, retryAfter: .seconds(4))]).last == .wait(.seconds(5)))
        #expect(steps(failing + [Self.answer(503, retryAfter: .seconds(6))]).last == .wait(.seconds(6)))
    }

    // MARK: A limit on the rate

    @Test(
        arguments: [
            (nil, 10), (.zero, 10), (.seconds(9), 10), (.seconds(10), 10), (.seconds(11), 11),
            (.seconds(3600), 3600),
        ] as [(Duration?, Int64)])
    func `a 429 adds at least five seconds to one wait`(retryAfter: Duration?, wait: Int64) {
        for error in [nil, "slow_down", "authorization_pending", "access_denied", "rate_limited"] {
            #expect(
                steps([Self.answer(429, error, retryAfter: retryAfter), Self.pending]) == [
                    .wait(.seconds(wait)), .wait(.seconds(5)),
                ])
        }
    }

    // MARK: The end of the code's life

    @Test(
        arguments: [
            (.milliseconds(5001), .wait(.seconds(5))), (.seconds(5), .expired(after: .seconds(5))),
            (.milliseconds(4999), .expired(after: .milliseconds(4999))), (.zero, .expired(after: .zero)),
            (.seconds(-1), .expired(after: .zero)),
        ] as [(Duration, Step)])
    func `a poll after the code's expiry is not waited for`(remaining: Duration, step: Step) {
        #expect(steps([Self.pending], remaining: remaining) == [step])
        #expect(steps([Self.answer(503, retryAfter: .seconds(5))], remaining: remaining) == [step])
    }

    @Test func `a poll after the code's expiry is not waited for after a rate limit or a failure`() {
        #expect(steps([Self.answer(429)], remaining: .seconds(10)) == [.expired(after: .seconds(10))])
        #expect(steps([Self.answer(429)], remaining: .milliseconds(10_001)) == [.wait(.seconds(10))])
        #expect(steps([.unreachable], remaining: .milliseconds(500)) == [.expired(after: .milliseconds(500))])
        #expect(steps([.unreachable], remaining: .milliseconds(501)) == [.wait(.milliseconds(500))])
        #expect(steps([Self.slowDown], remaining: .seconds(10)) == [.expired(after: .seconds(10))])
        #expect(steps([Self.slowDown], remaining: .milliseconds(10_001)) == [.wait(.seconds(10))])
    }

    @Test func `a decision of the provider counts up to the last moment`() {
        #expect(steps([Self.answer(400, "access_denied")], remaining: .zero) == [.failed(.authorizationError)])
        #expect(steps([Self.answer(400, "invalid_grant")], remaining: .zero) == [.failed(.tokenResponseError)])
        #expect(steps([Self.answer(400, "expired_token")], remaining: .seconds(60)) == [.expired(after: .zero)])
    }

    // MARK: The state between polls

    @Test func `a saved state continues where it was`() throws {
        let outcomes =
            [Self.slowDown] + Array(repeating: .unreachable, count: 8) + [
                Self.answer(429), Self.slowDown, Self.pending,
            ]
        var polling = DevicePolling(interval: .seconds(3))
        var restored = polling
        for outcome in outcomes {
            #expect(
                polling.next(after: outcome, remaining: Self.long)
                    == restored.next(after: outcome, remaining: Self.long))
            restored = try #require(
                DevicePolling(intervalSeconds: restored.intervalSeconds, retries: restored.retries))
            #expect(restored == polling)
        }
        #expect(polling.intervalSeconds == 13)
        #expect(polling.interval == .seconds(13))
    }

    @Test(
        arguments: [
            (Int64.min, 0, false), (0, 0, false), (1, 0, true), (1_000_000, 0, true), (1_000_001, 0, false),
            (5, -1, false), (5, 1, true), (5, 5, true), (5, 6, false),
        ] as [(Int64, Int, Bool)])
    func `numbers out of range are refused`(interval: Int64, retries: Int, isState: Bool) {
        #expect((DevicePolling(intervalSeconds: interval, retries: retries) != nil) == isState)
    }
}
