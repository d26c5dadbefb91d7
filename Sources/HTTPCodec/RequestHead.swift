/// A request line as offsets into the head.
struct RequestLine {
    private let methodStart, methodEnd, pathStart, pathEnd, queryEnd, authorityStart, authorityEnd: UInt32
    /// A higher minor version of HTTP/1 is treated as 1.1 (RFC 9110 §2.5).
    let isHTTP10: Bool

    init(method: Range<Int>, _ target: RequestTarget, isHTTP10: Bool) {
        methodStart = UInt32(truncatingIfNeeded: method.lowerBound)
        methodEnd = UInt32(truncatingIfNeeded: method.upperBound)
        pathStart = UInt32(truncatingIfNeeded: target.path.lowerBound)
        pathEnd = UInt32(truncatingIfNeeded: target.path.upperBound)
        queryEnd = UInt32(truncatingIfNeeded: target.query?.upperBound ?? 0)
        authorityStart = UInt32(truncatingIfNeeded: target.authority?.lowerBound ?? 0)
        authorityEnd = UInt32(truncatingIfNeeded: target.authority?.upperBound ?? 0)
        self.isHTTP10 = isHTTP10
    }

    var method: Range<Int> { Int(methodStart)..<Int(methodEnd) }
    var path: Range<Int> { Int(pathStart)..<Int(pathEnd) }
    var query: Range<Int>? { queryEnd == 0 ? nil : Int(pathEnd) + 1..<Int(queryEnd) }
    var authority: Range<Int>? { authorityEnd == 0 ? nil : Int(authorityStart)..<Int(authorityEnd) }
}

/// The checked head of a request, as offsets into the bytes that it was read from.
///
/// It is not copied, because a copy would count a reference to the section for each request.
package struct RequestHead: ~Copyable {
    private let line: RequestLine
    private let fieldsStart: Int
    /// The header fields.
    package let section: FieldSection

    init(_ line: RequestLine, fieldsStart: Int, _ section: FieldSection) {
        self.line = line
        self.fieldsStart = fieldsStart
        self.section = section
    }

    /// Whether the client speaks HTTP/1.0. Such a client gets no interim response, and its connection persists only if
    /// it asks for that.
    package var isHTTP10: Bool { line.isHTTP10 }
    /// The number of bytes from the start of parsing to the end of the head.
    package var length: Int { fieldsStart + section.length }
    /// The range of bytes that the offsets of the section's lines refer to.
    package var fields: Range<Int> { fieldsStart..<length }
    /// Whether the client permits the connection to persist (RFC 9112 §9.3).
    package var keepsAlive: Bool { section.keepsAlive }
    /// Whether the client waits for 100 Continue before it sends the content.
    package var expectsContinue: Bool { section.expectsContinue }
    package var framing: BodyFraming { section.framing }
    /// Whether content follows the head.
    package var hasContent: Bool { if case .none = section.framing { false } else { true } }
    package var method: Range<Int> { line.method }
    /// The path of the request target, not decoded. Empty for an absolute-form target without a path.
    package var path: Range<Int> { line.path }
    /// The text after the target's first `?`; nil if there is none.
    package var query: Range<Int>? { line.query }
    /// The authority of an absolute-form target.
    private var authority: Range<Int>? { line.authority }

    /// Whether there is a field with this name.
    package func has(_ name: FieldName) -> Bool { section.has(name) }

    /// Whether the request has this method and path.
    /// - Parameter bytes: what the head was read from.
    package func isRequest(_ method: StaticString, for path: StaticString, in bytes: Span<UInt8>) -> Bool {
        self.method.count == method.utf8CodeUnitCount && self.path.count == path.utf8CodeUnitCount
            && ByteRun.hasExactly(method, bytes, at: self.method.lowerBound)
            && ByteRun.hasExactly(path, bytes, at: self.path.lowerBound)
    }

    /// The path of a request whose head is incomplete or malformed, for the answer to it. The query and what follows the first
    /// `longestPath` bytes are left out.
    /// - Parameter bytes: what has arrived of the head.
    /// - Returns: nil where no path in origin form can be read.
    package static func path(beginning bytes: Span<UInt8>) -> String? {
        var index = 0
        while index < bytes.count, bytes[index] != UInt8(ascii: " ") {
            if index == longestMethod { return nil }
            index += 1
        }
        index += 1
        guard index < bytes.count, bytes[index] == UInt8(ascii: "/") else { return nil }
        var path: [UInt8] = []
        while index < bytes.count, path.count < longestPath, (0x21...0x7e).contains(bytes[index]),
            bytes[index] != UInt8(ascii: "?")
        {
            path.append(bytes[index])
            index += 1
        }
        return String(decoding: path, as: UTF8.self)
    }

    private static let longestMethod = 40
    private static let longestPath = 256

    /// A copy of the head that does not depend on the bytes.
    /// - Parameter bytes: what the head was read from.
    package func copied(from bytes: Span<UInt8>) -> ReceivedHead {
        let text = [UInt8](capacity: length) { output in
            for index in 0..<length { output.append(bytes[index]) }
        }
        func string(_ range: Range<Int>) -> String { String(decoding: text[range], as: UTF8.self) }
        // The lines are copied too, because the section's memory is reused.
        var lines: [FieldLine] = []
        lines.reserveCapacity(section.lines.count)
        for line in section.lines { lines.append(line) }
        var fields = Fields(bytes: Array(text[self.fields]), lines: lines)
        if let authority { fields.set("Host", string(authority)) }
        let method = Method(string(self.method))
        // An absolute-form target without a path means the root; with OPTIONS it means the whole server (RFC 9112
        // §3.2.1, §3.2.4).
        let path = !path.isEmpty ? string(path) : method == .options && query == nil ? "*" : "/"
        return ReceivedHead(
            method: method, path: path, query: query.map(string), fields: fields, framing: framing, isHTTP10: isHTTP10,
            keepsAlive: keepsAlive, expectsContinue: expectsContinue)
    }
}

/// The checked head of a request, with copies of its texts.
package struct ReceivedHead: Sendable {
    package let method: Method
    /// Begins with `/`, or is `*`. Not decoded.
    package let path: String
    /// The text after the target's first `?`; nil if there is none.
    package let query: String?
    /// With an absolute-form target, Host is replaced by the target's authority (RFC 9112 §3.2.2).
    package let fields: Fields
    package let framing: BodyFraming
    /// See `RequestHead`, also for the next two properties.
    package let isHTTP10: Bool
    package let keepsAlive: Bool
    package let expectsContinue: Bool
}
