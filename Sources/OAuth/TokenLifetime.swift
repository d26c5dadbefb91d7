/// How long a token is taken to live whose answer names no lifetime and which is no JWT that tells its end.
package enum TokenLifetime: Sendable, Equatable {
    case limited(Duration)
    /// Until the provider or an API refuses it.
    case unlimited

    /// 1 second to ten years.
    package static let seconds: ClosedRange<Int64> = 1...TokenResponse.longestLifetimeSeconds

    /// The same for a token that does end, although it is not known when: an hour where others last.
    package var limited: TokenLifetime { self == .unlimited ? .usual : self }

    /// What is assumed where nothing else is said: an hour.
    package static let usual: TokenLifetime = .limited(.seconds(3600))

    /// When a token ends that was granted at `now`.
    package func end(from now: Timestamp) -> Timestamp {
        switch self {
        case .limited(let duration): now.advanced(by: duration)
        case .unlimited: .never
        }
    }
}
