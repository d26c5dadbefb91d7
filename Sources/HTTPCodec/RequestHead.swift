/// A request's head, checked, as offsets into the bytes that it was read from.
package struct RequestHead: Sendable {
    /// Bytes from the beginning of what was parsed to the end of the head.
    package let length: Int
    private let methodStart, methodEnd, pathStart, pathEnd, queryEnd, authorityStart, authorityEnd: UInt32
    private let names: UInt16
    /// Whether the client speaks HTTP/1.0: interim responses and silent persistence are not for it.
    package let isHTTP10: Bool
    /// Whether the client lets the connection persist (RFC 9112 §9.3).
    package let keepsAlive: Bool
    /// Whether the client waits for 100 before it sends the content.
    package let expectsContinue: Bool
    package let framing: BodyFraming
    package let fieldLines: [FieldLine]

    init(
        length: Int, method: Range<Int>, _ target: RequestTarget, _ fieldLines: [FieldLine], names: UInt16,
        framing: BodyFraming, isHTTP10: Bool, keepsAlive: Bool, expectsContinue: Bool
    ) {
        self.length = length
        methodStart = UInt32(truncatingIfNeeded: method.lowerBound)
        methodEnd = UInt32(truncatingIfNeeded: method.upperBound)
        pathStart = UInt32(truncatingIfNeeded: target.path.lowerBound)
        pathEnd = UInt32(truncatingIfNeeded: target.path.upperBound)
        queryEnd = UInt32(truncatingIfNeeded: target.query?.upperBound ?? 0)
        authorityStart = UInt32(truncatingIfNeeded: target.authority?.lowerBound ?? 0)
        authorityEnd = UInt32(truncatingIfNeeded: target.authority?.upperBound ?? 0)
        self.names = names
        self.isHTTP10 = isHTTP10
        self.keepsAlive = keepsAlive
        self.expectsContinue = expectsContinue
        self.framing = framing
        self.fieldLines = fieldLines
    }

    package var method: Range<Int> { Int(methodStart)..<Int(methodEnd) }
    /// The path of the request target, percent escapes as sent. Empty in an absolute-form target without a path.
    package var path: Range<Int> { Int(pathStart)..<Int(pathEnd) }
    /// What follows the target's first `?`; nil without one.
    package var query: Range<Int>? { queryEnd == 0 ? nil : Int(pathEnd) + 1..<Int(queryEnd) }
    /// The authority of an absolute-form target.
    private var authority: Range<Int>? { authorityEnd == 0 ? nil : Int(authorityStart)..<Int(authorityEnd) }

    /// Whether there is a field of that name.
    package func has(_ name: FieldName) -> Bool { names & name.bit != 0 }

    /// Whether the path and the method are these.
    /// - Parameter bytes: what the head was read from.
    package func isRequest(_ method: StaticString, for path: StaticString, in bytes: Span<UInt8>) -> Bool {
        self.method.count == method.utf8CodeUnitCount && self.path.count == path.utf8CodeUnitCount
            && ByteRun.hasExactly(method, bytes, at: self.method.lowerBound)
            && ByteRun.hasExactly(path, bytes, at: self.path.lowerBound)
    }

    /// The same head with copies of its parts, for when the bytes are gone.
    /// - Parameter bytes: what the head was read from.
    package func copied(from bytes: Span<UInt8>) -> ReceivedHead {
        let text = [UInt8](capacity: length) { output in
            for index in 0..<length { output.append(bytes[index]) }
        }
        func string(_ range: Range<Int>) -> String { String(decoding: text[range], as: UTF8.self) }
        // A copy of the lines as well: the parser uses its own again.
        var lines: [FieldLine] = []
        lines.reserveCapacity(fieldLines.count)
        for line in fieldLines { lines.append(line) }
        var fields = Fields(bytes: text, lines: lines)
        if let authority { fields.set("Host", string(authority)) }
        let method = Method(string(self.method))
        // RFC 9112 §3.2.1 and §3.2.4: an absolute-form target without a path means the root, or the server as a whole
        // for OPTIONS.
        let path = !path.isEmpty ? string(path) : method == .options && query == nil ? "*" : "/"
        return ReceivedHead(
            method: method, path: path, query: query.map(string), fields: fields, framing: framing, isHTTP10: isHTTP10,
            keepsAlive: keepsAlive, expectsContinue: expectsContinue)
    }
}

/// A request's head, checked, as text of its own.
package struct ReceivedHead: Sendable {
    package let method: Method
    /// Begins with `/`, or is `*`. Percent escapes as sent.
    package let path: String
    /// What follows the target's first `?`; nil without one.
    package let query: String?
    /// With an absolute-form target, Host is the target's authority, whatever was sent (RFC 9112 §3.2.2).
    package let fields: Fields
    package let framing: BodyFraming
    /// As in `RequestHead`, like the two below.
    package let isHTTP10: Bool
    package let keepsAlive: Bool
    package let expectsContinue: Bool
}
