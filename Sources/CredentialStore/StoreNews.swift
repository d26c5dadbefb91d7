package import OAuth

/// What a shared store tells of commits.
package enum StoreNews: Sendable, Equatable {
    /// From here on every commit is told, whoever makes it. Those before may have been missed.
    case following
    /// Everything that was committed up to a moment ago has been told.
    case alive
    /// Commits may be missed from here on, or have been missed for some seconds already.
    case lost
    case changed([StoreChange])
    /// A commit was too large to be told: anything may have changed.
    case unknown
    /// The store may lack commits that were seen, and whatever is told of it later is about what it has now: see
    /// `StoreLineage`.
    case wentBack
}

/// What a commit has changed, without the content.
package enum StoreChange: Sendable, Equatable {
    /// A record was written, which has that version now, or released.
    case written(RecordID, version: Int64)
    case removed(RecordID)
    /// Everything of the tenant's was removed.
    case tenantRemoved(TenantName)
    /// The log has grown by entries of the tenant's.
    case logGrown(TenantName)
}
