internal import Glibc

/// The server's own system calls. The only file of this module that handles pointers.
enum Kernel {
    enum Received: Equatable {
        /// So many bytes, at least one.
        case bytes(Int)
        case wouldBlock
        /// The peer has finished sending.
        case finished
        /// The connection is broken.
        case failed
    }

    enum Sent: Equatable {
        case bytes(Int)
        case wouldBlock
        /// The connection is broken.
        case failed
    }

    /// Reads into `buffer` from its beginning, at most as much as it holds.
    static func receive(_ descriptor: CInt, into buffer: inout [UInt8]) -> Received {
        while true {
            let count = unsafe buffer.withUnsafeMutableBytes { bytes in
                unsafe Glibc.recv(descriptor, bytes.baseAddress, bytes.count, 0)
            }
            if count > 0 { return .bytes(count) }
            if count == 0 { return .finished }
            let number = errno
            if number == EINTR { continue }
            return number == EAGAIN || number == EWOULDBLOCK ? .wouldBlock : .failed
        }
    }

    /// Sends `bytes` from `start` on. A peer that is gone is a result, never the signal SIGPIPE.
    static func send(_ descriptor: CInt, _ bytes: [UInt8], from start: Int) -> Sent {
        while true {
            let count = unsafe bytes.withUnsafeBytes { bytes in
                let rest = unsafe UnsafeRawBufferPointer(rebasing: bytes[start...])
                return unsafe Glibc.send(descriptor, rest.baseAddress, rest.count, CInt(MSG_NOSIGNAL))
            }
            if count >= 0 { return .bytes(count) }
            let number = errno
            if number == EINTR { continue }
            return number == EAGAIN || number == EWOULDBLOCK ? .wouldBlock : .failed
        }
    }

    /// Processors in use, at least 1.
    static var processorCount: Int { max(1, sysconf(CInt(_SC_NPROCESSORS_ONLN))) }

    /// What to do after accept(2) has failed.
    enum AcceptFailure {
        /// There is none to accept.
        case none
        /// That one connection broke before it was accepted; the next may be sound.
        case skip
        /// Descriptors or memory have run out, or the listener is in an unknown state: trying again at once would spin.
        case pause
    }

    static func acceptFailure(_ number: CInt) -> AcceptFailure {
        switch number {
        case EAGAIN: .none
        // accept(2) on Linux passes on the pending network errors of the new connection.
        case ECONNABORTED, EPROTO, ENETDOWN, ENOPROTOOPT, EHOSTDOWN, ENONET, EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH,
            EPERM:
            .skip
        default: .pause
        }
    }
}
