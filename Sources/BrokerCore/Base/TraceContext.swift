import Cryptography
import ExternalText
package import HTTPCodec
import OAuth

/// A request's place in a distributed trace (W3C Trace Context): read from its `traceparent`, written to its log lines, and
/// sent with its calls to providers.
package struct TraceContext: Sendable, Equatable {
    /// 32 hexadecimal digits in lower case, not all zero.
    package let traceID: String
    /// Whether the caller records the trace.
    private let isSampled: Bool

    /// The context of the request that the present task works for; nil where the request has none, and for other work.
    @TaskLocal package static var current: TraceContext?

    /// Nil where the fields have no `traceparent`, more than one, or a malformed one: then the request is answered as if it had
    /// none.
    package init?(_ fields: Fields) {
        guard fields.contains("traceparent") else { return nil }
        let values = fields.values("traceparent")
        guard values.count == 1 else { return nil }
        self.init(values[0])
    }

    /// Reads `00-<trace>-<parent>-<flags>`. Later versions may have more after that, which is not read.
    init?(_ text: WireText) {
        let bytes = Array(text.utf8)
        let hyphen = UInt8(ascii: "-")
        guard bytes.count >= 55, bytes.count <= 512, bytes[2] == hyphen, bytes[35] == hyphen, bytes[52] == hyphen,
            let version = Self.number(bytes[0..<2]), version != 0xff,
            version == 0 ? bytes.count == 55 : bytes.count == 55 || bytes[55] == hyphen,
            Self.isIdentifier(bytes[3..<35]), Self.isIdentifier(bytes[36..<52]), let flags = Self.number(bytes[53..<55])
        else { return nil }
        traceID = String(decoding: bytes[3..<35], as: UTF8.self)
        isSampled = flags & 1 == 1
    }

    /// The field for a call to another server, as a span of its own.
    package func child() -> String {
        var span: UInt64 = 0
        while span == 0 { span = UInt64.random(in: .min ... .max) }
        let digits = Hex.encode((0..<8).map { UInt8(truncatingIfNeeded: span >> (56 - 8 * $0)) })
        return "00-\(traceID)-\(digits)-\(isSampled ? "01" : "00")"
    }

    /// Runs `body` outside of the trace, for tasks that also work for other requests.
    static func leaving<Value>(_ body: () throws -> Value) rethrows -> Value {
        if current == nil { return try body() }
        return try $current.withValue(nil) { try body() }
    }

    private static func isHexDigit(_ byte: UInt8) -> Bool {
        byte.isDigit || (UInt8(ascii: "a")...UInt8(ascii: "f")).contains(byte)
    }

    private static func isIdentifier(_ bytes: ArraySlice<UInt8>) -> Bool {
        bytes.allSatisfy(isHexDigit) && bytes.contains { $0 != UInt8(ascii: "0") }
    }

    private static func number(_ bytes: ArraySlice<UInt8>) -> UInt8? {
        bytes.allSatisfy(isHexDigit) ? UInt8(String(decoding: bytes, as: UTF8.self), radix: 16) : nil
    }
}
