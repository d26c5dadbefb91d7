import ExternalText
import JSON
import Testing

@testable import CommandLineClient

/// Files of `token-broker apply`, without a broker.
@Suite struct `YAML of configurations` {
    @Test(arguments: [
        ("", "null"), ("# nothing\n", "null"), ("a: 1", #"{"a":1}"#), ("---\na: 1\n", #"{"a":1}"#),
        ("a:\n  b: x\n  c: y z # comment\nd: '#'\n", ##"{"a":{"b":"x","c":"y z"},"d":"#"}"##),
        ("a:\n- 1\n- 2\nb: 3", #"{"a":[1,2],"b":3}"#),
        ("a:\n  - 1\n  - b: 2\n    c: 3\n  -\n    d: 4", #"{"a":[1,{"b":2,"c":3},{"d":4}]}"#),
        ("- - 1\n  - 2\n- 3", "[[1,2],3]"), ("a: [x, 'y, z', [1, true]]", #"{"a":["x","y, z",[1,true]]}"#),
        ("a: {b: 1, 'c d': {e: ~}}", #"{"a":{"b":1,"c d":{"e":null}}}"#), ("a: []\nb: {}", #"{"a":[],"b":{}}"#),
        ("a:\nb: null\nc: ~", #"{"a":null,"b":null,"c":null}"#),
        ("a: True\nb: false\nc: yes\nd: on", #"{"a":true,"b":false,"c":"yes","d":"on"}"#),
        ("a: -5\nb: 1.5\nc: 1e3\nd: 0", #"{"a":-5,"b":1.5,"c":1e3,"d":0}"#),
        ("a: https://x.example:8443/a#b\nb: a:b", #"{"a":"https://x.example:8443/a#b","b":"a:b"}"#),
        (
            "a: 2026-11-29\nb: 127.0.0.1\nc: 4bf3\nd: 1.2.3",
            #"{"a":"2026-11-29","b":"127.0.0.1","c":"4bf3","d":"1.2.3"}"#
        ),
        (#"a: "x \"y\" \u00e4\n""#, #"{"a":"x \"y\" \u00e4\n"}"#), ("a: 'it''s'", #"{"a":"it's"}"#),
        ("\"a b\": 1\n'c': 2\n", #"{"a b":1,"c":2}"#), ("a: x\r\nb: y\r\n", #"{"a":"x","b":"y"}"#),
        ("a: null-ish\nb: -x\nc: ?x", #"{"a":"null-ish","b":"-x","c":"?x"}"#),
    ])
    func `is read`(text: String, json: String) throws {
        #expect(try YAMLReader.value(of: text) == JSONValue(parsing: Array(json.utf8)), "\(text)")
    }

    @Test(arguments: [
        ("a: 1\n\tb: 2", 2), ("a: 1\na: 2", 2), ("a: 1\n  b: 2", 2), ("a:\n    b: 1\n  c: 2", 3), ("a: &x 1", 1),
        ("a: *x", 1), ("a: !!str 1", 1), ("a: |\n  x", 1), ("a: >\n  x", 1), ("<<: {a: 1}", 1), ("? a\n: 1", 1),
        ("a: [1, 2\nb: 3", 1), ("a: {b: 1", 1), ("a: {b: 1, b: 2}", 1), ("a: 'x", 1), (#"a: "x"#, 1), (#"a: "\q""#, 1),
        ("a: 'x' y", 1), ("a: [1] 2", 1), ("a: b: c", 1), ("a: x:", 1), ("%YAML 1.2\na: 1", 1), ("a: 1\n---\nb: 2", 2),
        ("a: 1\n...\n", 2), ("a: 0x1f", 1), ("a: 017", 1), ("a: 1_000", 1), ("a: .5", 1), ("a: .inf", 1), ("a: +1", 1),
        ("a: 99999999999999999999_", 1), ("a: x\nb\n", 2), ("a:\n  x\n  y", 3), ("- 1\na: 2", 2), ("a: \u{1}", 1),
        ("a: @x", 1), ("a: `x`", 1), ("a: ]", 1), ("a: - x", 1),
    ])
    func `is refused with its line where it means something else or nothing`(text: String, line: Int) {
        do throws(YAMLReader.Fault) {
            let value = try YAMLReader.value(of: text)
            Issue.record("\(text) is read as \(value)")
        } catch {
            #expect(error.line == line, "\(text): \(error)")
        }
    }

    @Test func `is refused where it is nested without end`() {
        let brackets = "a: " + String(repeating: "[", count: 10_000)
        #expect(throws: YAMLReader.Fault.self) { try YAMLReader.value(of: brackets) }
        let dashes = String(repeating: "- ", count: 10_000) + "x"
        #expect(throws: YAMLReader.Fault.self) { try YAMLReader.value(of: dashes) }
        let deep = (0..<1000).map { String(repeating: " ", count: $0) + "a:\n" }.joined()
        #expect(throws: YAMLReader.Fault.self) { try YAMLReader.value(of: deep) }
    }

    @Test(arguments: [
        (#"{"a":1}"#, #"{"a":1,"b":2}"#, false), (#"{"a":1}"#, #"{"a":2}"#, true), (#"{"a":1}"#, "{}", true),
        (#"{"a":1}"#, #"{"a":1.0}"#, false), (#"{"a":null}"#, "{}", false), (#"{"a":null}"#, #"{"a":[]}"#, false),
        (#"{"a":null}"#, #"{"a":1}"#, true), (#"{"a":[]}"#, "{}", false), (#"{"a":[]}"#, #"{"a":["x"]}"#, true),
        (#"{"a":["x","y"]}"#, #"{"a":["y","x"]}"#, false), (#"{"a":["x"]}"#, #"{"a":["x","y"]}"#, true),
        (#"{"a":"x"}"#, #"{"a":["x"]}"#, false), (#"{"a":"x"}"#, #"{"a":["y"]}"#, true),
        (#"{"a":{"b":1}}"#, #"{"a":{"b":1,"c":2}}"#, false), (#"{"a":{"b":1}}"#, #"{"a":{"c":2}}"#, true),
        (#"{"a":{"b":null}}"#, "{}", false), (#"{"a":{}}"#, "{}", false),
        (#"{"a":[{"b":1}]}"#, #"{"a":[{"b":2}]}"#, true),
        (#"{"client_secret":"x"}"#, #"{"client_secret_set":true}"#, false),
        (#"{"client_secret":"x"}"#, #"{"client_secret_set":false}"#, true), (#"{"private_key":"x"}"#, "{}", true),
        (#"{"private_key":"x"}"#, #"{"private_key_set":true}"#, false),
        (#"{"client_secrets":["x","y"]}"#, #"{"client_secrets_set":2}"#, false),
        (#"{"client_secrets":["x"]}"#, #"{"client_secrets_set":2}"#, true),
        (#"{"client_secret":null}"#, #"{"client_secret_set":false}"#, false),
        (#"{"client_secret":null}"#, #"{"client_secret_set":true}"#, true),
    ])
    func `differs from what is there where it changes something`(wanted: String, current: String, differs: Bool) throws
    {
        let difference = Difference(
            wanted: try JSONValue(parsing: Array(wanted.utf8)), current: try JSONValue(parsing: Array(current.utf8)))
        #expect(difference.isEmpty != differs)
        #expect(!difference.lines.joined().contains("client_secret: x"))
    }

    @Test func `differs in each secret where these are to be set`() throws {
        let difference = Difference(
            wanted: .object(["client_secret": .string("x"), "private_key": .null]),
            current: .object(["client_secret_set": .bool(true)]), setsSecrets: true)
        #expect(difference.lines == ["client_secret: (secret)"])
    }

    @Test func `takes away what it does not name where it is the whole`() throws {
        let difference = Difference(
            wanted: .object(["a": .integer(1)]), current: .object(["a": .integer(1), "b": .integer(2)]), isWhole: true)
        #expect(difference.lines == ["b: 2 -> -"])
    }

    @Test(arguments: [
        ("tenant:\n  a: {}", "did you mean tenants?"), ("tenants: [a]", "must have a name"),
        ("tenants: {a: null}", "nothing is deleted"),
        ("tenants: {a: {keys: {k: {permission: [login]}}}}", "did you mean permissions?"),
        ("- 1", "no tenants and no providers"),
        ("tenants:\n\ta: 1", "line 2"),
    ])
    func `is refused where it is no file of tenants and providers`(text: String, complaint: String) {
        do throws(CommandError) {
            _ = try ApplyFile(text, path: "x.yaml")
            Issue.record("\(text) is accepted")
        } catch {
            #expect(error.status == .refused)
            #expect(error.text.contains(complaint), "\(error.text)")
        }
    }

    @Test func `is JSON, too`() throws {
        let file = try ApplyFile(
            #"{"tenants": {"a": {"client_id": "x", "keys": {"k": {"permissions": []}}}}}"#, path: "x.json")
        #expect(file.tenants.map(\.name) == ["a"])
        #expect(file.tenants[0].members == .object(["client_id": .string("x")]))
        #expect(file.tenants[0].keys.map(\.name) == ["k"])
    }
}
