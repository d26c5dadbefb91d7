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

    /// Lends what `credentials` serves without waiting, renewing or asking the store, now and at any time until `later`,
    /// under the lock of the keys that share one with it; does nothing where it would do anything else, or might.
    /// - Parameters:
    ///   - storageKey: the text of one, or any other, under which nothing is found.
    ///   - query: nil for one without conditions.
    ///   - later: not before now, and no more than some seconds after it.
    ///   - serve: given the answer, and until when it is believed as long as the trust's generation stays the same. It must
    ///     not turn to the cache: the lock is held.
    /// - Returns: what `serve` does; false where it was not asked.
    package func warm(
        _ reader: Reader, _ storageKey: Span<UInt8>, _ query: CredentialsQuery?, until later: Timestamp,
        now: MonotonicInstant, _ serve: (CachedAnswer.Facts, Span<UInt8>, MonotonicInstant) -> Bool
    ) -> Bool {
        // What could not be stored yet goes before what is in the cache, and is not found by text.
        if records.countOfUnpublished > 0 { return false }
        let hash = reader.hashing.hashValue(storageKey: storageKey)
        return cache.withContents(of: hash) { contents in
            guard
                let (slot, place) = contents.find(hash, tenant: reader.tenant, storageKey: storageKey),
                let end = cache.believedEnd(of: slot, in: contents, now)
            else { return false }
            contents.use(slot)
            if let query {
                guard serves(contents.entry(slot).value, reader.terms, query, at: later) else { return false }
            } else if !Service(number: contents.note(slot)).holds(reader.configuration, until: later) {
                // What the policy has said once need not be asked again for each of a thousand reads a second.
                guard let service = service(contents.entry(slot).value, reader, until: later) else { return false }
                contents.note(slot, service.number)
            }
            return contents.withAnswer(place) { serve($0, $1, end) } ?? false
        }
    }

    /// Until when a query without conditions is answered by credentials as they are, by the terms of one generation of the
    /// configuration.
    private struct Service {
        /// The generation above, the second since 1970 below. 0 where nobody has asked yet.
        let number: UInt64

        init(number: UInt64) { self.number = number }

        init(_ configuration: Int, until time: Timestamp) {
            number =
                UInt64(UInt32(truncatingIfNeeded: configuration)) << 32
                | UInt64(UInt32(clamping: time.milliseconds / 1000))
        }

        func holds(_ configuration: Int, until time: Timestamp) -> Bool {
            number >> 32 == UInt64(UInt32(truncatingIfNeeded: configuration))
                && Int64(number & 0xffff_ffff) * 1000 >= time.milliseconds
        }
    }

    /// Nil where they are not served until then.
    @inline(never)
    private func service(_ snapshot: CredentialsSnapshot, _ reader: Reader, until later: Timestamp) -> Service? {
        let query = CredentialsQuery()
        let muchLater = later.advanced(by: Self.reuse)
        if serves(snapshot, reader.terms, query, at: muchLater) {
            return Service(reader.configuration, until: muchLater)
        }
        // Not for long: it is asked again then.
        return serves(snapshot, reader.terms, query, at: later) ? Service(number: 0) : nil
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
