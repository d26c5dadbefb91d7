import ExternalText
import JSON
import Testing

@testable import CommandLineClient

/// What comes from outside, and is shown: file names, words, addresses, names that the broker tells.
@Suite struct `A terminal is not steered` {
    private static let hostile = "no\u{1b}]0;pwn\u{7}\u{9b}31m\u{202e}x"

    private static func isHarmless(_ text: String) -> Bool {
        text.unicodeScalars.allSatisfy { scalar in
            scalar == "\n" || ![.control, .format].contains(scalar.properties.generalCategory)
        }
    }

    @Test(arguments: [
        ["import", "ndjson", hostile, "--tenant", "t"], ["export", "--jwk", hostile, "--tenant", "t"],
        [hostile], ["tenants", hostile], ["--\(hostile)"], ["token", "--\(hostile)"], ["token", "--format", hostile],
        ["token", "t", hostile], ["keys", "list", "--limit", hostile], ["apply", "--file", hostile],
        ["context", "use", hostile], ["context", "add", "a", "--url", hostile],
        ["context", "add", hostile, "--url", "http://h"],
        ["help", hostile], ["completions", hostile], ["events", "--since", hostile], ["import", hostile, "f"],
        ["tenants", "list", "--tenant", hostile], ["keys", "generate", "a", hostile],
    ])
    func `by the words of a command line`(words: [String]) async {
        let (status, terminal) = await CommandLines.run(
            words, ["TOKEN_BROKER_URL": "http://localhost:59999", "TOKEN_BROKER_API_KEY": "k"])
        #expect(status != .done)
        #expect(!terminal.errors.isEmpty)
        #expect(Self.isHarmless(terminal.errors), "\(terminal.errors.unicodeScalars.map(\.value))")
        #expect(terminal.output.isEmpty)
    }

    @Test(arguments: [
        ("", 0), ("abc", 3), ("über", 4), ("u\u{308}ber", 4), ("東京", 4), ("한국", 4), ("\u{1f600}", 2), ("ﾊﾝ", 2),
        ("Ａ", 2),
        ("\u{1f1e9}\u{1f1ea}", 2), ("é", 1),
    ])
    func `nor are its columns shifted`(text: String, columns: Int) {
        #expect(TextTable.columns(text) == columns)
        var table = TextTable("A", "B")
        table.add(text + "x", "y")
        let rows = table.text().split(separator: "\n")
        #expect(rows[0] == "A" + String(repeating: " ", count: columns + 2) + "B")
        #expect(rows[1] == text + "x  y")
    }

    @Test func `by a question`() throws {
        let terminal = RecordedTerminal(canAsk: true, answers: ["y"])
        let step = CommandProgram.step(
            ["tenants", "delete", "t"], terminal: terminal, environment: [:])
        guard case .run(let invocation) = step else {
            Issue.record("the words are refused")
            return
        }
        try invocation.confirm("Delete \(Self.hostile)?")
        #expect(Self.isHarmless(terminal.errors))
    }

    @Test(arguments: [
        (#"{"a":"b"}"#, #"{"a":"b"}"# + "\n"), ("{\"a\":\"ü\u{1f600}\"}\n", "{\"a\":\"ü\u{1f600}\"}\n"),
        ("{\"a\":\"\u{202e}\u{9b}\u{7f}\"}", #"{"a":"\u202e\u009b\u007f"}"# + "\n"),
        ("{\"a\":\"\u{e0001}\"}", #"{"a":"\udb40\udc01"}"# + "\n"),
    ])
    func `by JSON, which says the same as before`(text: String, shown: String) throws {
        let terminal = RecordedTerminal()
        terminal.print(json: Array(text.utf8))
        #expect(terminal.output == shown)
        #expect(try JSONValue(parsing: Array(terminal.output.utf8)) == JSONValue(parsing: Array(text.utf8)))
    }
}
