import Glibc
import Reactor

/// recv(2) and send(2) on a non-blocking stream socket.
enum SocketTransfer {
    private static let noSignal = CInt(MSG_NOSIGNAL)

    enum Received: Equatable {
        /// This many bytes were written to the start of the buffer.
        case bytes(Int)
        case wouldBlock
        /// The peer has finished sending.
        case end
    }

    static func receive(_ descriptor: CInt, into buffer: inout [UInt8]) throws(SystemError) -> Received {
        while true {
            let count = unsafe recv(descriptor, &buffer, buffer.count, 0)
            let number = errno
            if count > 0 { return .bytes(count) }
            if count == 0 { return .end }
            if number == EAGAIN { return .wouldBlock }
            if number != EINTR { throw SystemError("recv", number: number) }
        }
    }

    /// Returns the number of bytes that the kernel accepted; nil when its buffer is full. MSG_NOSIGNAL makes a closed
    /// peer fail with EPIPE; without the flag, SIGPIPE would end the process.
    static func send(_ bytes: Span<UInt8>, to descriptor: CInt) throws(SystemError) -> Int? {
        while true {
            let (count, number) = unsafe bytes.withUnsafeBufferPointer { buffer in
                let count = unsafe Glibc.send(descriptor, buffer.baseAddress, buffer.count, noSignal)
                return (count, errno)
            }
            if count >= 0 { return count }
            if number == EAGAIN { return nil }
            if number != EINTR { throw SystemError("send", number: number) }
        }
    }
}
