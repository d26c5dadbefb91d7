import CLinux
import Glibc

/// A file descriptor with exactly one owner. It is closed when the owner releases it.
package struct OwnedDescriptor: ~Copyable, Sendable {
    package let rawValue: CInt

    /// Takes ownership of `rawValue`. No other code may close it.
    package init(adopting rawValue: CInt) {
        precondition(rawValue >= 0, "adopting an invalid descriptor")
        self.rawValue = rawValue
    }

    deinit {
        // close(2) frees the number even when it fails with EINTR, so a second call could close another descriptor.
        _ = Glibc.close(rawValue)
    }

    /// Makes `number` refer to the same open file as this descriptor (dup3(2)). Another owner keeps and closes
    /// `number`; what it referred to before is closed.
    package borrowing func duplicate(onto number: CInt) throws(SystemError) {
        let own = rawValue
        try retryingInterrupts("dup3") { clinux_replace_descriptor(own, number) }
    }

    /// Returns the number without closing it. The caller owns it from then on.
    package consuming func relinquish() -> CInt {
        let raw = rawValue
        discard self
        return raw
    }
}
