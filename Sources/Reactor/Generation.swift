public import Synchronization

/// A counter that is advanced whenever earlier conclusions may have become invalid. A cache stores the number beside
/// its entry and compares it on use, so checking an entry costs one atomic load.
@usableFromInline package final class Generation: Sendable {
    @usableFromInline let number = Atomic<Int>(0)

    package init() {}

    /// Read this before the data from which the conclusion is drawn.
    @inlinable package var current: Int { number.load(ordering: .acquiring) }

    /// Call this after the change has become visible to other threads.
    package func advance() { number.add(1, ordering: .releasing) }
}
