package import ExternalText
package import JSON

/// What the log keeps of a request. Secrets stand in it as digests.
package struct RequestRecord: Sendable, Equatable {
    package enum Outcome: Sendable, Equatable {
        case inFlight
        case answered(status: Int)
        /// The connection was closed without an answer.
        case dropped
    }

    /// Counts from 1.
    package let number: Int
    /// Milliseconds since 1970, by the provider's clock.
    package let receivedAt: Int64
    package let endpoint: Endpoint
    package let method: String
    /// `grant_type` as sent.
    package let grant: String?
    package let clientID: String?
    package let clientAuthentication: ClientAuthenticationMethod
    /// Values by name, at most 64 of them, cut to 512 bytes; a secret is `sha256:` and its digest.
    package let parameters: [WireText: String]
    /// Names of parameters that stood in the URL, sorted.
    package let queryParameters: [String]
    package let contentType: String?
    package let accept: String?
    package let userAgent: String?
    package internal(set) var outcome = Outcome.inFlight
    /// When the answer was given to the connection or the connection given up, by the provider's clock; nil before.
    package internal(set) var finishedAt: Int64?
    /// The `error` that was answered or sent to the redirect URI.
    package internal(set) var error: String?
    /// The fault that disturbed it.
    package internal(set) var fault: Fault.Mode?
    /// What became of the refresh token.
    package internal(set) var refresh: RefreshTrace?

    package func write(to writer: inout JSONWriter) {
        writer.object { writer in
            writer.member("number", number)
            writer.member("received_at_ms", receivedAt)
            writer.member("endpoint", endpoint.rawValue)
            writer.member("method", method)
            writer.memberIfPresent("grant", grant)
            writer.memberIfPresent("client_id", clientID)
            writer.member("client_authentication", clientAuthentication.rawValue)
            writer.name("parameters")
            writer.object { writer in
                for (name, value) in parameters.sorted(by: { $0.key < $1.key }) { writer.member(name.text, value) }
            }
            writer.member("query_parameters", queryParameters)
            writer.memberIfPresent("content_type", contentType)
            writer.memberIfPresent("accept", accept)
            writer.memberIfPresent("user_agent", userAgent)
            switch outcome {
            case .inFlight: writer.member("outcome", "in_flight")
            case .answered(let status):
                writer.member("outcome", "answered")
                writer.member("status", status)
            case .dropped: writer.member("outcome", "dropped")
            }
            writer.memberIfPresent("finished_at_ms", finishedAt)
            writer.memberIfPresent("error", error)
            writer.memberIfPresent("fault", fault?.rawValue)
            if let refresh {
                writer.name("refresh")
                writer.object { writer in
                    writer.member("outcome", refresh.outcome.rawValue)
                    writer.memberIfPresent("family", refresh.family.map(Int64.init))
                    writer.memberIfPresent("presented_generation", refresh.presentedGeneration.map(Int64.init))
                    writer.memberIfPresent("issued_generation", refresh.issuedGeneration.map(Int64.init))
                }
            }
        }
    }
}

/// How many requests came, since the start or the last reset.
package struct RequestCounters: Sendable, Equatable {
    package internal(set) var endpoints: [Endpoint: Int] = [:]
    /// By `grant_type`; those that the provider does not know are left out.
    package internal(set) var grants: [GrantType: Int] = [:]
    /// Answers by status.
    package internal(set) var statuses: [Int: Int] = [:]
    package internal(set) var dropped = 0
    package internal(set) var faults = 0

    package func requests(_ endpoint: Endpoint) -> Int { endpoints[endpoint] ?? 0 }
    package func requests(_ grant: GrantType) -> Int { grants[grant] ?? 0 }

    package func write(to writer: inout JSONWriter) {
        writer.object { writer in
            writer.name("endpoints")
            writer.object { writer in
                for endpoint in Endpoint.allCases { writer.member(endpoint.rawValue, requests(endpoint)) }
            }
            writer.name("grants")
            writer.object { writer in
                for grant in GrantType.allCases { writer.member(grant.rawValue, requests(grant)) }
            }
            writer.name("statuses")
            writer.object { writer in
                for (status, count) in statuses.sorted(by: { $0.key < $1.key }) {
                    writer.member(String(status), count)
                }
            }
            writer.member("dropped", dropped)
            writer.member("faults", faults)
        }
    }
}
