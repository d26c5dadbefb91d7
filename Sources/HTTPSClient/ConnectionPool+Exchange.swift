import ExternalText
import HTTPCodec
import Reactor

extension ConnectionPool {
    /// Sends one request and reads its response, or passes it on to the request's receiver.
    func exchange(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        let limit = configuration.exchangeTimeout
        let deadline = MonotonicInstant.after(request.timeLimit.map { min($0, limit) } ?? limit)
        if request.url.scheme == .http {
            guard configuration.targets.allowsHTTP else { throw .insecureTarget }
            // Pins cannot be checked without TLS, and ignoring them would hide that.
            guard request.pins == nil else { throw .untrusted(.pin) }
            guard request.certificate == nil else { throw .certificateWithoutTLS }
        }
        let encoded = try Self.encode(request)
        let key = PoolKey(
            origin: request.url.origin, pins: request.pins, avoidsListedNetworks: request.avoidsListedNetworks,
            proxy: request.proxy, certificate: request.certificate)
        return try await withSlot(for: key, until: deadline) { () throws(TransportError) in
            while true {
                let borrowed = try await borrow(for: key, new: request.needsNewConnection, until: deadline)
                do throws(TransportError) {
                    return try await exchange(
                        encoded, of: request, on: borrowed.connection, for: key, until: deadline)
                } catch {
                    // Retry only when the server cannot have received any of the request (RFC 9110 §9.2.2), and only
                    // after the error of a connection that was closed while it was idle. Each retry consumes an idle
                    // connection, so the loop ends.
                    guard borrowed.isReused, error == .connectionLost(requestSent: false) else { throw error }
                }
            }
        }
    }

    private static func encode(_ request: ClientRequest) throws(TransportError) -> [UInt8] {
        // The client does not decode content, so that a small response cannot expand to gigabytes (CWE-409).
        guard !request.fields.contains("Accept-Encoding") else { throw .invalidRequest }
        var fields = request.fields
        fields.append("Accept-Encoding", "identity")
        do throws(EncodingFault) {
            return try RequestEncoder.encode(
                method: request.method, target: request.url.pathAndQuery, host: request.url.origin.authority,
                fields: fields, body: request.body)
        } catch {
            throw .invalidRequest
        }
    }

    private func exchange(
        _ encoded: [UInt8], of request: ClientRequest, on connection: ClientConnection, for key: PoolKey,
        until deadline: MonotonicInstant
    ) async throws(TransportError) -> ClientResponse {
        var parser = ResponseParser(limits: limits(of: request), requestMethod: request.method)
        let firstByteDeadline = min(deadline, .after(configuration.firstByteTimeout))
        do throws(ClientConnection.Fault) {
            try await connection.send(encoded, until: firstByteDeadline)
        } catch {
            throw TransportError(error, during: .sendRequest, requestSent: connection.hasSentRequestBytes)
        }
        var step = TransportError.Step.firstByte
        var deadline = deadline
        var hasHead = false
        while true {
            let isOpen: Bool
            do throws(ClientConnection.Fault) {
                isOpen = try await connection.receive(until: step == .firstByte ? firstByteDeadline : deadline)
            } catch {
                throw TransportError(error, during: step, requestSent: true)
            }
            step = .response
            let end = try Self.advance(&parser, with: isOpen ? connection : nil)
            if !hasHead, let head = parser.receivedHead {
                hasHead = true
                // Refused even with an empty body: a server that ignores Accept-Encoding may encode the next response too.
                guard Self.isPlain(head.fields) else { throw .malformedResponse }
                if let receiver = request.receiver {
                    guard await receiver.onHead(head.status, head.fields) else { return Self.left(head) }
                    deadline = .after(receiver.idleLimit)
                }
            }
            if let receiver = request.receiver, let head = parser.receivedHead {
                let piece = parser.takeBody()
                if !piece.isEmpty {
                    guard await receiver.onBody(piece) else { return Self.left(head) }
                    deadline = .after(receiver.idleLimit)
                } else if end == nil, deadline <= .now {
                    // A server that sends extensions of chunks without end keeps the socket readable.
                    throw .timedOut(.response, requestSent: true)
                }
            }
            guard let (response, hasMore) = end else { continue }
            keepSession(of: connection, for: key)
            // Bytes after the response could be mistaken for the response to the next request (RFC 9112 §9.2).
            if response.allowsReuse, isOpen, !hasMore { keepIdle(connection, for: key) }
            // What was passed on is not told again.
            let body = request.receiver == nil ? response.body : []
            return ClientResponse(status: response.status, fields: response.fields, body: body)
        }
    }

    /// A body that is passed on may have any size, as may the chunks' extensions together, which its receiver's `idleLimit` bounds.
    private func limits(of request: ClientRequest) -> ResponseLimits {
        request.receiver == nil
            ? ResponseLimits(headBytes: configuration.maximumHeadBytes, bodyBytes: configuration.maximumBodyBytes)
            : ResponseLimits(
                headBytes: configuration.maximumHeadBytes, bodyBytes: .max, chunkOverheadBytes: .max)
    }

    /// What is returned where the receiver wants no more. The connection closes, because the rest of the body is on it.
    private static func left(_ head: (status: Status, fields: Fields)) -> ClientResponse {
        ClientResponse(status: head.status, fields: head.fields, body: [])
    }

    private static func isPlain(_ fields: Fields) -> Bool {
        fields.list("Content-Encoding").allSatisfy { $0.equalsIgnoringCase("identity") }
    }

    /// Passes the received bytes, or the end of the connection, to the parser. Returns the complete response and
    /// whether more bytes follow it; nil while the response is incomplete.
    private static func advance(
        _ parser: inout ResponseParser, with connection: ClientConnection?
    ) throws(TransportError) -> (response: ParsedResponse, hasMore: Bool)? {
        do throws(ResponseFault) {
            guard let connection else { return (try parser.peerClosed(), false) }
            let unused = try connection.withReceived { (bytes) throws(ResponseFault) -> Int? in
                switch try parser.consume(bytes) {
                case .needsMore: nil
                case .complete(let used): bytes.count - used
                }
            }
            return unused.map { (parser.response, $0 > 0) }
        } catch {
            switch error {
            case .headTooLarge, .bodyTooLarge: throw .responseTooLarge
            case .truncated, .closedBeforeResponse: throw .connectionLost(requestSent: true)
            case .malformedHead, .unsupportedVersion, .tooManyInterimResponses, .unexpectedUpgrade, .ambiguousLength,
                .unsupportedTransferCoding, .malformedChunk:
                throw .malformedResponse
            }
        }
    }
}

extension TransportError {
    /// Translates a fault of an established connection.
    fileprivate init(_ fault: ClientConnection.Fault, during step: Step, requestSent: Bool) {
        self =
            switch fault {
            case .timedOut: .timedOut(step, requestSent: requestSent)
            case .cancelled: .cancelled
            case .lost, .tlsFailed, .untrusted: .connectionLost(requestSent: requestSent)
            }
    }
}
