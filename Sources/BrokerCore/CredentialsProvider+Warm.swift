package import OAuth
package import Reactor

extension CredentialsProvider {
    /// Credentials that are served as they stand in memory.
    package struct Warm: Sendable {
        package let snapshot: CredentialsSnapshot
        package let encoded: EncodedCredentials
        /// Until when they are believed, as long as the trust's generation stays the same.
        package let end: MonotonicInstant
    }

    /// What `credentials` serves without waiting, renewing or asking the store, now and at any time until `later`; nil
    /// where it would do anything else, or might.
    /// - Parameters:
    ///   - storageKey: the text of one.
    ///   - later: not before now.
    package func warm(
        _ tenant: TenantName, _ terms: CredentialsPolicy.Terms, _ storageKey: Span<UInt8>, _ query: CredentialsQuery,
        until later: Timestamp, now: MonotonicInstant
    ) -> Warm? {
        // What could not be stored yet goes before what is in the cache, and is not found by text.
        if records.countOfUnpublished > 0 { return nil }
        let hash = CredentialsID.hashValue(tenant: tenant, storageKey: storageKey)
        guard
            let holding = records.cache.holding(
                hash: hash, now: now, where: { $0.isNamed(tenant: tenant, storageKey: storageKey) }),
            let encoded = holding.value.encoded, encoded.isPlain,
            // Time only ever takes from what may be served, so that what will be may be now.
            policy.decide(
                holding.value.record.held, version: holding.value.version, terms: terms, query: query, now: later
            ) == .serve
        else { return nil }
        return Warm(snapshot: holding.value, encoded: encoded, end: holding.end)
    }
}
