import BrokerTesting
import OAuth
import Reactor
import Synchronization
import Testing

@testable import CommandLineClient

@Suite struct `A stream of events` {
    private func items(_ pieces: [UInt8]...) throws -> [ServerSentEvents.Item] {
        var parser = ServerSentEvents()
        return try pieces.flatMap { try parser.consume($0) }
    }

    private static let text = """
        \u{feff}retry: 3000\r\nid: 7-9999\r\r: heartbeat\n\nid: 8-0
        event: login.completed
        data: {"a":
        data:1}

        data: 2
        nonsense
        id: 8-\u{0}1
        retry: soon

        event: no data, so that it is none


        """
    private static let expected: [ServerSentEvents.Item] = [
        .pause(milliseconds: 3000), .position("7-9999"),
        .event(.init(id: "8-0", name: "login.completed", data: Array("{\"a\":\n1}".utf8))),
        .event(.init(id: "8-0", name: "message", data: Array("2".utf8))),
    ]

    @Test func `is read as the standard says, however it is cut`() throws {
        let bytes = Array(Self.text.utf8)
        #expect(try items(bytes) == Self.expected)
        for cut in bytes.indices {
            #expect(try items(Array(bytes[..<cut]), Array(bytes[cut...])) == Self.expected, "cut at \(cut)")
        }
    }

    @Test(arguments: [
        (ServerSentEvents.longestEvent, true), (ServerSentEvents.longestEvent + 1, false),
    ])
    func `has lines of a bounded length`(length: Int, isAccepted: Bool) throws {
        var parser = ServerSentEvents()
        let line = [UInt8](repeating: UInt8(ascii: "x"), count: length)
        if isAccepted {
            #expect(try parser.consume(line).isEmpty)
        } else {
            #expect(throws: ServerSentEvents.Fault.tooLong) { try parser.consume(line) }
        }
    }

    @Test func `has events of a bounded length`() {
        var parser = ServerSentEvents()
        let line = Array("data: \(String(repeating: "x", count: 1 << 19))\n".utf8)
        #expect(throws: ServerSentEvents.Fault.tooLong) {
            for _ in 0..<3 { _ = try parser.consume(line) }
        }
    }
}

@Suite struct `A time on the command line` {
    private static let now = Timestamp(seconds: 1_795_251_600)

    @Test(arguments: [
        ("2026-11-21T09:00:00Z", "2026-11-21T09:00:00Z"), ("2026-11-21t09:00:00.999z", "2026-11-21T09:00:00Z"),
        ("2026-11-21T10:30:00+01:30", "2026-11-21T09:00:00Z"), ("2026-11-20T23:00:00-10:00", "2026-11-21T09:00:00Z"),
        ("2026-11-21 09:00", "2026-11-21T09:00:00Z"), ("2026-11-21", "2026-11-21T00:00:00Z"),
        ("2028-02-29", "2028-02-29T00:00:00Z"), ("0s", "2026-11-21T09:00:00Z"), ("90s", "2026-11-21T08:58:30Z"),
        ("30m", "2026-11-21T08:30:00Z"), ("2h", "2026-11-21T07:00:00Z"), ("7d", "2026-11-14T09:00:00Z"),
    ])
    func `is a date or so long ago`(text: String, meaning: String) {
        #expect(Timestamp(typed: text, now: Self.now)?.description == meaning)
    }

    @Test(arguments: [
        "", "s", "7", "7w", "-1d", "1.5h", "12345678d", "2026", "2026-11", "2026-13-01", "2026-02-29", "2026-11-00",
        "2026-11-21T", "2026-11-21T24:00:00Z", "2026-11-21T09:60:00Z", "2026-11-21T09:00:60Z", "2026-11-21T09:00:00.Z",
        "2026-11-21T09:00:00+0100", "2026-11-21T09:00:00Zx", "yesterday", "21.11.2026",
    ])
    func `is refused where it is none`(text: String) {
        #expect(Timestamp(typed: text, now: Self.now) == nil)
    }
}

@Suite struct `An event on the command line` {
    private func event(_ kind: String, _ data: String, id: String = "5-0") throws -> HistoryEvent {
        try #require(HistoryEvent(.init(id: id, name: kind, data: Array(data.utf8))))
    }

    @Test func `says who, why, and what the provider has said`() throws {
        let failed = try event(
            "refresh.failed", #"{"trigger":"ahead","error":"unexpected_error","error_code":"invalid_grant"}"#)
        #expect(failed.cause == "ahead")
        #expect(failed.problem == "unexpected_error, invalid_grant")
        let ended = try event(
            "credentials.deauthorized", #"{"cause":"revoked","reason":"outcome_unknown","user_id":"4"}"#)
        #expect(ended.cause == "revoked (outcome_unknown)")
        #expect(ended.problem == "-")
        #expect(ended.userID == "4")
        #expect(
            String(decoding: ended.json, as: UTF8.self).hasPrefix(#"{"id":"5-0","event":"credentials.deauthorized","#))
    }

    @Test(arguments: ["", "[]", "1", "{", #"{"a":1"#]) func `is a JSON object`(data: String) {
        #expect(HistoryEvent(.init(id: "5-0", name: "login.failed", data: Array(data.utf8))) == nil)
    }

    @Test(arguments: [
        (EventFilter(), true), (EventFilter(types: ["credentials"]), true),
        (EventFilter(types: ["login", "credentials.updated"]), true), (EventFilter(types: ["credentials.held"]), false),
        (EventFilter(types: ["credential"]), false), (EventFilter(storageKeys: ["k1"]), true),
        (EventFilter(storageKeys: ["k2"]), false), (EventFilter(user: "4"), true), (EventFilter(user: "5"), false),
        // The storage key is another user's by now.
        (EventFilter(user: "5", keysOfUser: ["k1"]), false),
        (EventFilter(since: Timestamp(seconds: 1_795_251_600)), true),
        (EventFilter(since: Timestamp(seconds: 1_795_251_601)), false),
        (EventFilter(until: Timestamp(seconds: 1_795_251_600)), true),
        (EventFilter(until: Timestamp(seconds: 1_795_251_599)), false),
    ])
    func `is wanted or not`(filter: EventFilter, isWanted: Bool) throws {
        var filter = filter
        let event = try event(
            "credentials.updated", #"{"storage_key":"k1","user_id":"4","time":"2026-11-21T09:00:00Z"}"#)
        let includes = filter.includes(event)
        #expect(includes == isWanted)
    }

    @Test func `belongs to a user by the storage key that another event has named`() throws {
        var filter = EventFilter(user: "4")
        let failed = try event("refresh.failed", #"{"storage_key":"k1"}"#)
        let events = [failed, try event("credentials.updated", #"{"storage_key":"k1","user_id":"4"}"#), failed]
        let included = events.map { filter.includes($0) }
        #expect(included == [false, true, true])
    }

    @Test func `tells of an end, or why it came`() throws {
        var filter = EventFilter(onlyEnds: true)
        let events = [
            try event("refresh.failed", #"{"storage_key":"k1","refresh_id":"r1"}"#),
            try event("credentials.deauthorized", #"{"storage_key":"k1","refresh_id":"r1"}"#),
            try event("refresh.failed", #"{"storage_key":"k2","refresh_id":"r2"}"#),
            try event("refresh.failed", #"{"storage_key":"k1","refresh_id":"r1"}"#),
            try event("credentials.deauthorized", #"{"storage_key":"k3"}"#),
            try event("refresh.failed", #"{"storage_key":"k3"}"#),
            try event("credentials.held", #"{"storage_key":"k4","refresh_id":"r4"}"#),
            try event("session.ended", "{}"), try event("session.started", "{}"),
            try event("credentials.updated", #"{"storage_key":"k1"}"#),
        ]
        let included = events.map { filter.includes($0) }
        #expect(included == [false, true, false, true, true, false, true, true, false, false])
    }

    @Test func `is of a kind that the description of the broker names`() throws {
        let bytes = try SmallFile.read(OpenAPIChecker.descriptionPath, limit: 4 << 20)
        let rows = String(decoding: bytes, as: UTF8.self).split(separator: "\n").map { $0.drop { $0 == " " } }
            .drop { !$0.hasPrefix("| event | what happened |") }.dropFirst(2).prefix { $0.hasPrefix("| ") }
        let named = rows.flatMap { row in
            row.split(separator: "|")[0].split(separator: "`").map(String.init).filter { $0.contains(".") }
        }
        #expect(Set(named) == Set(HistoryEvent.kinds + ["stream.reset"]))
    }
}

@Suite struct `A reading of events` {
    private func line(_ id: String) -> [UInt8] { Array("id: \(id)\nevent: login.failed\ndata: {}\n\n".utf8) }

    private func opening(_ id: String) -> [UInt8] { Array("retry: 100\nid: \(id)\n\n".utf8) }

    /// Counts the events that are shown, and wants no more than three.
    private final class Shown: Sendable {
        private let state = Mutex(0)

        var count: Int { state.withLock { $0 } }

        func show(_ event: HistoryEvent) -> Bool {
            state.withLock { count in
                count += 1
                return count < 4
            }
        }
    }

    private let shown = Shown()

    private func reading(after position: String?, until end: String?) -> EventReading {
        EventReading(after: position, until: end.flatMap { EventPlace($0) }, show: shown.show)
    }

    @Test func `ends with an event behind its end, which it does not show`() async {
        let reading = reading(after: "0-9999", until: "7-9999")
        #expect(await !reading.beginConnection())
        #expect(await reading.take(opening("0-9999") + line("5-0")))
        #expect(await !reading.take(line("8-0")))
        #expect(await reading.isDone)
        #expect(shown.count == 1)
    }

    @Test func `ends at once where it begins at its end`() async {
        let reading = reading(after: "7-9999", until: "7-9999")
        _ = await reading.beginConnection()
        #expect(await !reading.take(opening("7-9999")))
        #expect(await reading.isDone)
    }

    @Test func `asks once more for the rest of the last commit`() async {
        let reading = reading(after: "0-9999", until: "7-9999")
        _ = await reading.beginConnection()
        // The second event of the commit is not there yet, whole or in part.
        #expect(await reading.take(opening("0-9999") + line("7-0") + [UInt8(ascii: "i")]))
        #expect(await !reading.take(Array("d: 7-1\nevent: login.failed\ndata: {}\n\n".utf8)))
        #expect(await !reading.isDone)
        #expect(await reading.beginConnection())
        #expect(await reading.take(opening("7-1") + line("7-2")))
        #expect(await !reading.isDone)
        #expect(await reading.position == "7-2")
        #expect(shown.count == 3)
    }

    @Test func `ends where no more is wanted`() async {
        let reading = reading(after: nil, until: nil)
        _ = await reading.beginConnection()
        #expect(await reading.take(line("1-0") + line("2-0") + line("3-0")))
        #expect(await !reading.take(line("4-0") + line("5-0")))
        #expect(await reading.isDone)
        #expect(shown.count == 4)
    }

    @Test func `does not tell that older events are gone where all are asked for`() async {
        for (position, count) in [("0-9999", 1), ("3-0", 3)] {
            let reading = reading(after: position, until: nil)
            _ = await reading.beginConnection()
            let reset = Array("retry: 100\n\nid: 4-9999\nevent: stream.reset\ndata: {}\n\n".utf8)
            #expect(await reading.take(reset + line("5-0")))
            #expect(shown.count == count)
            #expect(await reading.position == "5-0")
        }
    }

    @Test(arguments: ["data: no JSON\n\n", "data: []\n\n"]) func `stops at what is no event`(text: String) async {
        let reading = reading(after: nil, until: nil)
        #expect(await !reading.take(Array(text.utf8)))
        #expect(await reading.fault == "what comes is no event of a token broker")
    }

    @Test func `waits between its connections as it is told, within bounds`() async {
        for (text, pause) in [("retry: 0\n", 100), ("retry: 200\n", 200), ("retry: 99999999\n", 30_000)] {
            let reading = reading(after: nil, until: nil)
            #expect(await reading.take(Array(text.utf8)))
            #expect(await reading.pause == .milliseconds(pause))
        }
    }

    @Test(arguments: ["", "1", "1-", "-1", "a-1", "1-1-1", "1 -1", "99999999999999999999-1"])
    func `knows what is no place of an event`(text: String) {
        #expect(EventPlace(text) == nil)
    }

    @Test func `orders places by commit, then by event`() throws {
        let places = try ["2-0", "2-1", "2-9999", "10-0"].map { try #require(EventPlace($0)) }
        #expect(places.reversed().sorted() == places)
    }
}
