package import OAuth
package import Reactor

extension CredentialsProvider {
    /// Lends what `credentials` would answer without waiting, where that is in memory in the form in which it is sent; does
    /// nothing where it is not, or where there is anything else to do.
    /// - Parameters:
    ///   - storageKey: the text of one, or any other, under which nothing is found.
    ///   - query: one that forces no renewal.
    ///   - serve: given the answer. It must not turn to the cache: a lock of it is held.
    /// - Returns: whether `serve` was called.
    package func answerFromMemory(
        _ storageKey: Span<UInt8>, of tenant: Tenant, _ query: CredentialsQuery,
        at clocks: (now: Timestamp, monotonic: MonotonicInstant), _ serve: (CachedAnswer.Facts, Span<UInt8>) -> Void
    ) -> Bool {
        // What could not be stored yet goes before what is in the cache, and is not found by text.
        if records.countOfUnpublished > 0 { return false }
        let hash = CredentialsID.Hashing(tenant.name).hashValue(storageKey: storageKey)
        return cache.withContents(of: hash) { contents in
            guard let (slot, place) = contents.find(hash, tenant: tenant.name, storageKey: storageKey),
                cache.believedEnd(of: slot, in: contents, clocks.monotonic) != nil
            else { return false }
            contents.use(slot)
            guard decide(contents.entry(slot).value, tenant, query, now: clocks.now) == .serve else { return false }
            return contents.withAnswer(place) { serve($0, $1) } != nil
        }
    }
}
