import CredentialStore
import OAuth

extension CallerKey {
    /// What a rotation of a key asks for.
    package struct Rotation: Sendable {
        /// For how long the secret that is replaced is accepted as well.
        package let overlap: Duration
        /// The generation of the secret that is replaced; nil for the newest one.
        ///
        /// If it is the one before the newest, a rotation has replaced it already, and its answer was lost: this rotation ends the
        /// secret that was lost, and the one before goes on to be accepted. So a caller can repeat its request until it gets an
        /// answer, and its secret is accepted all the time.
        package let replaces: Int64?
        /// After how long the key expires; nil for when it would have expired without the rotation.
        package let expiresIn: Duration?
        /// For how long a new secret may be accepted; nil for any time.
        package let longestLife: Duration?

        package init(overlap: Duration, replaces: Int64?, expiresIn: Duration?, longestLife: Duration?) {
            self.overlap = overlap
            self.replaces = replaces
            self.expiresIn = expiresIn
            self.longestLife = longestLife
        }

        /// The key after this rotation.
        /// - Parameters:
        ///   - key: with its newest secret.
        ///   - earlier: the key with the secret before that; nil where there is none.
        func applied(
            to key: CallerKey, _ earlier: CallerKey?, version: Int64, at now: Timestamp
        ) -> Result<Rotated, BrokerError> {
            if key.identity != nil { return .failure(Self.withoutSecret) }
            if key.hasExpired(at: now) { return .failure(Self.expired) }
            let asked = expiresIn.map { now.advanced(by: $0) } ?? key.expires
            let latest = longestLife.map { now.advanced(by: $0) }
            let expires = [asked, latest].compactMap(\.self).min()
            var kept: Rotated.Kept
            var end = now.advanced(by: overlap)
            let replaced = replaces ?? key.secret.generation
            if replaced == key.secret.generation {
                kept = .newest
                end = [end, key.expires, expires].compactMap(\.self).min() ?? end
            } else if let earlier, replaced == earlier.secret.generation, !earlier.hasExpired(at: now) {
                kept = .earlier
                // The time for which it is accepted began with the rotation whose answer was lost.
                end = [end, earlier.expires, expires].compactMap(\.self).min() ?? end
            } else {
                return .failure(Self.otherGeneration)
            }
            if end <= now { kept = .none }
            let newest = Secret(
                generation: key.secret.generation + 1, rotated: now, earlierExpires: kept == .none ? nil : end)
            return .success(
                Rotated(
                    newest: key.with(newest, expires: expires, version: version),
                    earlier: key.with(
                        Secret(generation: replaced, isEarlier: true), expires: end, version: version), kept: kept))
        }

        private static let expired = BrokerError(.conflict, "The API key has expired: create another one.")
        private static let withoutSecret = BrokerError(
            .conflict,
            "The API key has an identity in place of a secret, so there is no secret to replace. To change when it expires, "
                + "delete it and create another one.")
        private static let otherGeneration = BrokerError(
            .conflict,
            "The API key has no secret of the generation that `replaces` names, or that secret is not accepted any more. Ask for "
                + "the API key to see its generation.")
    }

    /// A key after a rotation.
    struct Rotated {
        /// Which of the secrets before the rotation is accepted for a while.
        enum Kept {
            case newest
            case earlier
            case none
        }

        let newest: CallerKey
        /// The key with the secret that is kept.
        let earlier: CallerKey
        let kept: Kept

        /// The changes of the records.
        /// - Parameters:
        ///   - digest: of the new secret.
        ///   - record: of the newest secret before the rotation.
        ///   - before: of the secret before that; nil where there is none.
        func changes(digest: [UInt8], _ record: OpenRecord, _ before: OpenRecord?) -> [VaultChange] {
            // First, so that the other record can have the digest that this one gives up.
            let first = VaultChange.replace(newest.record(lookup: digest), version: record.version)
            let lookup: [UInt8]? =
                switch kept {
                case .newest: record.lookup
                case .earlier: before?.lookup
                case .none: nil
                }
            switch (lookup, before) {
            case (let lookup?, let before?):
                return [first, .replace(earlier.record(lookup: lookup), version: before.version)]
            case (let lookup?, nil): return [first, .insert(earlier.record(lookup: lookup))]
            case (nil, let before?): return [first, .remove(before.id, version: before.version)]
            case (nil, nil): return [first]
            }
        }
    }
}
