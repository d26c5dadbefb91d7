package import ExternalText
import JSON

/// The assumed lifetime of a token whose response has no lifetime and which is not a JWT with an expiry.
package enum TokenLifetime: Sendable, Equatable {
    case limited(Duration)
    /// The token is valid until the provider or an API refuses it.
    case unlimited

    /// The range of a limited lifetime in seconds: 1 second to ten years.
    package static let seconds: ClosedRange<Int64> = 1...TokenResponse.longestLifetimeSeconds

    /// Reads a member that is a number of seconds or `never`; nil where there is none, and where the reader has noted a fault.
    package init?(_ reader: inout ObjectReader, _ name: WireText) {
        switch reader.integer(name, in: Self.seconds, or: "never") {
        case .integer(let seconds)?: self = .limited(.seconds(seconds))
        case .word?: self = .unlimited
        case nil: return nil
        }
    }

    /// The lifetime of a token of which nothing is known. A token that nothing can renew is good until it is refused: to assume an
    /// end would log its user out.
    package static func assumed(canBeRenewed: Bool) -> TokenLifetime { canBeRenewed ? .usual : .unlimited }

    /// This lifetime, for a token that expires at an unknown time: `usual` instead of `unlimited`.
    package var limited: TokenLifetime { self == .unlimited ? .usual : self }

    /// The lifetime if neither the provider nor the tenant specifies one, and the token can be renewed: an hour.
    package static let usual: TokenLifetime = .limited(.seconds(3600))

    /// When a token ends that was granted at `now`.
    package func end(from now: Timestamp) -> Timestamp {
        switch self {
        case .limited(let duration): now.advanced(by: duration)
        case .unlimited: .never
        }
    }
}

extension MemberRule where Value == TokenLifetime {
    /// A number of seconds, or `never`.
    package static var lifetime: MemberRule {
        MemberRule { reader, name, _ in
            TokenLifetime(&reader, name)
        } write: { lifetime, json in
            switch lifetime {
            case .limited(let duration): json.integer(duration.components.seconds)
            case .unlimited: json.string("never")
            }
        }
    }
}
