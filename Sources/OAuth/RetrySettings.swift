import ExternalText

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

    /// The members of `retry`.
    package static func members<Context>() -> [Member<RetrySettings, Context>] {
        [
            .optional("tries", \.tries, .integer(in: 2...10)),
            .optional("first_pause_ms", \.firstPause, .milliseconds(in: 100...10_000)),
            .optional("factor", \.factor, .number(in: 1...10)),
            .optional("longest_pause_ms", \.longestPause, .milliseconds(in: 100...30_000)),
            .optional("rate_limit_retries", \.rateLimitRetries, .integer(in: 0...5)),
            .optional("follow_retry_after", \.followsRetryAfter, .flag),
        ]
    }

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
