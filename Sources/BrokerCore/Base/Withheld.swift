package import JSON
package import OAuth

/// Why no call is made to the provider now about one set of credentials.
package struct Withheld: Sendable, Equatable {
    /// The codes of openapi.yaml, in the order in which one is told of several: first what keeps back every call, last what
    /// keeps back only the broker's own.
    package enum Code: String, Sendable, CaseIterable {
        /// The store has lost its last commits: a refresh token that it has may be spent.
        case storeWentBack = "store_went_back"
        /// The provider's last grant is not in the store yet.
        case grantNotStored = "grant_not_stored"
        /// The set is held because of a wave of refusals.
        case waveOn = "wave_on"
        /// The provider does not accept the client.
        case clientRefused = "client_refused"
        /// The provider has asked to be left alone.
        case providerAskedToWait = "provider_asked_to_wait"
        /// The provider has left the last calls without an answer.
        case circuitOpen = "circuit_open"
        /// The provider refuses to renew a token that is so new.
        case tooEarly = "too_early"
        /// Another replica is renewing.
        case leaseElsewhere = "lease_elsewhere"
        /// Another replica has just failed to renew.
        case failedElsewhere = "failed_elsewhere"
        /// All tries to carry the credentials over to the present client have failed.
        case upgradeFailed = "upgrade_failed"
        /// Renewing failed a moment ago, and the token that is stored still lives.
        case degraded
        /// A refresh token that may be spent was presented again in vain, and is presented again later.
        case recoveryFailed = "recovery_failed"
        /// An early renewal failed or brought little. A caller's request for another token is not kept back.
        case earlyPause = "early_pause"
    }

    package let code: Code
    /// When it ends if nothing else happens; nil if that is not known.
    package let until: Timestamp?
    package let detail: String

    package init(_ code: Code, until: Timestamp?, _ detail: String) {
        self.code = code
        self.until = until
        self.detail = detail
    }

    /// Writes the member `withheld`.
    package func encode(to json: inout JSONWriter) {
        json.name("withheld")
        json.object { json in
            json.member("code", code.rawValue)
            json.memberIfPresent("until", until?.description)
            json.member("detail", detail)
        }
    }
}
