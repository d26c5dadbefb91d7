import HTTPCodec
import Reactor

/// The connections by which events are read.
struct EventConnections {
    /// The longest time without a byte from a stream that is followed. A heartbeat comes every 15 seconds.
    private static let heartbeats: Duration = .seconds(60)
    /// After which time without a byte everything has come that the broker has. It sends what it has at once.
    private static let quiet: Duration = .seconds(3)
    /// The same within one commit, whose events are sent together.
    private static let quietWithinCommit: Duration = .milliseconds(300)
    /// After how long a connection that has brought no event has shown that the broker keeps it.
    private static let lively: Duration = .seconds(20)
    /// How many connections in a row may bring nothing before the reading is given up.
    private static let patience = 5

    private let api: BrokerAPI
    private let terminal: any Terminal
    /// The command as it is typed again, with other values of some options.
    private let again: @Sendable ([String: [String]]) -> String

    init(_ api: BrokerAPI, _ invocation: Invocation) {
        self.api = api
        terminal = invocation.terminal
        again = { invocation.again($0) }
    }

    /// Reads the events up to the last one that there is when this begins.
    func read(after position: String, _ output: EventOutput) async throws(CommandError) {
        let reading = EventReading(after: position, until: EventPlace(try await last()), show: output.show)
        var failures = 0
        while await !reading.isDone {
            let before = await reading.position
            let isWithinCommit = await reading.beginConnection()
            let end = try await connect(reading, isWithinCommit ? Self.quietWithinCommit : Self.quiet)
            switch end {
            case .left: try await check(reading)
            case .silent where await reading.hasOpened:
                // A broker whose database does not answer is silent, too, and this then says why.
                if !isWithinCommit { _ = try await last() }
                return
            case .silent, .ended, .broken:
                failures = await reading.position == before ? failures + 1 : 0
                if failures < Self.patience { continue }
                let place = await reading.position ?? EventPlace.beginning
                throw CommandError(
                    .unreachable, "the connection to the broker breaks again and again",
                    next: again(["after": [place], "since": []]))
            }
        }
    }

    /// Reads events until no more are wanted.
    /// - Parameter position: nil for those that happen from now on.
    func follow(after position: String?, _ output: EventOutput) async throws(CommandError) {
        let reading = EventReading(after: position, until: nil, show: output.show)
        var failures = 0
        var isConnected = false
        // Whether it is told already that the broker is away.
        var isTold = false
        while true {
            _ = await reading.beginConnection()
            let (before, begun) = (await reading.position, MonotonicInstant.now)
            var reason = "the connection to the broker has ended"
            do throws(CommandError) {
                _ = try await connect(reading, Self.heartbeats)
                isConnected = true
            } catch {
                guard isConnected, [.unreachable, .tryLater, .failed].contains(error.status) else { throw error }
                reason = error.text
            }
            try await check(reading)
            if await reading.isDone { return }
            let isLively = await reading.position != before || begun.duration(to: .now) >= Self.lively
            failures = isLively ? 0 : failures + 1
            if isLively || !isTold { terminal.note("\(reason); the events go on when it is back") }
            isTold = true
            try await wait(for: reading.pause * (1 << min(failures, 4)))
        }
    }

    private func wait(for pause: Duration) async throws(CommandError) {
        do {
            try await Task.sleep(for: min(pause, .seconds(30)))
        } catch {
            throw CommandError(.interrupted, "")
        }
    }

    private func check(_ reading: EventReading) async throws(CommandError) {
        guard let fault = await reading.fault else { return }
        throw api.stranger(fault)
    }

    private func connect(
        _ reading: EventReading, _ idleLimit: Duration
    ) async throws(CommandError) -> BrokerAPI.StreamEnd {
        try await api.stream(Self.request(after: reading.position), idleLimit: idleLimit) { bytes in
            await reading.take(bytes)
        }
    }

    private static func request(after position: String?) -> BrokerAPI.Request {
        BrokerAPI.Request(
            .get, "/events", fields: position.map { ["Last-Event-ID": $0] } ?? [:], form: .events)
    }

    /// The place of the last event that there is: a stream begins with it.
    private func last() async throws(CommandError) -> String {
        let opening = EventOpening()
        let end = try await api.stream(Self.request(after: nil), idleLimit: .seconds(20)) { bytes in
            await opening.take(bytes)
        }
        guard let position = await opening.position else {
            if end == .left { throw api.stranger("what comes does not say where the events end") }
            throw CommandError(
                .unreachable, "the broker does not say where its events end",
                next: again(["follow": [""], "until": []]))
        }
        return position
    }
}

/// Reads a stream up to the place at which it begins.
private actor EventOpening {
    private var parser = ServerSentEvents()
    private(set) var position: String?

    func take(_ bytes: [UInt8]) -> Bool {
        guard let items = try? parser.consume(bytes) else { return false }
        for case .position(let id) in items where position == nil && EventPlace(id) != nil { position = id }
        return position == nil
    }
}
