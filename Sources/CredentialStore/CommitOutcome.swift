import OAuth

/// What a store shows of a commit whose answer was lost.
enum CommitOutcome {
    /// The store has carried it out.
    case carriedOut
    /// A record is no longer what the commit named, and nothing shows that this commit changed it.
    case overtaken
    /// It was not carried out, or has not been yet.
    case unknown
}

extension RecordStore {
    /// Finds out what became of a commit whose answer did not arrive.
    ///
    /// Sealing uses a random nonce, so only this commit can have written a record or an entry with exactly its octets, and
    /// one such record or entry proves all changes. An entry stays when the record goes on, so a commit that appends one
    /// can be proven for as long as the log has the entry. Without a proof, a record that is no longer what a change named
    /// counts as a conflict: this commit or another one has changed it, and the caller must read again. A commit of removals
    /// leaves no proof; counting it as a conflict, too, prevents two callers from both believing that they removed the
    /// record. Octets that were sealed anew under another key meanwhile prove nothing.
    func outcome(of changes: [RecordChange]) async throws(StoreError) -> CommitOutcome {
        var (hasMoved, isUntouched) = (false, false)
        for change in changes {
            switch try await evidence(of: change, in: changes) {
            case .proof: return .carriedOut
            case .moved: hasMoved = true
            case .untouched: isUntouched = true
            case .none: continue
            }
        }
        // The changes of a commit are made together, so no entry of it can be there. A search would read the whole log of a
        // file store.
        if !isUntouched {
            for change in changes {
                switch change {
                case .append(let entry): if try await contains(entry) { return .carriedOut }
                case .audit(let block): if try await contains(block) { return .carriedOut }
                default: continue
                }
            }
        }
        return hasMoved ? .overtaken : .unknown
    }

    private func contains(_ block: AuditBlock) async throws(StoreError) -> Bool {
        let found = try await auditBlocks(of: block.chain, after: block.first - 1, limit: 1).first
        return found?.first == block.first && found?.hash == block.hash
    }

    private func evidence(
        of change: RecordChange, in changes: [RecordChange]
    ) async throws(StoreError) -> CommitEvidence {
        switch change {
        case .insert(let record):
            guard let found = try await read(record.id) else { return .none }
            return found.version == record.version && found.sealed == record.sealed ? .proof : .moved
        case .replace(let record, let version, _):
            let found = try await read(record.id)
            if let found, found.version == record.version, found.sealed == record.sealed { return .proof }
            return found?.version == version ? .untouched : .moved
        case .remove(let id, let version):
            return try await read(id)?.version == version ? .untouched : .moved
        case .settleDue(let id, let version, let due, let next):
            guard let found = try await read(id), found.version == version, let mark = found.due, mark != next,
                due == nil || due == mark
            else { return .moved }
            // Another caller may have moved the mark back.
            return .none
        case .claim(let id, let version, let claim):
            let found = try await read(id)
            if found?.version != version { return .moved }
            // No other attempt uses the holder's name. But the lease may have been this holder's before the commit, so it
            // proves nothing about other changes.
            return found?.lease?.holder == claim.holder && changes.allSatisfy(\.isClaimOrRequirement) ? .proof : .none
        case .release(let id, let version, let holder, let release):
            let found = try await read(id)
            guard found?.version == version, let lease = found?.lease, lease.holder == holder else { return .moved }
            // A holder may give its lease up twice, so the lease proves nothing where octets can.
            return release.isDone(lease) && !changes.contains(where: \.leavesOctets) ? .proof : .none
        case .require(let id): return try await read(id) == nil ? .moved : .none
        case .removeAll, .append, .audit: return .none
        }
    }
}

/// How a record compares with a change whose outcome is unknown.
private enum CommitEvidence {
    /// Only this commit can have made it.
    case proof
    /// The record is no longer what the change named. This commit or another one may have changed it.
    case moved
    /// The record still has the version that the change ends, so the commit was not carried out so far.
    case untouched
    case none
}

extension LeaseRelease {
    /// Whether the lease, which has the holder's name, shows that this release took place.
    fileprivate func isDone(_ lease: Lease) -> Bool {
        switch outcome {
        case .settled: lease.isSettled
        case .unknown: lease.wasGivenUp && !lease.isSettled
        case .open: lease.hasRunOut && lease.isOpen
        }
    }
}

extension RecordChange {
    fileprivate var isClaimOrRequirement: Bool {
        switch self {
        case .claim, .require: true
        default: false
        }
    }

    /// Whether the change writes octets that no other commit writes.
    fileprivate var leavesOctets: Bool {
        switch self {
        case .insert, .replace, .append, .audit: true
        case .remove, .require, .removeAll, .settleDue, .claim, .release: false
        }
    }
}
