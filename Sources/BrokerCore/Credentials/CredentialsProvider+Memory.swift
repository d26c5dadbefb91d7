package import OAuth
package import Reactor

extension CredentialsProvider {
    /// Calls `serve` with the encoded answer of `credentials`, if the cache has a valid entry and the answer needs no renewal.
    /// - Parameters:
    ///   - storageKey: any text; if it is not a storage key, nothing is found.
    ///   - query: one that forces no renewal.
    ///   - serve: gets the answer. It must not use the cache, since it is called under a lock of the cache.
    /// - Returns: whether `serve` was called.
    package func answerFromMemory(
        _ storageKey: Span<UInt8>, of tenant: Tenant, _ query: CredentialsQuery,
        at clocks: (now: Timestamp, monotonic: MonotonicInstant), _ serve: (CachedAnswer.Facts, Span<UInt8>) -> Void
    ) -> Bool {
        // A grant that could not be stored yet takes precedence over the cache, and cannot be looked up by a text.
        if records.countOfUnpublished > 0 { return false }
        let hash = tenant.hashing.hashValue(storageKey: storageKey)
        return cache.withContents(of: hash) { contents in
            guard let (slot, place) = contents.find(hash, tenant: tenant.name, storageKey: storageKey),
                cache.validEnd(of: slot, in: contents, clocks.monotonic) != nil
            else { return false }
            contents.use(slot)
            guard isServed(slot, in: &contents, of: tenant, query, now: clocks.now) else { return false }
            return contents.withAnswer(place) { serve($0, $1) } != nil
        }
    }

    /// Whether the policy serves the credentials in that slot without a renewal.
    ///
    /// The decision about the default query is noted with the entry. To read the note takes 30 instructions. To ask the policy
    /// takes 2,270 of a request's 15,700 instructions, and reads objects that are in no processor's cache when there are many
    /// credentials.
    @inline(__always)
    private func isServed(
        _ slot: Int, in contents: inout CacheShard<CredentialsID, CredentialsSnapshot>, of tenant: Tenant,
        _ query: CredentialsQuery, now: Timestamp
    ) -> Bool {
        guard query.isDefault(usualLifetime: tenant.terms.minimumLifetime) else {
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
        // Credentials that will be served at a later time are served until then, unless the decision depends on the provider's
        // metadata, which may change meanwhile.
        if !renewer.decider.needsMetadata(snapshot, tenant),
            renewer.decider.decide(snapshot, tenant, query, now: later) == .serve
        {
            contents.note(slot, CacheNote(source: tenant.version, conclusion: later.milliseconds))
            return true
        }
        return renewer.decider.decide(snapshot, tenant, query, now: now) == .serve
    }

    /// For how long a note is valid.
    private static let noteLife: Duration = .seconds(60)
}
