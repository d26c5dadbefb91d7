import Cryptography
package import HTTPSClient

/// Sends one request to a provider. The service uses the HTTPS client, tests use a script.
package protocol ProviderTransport: Sendable {
    func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse

    /// The executor that a task which sends requests should prefer; nil for any.
    var executor: (any TaskExecutor)? { get }
}

extension ProviderTransport {
    package var executor: (any TaskExecutor)? { nil }
}

extension HTTPSClient: ProviderTransport {}

extension TargetPolicy {
    /// The advice to operators for an address that may not be called.
    static let remedy =
        "http:// needs TOKEN_BROKER_ALLOW_HTTP_PROVIDERS=true, and an address outside the public internet must be in one "
        + "of TOKEN_BROKER_PROVIDER_NETWORKS, which is not for hosts that an MCP server names: name such an issuer in a tenant of oidc."

    /// The advice to operators for a certificate that cannot be shown.
    static let certificateRemedy =
        "The tenant's client_certificate is shown in TLS only: the addresses of its provider must begin with https://."
}

extension BrokerError {
    /// The error of a request for a provider's metadata or keys which another request would meet as well, until the operator or
    /// the provider changes something; nil where another request may succeed.
    static func permanentFailure(_ error: TransportError, at address: String) -> BrokerError? {
        switch error {
        case .untrusted:
            BrokerError(
                .providerUntrusted, "The certificate, host name, pin or version of TLS at \(address) does not fit.")
        case .insecureTarget, .forbiddenAddress, .invalidURL, .invalidRequest:
            BrokerError(.illegalConfiguration, "The address \(address) may not be called: " + TargetPolicy.remedy)
        case .certificateWithoutTLS:
            BrokerError(
                .illegalConfiguration, "The address \(address) cannot be called. " + TargetPolicy.certificateRemedy)
        default: nil
        }
    }
}

extension PinSet {
    /// The pins of a tenant for a call to `url`; nil where there are none, and for http://, which has no certificate, and which
    /// the HTTPS client allows in development only.
    static func inForce(_ texts: [String], at url: URLTarget) throws(BrokerError) -> PinSet? {
        if texts.isEmpty || url.scheme == .http { return nil }
        do {
            return try PinSet(parsing: texts)
        } catch {
            throw BrokerError(.illegalConfiguration, "The configured pinned_certificates are not usable.")
        }
    }
}

extension OutboundProxy {
    /// The proxy of a tenant; nil for a tenant without one.
    /// - Parameter address: with the user and the password.
    static func inForce(_ address: SecretBytes?) throws(BrokerError) -> OutboundProxy? {
        guard let address else { return nil }
        do {
            return try OutboundProxy(parsing: address.revealedText)
        } catch {
            throw BrokerError(.illegalConfiguration, "The configured outbound_proxy is not usable.")
        }
    }
}
