/// What a tenant says of how requests to its provider are repeated. A member that is nil means what the preset says.
package struct RetrySettings: Sendable, Equatable {
    /// How often a request is sent at most, 2 to 10 times.
    package var tries: Int?
    /// The wait before the second try: 100 ms to 10 s, whole milliseconds.
    package var firstPause: Duration?
    /// How much longer each wait is than the one before it: 1 to 10 times.
    package var factor: Double?
    /// The longest of these waits: 100 ms to 30 s, whole milliseconds.
    package var longestPause: Duration?
    /// How often the wait that a 429 asks for is waited within one call, 0 to 5 times. Nil where neither a tenant nor a preset
    /// says so: then a code exchange and a device authorization are repeated by the schedule, and no other request is repeated.
    package var rateLimitRetries: Int?
    /// Whether a `Retry-After` counts.
    package var followsRetryAfter: Bool?

    package static let triesRange: ClosedRange<Int64> = 2...10
    package static let firstPauseMilliseconds: ClosedRange<Int64> = 100...10_000
    package static let factorRange: ClosedRange<Double> = 1...10
    package static let longestPauseMilliseconds: ClosedRange<Int64> = 100...30_000
    package static let rateLimitRetriesRange: ClosedRange<Int64> = 0...5

    package init() {}

    /// Whether they say how often a request is sent, or when.
    package var namesWaits: Bool { tries != nil || firstPause != nil || factor != nil || longestPause != nil }

    /// These settings with the members of `other` that are not nil.
    package func replaced(by other: RetrySettings?) -> RetrySettings {
        guard let other else { return self }
        var settings = self
        settings.tries = other.tries ?? tries
        settings.firstPause = other.firstPause ?? firstPause
        settings.factor = other.factor ?? factor
        settings.longestPause = other.longestPause ?? longestPause
        settings.rateLimitRetries = other.rateLimitRetries ?? rateLimitRetries
        settings.followsRetryAfter = other.followsRetryAfter ?? followsRetryAfter
        return settings
    }
}
