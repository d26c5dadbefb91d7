/// Finds a ClientHello that is too long when it is announced.
///
/// OpenSSL sets memory aside for a whole message as soon as it has read the message's length, and takes a ClientHello of up
/// to 131,396 bytes: for nine bytes that a stranger sends, it keeps 211 KB instead of 57 KB. No setting of OpenSSL lowers
/// that. Of the other messages that a client may send before the handshake is complete, OpenSSL takes at most 2 KB, and of the
/// certificate that a server asks for, `TLSClientAuthorities.longestChain`.
///
/// It reads the heads of the client's records and messages, and copies nothing.
struct ClientHelloLimit {
    /// The longest ClientHello, in bytes, without the four bytes of its head. For messages of this length OpenSSL sets memory
    /// aside at the beginning of each handshake in any case. Clients send a few hundred bytes, and with key shares of
    /// post-quantum cryptography less than 4 KB.
    static let bytes = 16_380

    private static let changeCipherSpec: UInt8 = 20
    private static let handshake: UInt8 = 22
    private static let knownTypes: ClosedRange<UInt8> = 20...23
    private static let recordHeadCount = 5
    private static let messageHeadCount = 4
    private static let clientHello: UInt32 = 1

    private var type: UInt8 = 0
    /// How many bytes of the present record's head have come.
    private var recordHead = 0
    /// How many bytes of the present record are still to come.
    private var recordRest = 0
    /// The bytes of the present message's head that have come, and their number.
    private var messageStart: UInt32 = 0
    private var messageHead = 0
    /// How many bytes of the present message are still to come.
    private var messageRest = 0
    private var hasChangedCipher = false
    /// Whether no further ClientHello can be read here.
    private var isOver = false

    /// Takes the next bytes of the client.
    /// - Parameter isTLS12: whether OpenSSL has chosen TLS 1.2, in which messages behind ChangeCipherSpec are encrypted. In
    ///   TLS 1.3 a second ClientHello can stand there.
    /// - Returns: false when they announce a ClientHello that is too long. OpenSSL must not get them then.
    mutating func admits(_ bytes: Span<UInt8>, isTLS12: Bool) -> Bool {
        var position = 0
        while position < bytes.count, !isOver {
            if recordHead < Self.recordHeadCount {
                readRecordHead(bytes[position], isTLS12: isTLS12)
                position += 1
                continue
            }
            let end = position + min(recordRest, bytes.count - position)
            recordRest -= end - position
            if recordRest == 0 { recordHead = 0 }
            guard type == Self.handshake else {
                position = end
                continue
            }
            while position < end {
                if messageRest > 0 {
                    let count = min(messageRest, end - position)
                    messageRest -= count
                    position += count
                } else {
                    if !admitsMessageHead(bytes[position]) { return false }
                    position += 1
                }
            }
        }
        return true
    }

    private mutating func readRecordHead(_ byte: UInt8, isTLS12: Bool) {
        recordHead += 1
        switch recordHead {
        case 1:
            type = byte
            // OpenSSL refuses it, or takes it as a ClientHello of SSL 2.0, which fits into one record.
            if !Self.knownTypes.contains(type) { isOver = true }
            if type == Self.changeCipherSpec { hasChangedCipher = true }
            if type == Self.handshake, hasChangedCipher, isTLS12 { isOver = true }
        case 4: recordRest = Int(byte) << 8
        case 5:
            recordRest += Int(byte)
            if recordRest == 0 { recordHead = 0 }
        default: break
        }
    }

    private mutating func admitsMessageHead(_ byte: UInt8) -> Bool {
        messageStart = messageStart << 8 | UInt32(byte)
        messageHead += 1
        guard messageHead == Self.messageHeadCount else { return true }
        messageHead = 0
        messageRest = Int(messageStart & 0xff_ffff)
        return messageStart >> 24 != Self.clientHello || messageRest <= Self.bytes
    }
}
