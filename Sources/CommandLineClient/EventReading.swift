/// A place in the broker's log of events: `1041-2`.
struct EventPlace: Comparable, Sendable {
    /// Of the commit; several events can have been stored by one.
    let sequence: Int64
    let index: Int

    /// Nil for what is no identifier of a broker's events.
    init?(_ text: String) {
        let parts = text.split(separator: "-", omittingEmptySubsequences: false)
        guard parts.count == 2, text.utf8.allSatisfy({ $0 == 0x2d || $0 >= 0x30 && $0 <= 0x39 }),
            let sequence = Int64(parts[0]), let index = Int(parts[1])
        else { return nil }
        (self.sequence, self.index) = (sequence, index)
    }

    static func < (left: EventPlace, right: EventPlace) -> Bool {
        (left.sequence, left.index) < (right.sequence, right.index)
    }

    /// Before everything that the broker keeps.
    static let beginning = "0-9999"
}

/// Reads events over as many connections as it takes: knows where to go on, and when everything is read that is wanted.
actor EventReading {
    /// Whether more is wanted behind the event.
    private let show: @Sendable (HistoryEvent) -> Bool
    /// Where the reading ends; nil where it does not.
    private let end: EventPlace?
    private var parser = ServerSentEvents()
    /// After which event it goes on; nil for those that happen from now on.
    private(set) var position: String?
    /// Whether this connection has said where it begins.
    private(set) var hasOpened = false
    /// Whether everything up to the end has come, or no more is wanted.
    private(set) var isDone = false
    /// Why what came cannot be read; nil where it can.
    private(set) var fault: String?
    /// How long to wait before the next connection.
    private(set) var pause: Duration = .seconds(3)

    init(after position: String?, until end: EventPlace?, show: @escaping @Sendable (HistoryEvent) -> Bool) {
        self.position = position
        self.end = end
        self.show = show
    }

    /// Whether this connection goes on within the last commit before the end. What is left of it, if anything, comes at once.
    private var isWithinLastCommit = false

    /// - Returns: whether the connection goes on within the last commit before the end.
    func beginConnection() -> Bool {
        parser = ServerSentEvents()
        hasOpened = false
        isWithinLastCommit = isAtLastCommit
        return isWithinLastCommit
    }

    /// Whether an event of the last commit before the end has come. Its events have one sequence, and which of them is the last one
    /// cannot be seen.
    private var isAtLastCommit: Bool {
        guard let end, let position, let place = EventPlace(position) else { return false }
        return place.sequence == end.sequence
    }

    /// Takes what has come. Returns whether more is wanted.
    func take(_ bytes: [UInt8]) -> Bool {
        let items: [ServerSentEvents.Item]
        do throws(ServerSentEvents.Fault) {
            items = try parser.consume(bytes)
        } catch {
            fault = "an event is longer than \(ServerSentEvents.longestEvent) bytes"
            return false
        }
        for item in items where !isDone {
            switch item {
            case .pause(let milliseconds): pause = .milliseconds(min(max(milliseconds, 100), 30_000))
            case .position(let id): reach(id)
            case .event(let event): take(event)
            }
            if fault != nil { return false }
        }
        if isDone { return false }
        return isWithinLastCommit || !isAtLastCommit || !parser.isBetweenEvents
    }

    private func take(_ event: ServerSentEvents.Event) {
        guard let read = HistoryEvent(event) else {
            fault = "what comes is no event of a token broker"
            return
        }
        // Of all that there ever was, the oldest is no news to miss.
        if read.isReset, position == EventPlace.beginning { return reach(read.id) }
        // What is stored behind the end belongs to another reading.
        if let end, let place = EventPlace(read.id), place > end {
            isDone = true
            return
        }
        if !show(read) { isDone = true }
        reach(read.id)
    }

    private func reach(_ id: String) {
        hasOpened = true
        guard !id.isEmpty else { return }
        position = id
        if let end, let place = EventPlace(id), place >= end { isDone = true }
    }
}
