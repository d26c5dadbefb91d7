import ExternalText
import Foundation
import GroundTesting
import JSON
import OAuth
import Testing

/// Profiles that operators put are held to what the shipped ones are held to when the program is built.
@Suite struct `Document of an operator's profile` {
    private static func read(_ text: String) throws -> (profile: ProviderPreset?, faults: [String: String]) {
        var faults = FaultList()
        let profile = ProviderPreset.reading(
            try JSONValue(parsing: Array(text.utf8)), allowsHTTP: false, &faults)
        return (profile, Dictionary(faults.told.map { ($0.pointer, $0.detail) }) { first, _ in first })
    }

    private static func document(_ more: String) -> String {
        #"""
        {\#(more.isEmpty ? "" : more + ", ")"name": "acme", "documentation": "https://acme.example", "as_of": "2026-11-29",
         "required": ["client_id"], "notes": ["A note."]}
        """#
    }

    @Test(arguments: ShippedProfiles.names) func `can be that of any shipped profile`(name: String) throws {
        var faults = FaultList()
        let document = try #require(ShippedProfiles.document(WireText(name)))
        let profile = ProviderPreset.reading(document, allowsHTTP: false, &faults)
        #expect(faults.told == [])
        #expect(profile?.name == name && profile?.document != nil)
        #expect(try #require(profile?.document).count <= ProviderPreset.longestDocument)
    }

    @Test func `is the same profile for all that read it`() throws {
        let first = try #require(try Self.read(Self.document(#""pkce": "allowed""#)).profile)
        let second = try #require(try Self.read(Self.document(#""pkce":   "allowed""#)).profile)
        let other = try #require(try Self.read(Self.document(#""pkce": "forbidden""#)).profile)
        #expect(first === second && first == second && first != other)
        let stored = ProviderPreset.stored(try JSONValue(parsing: try #require(first.document)))
        #expect(stored === first)
        #expect(ProviderPreset.inUse[first.number] == "acme")
    }

    @Test func `leaves no name behind where it is refused`() throws {
        let text = Self.document(#""pkce": "plain""#).replacing("acme", with: "refused-profile")
        #expect(try Self.read(text).profile == nil)
        #expect(!ProviderPreset.inUse.contains("refused-profile"))
        #expect(ProviderPreset.stored(try JSONValue(parsing: Array(text.utf8))) == nil)
    }

    @Test func `needs a name and nothing else, and is then of a provider with logins`() throws {
        #expect(try Self.read("{}").faults == ["/name": "is required"])
        #expect(try Self.read("[]").faults[""] == "must be an object")
        let profile = try #require(try Self.read(#"{"name": "acme"}"#).profile)
        #expect(profile.guide.required == ["client_id"] && profile.hasLogins)
    }

    @Test(arguments: [true, false]) func `names plain addresses only where the broker may call them`(isAllowed: Bool)
        throws
    {
        var faults = FaultList()
        let text =
            #"{"name": "acme", "endpoints": {"token": "http://127.0.0.1:9/token", "revocation": "https://a.example/{client_id}"}}"#
        let document = try JSONValue(parsing: Array(text.utf8))
        let profile = ProviderPreset.reading(document, allowsHTTP: isAllowed, &faults)
        #expect((profile != nil) == isAllowed)
        #expect(faults.told.map(\.pointer) == (isAllowed ? [] : ["/endpoints/token"]))
    }

    @Test(arguments: [
        // What the schema says of texts.
        (#""registration": "https://a b""#, "/registration", "must be an https URL"),
        (#""registration": "https://""#, "/registration", "must be an https URL"),
        (#""issuer": "http://a.example""#, "/issuer", "must be an https URL"),
        (#""issuer": "https://a.example/#x""#, "/issuer", "must be an https URL"),
        (#""issuer": "https://a}.example""#, "/issuer", "must be an https URL"),
        (#""issuer": "{domain}/x""#, "/issuer", "must be an https URL"),
        (#""base_uris": {"auth_service": "http://a.example"}"#, "/base_uris/auth_service", "must be an https URL"),
        (#""endpoints": {"token": "ftp://a.example"}"#, "/endpoints/token", "must be an https URL"),
        (#""endpoints": {"introspect": "https://a.example"}"#, "/endpoints/introspect", "is not a known member"),
        (#""scopes": ["a b"]"#, "/scopes/0", "must be one scope"),
        (#""parameter_order": ["a", "b c"]"#, "/parameter_order/1", "must be 1 to 64 letters"),
        (#""email_parameter": "e mail""#, "/email_parameter", "must be 1 to 64 letters"),
        (#""parameter_names": {"code": "c d"}"#, "/parameter_names/code", "must be 1 to 64 letters"),
        (#""parameter_names": {"nonce": "n"}"#, "/parameter_names/nonce", "is not a parameter that has another name"),
        (#""callback_fields": {"a b": "c"}"#, "/callback_fields/a b", "has a name that does not fit"),
        (#""token_fields": {"a": "b"}"#, "/token_fields/a", "must be a JSON pointer"),
        (#""response_fields": {"scope": ["/a", "/b c"]}"#, "/response_fields/scope/1", "must be a JSON pointer"),
        (#""response_fields": {"colour": "/a"}"#, "/response_fields/colour", "is not a known member"),
        (#""error_rules": [{"equals": "e", "means": "odd"}]"#, "/error_rules/0/means", "must be one of session_ended"),
        (#""named_refusals": {"e": "odd"}"#, "/named_refusals/e", "must be one of invalid_token_request"),
        (#""refusal_details": {"12a": "text"}"#, "/refusal_details/12a", "has a name that does not fit"),
        (#""session_ending_errors": [""]"#, "/session_ending_errors/0", "must have 1 to 2048 bytes"),
        (#""session_ending_answers": [{"status": 429}]"#, "/session_ending_answers/0/status", "must not be 408 or 429"),
        (#""pinned_certificates": ["sha256/a"]"#, "/pinned_certificates/0", "must be sha256/"),
        (#""reuse_grace": 86401"#, "/reuse_grace", "must be a whole number from 0 to 86400"),
        (#""token_request_limit": 21"#, "/token_request_limit", "must be a whole number from 1 to 20"),
        (#""token_headers": {"Cookie": "1"}"#, "/token_headers/Cookie", ""),
        (#""authorize_parameters": {"state": "1"}"#, "/authorize_parameters/state", "is a parameter that the broker"),
        (#""levels": ["user", "user"]"#, "/levels", "must not name anything twice"),
        (#""levels": []"#, "/levels", "must not be empty"),
        (
            #""accounts": {"redirect_uri": "a", "session_cookie": "b", "signature_source": "c", "logout_status": "d"}"#,
            "/accounts/errors", "is required"
        ),
        // What a schema cannot say.
        (#""issuer": "https://{domain}.example""#, "/issuer", "has {domain}, which parameters does not have"),
        (
            #""parameters": {"a": {"description": "d", "example": "e", "default": "f"}}"#, "/parameters/a",
            "stands in no"
        ),
        (
            #""issuer": "https://{a}.example", "parameters": {"a": {"description": "d", "example": "e"}}"#,
            "/parameters/a", "has no default, so required must name parameters.a"
        ),
        (
            #""issuer": "https://{a}.example", "parameters": {"a": {"description": "d", "example": "e", "default": "a/b"}}"#,
            "/parameters/a/default", "must have 1 to 253 letters"
        ),
        (#""refresh_tokens": "with_scope""#, "/refresh_token_scope", "must be there where refresh_tokens"),
        (#""refresh_token_scope": "offline""#, "/refresh_token_scope", "must be there where refresh_tokens"),
        (
            #""changes": [{"date": "2027-02-01", "what": "a"}, {"date": "2027-01-01", "what": "b"}]"#,
            "/changes/1/date", "must not be before"
        ),
        (#""changes": [{"date": "2027-02-30", "what": "a"}]"#, "/changes/0/date", "must be a day"),
        (#""changes": [{"date": "2027-02-01", "what": "a", "set": 1}]"#, "/changes/0/set", "must be an object"),
    ])
    func `is refused with the place of the fault`(more: String, pointer: String, text: String) throws {
        let (profile, faults) = try Self.read(Self.document(more))
        #expect(profile == nil)
        #expect(Array(faults.keys) == [pointer], "\(faults)")
        #expect(faults[pointer]?.hasPrefix(text) == true, "\(faults)")
    }

    @Test(arguments: [
        ("2026-11-29", true), ("2026-11-31", false), ("2026-1-1", false), ("29.11.2026", false), ("2026-11-29T", false),
    ])
    func `says on which day its facts were checked`(day: String, isDay: Bool) throws {
        let faults = try Self.read(Self.document("").replacing("2026-11-29", with: day)).faults
        #expect((faults["/as_of"] == nil) == isDay, "\(faults)")
    }

    @Test(arguments: [
        ("a", true), ("a-1", true), ("1", true), (String(repeating: "a", count: 63), true),
        (String(repeating: "a", count: 64), false), ("", false), ("-a", false), ("A", false), ("a_b", false),
        ("a.b", false), ("ä", false),
    ])
    func `has a name of few characters`(name: String, isName: Bool) {
        #expect(ProviderPreset.isName(WireText(name)) == isName)
    }
}
