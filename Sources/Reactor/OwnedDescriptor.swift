internal import CLinux
internal import Glibc

/// A file descriptor with exactly one owner, closed when the owner lets go of it.
package struct OwnedDescriptor: ~Copyable, Sendable {
    package let rawValue: CInt

    /// Takes over `rawValue`; nobody else may close it.
    package init(adopting rawValue: CInt) {
        precondition(rawValue >= 0, "adopting an invalid descriptor")
        self.rawValue = rawValue
    }

    deinit {
        // close(2) releases the number even when it reports EINTR, so it is never repeated.
        _ = Glibc.close(rawValue)
    }

    /// Makes `number`, which another owner keeps and closes, a second number of what this is, in place of what it was.
    package borrowing func take(placeOf number: CInt) throws(SystemError) {
        let own = rawValue
        try retryingInterrupts("dup3") { clinux_replace_descriptor(own, number) }
    }

    /// Gives the number up without closing it; the caller owns it now.
    package consuming func relinquish() -> CInt {
        let raw = rawValue
        discard self
        return raw
    }
}
