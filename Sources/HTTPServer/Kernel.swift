import CLinux
import Glibc
import HTTPCodec

/// A buffer for what a worker reads. It belongs to one worker. On the loop's thread only.
@safe final class InputBuffer {
    fileprivate let base: UnsafeMutableRawPointer
    let capacity: Int

    init(capacity: Int) {
        unsafe base = .allocate(byteCount: capacity, alignment: 16)
        unsafe base.initializeMemory(as: UInt8.self, repeating: 0, count: capacity)
        self.capacity = capacity
    }

    deinit { unsafe base.deallocate() }

    /// Overwrites the buffer, which may contain API keys and tokens. Not to be called while a request in it is being read, or waits for that.
    func wipe() { unsafe explicit_bzero(base, capacity) }

    /// Calls `body` with some of the bytes.
    func withBytes<R>(_ range: Range<Int>, _ body: (Span<UInt8>) -> R) -> R {
        precondition(range.lowerBound >= 0 && range.upperBound <= capacity)
        let bytes = unsafe UnsafeBufferPointer(
            start: (base + range.lowerBound).assumingMemoryBound(to: UInt8.self), count: range.count)
        return body(unsafe bytes.span)
    }

    /// Lends the whole buffer to `body`, which writes to it.
    func fill<R, E: Error>(_ body: (inout MutableSpan<UInt8>) throws(E) -> R) throws(E) -> R {
        let bytes = unsafe UnsafeMutableBufferPointer(start: base.assumingMemoryBound(to: UInt8.self), count: capacity)
        var span = unsafe bytes.mutableSpan
        return try body(&span)
    }
}

extension [UInt8] {
    /// Appends a copy of the bytes.
    mutating func append(copying bytes: Span<UInt8>) {
        unsafe bytes.withUnsafeBytes { unsafe append(contentsOf: $0) }
    }
}

/// The system calls that only the server makes.
enum Kernel {
    enum Received: Equatable {
        /// The number of bytes, at least one.
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

    /// Whether there are bytes to read now.
    static func hasInput(_ descriptor: CInt) -> Bool {
        var byte: UInt8 = 0
        return unsafe recv(descriptor, &byte, 1, CInt(MSG_PEEK) | CInt(MSG_DONTWAIT)) > 0
    }

    /// Whether the peer has closed the connection, or has finished sending, which looks the same from here.
    static func hasPeerFinished(_ descriptor: CInt) -> Bool {
        // POLLRDHUP has the number of EPOLLRDHUP.
        let finished = Int16(truncatingIfNeeded: CLINUX_RDHUP) | Int16(POLLHUP) | Int16(POLLERR)
        var request = pollfd(fd: descriptor, events: finished, revents: 0)
        return unsafe poll(&request, 1, 0) > 0 && request.revents & finished != 0
    }

    /// Reads into `buffer`, from `start` on up to its capacity, and `most` bytes at most.
    static func receive(
        _ descriptor: CInt, into buffer: InputBuffer, from start: Int = 0, most: Int = .max
    ) -> Received {
        let room = min(most, buffer.capacity - start)
        precondition(start >= 0 && room > 0)
        while true {
            let count = unsafe clinux_receive(descriptor, buffer.base + start, room)
            if count > 0 { return .bytes(count) }
            if count == 0 { return .finished }
            let number = errno
            if number == EINTR { continue }
            return number == EAGAIN || number == EWOULDBLOCK ? .wouldBlock : .failed
        }
    }

    /// Sends `bytes` from `start` on. Returns `failed` when the peer has closed, and never raises SIGPIPE.
    static func send(_ descriptor: CInt, _ bytes: [UInt8], from start: Int) -> Sent {
        unsafe bytes.withUnsafeBytes { unsafe send(descriptor, UnsafeRawBufferPointer(rebasing: $0[start...])) }
    }

    /// Sends the buffer's bytes from `start` up to `end`.
    static func send(_ descriptor: CInt, _ output: OutputBuffer, from start: Int, to end: Int) -> Sent {
        output.withBytes(from: start, to: end) { bytes in
            unsafe bytes.withUnsafeBytes { unsafe send(descriptor, $0) }
        }
    }

    private static func send(_ descriptor: CInt, _ bytes: UnsafeRawBufferPointer) -> Sent {
        while true {
            let count = unsafe clinux_send(descriptor, bytes.baseAddress, bytes.count)
            if count >= 0 { return .bytes(count) }
            let number = errno
            if number == EINTR { continue }
            return number == EAGAIN || number == EWOULDBLOCK ? .wouldBlock : .failed
        }
    }

    /// The number of online processors, at least 1.
    static var processorCount: Int { max(1, sysconf(CInt(_SC_NPROCESSORS_ONLN))) }

    /// What to do after accept(2) has failed.
    enum AcceptFailure {
        /// No connection waits to be accepted.
        case none
        /// The connection broke before it was accepted. The next one may be fine.
        case skip
        /// Descriptors or memory have run out, or the listener is in an unknown state. Retrying at once would spin.
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
