import BrokerCore
import CredentialStore
import Cryptography
import HTTPCodec
package import HTTPServer
import Synchronization
import Testing
import TokenBroker

/// A listener to a broker without sockets: runs a streamed answer as the server does, and reads all of it.
package final class SSEListener: Sendable {
    /// What has come so far.
    private final class Reader: Sendable {
        struct State {
            var parser = SSEParser()
            var text = ""
            var writes: [String] = []
            var isOver = false
            var watchers: [CheckedContinuation<Void, Never>] = []
        }

        let state = Mutex(State())

        func change(_ body: (inout State) -> Void) {
            let watchers = state.withLock { state in
                body(&state)
                defer { state.watchers = [] }
                return state.watchers
            }
            for watcher in watchers { watcher.resume() }
        }

        /// Suspends until `fits`, or until the stream is over.
        func until(_ fits: (SSEParser) -> Bool) async {
            while true {
                await withCheckedContinuation { continuation in
                    let isThere = state.withLock { state in
                        if fits(state.parser) || state.isOver { return true }
                        state.watchers.append(continuation)
                        return false
                    }
                    if isThere { continuation.resume() }
                }
                if state.withLock({ fits($0.parser) || $0.isOver }) { return }
            }
        }
    }

    package let answer: BrokerHarness.Answer
    private let reader = Reader()
    private let task: Task<Void, Never>?

    package init(_ response: Response) {
        answer = BrokerHarness.Answer(response)
        guard let makeContent = response.stream else {
            task = nil
            reader.change { $0.isOver = true }
            return
        }
        let reader = reader
        task = Task {
            await makeContent(
                ResponseStream { bytes throws(StreamEnded) in
                    if Task.isCancelled { throw StreamEnded() }
                    reader.change { state in
                        let text = String(decoding: bytes, as: UTF8.self)
                        state.parser.consume(bytes)
                        state.text += text
                        state.writes.append(text)
                    }
                })
            reader.change { $0.isOver = true }
        }
    }

    deinit {
        task?.cancel()
    }

    /// The first `count` events, once they are there; fewer where the stream ended.
    package func events(_ count: Int) async -> [SSEParser.Event] {
        await reader.until { $0.events.count >= count }
        return events
    }

    /// Suspends until the beginning of the stream has come.
    package func begun() async { await reader.until { $0.retry != nil } }

    /// Suspends until so many comments have come.
    package func comments(_ count: Int) async -> [String] {
        await reader.until { $0.comments.count >= count }
        return reader.state.withLock { $0.parser.comments }
    }

    package var events: [SSEParser.Event] { reader.state.withLock { $0.parser.events } }
    package var text: String { reader.state.withLock { $0.text } }
    /// What came at a time.
    package var writes: [String] { reader.state.withLock { $0.writes } }
    package var lastID: String? { reader.state.withLock { $0.parser.lastID } }
    package var faults: [String] { reader.state.withLock { $0.parser.faults } }
    package var isOver: Bool { reader.state.withLock { $0.isOver } }

    /// Suspends until the broker has ended the stream.
    package func end() async { await task?.value }

    /// The client goes away.
    package func close() async {
        task?.cancel()
        await task?.value
    }
}

extension BrokerHarness {
    /// Listens to events, from the moment when this returns at the latest.
    package func listen(
        key: String? = adminKey, tenant: String? = nil, lastID: String? = nil, target: String = "/events"
    ) async -> SSEListener {
        var fields: Fields = [:]
        if let key { fields.append("Authorization", "Bearer \(key)") }
        if let tenant { fields.append("X-Tenant", tenant) }
        if let lastID { fields.append("Last-Event-ID", lastID) }
        let parts = target.split(separator: "?", maxSplits: 1, omittingEmptySubsequences: false)
        let request = Request(
            method: .get, path: String(parts[0]), query: parts.count > 1 ? String(parts[1]) : nil, fields: fields)
        let listener = SSEListener(await service.respond(to: request))
        await listener.begun()
        return listener
    }

    /// Listens to events as a client that has shown a certificate with that identity.
    package func listen(by peer: PeerIdentity) async -> SSEListener {
        var request = Request(method: .get, path: "/events")
        request.peer = peer
        let listener = SSEListener(await service.respond(to: request))
        await listener.begun()
        return listener
    }

    /// Every event that the log holds, in order, as listeners are sent it.
    package func loggedEvents() async throws -> [SSEParser.Event] {
        var parser = SSEParser()
        for entry in try await vault.entries(after: 0, limit: 100_000) {
            let content = try #require(entry.content).revealedBytes
            for (index, event) in BrokerEvent.events(in: content).enumerated() {
                let event = try #require(event)
                parser.consume(
                    Array("id: \(entry.sequence)-\(index)\nevent: \(event.kind.rawValue)\ndata: ".utf8) + event.data
                        + Array("\n\n".utf8))
            }
        }
        return parser.events
    }
}
