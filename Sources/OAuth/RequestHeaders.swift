package import ExternalText
import JSON

/// Header fields that an operator has the broker send to a provider with each request of a tenant.
package struct RequestHeaders: Sendable, Hashable {
    package struct Field: Sendable, Hashable {
        package let name: WireText
        package let value: WireText
    }

    /// Ordered by name. No two names differ by case only.
    package let fields: [Field]

    package static let none = RequestHeaders(fields: [])

    /// The most fields of one tenant.
    package static let most = 20

    private init(fields: [Field]) { self.fields = fields }

    /// - Parameter fields: values by name, which `fault` allows.
    package init(_ fields: [WireText: WireText]) {
        self.fields = fields.sorted { $0.key < $1.key }.map { Field(name: $0.key, value: $0.value) }
    }

    /// What the broker itself writes, what would give the request another sender, and what concerns one connection.
    private static let restricted: Set<WireText> = [
        "accept", "accept-encoding", "authorization", "connection", "content-encoding", "content-length",
        "content-type",
        "cookie", "date", "dpop", "expect", "forwarded", "host", "if-match", "if-modified-since", "if-none-match",
        "if-range",
        "if-unmodified-since", "keep-alive", "proxy-authorization", "proxy-connection", "range", "set-cookie", "te",
        "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade",
    ]

    private static let longestName = 64
    private static let longestValue = 1024

    /// What is wrong with a field; nil when it may be sent.
    package static func fault(_ name: WireText, _ value: WireText) -> String? {
        guard (1...longestName).contains(name.count), name.utf8.allSatisfy(isOfName) else {
            return "must have a name of 1 to \(longestName) letters, digits, - and _"
        }
        if restricted.contains(name.lowercased) {
            return "is a field that the broker writes itself, or that it never sends"
        }
        guard (1...longestValue).contains(value.count), value.utf8.allSatisfy({ $0 >= 0x20 && $0 < 0x7f }),
            value.trimmed == value
        else {
            return "must have a value of 1 to \(longestValue) visible ASCII characters, with spaces between them only"
        }
        return nil
    }

    private static func isOfName(_ byte: UInt8) -> Bool {
        byte.isLowercaseLetter || byte.isUppercaseLetter || byte.isDigit || byte == UInt8(ascii: "-")
            || byte == UInt8(ascii: "_")
    }
}

extension MemberRule where Value == RequestHeaders {
    package static var headers: MemberRule {
        MemberRule { reader, member, _ in
            guard let fields = reader.stringMap(member, atMost: RequestHeaders.most) else { return nil }
            var names: Set<WireText> = []
            for (name, value) in fields.sorted(by: { $0.key < $1.key }) {
                if let fault = RequestHeaders.fault(name, value) {
                    reader.note(member, member: name, fault)
                } else if !names.insert(name.lowercased).inserted {
                    reader.note(member, member: name, "has the name of another field, which differs by case only")
                }
            }
            return RequestHeaders(fields)
        } write: { headers, json in
            json.object { json in for field in headers.fields { json.member(field.name.text, field.value.text) } }
        }
    }
}
