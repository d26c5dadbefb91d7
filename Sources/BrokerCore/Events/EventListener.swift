import CredentialStore
import OAuth
import Reactor

/// A listener to events: has a position in the log, and sends the events after it in order.
package final class EventListener: Sendable {
    /// The longest time without a write to the stream. A write also shows the server that a client has disconnected.
    private static let heartbeat: Duration = .seconds(15)
    /// How often to check whether the caller may still listen, in addition to the checks after a key or a tenant was removed.
    private static let review: Duration = .seconds(10)
    /// The pause after the store did not answer.
    private static let pause: Duration = .seconds(1)
    /// About how many bytes are sent at a time.
    private static let pieceBytes = 32_768

    /// What is sent at a time.
    package struct Piece: Sendable {
        /// Whole events, in the stream's format.
        package private(set) var bytes: [UInt8]
        /// The kinds of the events in it, in order; none in a heartbeat.
        package private(set) var kinds: [BrokerEvent.Kind] = []
        /// How many events it has of each kind, in the order of `allKinds`; empty where it has no events.
        private(set) var counts: [Int] = []

        private static let allKinds = BrokerEvent.Kind.allCases

        init(_ bytes: [UInt8] = []) {
            self.bytes = bytes
        }

        var isFull: Bool { bytes.count >= EventListener.pieceBytes }

        mutating func append(_ bytes: [UInt8], _ kind: BrokerEvent.Kind) {
            if counts.isEmpty { counts = [Int](repeating: 0, count: Self.allKinds.count) }
            self.bytes += bytes
            kinds.append(kind)
            if let index = Self.allKinds.firstIndex(of: kind) { counts[index] += 1 }
        }

        /// Appends the entry's events; of the entry of `resumed`, only the events after that position.
        mutating func append(_ entry: EventEntry, behind resumed: EventPosition?) {
            for event in entry.events {
                if let resumed, resumed.sequence == entry.sequence, event.index <= resumed.index { continue }
                append(event.bytes, event.kind)
            }
        }
    }

    private let feed: EventFeed
    private let scope: EventFeed.Scope
    private let place: EventFeed.Place
    private let position: EventPosition?
    private let bounds: LogBounds

    init(
        _ feed: EventFeed, _ scope: EventFeed.Scope, _ place: EventFeed.Place, after position: EventPosition?,
        bounds: LogBounds
    ) {
        self.feed = feed
        self.scope = scope
        self.place = place
        self.position = position
        self.bounds = bounds
    }

    /// Sends events until the broker is being stopped, the task is cancelled, `isAllowed` says no, or `send` fails.
    ///
    /// A store that does not answer does not end the stream: the events are sent when the store answers again.
    /// - Parameters:
    ///   - isAllowed: whether the caller may still listen; called before the first piece, when a key of the tenant or the tenant
    ///     was removed, when the caller's key expires, and every 10 seconds; each time after the piece that is being sent.
    ///   - send: sends a piece of the stream. Returns whether the next piece may follow.
    package func run(while isAllowed: () async -> Bool, send: (Piece) async -> Bool) async {
        await feed.following(from: bounds.last) {
            var run = Run(self)
            guard await run.review(isAllowed), await run.begin(send) else { return }
            while !Task.isCancelled, !feed.isDraining {
                if run.isReviewDue { guard await run.review(isAllowed) else { return } }
                if run.isSilent { guard await run.beat(send) else { return } }
                guard await run.step(send) else { return }
            }
        }
    }

    private struct Run {
        private let feed: EventFeed
        private let scope: EventFeed.Scope
        private let place: EventFeed.Place
        /// All events of the scope up to this entry were sent.
        private var sequence: Int64
        /// The event after which the stream goes on within an entry; nil where it goes on with the next entry.
        private var resumed: EventPosition?
        private var bounds: LogBounds
        private let opening: EventPosition?
        private var written: MonotonicInstant
        private var reviewed: MonotonicInstant

        init(_ listener: EventListener) {
            feed = listener.feed
            scope = listener.scope
            place = listener.place
            bounds = listener.bounds
            written = feed.time.monotonic
            reviewed = feed.time.monotonic
            let position = listener.position ?? EventPosition(after: bounds.last)
            let isTrimmed =
                position.sequence < bounds.trimmed || position.sequence == bounds.trimmed && !position.isWhole
            if isTrimmed || position.sequence > bounds.last {
                sequence = bounds.trimmed
                opening = nil
            } else if position.isWhole {
                sequence = position.sequence
                opening = position
            } else {
                sequence = position.sequence - 1
                resumed = position
                opening = position
            }
        }

        /// Sends the first piece. It names the position, so that a client that is disconnected before its first event misses
        /// nothing when it reconnects.
        mutating func begin(_ send: (Piece) async -> Bool) async -> Bool {
            guard let opening else {
                var piece = Piece(Array("retry: 3000\n\n".utf8))
                appendReset(to: &piece, at: sequence)
                return await write(piece, send)
            }
            return await write(Piece(Array("retry: 3000\nid: \(opening.description)\n\n".utf8)), send)
        }

        private func appendReset(to piece: inout Piece, at sequence: Int64) {
            let event = BrokerEvent.reset(scope.tenant, at: feed.time.now)
            piece.append(EventEntry.encode(event, EventPosition(after: sequence)), event.kind)
        }

        var isReviewDue: Bool {
            place.mustReview || hasExpired || feed.time.monotonic >= reviewed.advanced(by: EventListener.review)
        }

        private var hasExpired: Bool { scope.expires.map { $0 <= feed.time.now } ?? false }

        mutating func review(_ isAllowed: () async -> Bool) async -> Bool {
            place.beginReview()
            if hasExpired { return false }
            defer { reviewed = feed.time.monotonic }
            return await isAllowed()
        }

        var isSilent: Bool { feed.time.monotonic >= written.advanced(by: EventListener.heartbeat) }

        mutating func beat(_ send: (Piece) async -> Bool) async -> Bool {
            await write(Piece(Array(": heartbeat\n\n".utf8)), send)
        }

        /// Sends the next events, or waits for some.
        mutating func step(_ send: (Piece) async -> Bool) async -> Bool {
            switch feed.next(after: sequence, scope, behind: resumed) {
            case .piece(let piece, let through):
                guard await write(piece, send) else { return false }
                advance(to: through)
            case .nothing(let through):
                advance(to: await feed.wait(after: through, scope.tenant, at: place, until: deadline))
            case .behind:
                do throws(StoreError) {
                    return try await catchUp(send)
                } catch {
                    let end = min(deadline, feed.time.monotonic.advanced(by: EventListener.pause))
                    // The feed's entries are newer than this position.
                    _ = await feed.wait(after: .max, scope.tenant, at: place, until: end)
                }
            }
            return true
        }

        private mutating func advance(to through: Int64) {
            sequence = through
            if let entry = resumed?.sequence, entry <= through { resumed = nil }
        }

        private var deadline: MonotonicInstant {
            let next = min(written.advanced(by: EventListener.heartbeat), reviewed.advanced(by: EventListener.review))
            guard let expires = scope.expires else { return next }
            return min(next, feed.time.monotonic.advanced(by: feed.time.now.duration(to: expires)))
        }

        private mutating func catchUp(_ send: (Piece) async -> Bool) async throws(StoreError) -> Bool {
            let reach = bounds.last
            let page = try await feed.page(after: sequence, scope.tenant)
            bounds = page.bounds
            if bounds.trimmed > sequence {
                advance(to: bounds.trimmed)
                var piece = Piece()
                appendReset(to: &piece, at: sequence)
                return await write(piece, send)
            }
            guard await write(page.entries.filter(scope.includes), send) else { return false }
            // If the page is not full, every entry was read that had been announced before.
            advance(to: page.isFull ? page.last : max(page.last, reach))
            return true
        }

        private mutating func write(_ entries: [EventEntry], _ send: (Piece) async -> Bool) async -> Bool {
            var piece = Piece()
            // Where the listener is to be told that events are missing: one reset is enough for markers without events between
            // them.
            var missing: Int64?
            for entry in entries {
                if entry.isMarker {
                    missing = entry.sequence
                    continue
                }
                if let place = missing { appendReset(to: &piece, at: place) }
                missing = nil
                piece.append(entry, behind: resumed)
                if !piece.isFull { continue }
                guard await write(piece, send), !feed.isDraining else { return false }
                piece = Piece()
            }
            if let place = missing { appendReset(to: &piece, at: place) }
            return piece.bytes.isEmpty ? true : await write(piece, send)
        }

        private mutating func write(_ piece: Piece, _ send: (Piece) async -> Bool) async -> Bool {
            guard await send(piece) else { return false }
            written = feed.time.monotonic
            if !piece.kinds.isEmpty { feed.count(piece) }
            return true
        }
    }
}
