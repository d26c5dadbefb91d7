/// Writes a request, with head and content in one buffer, so that it is sent with one call.
package enum RequestEncoder {
    private static let reserved = ["Host", "Content-Length", "Transfer-Encoding"]

    /// - Parameters:
    ///   - target: the request target in origin form, already percent-encoded.
    ///   - host: the value of Host: a host name or an address in brackets, with the port unless it is the default.
    ///   - fields: all fields except Host, Content-Length and Transfer-Encoding.
    package static func encode(
        method: Method, target: String, host: String, fields: Fields, body: [UInt8] = []
    ) throws(EncodingFault) -> [UInt8] {
        guard !method.name.isEmpty, method.name.utf8.allSatisfy(ByteClass.isToken) else { throw .method }
        guard isVisible(target), isVisible(host) else { throw .target }
        try FieldEncoding.check(fields, reserved: reserved)
        var output: [UInt8] = []
        output.reserveCapacity(
            64 + method.name.utf8.count + target.utf8.count + host.utf8.count + fields.bytes.count
                + 4 * fields.lines.count + body.count)
        output.append(contentsOf: method.name.utf8)
        output.append(UInt8(ascii: " "))
        output.append(contentsOf: target.utf8)
        // Host should be the first field (RFC 9110 §7.2).
        output.append(contentsOf: " HTTP/1.1\r\nHost: ".utf8)
        output.append(contentsOf: host.utf8)
        output.append(contentsOf: "\r\n".utf8)
        FieldEncoding.append(fields, to: &output)
        // A request whose method defines a meaning for content states the length even if it is zero (RFC 9110 §8.6).
        if !body.isEmpty || method == .post || method == .put {
            output.append(contentsOf: "Content-Length: ".utf8)
            FieldEncoding.append(decimal: body.count, to: &output)
            output.append(contentsOf: "\r\n".utf8)
        }
        output.append(contentsOf: "\r\n".utf8)
        output.append(contentsOf: body)
        return output
    }

    private static func isVisible(_ text: String) -> Bool {
        !text.isEmpty && text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f }
    }
}
