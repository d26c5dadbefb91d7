import ExternalText
import OAuth
import Reactor

extension BrokerError {
    /// The error for whatever needs a provider, of a tenant of a profile that has none.
    static func withoutLogins(_ preset: ProviderPreset) -> BrokerError {
        BrokerError(
            .illegalConfiguration,
            "A tenant of the provider \(preset.name) has no logins and no refreshes, since its keys do not come by OAuth: bring "
                + "them by PUT /credentials.")
    }

    /// The error for a refusal that the provider's preset has callers get by name; nil for other refusals.
    static func named(by answer: TokenErrorResponse, at preset: ProviderPreset) -> BrokerError? {
        guard let error = answer.error, let name = preset.namedRefusals[WireText(error)] else { return nil }
        let shown = preset.shownCode(of: answer)
        return switch name {
        case .invalidTokenRequest:
            BrokerError(
                .invalidTokenRequest,
                "The provider does not accept the refresh token any more. The session has ended: activate the account "
                    + "again, or create one.", errorCode: shown)
        case .unknownAccount:
            BrokerError(
                .unknownAccount, "The provider does not know the account: it was removed, or never existed.",
                errorCode: shown)
        }
    }

    /// The same error with another time after which to ask again.
    func retrying(after duration: Duration) -> BrokerError {
        var error = BrokerError(code, detail, errorCode: errorCode, retryAfter: Self.seconds(duration))
        error.withheld = withheld
        return error
    }

    /// A duration as `Retry-After` tells it, 1 s at least.
    static func seconds(_ duration: Duration) -> Int { max(1, Int((duration.milliseconds + 999) / 1000)) }
}
