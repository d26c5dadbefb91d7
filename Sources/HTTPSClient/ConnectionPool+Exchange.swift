internal import ExternalText
internal import HTTPCodec
internal import Reactor

extension ConnectionPool {
    /// Sends one request and reads its answer.
    func exchange(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        let limit = configuration.exchangeTimeout
        let deadline = MonotonicInstant.after(request.timeLimit.map { min($0, limit) } ?? limit)
        if request.url.scheme == .http {
            guard configuration.targets.allowsHTTP else { throw .insecureTarget }
            // Pins that nothing can be held against are not dropped in silence.
            guard request.pins == nil else { throw .untrusted(.pin) }
        }
        let encoded = try Self.encode(request)
        let key = PoolKey(origin: request.url.origin, pins: request.pins)
        return try await withSlot(key, until: deadline) { () throws(TransportError) in
            while true {
                let lease = try await lease(key, until: deadline)
                do throws(TransportError) {
                    return try await exchange(
                        encoded, method: request.method, on: lease.connection, key, until: deadline)
                } catch {
                    // Only where the server cannot have seen any of it (RFC 9110 §9.2.2), and only for the fault that a
                    // connection brings which died while it was idle. Each turn uses up one idle connection.
                    guard lease.isReused, error == .connectionLost(requestSent: false) else { throw error }
                }
            }
        }
    }

    private static func encode(_ request: ClientRequest) throws(TransportError) -> [UInt8] {
        // Answers are taken as they are: a decoder would be one more way to be fed a gigabyte (CWE-409).
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
        _ request: [UInt8], method: Method, on connection: ClientConnection, _ key: PoolKey,
        until deadline: MonotonicInstant
    ) async throws(TransportError) -> ClientResponse {
        let limits = ResponseLimits(
            headBytes: configuration.maximumHeadBytes, bodyBytes: configuration.maximumBodyBytes)
        var parser = ResponseParser(limits: limits, requestMethod: method)
        let firstByteDeadline = min(deadline, .after(configuration.firstByteTimeout))
        do throws(ClientConnection.Fault) {
            try await connection.send(request, until: firstByteDeadline)
        } catch {
            throw TransportError(error, .sendRequest, requestSent: connection.hasSentRequestBytes)
        }
        var step = TransportError.Step.firstByte
        while true {
            let isOpen: Bool
            do throws(ClientConnection.Fault) {
                isOpen = try await connection.receive(until: step == .firstByte ? firstByteDeadline : deadline)
            } catch {
                throw TransportError(error, step, requestSent: true)
            }
            step = .response
            guard let (answer, hasMore) = try Self.advance(&parser, with: isOpen ? connection : nil) else { continue }
            // Refused even when the content is empty: a server that ignores Accept-Encoding is not understood.
            guard answer.fields.list("Content-Encoding").allSatisfy({ $0.equalsIgnoringCase("identity") }) else {
                throw .malformedResponse
            }
            remember(connection, for: key)
            // Bytes after the answer could pass for the answer to the next request (RFC 9112 §9.2).
            if answer.allowsReuse, isOpen, !hasMore { keep(connection, for: key) }
            return ClientResponse(status: answer.status, fields: answer.fields, body: answer.body)
        }
    }

    /// Gives the parser what was received, or the end of the connection. Returns the answer once it is complete, and
    /// whether bytes came after it.
    private static func advance(
        _ parser: inout ResponseParser, with connection: ClientConnection?
    ) throws(TransportError) -> (answer: ParsedResponse, hasMore: Bool)? {
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
    /// What a fault of the connection means once it is established.
    fileprivate init(_ fault: ClientConnection.Fault, _ step: Step, requestSent: Bool) {
        self =
            switch fault {
            case .timedOut: .timedOut(step, requestSent: requestSent)
            case .cancelled: .cancelled
            case .lost, .tlsFailed, .untrusted: .connectionLost(requestSent: requestSent)
            }
    }
}
