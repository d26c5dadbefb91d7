import Glibc

/// A failed system call: its name and its `errno`.
///
/// Whether retrying helps depends on `number`. Calls that a signal interrupted are repeated and do not end in this
/// error.
package struct SystemError: Error, Equatable, CustomStringConvertible {
    package let call: String
    package let number: CInt

    package init(_ call: String, number: CInt) {
        self.call = call
        self.number = number
    }

    /// Reads `errno`. Call this in the expression after the failed call, before another call overwrites `errno`.
    package static func last(_ call: String) -> SystemError {
        SystemError(call, number: errno)
    }

    /// Whether the system refused access: a missing right, or a read-only file system.
    package var isRefusal: Bool { [EACCES, EPERM, EROFS].contains(number) }

    /// Whether another socket listens at the address.
    package var isAddressTaken: Bool { number == EADDRINUSE }

    /// Whether what was written has no reader any more.
    package var isBrokenPipe: Bool { number == EPIPE }

    /// Whether there is nothing at the path.
    package var isNoSuchFile: Bool { number == ENOENT }

    package var description: String {
        let text = unsafe strerror(number).map { unsafe String(cString: $0) } ?? "error \(number)"
        return "\(call): \(text)"
    }
}

/// Repeats a call that a signal interrupted, and throws the error that `errno` names when the call returns -1.
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

/// Writes all of the bytes. Waits where another process has made the descriptor non-blocking.
func writeAll(_ bytes: [UInt8], to descriptor: CInt) throws(SystemError) {
    var written = 0
    while written < bytes.count {
        do throws(SystemError) {
            written += try retryingInterrupts("write") {
                unsafe bytes.withUnsafeBytes { buffer in
                    unsafe Glibc.write(descriptor, buffer.baseAddress! + written, buffer.count - written)
                }
            }
        } catch {
            guard error.number == EAGAIN else { throw error }
            var watched = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
            try retryingInterrupts("poll") { unsafe poll(&watched, 1, -1) }
        }
    }
}
