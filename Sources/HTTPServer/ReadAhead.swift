/// What was read from connections ahead of their turns.
///
/// Receiving runs so much code of the kernel that the processor's cache loses the code that reads and answers requests. So
/// the connections whose turns come next are read one after another, and answered after that, which saves a thirtieth of a
/// request. It belongs to one worker. On the loop's thread only.
final class ReadAhead {
    /// How many connections are read before the first of them is answered.
    static let mostConnections = 32

    /// The bytes of all connections that were read ahead, one behind the other.
    private let input = InputBuffer(capacity: 65_536)
    /// Where the bytes of the connection that was read last end.
    private var end = 0
    /// The most bytes of one connection.
    private let most: Int

    /// - Parameter most: the most bytes of one connection.
    init(most: Int) {
        self.most = most
    }

    /// Reads a connection whose turn comes in this turn of the loop, if it waits for its next request and there is room for
    /// the most that one read can give.
    ///
    /// Where there is nothing to read, or the peer has ended, the connection's turn finds that again. After an error its turn
    /// finds an end.
    func read(_ connection: Connection) {
        guard connection.phase == .receiving, connection.tls == nil, connection.unreadBytes == 0,
            connection.unsentBytes == 0, !connection.isInsideContent, !connection.isBeingServed,
            end + most <= input.capacity,
            case .bytes(let count) = Kernel.receive(connection.descriptor, into: input, from: end, most: most)
        else { return }
        connection.noteReadAhead(end..<end + count)
        end += count
    }

    /// Calls `body` with some of the bytes.
    func withBytes(_ range: Range<Int>, _ body: (Span<UInt8>) -> Void) { input.withBytes(range, body) }

    /// All connections that were read have had their turns.
    func removeAll() { end = 0 }

    /// Overwrites the bytes. Not to be called while a connection that was read waits for its turn.
    func wipe() { input.wipe() }
}
