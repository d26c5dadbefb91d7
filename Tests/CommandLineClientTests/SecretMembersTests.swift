import ExternalText
import JSON
import Testing

@testable import CommandLineClient

/// What people are shown of configurations: never a secret.
@Suite struct `A secret of a configuration` {
    private static let configurations: [(member: String, value: String, shown: String)] = [
        ("client_secret", #""hunter2""#, "(secret)"), ("client_secret", "12345", "(secret)"),
        ("client_secrets", #"["hunter2", "hunter2"]"#, "(secret)"), ("client_secret", "null", "-"),
        ("private_key", #"{"kty": "OKP", "d": "hunter2"}"#, "(secret)"),
        (
            "shared_signals", #"{"authorization": "hunter2", "issuer": "i"}"#,
            #"{"authorization":"(secret)","issuer":"i"}"#
        ),
        ("relay", #"{"headers": {"X-Key": "hunter2"}}"#, #"{"headers":{"X-Key":"(secret)"}}"#),
        ("request_headers", #"{"X-Key": "hunter2"}"#, #"{"X-Key":"(secret)"}"#),
        ("outbound_proxy", #""http://u:hunter2@h.example:3128""#, "http://(secret)@h.example:3128"),
        ("outbound_proxy", #""http://u:hun@ter2@h.example/a@b""#, "http://(secret)@h.example/a@b"),
        ("issuer", #""https://h.example/a@b""#, "https://h.example/a@b"),
        (
            "jwks", #"{"keys": [{"kty": "RSA", "n": "n", "d": "hunter2", "p": "hunter2"}]}"#,
            #"{"keys":[{"d":"(secret)","kty":"RSA","n":"n","p":"(secret)"}]}"#
        ),
        ("parameters", #"{"region": "eu"}"#, #"{"region":"eu"}"#), ("scopes", #"["a", "b"]"#, "a, b"),
    ]

    @Test(arguments: configurations.indices)
    func `is not shown by apply or in tables`(index: Int) throws {
        let (name, text, shown) = Self.configurations[index]
        let value = try JSONValue(parsing: Array(text.utf8))
        let wanted = JSONValue.object([WireText(name): value])
        let lines = Difference(wanted: wanted, current: .object([:])).lines
        #expect(value == .null || lines == ["\(name): \(shown)"], "\(lines)")
        let table = AdministrationCommands.table(of: wanted, first: []).text()
        #expect(table.contains(" \(shown)\n"), "\(table)")
        #expect(!(lines.joined() + table).contains("hunter2"))
    }

    @Test(arguments: ["client_secret=hunter2", "shared_signals.authorization=hunter2", "relay.headers.X-Key=hunter2"])
    func `is no word of a command line`(word: String) {
        let refusal = #expect(throws: CommandError.self) { try AssignedMembers([word]) }
        #expect(refusal?.text.contains("would stand in lists of processes") == true)
        #expect(refusal?.text.contains("hunter2") == false)
    }

    @Test(arguments: ["0012345678", "1_000", "0x1f", "+17"])
    func `is not repeated where YAML may take it for a number`(text: String) throws {
        let fault = #expect(throws: YAMLReader.Fault.self) {
            try YAMLReader.value(of: "a:\n  client_secret: \(text)\n")
        }
        #expect(fault?.line == 2)
        #expect(fault?.description.contains(text) == false, "\(fault?.description ?? "")")
    }
}
