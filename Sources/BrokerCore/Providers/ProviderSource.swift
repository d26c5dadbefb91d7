import Cryptography
import HTTPSClient
import OAuth

/// Where something of a provider was fetched, and how: the key under which it is kept for all tenants that ask in the same way.
///
/// A tenant with pins must not rely on what was fetched without pins, or with others; a provider may answer other header fields
/// differently, and what a tenant's proxy reaches may be another server. What a resource has named is not reached in the networks of
/// the operator's providers, and to have failed there says nothing about those.
struct ProviderSource: Hashable {
    /// A JWK set's address, or an issuer.
    let address: String
    private let pins: [String]
    private let headers: RequestHeaders
    private let proxyDigest: [UInt8]?
    private let isNamedByResource: Bool

    init(_ address: String, for configuration: TenantConfiguration) {
        self.address = address
        (pins, headers) = (configuration.effectivePins, configuration.requestHeaders)
        isNamedByResource = URLTarget(address)?.isNamed(byResource: configuration.protectedResource) ?? false
        proxyDigest = configuration.outboundProxy.map { $0.withRevealed { SHA256.digest($0) } }
    }
}
