/// Writes a response, head and content next to each other in one buffer, so that they leave in one piece.
package enum ResponseEncoder {
    /// What the response says about its connection.
    package enum Connection: Sendable {
        /// Nothing: HTTP/1.1 persists unless told otherwise.
        case unstated
        case close
        /// For an HTTP/1.0 client that asked for it.
        case keepAlive
    }

    /// How the content's end is told.
    package enum Framing: Sendable {
        /// By its length: the content is known in full.
        case length
        /// By a last chunk (RFC 9112 §7.1): the content is still being made. For HTTP/1.1 clients only.
        case chunked
        /// By the end of the connection (RFC 9112 §6.3): the same for a client that does not know chunks.
        case close
    }

    private static let reserved = [
        "Date", "Content-Length", "Transfer-Encoding", "Connection", "X-Content-Type-Options", "X-Request-ID",
    ]

    /// Of every response: its media type is what it says, whatever a browser makes of its content.
    package static var contentTypeOptions: String { "X-Content-Type-Options: nosniff\r\n" }

    /// Appends a response to `output`; on a fault `output` is as it was.
    /// - Parameters:
    ///   - framing: with `chunked` a content that is not empty becomes the first chunk, and more may follow.
    ///   - date: from `HTTPDate.format`.
    ///   - requestID: for `X-Request-ID`; nil leaves the field out.
    ///   - omitsBody: the request was HEAD: the length is stated and the content left out (RFC 9110 §9.3.2).
    package static func append(
        status: Status, fields: Fields, body: [UInt8], framing: Framing = .length, date: [UInt8], requestID: String?,
        connection: Connection, omitsBody: Bool = false, to output: inout [UInt8]
    ) throws(EncodingFault) {
        guard status.code >= 200 else { throw .status }
        try FieldEncoding.check(fields, reserved: reserved)
        if let requestID, requestID.utf8.contains(where: ByteClass.isForbiddenControl) { throw .fieldValue }
        // Status line and the fields added below stay under 240 bytes. Behind an earlier response the array's own,
        // geometric growth is better: exact room for each of many would copy all of them every time.
        if output.isEmpty {
            output.reserveCapacity(240 + fields.bytes.count + 4 * fields.lines.count + (omitsBody ? 0 : body.count))
        }
        output.append(contentsOf: "HTTP/1.1 ".utf8)
        FieldEncoding.append(decimal: status.code, to: &output)
        output.append(UInt8(ascii: " "))
        output.append(contentsOf: status.reason.utf8)
        output.append(contentsOf: "\r\nDate: ".utf8)
        output.append(contentsOf: date)
        output.append(contentsOf: "\r\n".utf8)
        output.append(contentsOf: contentTypeOptions.utf8)
        FieldEncoding.append(fields, to: &output)
        if !status.forbidsContent {
            switch framing {
            case .length:
                output.append(contentsOf: "Content-Length: ".utf8)
                FieldEncoding.append(decimal: body.count, to: &output)
                output.append(contentsOf: "\r\n".utf8)
            case .chunked: output.append(contentsOf: "Transfer-Encoding: chunked\r\n".utf8)
            case .close: break
            }
        }
        if let requestID {
            output.append(contentsOf: "X-Request-ID: ".utf8)
            output.append(contentsOf: requestID.utf8)
            output.append(contentsOf: "\r\n".utf8)
        }
        switch connection {
        case .unstated: break
        case .close: output.append(contentsOf: "Connection: close\r\n".utf8)
        case .keepAlive: output.append(contentsOf: "Connection: keep-alive\r\n".utf8)
        }
        output.append(contentsOf: "\r\n".utf8)
        if omitsBody || status.forbidsContent { return }
        if framing == .chunked {
            appendChunk(body, to: &output)
        } else {
            output.append(contentsOf: body)
        }
    }

    /// Appends one chunk. Nothing for no bytes: a chunk without any would end the content.
    package static func appendChunk(_ bytes: [UInt8], to output: inout [UInt8]) {
        if bytes.isEmpty { return }
        // Sixteen digits and two line ends.
        if output.isEmpty { output.reserveCapacity(20 + bytes.count) }
        FieldEncoding.append(hexadecimal: bytes.count, to: &output)
        output.append(contentsOf: "\r\n".utf8)
        output.append(contentsOf: bytes)
        output.append(contentsOf: "\r\n".utf8)
    }

    /// Ends chunked content, without trailer fields.
    package static func appendLastChunk(to output: inout [UInt8]) {
        output.append(contentsOf: "0\r\n\r\n".utf8)
    }
}
