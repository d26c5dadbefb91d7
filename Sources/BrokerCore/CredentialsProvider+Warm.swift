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
    ///   - later: not before now, and no more than some seconds after it.
    ///   - configuration: the generation of the configuration that the terms are of.
    package func warm(
        _ tenant: TenantName, _ terms: CredentialsPolicy.Terms, _ storageKey: Span<UInt8>, _ query: CredentialsQuery,
        until later: Timestamp, now: MonotonicInstant, configuration: Int
    ) -> Warm? {
        // What could not be stored yet goes before what is in the cache, and is not found by text.
        if records.countOfUnpublished > 0 { return nil }
        let hash = CredentialsID.hashValue(tenant: tenant, storageKey: storageKey)
        guard
            let holding = records.cache.holding(
                hash: hash, now: now, where: { $0.isNamed(tenant: tenant, storageKey: storageKey) }),
            let encoded = holding.value.encoded, encoded.isPlain
        else { return nil }
        let snapshot = holding.value
        // What the policy has said once need not be asked again for each of a thousand reads a second.
        if query != CredentialsQuery() || !snapshot.isServed(configuration, until: later) {
            guard serves(snapshot, terms, query, at: later) else { return nil }
            let muchLater = later.advanced(by: Self.reuse)
            if query == CredentialsQuery(), serves(snapshot, terms, query, at: muchLater) {
                snapshot.noteServed(configuration, until: muchLater)
            }
        }
        return Warm(snapshot: snapshot, encoded: encoded, end: holding.end)
    }

    /// For how long a policy's word is good where nothing changes.
    private static let reuse: Duration = .seconds(60)

    /// Whether it serves at that time, and therefore at any before it: time only ever takes from what may be served.
    private func serves(
        _ snapshot: CredentialsSnapshot, _ terms: CredentialsPolicy.Terms, _ query: CredentialsQuery, at time: Timestamp
    ) -> Bool {
        policy.decide(snapshot.record.held, version: snapshot.version, terms: terms, query: query, now: time) == .serve
    }
}
