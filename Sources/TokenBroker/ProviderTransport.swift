package import HTTPSClient

/// Sends one request to a provider. The real one is the HTTPS client; tests put a script in its place.
package protocol ProviderTransport: Sendable {
    func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse
}

extension HTTPSClient: ProviderTransport {}
