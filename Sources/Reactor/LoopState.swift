/// State that one event loop's thread touches, in memory of its own.
///
/// Swift checks at run time that no access to a class's stored property begins while another access changes it. For the
/// state that every request changes, the checks are a tenth of a request's instructions, so there is none here. An access
/// must end before the next begins: `value` must not be passed `inout` to code that uses the same state.
@safe package struct LoopState<Value: ~Copyable>: ~Copyable {
    @usableFromInline let memory: UnsafeMutablePointer<Value>

    package init(_ value: consuming Value) {
        unsafe memory = .allocate(capacity: 1)
        unsafe memory.initialize(to: value)
    }

    deinit {
        unsafe memory.deinitialize(count: 1)
        unsafe memory.deallocate()
    }

    @inlinable package var value: Value {
        @inline(__always) unsafeAddress { unsafe UnsafePointer(memory) }
        @inline(__always) nonmutating unsafeMutableAddress { unsafe memory }
    }
}
