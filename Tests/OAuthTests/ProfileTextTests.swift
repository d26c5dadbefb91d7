import ExternalText
import JSON
import Testing

@testable import OAuth

/// What a profile is refused for although its members have the right types.
@Suite struct `A profile with texts that do not fit` {
    private static func faults(_ more: String) throws -> [InputFault] {
        var faults = FaultList()
        let text = #"{"name": "acme", "documentation": "https://a.example", \#(more)}"#
        let profile = ProviderPreset.reading(try JSONValue(parsing: Array(text.utf8)), allowsHTTP: true, &faults)
        #expect((profile == nil) == (faults.count > 0))
        return faults.told
    }

    @Test(arguments: [
        // RFC 6901: a tilde stands before 0 or 1 only.
        (#""token_fields": {"a": "/a~2b"}"#, "/token_fields/a", "must be a JSON pointer"),
        (#""token_fields": {"a": "/a~"}"#, "/token_fields/a", "must be a JSON pointer"),
        (#""response_fields": {"scope": ["/a", "/~0~x"]}"#, "/response_fields/scope/1", "must be a JSON pointer"),
        (
            #""error_rules": [{"equals": "e", "means": "transient", "pointer": "/~~0"}]"#, "/error_rules/0/pointer",
            "must be a JSON pointer"
        ),
        // Each fault of a rule is told, and no other one.
        (#""error_rules": [{"means": "transient"}]"#, "/error_rules/0/equals", "is required"),
        (#""error_rules": [{"equals": "e"}]"#, "/error_rules/0/means", "is required"),
        // Addresses.
        (#""endpoints": {"token": "https://u@a.example/t"}"#, "/endpoints/token", "must be an https or http URL"),
        (#""endpoints": {"token": "https://u:p@a.example"}"#, "/endpoints/token", "must be an https or http URL"),
        (#""endpoints": {"token": "http://u@a.example?x"}"#, "/endpoints/token", "must be an https or http URL"),
        (#""endpoints": {"token": "https:///t/and/more"}"#, "/endpoints/token", "must be an https or http URL"),
        (#""endpoints": {"token": "https://a.example/t#f"}"#, "/endpoints/token", "must be an https or http URL"),
        (
            #""endpoints": {"token": "{auth_service_base_uri}@b.example/t"}"#, "/endpoints/token",
            "must be an https or http URL"
        ),
        (#""issuer": "https://u@a.example""#, "/issuer", "must be an https or http URL"),
        (
            #""refresh": {"endpoint": "https://u@a.example", "parameters": {"a": "b"}}"#, "/refresh/endpoint",
            "must be an https or http URL"
        ),
        (#""registration": "https://u@a.example""#, "/registration", "must be an https URL"),
        (
            #""base_uris": {"login_service": "https://u@a.example"}"#, "/base_uris/login_service",
            "must be an https URL"
        ),
        // What people read.
        (#""title": "\u202eemcA""#, "/title", "must not contain control characters"),
        (#""title": "A\u2066B""#, "/title", "must not contain control characters"),
        (#""title": "A\u0085B""#, "/title", "must not contain control characters"),
        (#""title": "  ""#, "/title", "must not contain control characters, or be blank"),
        (#""notes": ["a", "b\u200f"]"#, "/notes/1", "must have 1 to 2048 bytes"),
        (#""changes": [{"date": "2027-02-01", "what": "\u202e"}]"#, "/changes/0/what", "must have 1 to 2048 bytes"),
        (
            #""issuer": "https://{a}.example", "parameters": {"a": {"description": "\u061c", "default": "f"}}"#,
            "/parameters/a/description", "must have 1 to 2048 bytes"
        ),
        // Names of parameters.
        (
            #""parameter_names": {"client_id": "state"}"#, "/parameter_names/client_id",
            "must not be state, the name of the parameter state"
        ),
        (
            #""parameter_names": {"scope": "nonce"}"#, "/parameter_names/scope",
            "must not be nonce, the name of the parameter nonce"
        ),
        (
            #""parameter_names": {"code": "x"}, "token_parameters": {"x": "1"}"#, "/parameter_names/code",
            "must not be x, which token_parameters has"
        ),
        (
            #""parameter_names": {"scope": "mail"}, "email_parameter": "mail""#, "/parameter_names/scope",
            "must not be mail, which email_parameter says"
        ),
        (
            #""revocation": {"parameter_names": {"token": "client_id"}}"#, "/revocation/parameter_names/token",
            "must not be client_id, the name of the parameter client_id"
        ),
        (
            #""parameter_names": {"client_id": "key"}, "revocation": {"parameter_names": {"token": "key"}}"#,
            "/revocation/parameter_names/token", "must not be key, the name of the parameter client_id"
        ),
    ])
    func `is refused with the place`(more: String, pointer: String, text: String) throws {
        let faults = try Self.faults(more)
        #expect(faults.map(\.pointer) == [pointer], "\(faults)")
        #expect(faults.first?.detail.hasPrefix(text) == true, "\(faults)")
    }

    @Test func `is told of both parameters that would have one name`() throws {
        let faults = try Self.faults(#""parameter_names": {"client_id": "x", "state": "x"}"#)
        #expect(
            faults == [
                .init("/parameter_names/client_id", "must not be x, the name of the parameter state"),
                .init("/parameter_names/state", "must not be x, the name of the parameter client_id"),
            ])
    }

    @Test(arguments: [
        #""token_fields": {"a": "/a~0~1b/"}"#, #""title": "Ακμή 🏔 «x»""#,
        #""parameter_names": {"client_id": "client_key"}"#, #""parameter_names": {"client_id": "client_id"}"#,
        // Two that change their places.
        #""parameter_names": {"code": "state", "state": "code"}"#,
        #""revocation": {"parameter_names": {"token": "access_token", "client_id": "clientId"}}"#,
        #""endpoints": {"token": "https://a.example:8443/t@x?y=z@w"}"#,
        #""endpoints": {"token": "https://a.example?x"}"#,
        #""endpoints": {"token": "{auth_service_base_uri}/t"}, "base_uris": {"auth_service": "https://a.example/v1"}"#,
        #""error_rules": [{"equals": "e", "means": "transient"}]"#,
    ])
    func `is not one that has unusual ones`(more: String) throws {
        #expect(try Self.faults(more) == [])
    }
}
