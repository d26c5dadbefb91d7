public import Synchronization

/// A number that rises whenever something that was found out earlier may not hold any more: who has kept a conclusion
/// keeps the number with it, and compares. One load, whatever it is that may change.
@usableFromInline package final class Generation: Sendable {
    @usableFromInline let number = Atomic<Int>(0)

    package init() {}

    /// To be read before what the conclusion is drawn from.
    @inlinable package var current: Int { number.load(ordering: .acquiring) }

    /// To be called after the change can be seen.
    package func advance() { number.add(1, ordering: .releasing) }
}
