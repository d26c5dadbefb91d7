package import ExternalText
package import JSON

/// The record of a request. Secrets are replaced by digests.
package struct RequestRecord: Sendable, Equatable {
    package enum Outcome: Sendable, Equatable {
        case inFlight
        case answered(status: Int)
        /// The connection was closed without a response.
        case dropped
    }

    /// The first request has the number 1.
    package let number: Int
    /// Milliseconds since 1970, by the provider's clock.
    package let receivedAt: Int64
    package let endpoint: Endpoint
    package let method: String
    /// The `grant_type` of the request, unchanged.
    package let grant: String?
    package let clientID: String?
    package let clientAuthentication: ClientAuthenticationMethod
    /// Values by name, at most 64, each cut to 512 bytes. A secret is replaced by `sha256:` and its digest.
    package let parameters: [WireText: String]
    /// The names of the parameters in the URL, sorted.
    package let queryParameters: [String]
    package let contentType: String?
    package let accept: String?
    package let userAgent: String?
    package internal(set) var outcome = Outcome.inFlight
    /// When the response was passed to the server or the connection was closed, by the provider's clock; nil before
    /// that.
    package internal(set) var finishedAt: Int64?
    /// The `error` of the response or of the redirect.
    package internal(set) var error: String?
    /// The fault that was applied to the request.
    package internal(set) var fault: Fault.Mode?
    /// The result for the refresh token in the request.
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

/// The number of requests since the start or the last reset.
package struct RequestCounters: Sendable, Equatable {
    package internal(set) var endpoints: [Endpoint: Int] = [:]
    /// Requests by `grant_type`, without those whose grant type is not supported.
    package internal(set) var grants: [GrantType: Int] = [:]
    /// Responses by status.
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
