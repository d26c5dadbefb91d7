import BrokerTesting
import ExternalText
import FoundationEssentials
import JSON
import Testing

@testable import CommandLineClient

/// What is read of a command line, without a broker.
@Suite struct `Words of administration` {
    private static func json(_ text: String) throws -> JSONValue { try JSONValue(parsing: Array(text.utf8)) }

    @Test(arguments: [
        (["a=1"], #"{"a":"1"}"#), (["a:=1"], #"{"a":1}"#), (["a="], #"{"a":""}"#),
        (["a=b=c"], #"{"a":"b=c"}"#), (["a:=[\"x\"]"], #"{"a":["x"]}"#),
        (["a=null"], #"{"a":null}"#), (["a:=null"], #"{"a":null}"#), (["a:=\"null\""], #"{"a":"null"}"#),
        (["a.b=1", "a.c:=true"], #"{"a":{"b":"1","c":true}}"#), (["client_secret=null"], #"{"client_secret":null}"#),
        ([String](), "{}"),
    ])
    func `assign members as texts, as JSON, and within objects`(words: [String], object: String) throws {
        #expect(JSONValue.object(try AssignedMembers(words).members) == (try Self.json(object)))
    }

    @Test(arguments: [
        (["a"], "is no MEMBER=TEXT"), (["=1"], "is no MEMBER=TEXT"), ([":=1"], "names no member"),
        ([".a=1"], "names no member"), (["a..b=1"], "names no member"), (["a:=x"], "no JSON"), (["a:="], "no JSON"),
        (["a=1", "a=2"], "given twice"), (["a:={}", "a:={}"], "given twice"),
        (["a=1", "a.b=2"], "a is given as a value, and by a.b as an object with members"),
        (["a.b=1", "a.b.c=2"], "a.b is given as a value, and by a.b.c as an object with members"),
        (["a.b=1", "a=2"], "a is given as a value, and before it as an object with members"),
        (["client_secret=x"], "lists of processes"), (["private_key:={}"], "private_key:=@PATH"),
        (["client_secrets:=[\"x\"]"], "lists of processes"), (["client_certificate.key=x"], "lists of processes"),
    ])
    func `are refused where they mean nothing or show a secret`(words: [String], complaint: String) {
        #expect(throws: CommandError.self) { try AssignedMembers(words) }
        do throws(CommandError) {
            _ = try AssignedMembers(words)
        } catch {
            #expect(error.status == .usage)
            #expect(error.text.contains(complaint), "\(error.text)")
        }
    }

    @Test func `have files stand in the place of values`() throws {
        let directory = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let path = directory.path + "/value"
        try Data("{\"kty\": \"EC\"}\r\n".utf8).write(to: URL(filePath: path))
        let members = try AssignedMembers(["client_secret=@\(path)", "private_key:=@\(path)"]).members
        #expect(members["client_secret"] == .string(#"{"kty": "EC"}"#))
        #expect(members["private_key"] == .object(["kty": .string("EC")]))
        do throws(CommandError) {
            _ = try AssignedMembers(["client_secret=@\(path).missing"])
            Issue.record("a file that does not exist is read")
        } catch {
            #expect(error.status == .refused)
        }
    }

    @Test(arguments: [
        ("3600", 3600 as Int64?), ("30s", 30), ("2m", 120), ("12h", 43_200), ("90d", 7_776_000), ("0", 0),
        ("", nil), ("d", nil), ("-1", nil), ("1w", nil), ("1.5h", nil), ("9999999999d", nil),
    ])
    func `have times with units`(text: String, seconds: Int64?) throws {
        let words = ["keys", "create", "x", "--expires-in", text]
        guard
            case .run(let invocation) = CommandProgram.step(
                words, terminal: RecordedTerminal(), environment: [:])
        else {
            Issue.record("\(words) is refused")
            return
        }
        guard let seconds else {
            #expect(throws: CommandError.self) {
                try invocation.span("expires-in")
            }
            return
        }
        #expect(try invocation.span("expires-in") == seconds)
    }

    @Test(arguments: [
        "tenants list", "tenants show x", "tenants create x", "tenants set x a=b", "tenants check x",
        "tenants delete x",
        "providers list", "providers show x", "providers put x", "providers delete x", "keys list", "keys show x",
        "keys create x", "keys rotate x", "keys delete x", "clients list", "clients show x", "clients create x",
        "clients delete x", "sessions list", "sessions revoke x", "tenants", "keys", "clients", "sessions", "providers",
        "tenants --json", "keys --tenant music",
    ])
    func `name commands, and a group alone lists`(line: String) {
        let words = line.split(separator: " ").map(String.init)
        guard case .run(let invocation) = CommandProgram.step(words, terminal: RecordedTerminal(), environment: [:])
        else {
            Issue.record("\(line) is refused")
            return
        }
        if !line.contains(" ") || line.contains("--") { #expect(invocation.command.words == [words[0], "list"]) }
    }

    @Test(arguments: [
        ([:], "https://page.example", false), (["DISPLAY": ""], "https://page.example", false),
        (["DISPLAY": ":0"], "file:///etc/passwd", false), (["DISPLAY": ":0"], "--help", false),
    ])
    func `open no browser without a desktop, and no other address`(
        environment: [String: String], url: String, isOpened: Bool
    ) {
        guard
            case .run(let invocation) = CommandProgram.step(
                ["tenants", "create", "x"], terminal: RecordedTerminal(), environment: environment)
        else {
            Issue.record("the command is refused")
            return
        }
        #expect(Browser.open(url, invocation) == isOpened)
    }

    @Test func `open no browser where the command line forbids it`() {
        guard
            case .run(let invocation) = CommandProgram.step(
                ["tenants", "create", "x", "--no-browser"], terminal: RecordedTerminal(), environment: ["DISPLAY": ":0"]
            )
        else {
            Issue.record("the command is refused")
            return
        }
        #expect(!Browser.open("https://page.example", invocation))
    }
}
