package import HTTPSClient

/// Sends one request to a provider. The real one is the HTTPS client; tests put a script in its place.
package protocol ProviderTransport: Sendable {
    func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse

    /// What a task that sends requests should prefer to run on; nil where it makes no difference.
    var executor: (any TaskExecutor)? { get }
}

extension ProviderTransport {
    package var executor: (any TaskExecutor)? { nil }
}

extension HTTPSClient: ProviderTransport {}

extension TargetPolicy {
    /// What an operator can do about an address that may not be called.
    static let remedy =
        "http:// needs TOKEN_BROKER_ALLOW_HTTP_PROVIDERS=true, and an address outside the public internet must be in one "
        + "of TOKEN_BROKER_PROVIDER_NETWORKS."
}

extension PinSet {
    /// The pins of a tenant for a call to `url`; nil where there are none, and for http://, which has no certificate to
    /// pin and which the HTTPS client lets through in development only.
    static func inForce(_ texts: [String], at url: URLTarget) throws(BrokerError) -> PinSet? {
        if texts.isEmpty || url.scheme == .http { return nil }
        do {
            return try PinSet(parsing: texts)
        } catch {
            throw BrokerError(.illegalConfiguration, "The configured pinned_certificates are not usable.")
        }
    }
}
