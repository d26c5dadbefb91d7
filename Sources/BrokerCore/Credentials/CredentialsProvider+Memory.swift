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
        let hash = tenant.hashing.hashValue(storageKey: storageKey)
        return cache.withContents(of: hash) { contents in
            guard let (slot, place) = contents.find(hash, tenant: tenant.name, storageKey: storageKey),
                cache.believedEnd(of: slot, in: contents, clocks.monotonic) != nil
            else { return false }
            contents.use(slot)
            guard isServed(slot, in: &contents, of: tenant, query, now: clocks.now) else { return false }
            return contents.withAnswer(place) { serve($0, $1) } != nil
        }
    }

    /// Whether the policy serves the credentials in that slot as they are.
    ///
    /// What it says of the usual query is noted with the entry. That takes 30 instructions for a request; asking the policy
    /// takes 2,270 of a request's 15,700, and looks at objects that are in no processor's cache when there are many
    /// credentials.
    @inline(__always)
    private func isServed(
        _ slot: Int, in contents: inout CacheShard<CredentialsID, CredentialsSnapshot>, of tenant: Tenant,
        _ query: CredentialsQuery, now: Timestamp
    ) -> Bool {
        guard query.isDefault else {
            return renewer.decider.decide(contents.entry(slot).value, tenant, query, now: now) == .serve
        }
        let note = contents.note(slot)
        if note.source == tenant.version, note.conclusion >= now.milliseconds { return true }
        return isServed(slot, noting: &contents, of: tenant, query, now: now)
    }

    @inline(never)
    private func isServed(
        _ slot: Int, noting contents: inout CacheShard<CredentialsID, CredentialsSnapshot>, of tenant: Tenant,
        _ query: CredentialsQuery, now: Timestamp
    ) -> Bool {
        let snapshot = contents.entry(slot).value
        let later = now.advanced(by: Self.noteLife)
        // Time only ever takes from what is served, so what is served then is served until then. Metadata may change
        // meanwhile.
        if !renewer.decider.needsMetadata(snapshot, tenant),
            renewer.decider.decide(snapshot, tenant, query, now: later) == .serve
        {
            contents.note(slot, CacheNote(source: tenant.version, conclusion: later.milliseconds))
            return true
        }
        return renewer.decider.decide(snapshot, tenant, query, now: now) == .serve
    }

    /// For how long a note is good.
    private static let noteLife: Duration = .seconds(60)
}
