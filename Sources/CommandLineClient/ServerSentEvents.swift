/// Reads a stream of server-sent events, in whatever pieces it comes (WHATWG HTML, "Interpreting an event stream").
struct ServerSentEvents {
    struct Event: Sendable, Equatable {
        /// The last identifier that came until here; empty for none.
        let id: String
        /// `message` where the stream names none.
        let name: String
        let data: [UInt8]
    }

    enum Item: Sendable, Equatable {
        case event(Event)
        /// The stream has come to this identifier without an event.
        case position(String)
        /// How long to wait before a stream that has ended is asked for again.
        case pause(milliseconds: Int)
    }

    /// The bounds are exceeded: what comes is no stream of events, or a hostile one.
    enum Fault: Error, Equatable {
        case tooLong
    }

    /// The most bytes of an event, and of a line.
    static let longestEvent = 1 << 20

    private var line: [UInt8] = []
    private var isFirstLine = true
    /// Whether a line feed that comes next belongs to the carriage return before it.
    private var skipsLineFeed = false
    private var id = ""
    private var hasID = false
    private var name = ""
    private var data: [UInt8] = []
    private var hasData = false

    /// Whether nothing is left of what came: neither half a line nor half an event.
    var isBetweenEvents: Bool { line.isEmpty && !hasData && !hasID && name.isEmpty }

    /// Reads the bytes that follow those of the earlier calls. Must not be called after a fault.
    mutating func consume(_ bytes: [UInt8]) throws(Fault) -> [Item] {
        var items: [Item] = []
        for byte in bytes {
            if skipsLineFeed {
                skipsLineFeed = false
                if byte == UInt8(ascii: "\n") { continue }
            }
            guard byte == UInt8(ascii: "\n") || byte == UInt8(ascii: "\r") else {
                guard line.count < Self.longestEvent else { throw .tooLong }
                line.append(byte)
                continue
            }
            skipsLineFeed = byte == UInt8(ascii: "\r")
            if let item = try endLine() { items.append(item) }
        }
        return items
    }

    private mutating func endLine() throws(Fault) -> Item? {
        defer { line.removeAll(keepingCapacity: true) }
        if isFirstLine, line.starts(with: [0xef, 0xbb, 0xbf]) { line.removeFirst(3) }
        isFirstLine = false
        guard !line.isEmpty else { return endEvent() }
        let end = line.firstIndex(of: UInt8(ascii: ":")) ?? line.endIndex
        // A comment.
        if end == line.startIndex { return nil }
        var value = line[end...].dropFirst()
        if value.first == UInt8(ascii: " ") { value = value.dropFirst() }
        return try take(String(decoding: line[..<end], as: UTF8.self), value)
    }

    private mutating func take(_ field: String, _ value: ArraySlice<UInt8>) throws(Fault) -> Item? {
        switch field {
        case "event": name = String(decoding: value, as: UTF8.self)
        case "data":
            guard data.count + value.count < Self.longestEvent else { throw .tooLong }
            if hasData { data.append(UInt8(ascii: "\n")) }
            hasData = true
            data += value
        case "id" where !value.contains(0):
            id = String(decoding: value, as: UTF8.self)
            hasID = true
        case "retry":
            guard !value.isEmpty, value.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }) else { return nil }
            return Int(String(decoding: value, as: UTF8.self)).map { .pause(milliseconds: $0) }
        default: break
        }
        return nil
    }

    private mutating func endEvent() -> Item? {
        defer { (name, data, hasData, hasID) = ("", [], false, false) }
        if hasData { return .event(Event(id: id, name: name.isEmpty ? "message" : name, data: data)) }
        return hasID ? .position(id) : nil
    }
}
