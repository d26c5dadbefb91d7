import Glibc
import Reactor

/// A proxy between libpq and a server on a connection without TLS, until the server has accepted the user. It blocks
/// every authentication request whose answer would reveal the password.
///
/// libpq answers such requests by itself, and has no setting against it before version 16 (`require_auth`). So, once
/// TCP is connected, libpq's socket is replaced by one end of a socket pair. The relay reads the server's messages one
/// by one, each to its end, and passes on only those that ask for SCRAM, for Kerberos, or for no authentication; libpq
/// never has more than one message to read. When the server has accepted the user, libpq gets its socket back. By then
/// every byte that was read has been passed on.
///
/// Source: PostgreSQL, "Message Flow", "Start-up", and "Message Formats".
final class AuthenticationRelay {
    enum Fault: Error, Equatable {
        /// The server asks for the password in clear, as an MD5 digest, or by an unknown method.
        case asksForPassword
        /// The server does not speak the start-up protocol of PostgreSQL, or the connection has ended.
        case broken
    }

    enum Received {
        /// libpq can read a message.
        case passedOn
        /// The socket has no more bytes at the moment.
        case needsMore
    }

    /// The connection to the server.
    private let network: OwnedDescriptor
    /// The relay's end of the socket pair; libpq has the other end.
    private let ours: OwnedDescriptor
    /// The received part of the server's next message.
    private var message: [UInt8] = []
    /// Bytes of libpq that the network has not taken yet.
    private var unsent: [UInt8] = []
    private(set) var isAuthenticated = false

    /// Octets before a message's content: a type and a length.
    private static let headLength = 5
    /// libpq accepts error messages of at most 30000 bytes; all other messages are shorter.
    private static let longestMessage = 32_768

    /// AuthenticationOk (0), and the requests whose answers do not reveal the password: GSS (7, 8), and the steps of
    /// SASL (10 to 12), of which libpq speaks SCRAM. Not among them: 3 (password in clear), 5 (MD5).
    private static let harmlessRequests: Set<UInt32> = [0, 7, 8, 10, 11, 12]

    /// Takes over the connection of `socket`, which must be connected and have sent nothing. `socket` then leads to the
    /// relay.
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

    /// The descriptor to wait on for the server's messages.
    var descriptor: CInt { network.rawValue }

    /// Sends libpq's bytes to the server, as far as the network takes them.
    /// - Returns: whether all were sent.
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

    /// Reads more of the server's next message. Passes it on to libpq when it is complete and harmless.
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
        // libpq has read all earlier messages, and the socket pair has room for more than the longest message.
        let count = unsafe Glibc.send(ours.rawValue, message, message.count, CInt(MSG_NOSIGNAL))
        guard count == message.count else { throw .broken }
        message = []
        return .passedOn
    }

    /// Gives libpq its connection to the server back, as `socket`.
    func close(restoring socket: CInt) throws(SystemError) {
        try network.duplicate(onto: socket)
    }

    /// The length of the message; the length of its head while the head is incomplete.
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
        // An error, a notice, or the offer of an older protocol version.
        case UInt8(ascii: "E"), UInt8(ascii: "N"), UInt8(ascii: "v"): break
        default: throw .broken
        }
    }

    /// Four octets in network order.
    private func number(at index: Int) -> UInt32 {
        message[index..<(index + 4)].reduce(0) { $0 << 8 | UInt32($1) }
    }
}
