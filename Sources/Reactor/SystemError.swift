internal import Glibc

/// A system call that failed: which one, and the `errno` it left.
///
/// Whether a retry helps depends on `number`; calls that were merely interrupted are repeated before this is made.
package struct SystemError: Error, Equatable, CustomStringConvertible {
    package let call: String
    package let number: CInt

    package init(_ call: String, number: CInt) {
        self.call = call
        self.number = number
    }

    /// Reads `errno`. To be called in the expression that follows the failed call, before anything can overwrite it.
    package static func last(_ call: String) -> SystemError {
        SystemError(call, number: errno)
    }

    /// Whether the system refused for want of a right, or because nothing can be written there.
    package var isRefusal: Bool { [EACCES, EPERM, EROFS].contains(number) }

    package var description: String {
        let text = unsafe strerror(number).map { unsafe String(cString: $0) } ?? "error \(number)"
        return "\(call): \(text)"
    }
}

/// Repeats a call that a signal interrupted, and turns -1 into the error that `errno` names.
@discardableResult
package func retryingInterrupts<T: FixedWidthInteger & SignedInteger>(
    _ call: String, _ body: () -> T
) throws(SystemError) -> T {
    while true {
        let result = body()
        if result != -1 { return result }
        let number = errno
        if number != EINTR { throw SystemError(call, number: number) }
    }
}
