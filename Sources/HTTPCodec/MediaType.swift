package import ExternalText

/// The value of a Content-Type field (RFC 9110 §8.3.1).
package struct MediaType: Sendable {
    /// Type and subtype, in lower case.
    package let name: WireText
    /// The parameters, `name=value` in lower case and without quotation marks around the value.
    package let parameters: [WireText]

    /// The longest value that is read, in bytes. The name of a longer value is empty.
    private static let longest = 1024

    package init(_ value: WireText) {
        let parts = value.count <= Self.longest ? value.lowercased.split(at: ";").map(\.trimmed) : []
        name = parts.first ?? ""
        parameters = parts.dropFirst().filter { !$0.isEmpty }.map { parameter in
            let halves = parameter.split(at: "=", limit: 2)
            guard halves.count == 2, halves[1].count >= 2, halves[1].starts(with: "\""), halves[1].ends(with: "\"")
            else { return parameter }
            return WireText(parameter.utf8.filter { $0 != UInt8(ascii: "\"") })
        }
    }
}
