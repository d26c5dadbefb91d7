package import OAuth
package import Reactor

extension CredentialsProvider {
    /// Whose credentials are read, and on what terms: prepared once for many readings.
    package final class Reader: Sendable {
        // What every reading looks at comes first, for the processor's cache.
        package let tenant: TenantName
        fileprivate let hashing: CredentialsID.Hashing
        /// The generation of the configuration that the terms are of.
        package let configuration: Int
        fileprivate let terms: CredentialsPolicy.Terms

        package init(_ tenant: TenantName, _ terms: CredentialsPolicy.Terms, configuration: Int) {
            self.tenant = tenant
            self.terms = terms
            hashing = CredentialsID.Hashing(tenant)
            self.configuration = configuration
        }
    }

    /// Credentials that are served as they stand in memory.
    package struct Warm: Sendable {
        package let snapshot: CredentialsSnapshot
        /// Until when they are believed, as long as the trust's generation stays the same.
        package let end: MonotonicInstant
    }

    /// What `credentials` serves without waiting, renewing or asking the store, now and at any time until `later`; nil
    /// where it would do anything else, or might. What it serves is encoded, and plain.
    /// - Parameters:
    ///   - storageKey: the text of one, or any other, under which nothing is found.
    ///   - query: nil for one without conditions.
    ///   - later: not before now, and no more than some seconds after it.
    package func warm(
        _ reader: Reader, _ storageKey: Span<UInt8>, _ query: CredentialsQuery?, until later: Timestamp,
        now: MonotonicInstant
    ) -> Warm? {
        // What could not be stored yet goes before what is in the cache, and is not found by text.
        if records.countOfUnpublished > 0 { return nil }
        guard
            let holding = cache.holding(tenant: reader.tenant, storageKey: storageKey, reader.hashing, now: now),
            holding.value.isPlain
        else { return nil }
        // What the policy has said once need not be asked again for each of a thousand reads a second.
        if let query {
            guard serves(holding.value, reader.terms, query, at: later) else { return nil }
        } else if !holding.value.isServed(reader.configuration, until: later) {
            guard servesAny(holding.value, reader, until: later) else { return nil }
        }
        return Warm(snapshot: holding.value, end: holding.end)
    }

    @inline(never)
    private func servesAny(_ snapshot: CredentialsSnapshot, _ reader: Reader, until later: Timestamp) -> Bool {
        let query = CredentialsQuery()
        let muchLater = later.advanced(by: Self.reuse)
        guard serves(snapshot, reader.terms, query, at: muchLater) else {
            return serves(snapshot, reader.terms, query, at: later)
        }
        snapshot.noteServed(reader.configuration, until: muchLater)
        return true
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
