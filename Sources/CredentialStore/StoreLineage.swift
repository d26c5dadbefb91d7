/// Which history of commits a shared store shows, and how far it has got.
///
/// A database that fails over to a standby begins a new timeline; one that is put back from a copy of its files may go
/// on in the same one, from an earlier position.
package struct StoreLineage: Sendable, Equatable {
    /// Of the database cluster, drawn when that was made.
    package let system: Int64
    /// Rises with each failover and each recovery to a point in time.
    package let timeline: Int64
    /// The end of the log of changes, in octets. Rises for as long as the history is the same one.
    package let position: Int64

    package init(system: Int64, timeline: Int64, position: Int64) {
        self.system = system
        self.timeline = timeline
        self.position = position
    }

    /// Whether `later`, which was asked for after this one was known, holds every commit that this one held.
    package func isContinued(by later: StoreLineage) -> Bool {
        isSameHistory(as: later) && later.position >= position
    }

    /// Whether both are of one timeline of one database.
    package func isSameHistory(as other: StoreLineage) -> Bool {
        system == other.system && timeline == other.timeline
    }
}
