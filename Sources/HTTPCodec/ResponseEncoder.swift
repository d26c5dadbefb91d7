/// Writes the heads of responses. Belongs to one worker, for one thread.
package final class ResponseEncoder {
    /// The response's statement about its connection.
    package enum Connection: Sendable {
        /// None. HTTP/1.1 connections persist by default.
        case unstated
        case close
        /// For an HTTP/1.0 client that asked for it.
        case keepAlive
    }

    /// How the response marks the end of its content.
    package enum Framing: Sendable, Equatable {
        /// By the length in bytes, because the whole content is known.
        case length(Int)
        /// By a last chunk (RFC 9112 §7.1), because the content is generated while it is sent. For HTTP/1.1 clients
        /// only.
        case chunked
        /// By the end of the connection (RFC 9112 §6.3), for a client that does not support chunks.
        case close
    }

    private static let reserved = [
        "Date", "Content-Length", "Transfer-Encoding", "Connection", "X-Content-Type-Options", "X-Request-ID",
    ]

    private var numbers = RequestNumber.Sequence()
    private var second: Int64
    /// The bytes between the status line and the second half of the request's number. They change once a second.
    private let opening = OutputBuffer(capacity: 160)

    /// - Parameter second: see `update`.
    package init(second: Int64) {
        self.second = second
        makeOpening()
    }

    /// Sets the date of later responses (RFC 9110 §6.6.1).
    /// - Parameter second: the seconds since 1970.
    package func update(second: Int64) {
        if self.second == second { return }
        self.second = second
        makeOpening()
    }

    private func makeOpening() {
        opening.removeAll()
        opening.append("\r\nDate: ")
        opening.append(HTTPDate.format(secondsSince1970: second).span)
        // nosniff: a browser must use the stated media type and not guess one from the content.
        opening.append("\r\nX-Content-Type-Options: nosniff\r\nX-Request-ID: ")
        let (first, second) = RequestNumber.digits(numbers.high)
        opening.append(first, second)
    }

    /// Returns the number for the next request.
    package func nextNumber() -> RequestNumber { numbers.next() }

    /// Appends the head of a response. A fault leaves `output` unchanged.
    /// - Parameter number: a number that `nextNumber` returned.
    package func appendHead(
        _ status: Status, _ fields: Fields, _ framing: Framing, number: RequestNumber, connection: Connection,
        to output: OutputBuffer
    ) throws(EncodingFault) {
        guard status.code >= 200 else { throw .status }
        try FieldEncoding.check(fields, reserved: Self.reserved)
        begin(status, framing, number: number, connection: connection, to: output)
        FieldEncoding.append(fields, to: output)
        output.append("\r\n")
    }

    /// Encodes the field lines and the empty line that end a head which `begin` began.
    package static func encode(_ fields: Fields) throws(EncodingFault) -> [UInt8] {
        try FieldEncoding.check(fields, reserved: reserved)
        var text: [UInt8] = []
        FieldEncoding.append(fields, to: &text)
        text.append(contentsOf: "\r\n".utf8)
        return text
    }

    /// Appends the status line and the server's own fields. The caller must append the response's field lines and an
    /// empty line.
    package func begin(
        _ status: Status, _ framing: Framing, number: RequestNumber, connection: Connection, to output: OutputBuffer
    ) {
        if status.code == 200 {
            output.append("HTTP/1.1 200 OK")
        } else {
            output.append("HTTP/1.1 ")
            output.append(decimal: Int64(status.code))
            output.append(" ")
            output.append(status.reason)
        }
        output.append(contentsOf: opening)
        let (first, second) = RequestNumber.digits(number.low)
        output.append(first, second)
        output.append("\r\n")
        if !status.forbidsContent {
            switch framing {
            case .length(let count):
                output.append("Content-Length: ")
                output.append(decimal: Int64(count))
                output.append("\r\n")
            case .chunked: output.append("Transfer-Encoding: chunked\r\n")
            case .close: break
            }
        }
        switch connection {
        case .unstated: break
        case .close: output.append("Connection: close\r\n")
        case .keepAlive: output.append("Connection: keep-alive\r\n")
        }
    }

    /// Appends the content, or its first piece if it is generated while it is sent.
    package static func appendContent(_ bytes: [UInt8], _ framing: Framing, to output: inout [UInt8]) {
        if framing == .chunked { appendChunk(bytes, to: &output) } else { output.append(contentsOf: bytes) }
    }

    /// Appends one chunk. Appends nothing for no bytes, because an empty chunk would end the content.
    package static func appendChunk(_ bytes: [UInt8], to output: inout [UInt8]) {
        if bytes.isEmpty { return }
        // Room for sixteen digits and two line ends.
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
