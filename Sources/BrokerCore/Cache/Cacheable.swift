/// What stands in a `RevalidatingCache`.
package protocol Cacheable: Sendable {
    associatedtype Hint: CacheHint = NoHint

    /// What leads a look-up to what it needs of the value, past the entry and the value themselves. It is good for as long
    /// as the value is.
    var hint: Hint { get }
}

/// A few bytes that stand with a value's key in the table of a cache.
package protocol CacheHint: BitwiseCopyable, Sendable {
    /// Of no value.
    init()
}

/// For values that look-ups of the usual kind are quick enough for.
package struct NoHint: CacheHint {
    package init() {}
}

extension Cacheable where Hint == NoHint {
    package var hint: NoHint { NoHint() }
}
