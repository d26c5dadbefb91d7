internal import Glibc
internal import Reactor

/// Stands between libpq and a server on a connection without TLS until the server has accepted the user, and keeps from
/// libpq every request for a password that the answer would give away.
///
/// libpq answers such requests by itself, and has no setting against it before version 16 (`require_auth`). So its socket
/// is replaced by one end of a pair once TCP is connected. The server's messages are read one by one and whole, never more
/// than one is in libpq's reach, and only those go on that ask for SCRAM or Kerberos or for nothing. When the server has
/// accepted the user, libpq gets its socket back. Nothing has been read by then that was not passed on.
///
/// Source: PostgreSQL, "Message Flow", "Start-up", and "Message Formats".
final class AuthenticationRelay {
    enum Fault: Error, Equatable {
        /// The server asks for the password in clear, as an MD5 digest, or in a way that is not known.
        case asksForPassword
        /// What the server says is no start-up of PostgreSQL, or the connection has ended.
        case broken
    }

    enum Received {
        /// A message is ready for libpq.
        case passedOn
        /// The socket has nothing more at the moment.
        case needsMore
    }

    /// The server.
    private let network: OwnedDescriptor
    /// The end of the pair whose other end libpq has.
    private let ours: OwnedDescriptor
    /// The part of the server's next message that has arrived.
    private var message: [UInt8] = []
    /// What libpq has said and the network has not taken.
    private var unsent: [UInt8] = []
    private(set) var isAuthenticated = false

    /// A type and a length.
    private static let headLength = 5
    /// libpq takes no longer errors than 30000 bytes, and everything else is shorter.
    private static let longestMessage = 32_768

    /// AuthenticationOk, and requests that are answered without giving the password away: GSS, and the steps of SASL, of
    /// which libpq speaks SCRAM. Not among them: 3 (in clear), 5 (MD5).
    private static let harmlessRequests: Set<UInt32> = [0, 7, 8, 10, 11, 12]

    /// Takes the place of the server for the owner of `socket`, which must be connected and have sent nothing.
    init(replacing socket: CInt) throws(SystemError) {
        network = OwnedDescriptor(
            adopting: try retryingInterrupts("fcntl") { fcntl(socket, F_DUPFD_CLOEXEC, 0) })
        var ends: [CInt] = [-1, -1]
        let type = CInt(SOCK_STREAM.rawValue) | CInt(SOCK_NONBLOCK.rawValue) | CInt(SOCK_CLOEXEC.rawValue)
        try retryingInterrupts("socketpair") { unsafe socketpair(AF_UNIX, type, 0, &ends) }
        ours = OwnedDescriptor(adopting: ends[0])
        let theirs = OwnedDescriptor(adopting: ends[1])
        try theirs.duplicate(onto: socket)
    }

    /// What to watch for the server's messages.
    var descriptor: CInt { network.rawValue }

    /// Sends what libpq has said, as far as the network takes it.
    /// - Returns: whether that was all.
    func send() throws(Fault) -> Bool {
        var buffer = [UInt8](repeating: 0, count: 4096)
        while true {
            if unsent.isEmpty {
                let count = unsafe recv(ours.rawValue, &buffer, buffer.count, 0)
                let number = errno
                if count < 0, number == EAGAIN { return true }
                if count < 0, number == EINTR { continue }
                guard count > 0 else { throw .broken }
                unsent = Array(buffer[..<count])
            }
            let count = unsafe Glibc.send(network.rawValue, unsent, unsent.count, CInt(MSG_NOSIGNAL))
            let number = errno
            if count < 0, number == EAGAIN { return false }
            if count < 0, number == EINTR { continue }
            guard count > 0 else { throw .broken }
            unsent.removeFirst(count)
        }
    }

    /// Reads on in the server's next message and, when it is whole and harmless, lets libpq have it.
    func receive() throws(Fault) -> Received {
        while true {
            let missing = try lengthOfMessage() - message.count
            if missing == 0 { break }
            var buffer = [UInt8](repeating: 0, count: missing)
            let count = unsafe recv(network.rawValue, &buffer, missing, 0)
            let number = errno
            if count < 0, number == EAGAIN { return .needsMore }
            if count < 0, number == EINTR { continue }
            guard count > 0 else { throw .broken }
            message += buffer[..<count]
        }
        try judge()
        // The pair is empty, since libpq has read all that came before, and takes more than the longest message.
        let count = unsafe Glibc.send(ours.rawValue, message, message.count, CInt(MSG_NOSIGNAL))
        guard count == message.count else { throw .broken }
        message = []
        return .passedOn
    }

    /// Gives libpq its socket back.
    func end(at socket: CInt) throws(SystemError) {
        try network.duplicate(onto: socket)
    }

    /// As far as is known: of the head while that is not whole.
    private func lengthOfMessage() throws(Fault) -> Int {
        if message.count < Self.headLength { return Self.headLength }
        // The length counts itself and not the type.
        let length = Int(number(at: 1)) + 1
        guard (Self.headLength...Self.longestMessage).contains(length) else { throw .broken }
        return length
    }

    private func judge() throws(Fault) {
        switch message[0] {
        case UInt8(ascii: "R"):
            guard message.count >= Self.headLength + 4, Self.harmlessRequests.contains(number(at: Self.headLength))
            else {
                throw .asksForPassword
            }
            if number(at: Self.headLength) == 0 { isAuthenticated = true }
        // An error, a notice, an older version of the protocol.
        case UInt8(ascii: "E"), UInt8(ascii: "N"), UInt8(ascii: "v"): break
        default: throw .broken
        }
    }

    /// In network order.
    private func number(at index: Int) -> UInt32 {
        message[index..<(index + 4)].reduce(0) { $0 << 8 | UInt32($1) }
    }
}
