package import JSON
package import OAuth

/// Why a caller gets a token with a shorter lifetime than it asked for: the token could not be renewed.
package struct Degradation: Sendable, Equatable {
    /// When the first renewal failed.
    package let since: Timestamp
    package let code: BrokerError.Code
    /// When a renewal is tried again at the earliest.
    package let retryAt: Timestamp

    /// Writes the member `degraded`.
    package func encode(to json: inout JSONWriter) {
        json.name("degraded")
        json.object { json in
            json.member("since", since.description)
            json.member("code", code.rawValue)
            json.member("retry_at", retryAt.description)
        }
    }
}

extension EndedSession {
    /// Writes the member `session`.
    /// - Parameter reconnectURI: where the user logs in again; nil for no such address.
    package func encode(to json: inout JSONWriter, reconnectURI: String?) {
        json.name("session")
        json.object { json in
            json.member("ended", time.description)
            json.member("cause", cause.rawValue)
            json.memberIfPresent("reconnect_uri", reconnectURI)
        }
    }
}
