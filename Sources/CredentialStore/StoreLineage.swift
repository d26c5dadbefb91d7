/// The history of commits that a shared store shows, and the position in it.
///
/// A database that fails over to a standby begins a new timeline. A database that is restored from a copy of its files
/// may continue the same timeline from an earlier position.
package struct StoreLineage: Sendable, Equatable {
    /// The identifier that the database cluster got when it was created.
    package let system: Int64
    /// Rises with each failover and each recovery to a point in time.
    package let timeline: Int64
    /// The end of the write-ahead log, in octets. Rises while the history is the same.
    package let position: Int64

    package init(system: Int64, timeline: Int64, position: Int64) {
        self.system = system
        self.timeline = timeline
        self.position = position
    }

    /// Whether `later`, which was requested after this one was received, contains every commit that this one contains.
    package func isContinued(by later: StoreLineage) -> Bool {
        isSameHistory(as: later) && later.position >= position
    }

    /// Whether both belong to one timeline of one database.
    package func isSameHistory(as other: StoreLineage) -> Bool {
        system == other.system && timeline == other.timeline
    }
}
