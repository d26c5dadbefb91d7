package import OAuth

/// What a shared store reports of the commits of all replicas.
package enum StoreNotification: Sendable, Equatable {
    /// Every commit of any replica is reported from now on. Earlier ones may have been missed.
    case following
    /// Everything that was committed up to the last round trip has been reported.
    case alive
    /// Commits are missed from now on, and may have been missed for some seconds.
    case lost
    /// A commit has made these changes.
    case changed([StoreChange])
    /// A commit was too large for a notification: anything may have changed.
    case unknown
    /// The store may have lost commits that this process has seen. Later notifications are about its present content;
    /// see `StoreLineage`.
    case rolledBack
}

/// One change of a commit, without the content.
package enum StoreChange: Sendable, Equatable {
    /// A record was written and has this version now, or its lease was released.
    case written(RecordID, version: Int64)
    case removed(RecordID)
    /// All records of the tenant were removed.
    case tenantRemoved(TenantName)
    /// Entries of the tenant were added to the log.
    case logGrown(TenantName)
}
