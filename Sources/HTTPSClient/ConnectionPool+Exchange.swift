internal import ExternalText
internal import HTTPCodec
internal import Reactor

extension ConnectionPool {
    /// Sends one request and reads its response.
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
                        encoded, method: request.method, on: borrowed.connection, for: key, until: deadline)
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
        _ request: [UInt8], method: Method, on connection: ClientConnection, for key: PoolKey,
        until deadline: MonotonicInstant
    ) async throws(TransportError) -> ClientResponse {
        let limits = ResponseLimits(
            headBytes: configuration.maximumHeadBytes, bodyBytes: configuration.maximumBodyBytes)
        var parser = ResponseParser(limits: limits, requestMethod: method)
        let firstByteDeadline = min(deadline, .after(configuration.firstByteTimeout))
        do throws(ClientConnection.Fault) {
            try await connection.send(request, until: firstByteDeadline)
        } catch {
            throw TransportError(error, during: .sendRequest, requestSent: connection.hasSentRequestBytes)
        }
        var step = TransportError.Step.firstByte
        while true {
            let isOpen: Bool
            do throws(ClientConnection.Fault) {
                isOpen = try await connection.receive(until: step == .firstByte ? firstByteDeadline : deadline)
            } catch {
                throw TransportError(error, during: step, requestSent: true)
            }
            step = .response
            guard let (response, hasMore) = try Self.advance(&parser, with: isOpen ? connection : nil) else { continue }
            // Refused even with an empty body: a server that ignores Accept-Encoding may encode the next response too.
            guard response.fields.list("Content-Encoding").allSatisfy({ $0.equalsIgnoringCase("identity") }) else {
                throw .malformedResponse
            }
            keepSession(of: connection, for: key)
            // Bytes after the response could be mistaken for the response to the next request (RFC 9112 §9.2).
            if response.allowsReuse, isOpen, !hasMore { keepIdle(connection, for: key) }
            return ClientResponse(status: response.status, fields: response.fields, body: response.body)
        }
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
