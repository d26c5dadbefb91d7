import BrokerCore
import HTTPCodec
package import HTTPServer
package import JSON
import OAuth
import Synchronization
import TokenBroker

/// An answer of lines, read to its end.
package struct LinesAnswer: Sendable {
    package let head: BrokerHarness.Answer
    package let lines: [String]
    /// Whether the stream has reset its connection.
    package let isReset: Bool

    /// The lines as JSON.
    package var values: [JSONValue] { lines.map { (try? JSONValue(parsing: Array($0.utf8))) ?? .null } }
    /// Each line's number, storage key and outcome; the code in place of the outcome for a failed one.
    package var outcomes: [String] {
        values.map { value in
            let outcome = value["outcome"]?.text ?? ""
            let told = outcome == "failed" ? value["code"]?.text ?? "" : outcome
            return "\(value["line"]?.integer ?? -1) \(value["storage_key"]?.text ?? "-") \(told)"
        }
    }
}

extension BrokerHarness {
    /// Sends a request whose answer is streamed, and runs the stream as the server does.
    /// - Parameters:
    ///   - pieces: the content, as it arrives; after it comes `fault`, or the end.
    ///   - fits: asked before each write how many have come; false ends the stream as a client does that has gone.
    package func lines(
        _ target: String, pieces: [[UInt8]], type: String = "application/x-ndjson", tenant: String = "t1",
        fault: ContentFault? = nil, while fits: @escaping @Sendable (Int) -> Bool = { _ in true }
    ) async -> LinesAnswer {
        let parts = target.split(separator: "?", maxSplits: 1, omittingEmptySubsequences: false)
        var request = Request(
            method: .post, path: String(parts[0]), query: parts.count > 1 ? String(parts[1]) : nil,
            fields: [:])
        request.fields.append("Authorization", "Bearer \(Self.adminKey)")
        request.fields.append("X-Tenant", tenant)
        request.fields.append("Content-Type", type)
        let rest = Mutex(pieces)
        request.content = RequestContent { () throws(ContentFault) in
            let next = rest.withLock { $0.isEmpty ? nil : $0.removeFirst() }
            if next == nil, let fault { throw fault }
            return next
        }
        if type == "application/json" {
            request.content = nil
            request.body = pieces.flatMap { $0 }
        }
        let response = await service.respond(to: request)
        let written = Mutex((bytes: [UInt8](), count: 0, isReset: false))
        await response.stream?(
            ResponseStream(
                { bytes throws(StreamEnded) in
                    let isTaken = written.withLock { written in
                        guard fits(written.count) else { return false }
                        written.bytes += bytes
                        written.count += 1
                        return true
                    }
                    if !isTaken { throw StreamEnded() }
                }, reset: { written.withLock { $0.isReset = true } }))
        let (bytes, isReset) = written.withLock { ($0.bytes, $0.isReset) }
        return LinesAnswer(
            head: Answer(response),
            lines: String(decoding: bytes, as: UTF8.self).split(separator: "\n").map(String.init), isReset: isReset)
    }

    /// An import of these lines, each a JSON text.
    package func importing(_ lines: String..., query: String = "") async -> LinesAnswer {
        await self.lines(
            "/credentials/import" + (query.isEmpty ? "" : "?" + query),
            pieces: [Array((lines.joined(separator: "\n") + "\n").utf8)])
    }
}
