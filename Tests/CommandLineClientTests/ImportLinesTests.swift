import BrokerTesting
import ExternalText
import JSON
import OAuth
import Reactor
import Testing

@testable import CommandLineClient

@Suite struct `The lines of an import` {
    private static let now = Timestamp(milliseconds: 1_796_000_000_000)

    private static func entry(_ name: String, _ change: (inout TokenFileEntry) -> Void = { _ in }) -> TokenFileEntry {
        var entry = TokenFileEntry(name, group: "g", storageKey: name)
        entry.accessToken = "a"
        entry.refreshToken = "r"
        change(&entry)
        return entry
    }

    private static func refusal(_ item: ImportItem?) -> String? {
        if case .refused(let reason)? = item?.content { reason } else { nil }
    }

    private static func line(_ item: ImportItem?) -> JSONValue? {
        if case .line(let line)? = item?.content { try? JSONValue(parsing: line) } else { nil }
    }

    // MARK: What entries become

    @Test func `have the members of the route`() throws {
        let entry = Self.entry("ada") { entry in
            entry.clientID = "c1"
            entry.expires = Timestamp(rfc3339: "2030-01-02T03:04:05.6Z")
            entry.granted = Timestamp(rfc3339: "2026-11-01T00:00:00Z")
            entry.scopes = ["x", "y"]
            entry.tokenType = "bearer"
        }
        let text =
            #"{"storage_key": "ada", "credentials": {"level": "user", "client_id": "c1", "token": "a", "#
            + #""expires": "2030-01-02T03:04:05Z", "granted_scopes": ["x", "y"]}, "refresh_token": "r", "#
            + #""granted_at": "2026-11-01T00:00:00Z"}"#
        let items = try TokenFileLines(now: Self.now).items([entry])
        #expect(Self.line(items.first) == (try JSONValue(parsing: Array(text.utf8))))
        let without = try TokenFileLines(storageKey: "bob", leavesOutScopes: true, now: Self.now).items([entry])
        #expect(Self.line(without.first)?["storage_key"]?.string == "bob")
        #expect(Self.line(without.first)?["credentials"]?["granted_scopes"] == nil)
    }

    @Test func `leave out what the entry does not have, and use the default storage key`() throws {
        let entry = Self.entry("x") { entry in
            entry.storageKey = nil
            entry.accessToken = nil
            entry.expires = Timestamp(rfc3339: "2001-01-01T00:00:00Z")
            // A clock that was ahead.
            entry.granted = Timestamp(rfc3339: "2030-01-01T00:00:00Z")
        }
        let items = try TokenFileLines(now: Self.now).items([entry])
        let text = #"{"storage_key": "default", "credentials": {"level": "user"}, "refresh_token": "r"}"#
        #expect(Self.line(items.first) == (try JSONValue(parsing: Array(text.utf8))))
    }

    @Test func `are refused for what no broker could use`() throws {
        let items = try TokenFileLines(now: Self.now).items([
            Self.entry("none") { ($0.accessToken, $0.refreshToken) = (nil, nil) },
            Self.entry("proof") { $0.tokenType = "DPoP" },
            Self.entry("ended") { ($0.refreshToken, $0.expires) = (nil, Self.now) },
            Self.entry("lives") {
                ($0.refreshToken, $0.expires) = (nil, Timestamp(milliseconds: Self.now.milliseconds + 1))
            },
            Self.entry("long") { $0.accessToken = String(repeating: "a", count: 65_537) },
            Self.entry("words") { $0.refreshToken = "two words" },
            Self.entry("no key"), Self.entry("lives"), Self.entry("ok"),
        ])
        #expect(
            items.map { Self.refusal($0)?.split(separator: " ").prefix(3).joined(separator: " ") } == [
                "it has no", "its token_type is", "its token has", nil, "a token has", "a token is", "no key cannot",
                "another entry of", nil,
            ])
    }

    @Test func `of several providers need a choice, and so do several for one storage key`() throws {
        let other = Self.entry("bob") { $0.group = "h" }
        let entries = [Self.entry("ada"), other]
        #expect(throws: CommandError.self) { try TokenFileLines(now: Self.now).items(entries) }
        #expect(try TokenFileLines(only: ["h"], now: Self.now).items(entries).map(\.name) == ["bob"])
        #expect(try TokenFileLines(only: ["ada"], now: Self.now).items(entries).map(\.name) == ["ada"])
        #expect(throws: CommandError.self) { try TokenFileLines(only: ["adda"], now: Self.now).items(entries) }
        #expect(throws: CommandError.self) {
            try TokenFileLines(storageKey: "k", now: Self.now).items([Self.entry("ada"), Self.entry("bob")])
        }
    }

    // MARK: NDJSON

    private static func items(_ text: String) throws(CommandError) -> [ImportItem] {
        var lines = NDJSONLines(ImportInput(Array(text.utf8), name: "f"))
        var items: [ImportItem] = []
        while let item = try lines.next() { items.append(item) }
        return items
    }

    @Test func `are counted with those that are empty, and end with LF or CRLF`() throws {
        let items = try Self.items("\u{feff}{1}\r\n\n  \n{2}\nx\neyJhbGciOiJFQ0RILUVTIn0\n{3}")
        #expect(items.map(\.number) == [1, 4, 5, 6, 7])
        #expect(items[0].content == .line(Array("{1}".utf8)))
        #expect(items[1].content == .line(Array("{2}".utf8)))
        #expect(Self.refusal(items[2]) == "it is no JSON object")
        #expect(Self.refusal(items[3])?.contains("sealed") == true)
        #expect(items[4].content == .line(Array("{3}".utf8)))
        #expect(try Self.items("").isEmpty)
    }

    @Test func `may have a mebibyte and no more, and what follows is read`() throws {
        let full = "{" + String(repeating: "x", count: (1 << 20) - 1)
        let items = try Self.items(
            "\(full)\r\n\(full)x\n{2}\n" + "{" + String(repeating: "y", count: 5 << 20) + "\n{3}\n" + full)
        #expect(items.map(\.number) == [1, 2, 3, 4, 5, 6])
        #expect(items.map { Self.refusal($0) == nil } == [true, false, true, false, true, true])
    }

    @Test func `of an input are known by a digest and a count`() throws {
        func examined(_ text: String) throws(CommandError) -> (digest: String, lines: Int) {
            try ImportInput(Array(text.utf8), name: "f").examined()
        }
        let first = try examined("a\nb\n")
        #expect(first.lines == 2)
        #expect(try examined("a\nb").lines == 2)
        #expect(try examined("").lines == 0)
        #expect(try examined("a\nc\n").digest != first.digest)
        let long = String(repeating: "x", count: (2 << 20) + 7)
        #expect(try examined(long).digest != examined(long + "x").digest)
    }

    // MARK: Outcomes

    @Test func `have the input's numbers in what is told of them`() throws {
        let items = [
            ImportItem(number: 7, content: .line([])), ImportItem(number: 9, name: "gd", content: .line([])),
        ]
        let body =
            #"{"line":1,"storage_key":"a","outcome":"imported"}"# + "\n"
            + #"{"line":2,"storage_key":"b","outcome":"failed","code":"retryable_error","detail":"Later.","retry_after":1}"#
            + "\n"
        let outcomes = try ImportOutcome.read(Array(body.utf8), of: items)
        #expect(outcomes.map(\.kind) == [.imported, .refused])
        #expect(outcomes.map(\.isForNow) == [false, true])
        #expect(outcomes[1].complaint == "gd (b): Later.")
        #expect(
            String(decoding: outcomes[0].encoded, as: UTF8.self)
                == #"{"line":7,"storage_key":"a","outcome":"imported"}"# + "\n")
        #expect(
            String(decoding: outcomes[1].encoded, as: UTF8.self)
                == #"{"line":9,"entry":"gd","storage_key":"b","outcome":"failed","code":"retryable_error","detail":"Later.","retry_after":1}"#
                + "\n")
    }

    @Test(arguments: [
        "", #"{"line":1,"outcome":"imported"}"#, #"{"line":2,"outcome":"imported"}"#, "<html>",
        #"{"line":1,"outcome":"imported"}"# + "\n" + #"{"line":2,"outcome":"imported"}"# + "\n"
            + #"{"line":3,"outcome":"failed","detail":"The connection ended inside the content."}"#,
    ])
    func `that a broker has not told of each are an error`(body: String) {
        let items = [ImportItem(number: 1, content: .line([])), ImportItem(number: 2, content: .line([]))]
        #expect(throws: CommandError.self) { try ImportOutcome.read(Array(body.utf8), of: items) }
    }

    // MARK: State

    @Test func `go on where the state says, with the same input and words only`() throws {
        let directory = StoreFixtureDirectory()
        let path = directory.path + "/users.ndjson.import-state"
        try SmallFile.makeDirectories(above: path)
        let order = ImportState.Order(
            name: "users.ndjson", size: 9, digest: "d", format: "ndjson", url: "http://h", tenant: "t",
            options: ["--replace"])
        #expect(try ImportState.read(path, for: order) == ImportTally())
        let tally = ImportTally(imported: 3, unchanged: 2, refused: 1)
        try ImportState(order: order, tally: tally).write(path)
        #expect(try ImportState.read(path, for: order) == tally)
        #expect(tally.all == 6)
        #expect(try SmallFile.readWithAccess(path, limit: 4096).access.isReadableByOthers == false)
        for change in [\ImportState.Order.tenant, \.digest, \.url, \.format] {
            var other = order
            other[keyPath: change] += "x"
            #expect(throws: CommandError.self) { try ImportState.read(path, for: other) }
        }
        try SmallFile.replace(path, Array(#"{"input": 3}"#.utf8))
        #expect(throws: CommandError.self) { try ImportState.read(path, for: order) }
    }

    // MARK: The bar

    @Test(arguments: [
        (0, 100, 0, 0, 80, "[                                        ] 0 of 100"),
        (45_000, 100_000, 45_000, 45, 80, "[==============                   ] 45,000 of 100,000  1,000/s  0:55 left"),
        (100, 100, 50, 100, 80, "[========================================] 100 of 100  0.5/s"),
        (1, 7201, 1, 1, 40, "1 of 7,201  1.0/s  2:00:00 left"), (3, 3, 3, 1, 5, "3 of"),
        (12_000, nil, 12_000, 4, 80, "12,000  3,000/s"), (12_000, nil, 12_000, 4, 8, "12,000"),
    ])
    func `are shown by a bar that fits the terminal`(
        done: Int, total: Int?, sinceBegin: Int, seconds: Int, width: Int, text: String
    ) {
        let shown = ProgressBar.text(
            done: done, total: total, sinceBegin: sinceBegin, elapsed: .seconds(seconds), width: width)
        #expect(shown.filter { $0 != "=" && $0 != " " } == text.filter { $0 != "=" && $0 != " " })
        #expect(shown.count < width)
    }

    @Test func `are shown by a bar ten times a second at most, and on a terminal only`() {
        let terminal = RecordedTerminal(canAsk: true)
        let begun = MonotonicInstant(nanoseconds: 0)
        let bar = ProgressBar(terminal, total: 100, now: begun)
        bar.advance(to: 1, now: begun.advanced(by: .milliseconds(1)))
        bar.advance(to: 2, now: begun.advanced(by: .milliseconds(2)))
        bar.advance(to: 3, now: begun.advanced(by: .milliseconds(102)))
        bar.advance(to: 100, now: begun.advanced(by: .milliseconds(103)))
        bar.clear()
        bar.clear()
        let shown = terminal.errors.split(separator: "\r")
        #expect(shown.count == 4, "\(shown)")
        let pipe = RecordedTerminal()
        ProgressBar(pipe, total: 100, now: begun).advance(to: 1, now: begun.advanced(by: .seconds(1)))
        #expect(pipe.errors.isEmpty)
    }
}
