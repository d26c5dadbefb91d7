internal import Synchronization

/// Something that is in a cache, as seen by whoever made something of it and wants to know whether that still holds.
///
/// Unchecked, because classes that are inherited from cannot be checked: all that ever changes here is atomic, and the
/// one class that inherits has constants only.
package class CachedFact: @unchecked Sendable {
    private let isHeld = Atomic<Bool>(true)

    /// Whether it is what the cache has. For ever false once it was: replaced, removed, or gone to make room.
    package final var isCurrent: Bool { isHeld.load(ordering: .acquiring) }

    final func letGo() { isHeld.store(false, ordering: .releasing) }
}
