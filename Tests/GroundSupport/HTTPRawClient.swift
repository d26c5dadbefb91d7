import Glibc
package import HTTPCodec
package import Reactor

/// A client that sends exactly the bytes it is told to, for testing servers with what no proper client would send.
///
/// Its calls block, on a thread of its own, so that a test which waits does not hold up others.
package actor HTTPRawClient {
    package enum Failure: Error, Equatable {
        /// Nothing came in time.
        case timedOut
        /// The server reset the connection.
        case reset
        /// The server closed where more was expected.
        case closed
    }

    private let thread: BlockingThread
    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }
    private var descriptor: OwnedDescriptor?
    private nonisolated let number: CInt
    private var buffered: [UInt8] = []

    /// Connects.
    /// - Parameters:
    ///   - source: the address to connect from, such as another one of loopback; nil leaves it to the kernel.
    ///   - receiveBufferBytes: a small SO_RCVBUF, to fill it up soon.
    ///   - timeoutSeconds: how long one call waits at most.
    package init(
        _ address: SocketAddress, from source: SocketAddress? = nil, receiveBufferBytes: CInt? = nil,
        timeoutSeconds: Int = 10
    ) throws {
        thread = try BlockingThread(name: "raw-client")
        let owned = OwnedDescriptor(
            adopting: try retryingInterrupts("socket") {
                socket(address.family, CInt(SOCK_STREAM.rawValue) | CInt(SOCK_CLOEXEC.rawValue), 0)
            })
        number = owned.rawValue
        if let receiveBufferBytes { try Self.set(number, SOL_SOCKET, SO_RCVBUF, receiveBufferBytes) }
        try Self.set(number, SOL_SOCKET, SO_RCVTIMEO, timeval(tv_sec: timeoutSeconds, tv_usec: 0))
        try Self.set(number, SOL_SOCKET, SO_SNDTIMEO, timeval(tv_sec: timeoutSeconds, tv_usec: 0))
        try Self.set(number, CInt(IPPROTO_TCP), TCP_NODELAY, CInt(1))
        let connecting = number
        if let source {
            try retryingInterrupts("bind") { unsafe source.withSockaddr { unsafe Glibc.bind(connecting, $0, $1) } }
        }
        try retryingInterrupts("connect") { unsafe address.withSockaddr { unsafe Glibc.connect(connecting, $0, $1) } }
        descriptor = consume owned
    }

    deinit {
        thread.shutDown()
    }

    package func send(_ text: String) throws {
        try send(Array(text.utf8))
    }

    package func send(_ bytes: [UInt8]) throws {
        try sendBlocking(bytes)
    }

    /// The same, on the caller's thread.
    package nonisolated func sendBlocking(_ bytes: [UInt8]) throws {
        var start = 0
        while start < bytes.count {
            let count = unsafe bytes.withUnsafeBytes { bytes in
                let rest = unsafe UnsafeRawBufferPointer(rebasing: bytes[start...])
                return unsafe Glibc.send(number, rest.baseAddress, rest.count, CInt(MSG_NOSIGNAL))
            }
            if count < 0 { throw Self.failure(errno) }
            start += count
        }
    }

    /// Sends one byte at a time, each in a segment of its own.
    package func drip(_ text: String) throws {
        for byte in text.utf8 { try send([byte]) }
    }

    /// Says that nothing more will be sent.
    package func finishSending() {
        Socket.finishSending(number)
    }

    /// Reads one whole response; what follows it is kept for the next call.
    package func response(to method: Method = .get) throws -> ParsedResponse {
        // In a process of tests all providers are in use, and the metrics tell of each.
        var parser = ResponseParser(limits: ResponseLimits(bodyBytes: 16 << 20), requestMethod: method)
        if buffered.isEmpty { buffered = try receive() }
        while true {
            if buffered.isEmpty { return try parser.peerClosed() }
            let bytes = buffered
            if case .complete(let count) = try parser.consume(bytes.span) {
                buffered.removeFirst(count)
                return parser.response
            }
            buffered = try receive()
        }
    }

    /// Reads everything until the server closes in good order.
    package func rest() throws -> String {
        while true {
            let bytes = try receive()
            if bytes.isEmpty { break }
            buffered += bytes
        }
        defer { buffered = [] }
        return String(decoding: buffered, as: UTF8.self)
    }

    /// Reads to the end of `text` and returns all up to there; what follows it is kept for the next call. For looking at
    /// a response that is still under way.
    package func receive(through text: String) throws -> String {
        let end = Array(text.utf8)
        var searched = 0
        while true {
            if let range = buffered[searched...].firstRange(of: end) {
                defer { buffered.removeFirst(range.upperBound) }
                return String(decoding: buffered[..<range.upperBound], as: UTF8.self)
            }
            searched = max(0, buffered.count - end.count + 1)
            let bytes = try receive()
            if bytes.isEmpty { throw Failure.closed }
            buffered += bytes
        }
    }

    /// Reads so many bytes; what follows them is kept for the next call.
    package func receive(exactly count: Int) throws -> [UInt8] {
        while buffered.count < count {
            let bytes = try receive()
            if bytes.isEmpty { throw Failure.closed }
            buffered += bytes
        }
        defer { buffered.removeFirst(count) }
        return Array(buffered[..<count])
    }

    /// Exactly what the next recv(2) gives; empty at the end. For looking at how the server cuts its output.
    package func receive() throws -> [UInt8] {
        try receiveBlocking()
    }

    /// Whether something came from the server, its end included, within that time.
    package func hasInput(within time: Duration) -> Bool {
        var request = pollfd(fd: number, events: Int16(POLLIN), revents: 0)
        return unsafe poll(&request, 1, CInt(time.milliseconds)) > 0
    }

    /// The same as `receive`, on the caller's thread.
    package nonisolated func receiveBlocking() throws -> [UInt8] {
        var buffer = [UInt8](repeating: 0, count: 262_144)
        let count = unsafe buffer.withUnsafeMutableBytes { unsafe recv(number, $0.baseAddress, $0.count, 0) }
        if count < 0 { throw Self.failure(errno) }
        buffer.removeSubrange(count...)
        return buffer
    }

    package func close() {
        descriptor = nil
    }

    /// Closes with a reset.
    package func abort() {
        Socket.abortOnClose(number)
        descriptor = nil
    }

    private static func failure(_ number: CInt) -> any Error {
        switch number {
        case EAGAIN: Failure.timedOut
        case ECONNRESET, EPIPE: Failure.reset
        default: SystemError("socket", number: number)
        }
    }

    private static func set<Value: BitwiseCopyable>(
        _ descriptor: CInt, _ level: CInt, _ option: CInt, _ value: Value
    ) throws {
        var value = value
        try retryingInterrupts("setsockopt") {
            unsafe setsockopt(descriptor, level, option, &value, socklen_t(MemoryLayout<Value>.size))
        }
    }
}
