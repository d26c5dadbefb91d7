/// A value of a `RevalidatingCache`.
package protocol Cacheable: Sendable {
    associatedtype Hint: CacheHint = NoHint

    /// What a look-up needs of the value, without following the references to the entry and to the value. Valid for as long
    /// as the value exists.
    var hint: Hint { get }
}

/// A few bytes that the hash table of a cache holds for a value.
package protocol CacheHint: BitwiseCopyable, Sendable {
    /// The hint where there is no value.
    init()
}

/// The hint of values that are looked up by their key alone.
package struct NoHint: CacheHint {
    package init() {}
}

extension Cacheable where Hint == NoHint {
    package var hint: NoHint { NoHint() }
}
