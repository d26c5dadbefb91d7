import ExternalText
import Foundation
import GroundTesting
import JSON
import OAuth
import Testing

@Suite struct `Shipped profiles` {
    /// The names of the contract that are shipped.
    static let names = """
        airtable amazon-seller asana atlassian auth0 authgear bitbucket box calendly canva clickup cognito discord docusign
        dropbox duckduckgo facebook figma fitbit github github-app gitlab google hubspot instagram intercom keycloak linear
        linkedin mcp microsoft miro monday notion oauth2 oidc okta openai paypal pipedrive quickbooks reddit salesforce shopify
        slack snowflake spotify square static strava stripe threads tidal tiktok twitch webflow x xero zendesk zoho zoom
        """.split { $0 == " " || $0 == "\n" }.map(String.init)

    @Test func `have the names of the contract, in order`() {
        #expect(ShippedProfiles.names == Self.names)
        #expect(ProviderPreset.named("nobody") == nil && ProviderPreset.named("Google") == nil)
    }

    @Test(arguments: names) func `are read without a fault`(name: String) throws {
        let document = try #require(ShippedProfiles.document(WireText(name)))
        var reader = ObjectReader(document)
        let profile = ProviderPreset(&reader)
        reader.refuseUnknown()
        #expect(reader.faults.told == [])
        #expect(profile.name == name && document["name"]?.string == WireText(name))
    }

    @Test func `are the same object for all that ask, and have a place of their own`() {
        let profiles = Self.names.map { ProviderPreset.shipped(WireText($0)) }
        #expect(profiles.allSatisfy { $0 == ProviderPreset.shipped(WireText($0.name)) })
        #expect(Set(profiles.map(\.number)).count == profiles.count)
        #expect(profiles.allSatisfy { ProviderPreset.inUse[$0.number] == $0.name })
    }

    @Test(arguments: [
        (#"{}"#, ["/name"]),
        (#"{"name": "a", "documentation": "d", "as_of": "x", "issuer": "ftp://a"}"#, ["/issuer"]),
        (#"{"name": "a", "documentation": "d", "as_of": "x", "issuer": "https://{a"}"#, ["/issuer"]),
        (#"{"name": "a", "documentation": "d", "as_of": "x", "colour": 1}"#, ["/colour"]),
        (#"{"name": "a", "documentation": "d", "as_of": "x", "pkce": "plain"}"#, ["/pkce"]),
        (
            #"{"name": "a", "documentation": "d", "as_of": "x", "authorize_parameters": {"state": "1"}}"#,
            ["/authorize_parameters/state"]
        ),
        (
            #"{"name": "a", "documentation": "d", "as_of": "x", "token_headers": {"Cookie": "1"}}"#,
            ["/token_headers/Cookie"]
        ),
        (
            #"{"name": "a", "documentation": "d", "as_of": "x", "response_fields": {"user_id": "id"}}"#,
            ["/response_fields/user_id"]
        ),
        (
            #"{"name": "a", "documentation": "d", "as_of": "x", "error_rules": [{"equals": "e"}, {"equals": "e", "means": "odd"}]}"#,
            ["/error_rules/1/means"]
        ),
        (
            #"{"name": "a", "documentation": "d", "as_of": "x", "parameter_names": {"nonce": "n"}}"#,
            ["/parameter_names/nonce"]
        ),
        (#"{"name": "a", "documentation": "d", "as_of": "x", "scope_separator": ";"}"#, ["/scope_separator"]),
        (
            #"{"name": "a", "documentation": "d", "as_of": "x", "session_ending_answers": [{"status": 429}]}"#,
            ["/session_ending_answers/0/status"]
        ),
    ])
    func `are refused with the place of each fault`(text: String, faults: [String]) throws {
        var reader = ObjectReader(try JSONValue(parsing: Array(text.utf8)))
        _ = ProviderPreset(&reader)
        reader.refuseUnknown()
        #expect(reader.faults.told.map(\.pointer) == faults)
    }
}

@Suite struct `Address template` {
    private static func fill(_ template: AddressTemplate, _ values: [String: String]) -> String? {
        template.filled { values[$0.text] }
    }

    // Q41
    @Test(
        arguments: [
            ("https://a.example/x", [:], "https://a.example/x"),
            ("https://{shop}.example/x", ["shop": "acme"], "https://acme.example/x"),
            ("https://{a}.example/{b}/{a}", ["a": "1", "b": "2"], "https://1.example/2/1"),
            ("https://{shop}.example/x", [:], nil),
            ("{auth_service_base_uri}/token", ["auth_service_base_uri": "https://a/v1"], "https://a/v1/token"),
            ("{auth_service_base_uri}/token", ["auth_service_base_uri": "https://a/v1/"], "https://a/v1/token"),
        ] as [(String, [String: String], String?)])
    func `is filled with a tenant's values`(text: String, values: [String: String], address: String?) throws {
        #expect(Self.fill(try #require(AddressTemplate(WireText(text))), values) == address)
    }

    @Test(arguments: ["https://{a", "https://{}.example", "{"])
    func `is refused with an open or empty placeholder`(text: String) {
        #expect(AddressTemplate(WireText(text)) == nil)
    }

    @Test(arguments: [
        ("acme", true), ("a", true), (String(repeating: "a", count: 253), true),
        (String(repeating: "a", count: 254), false),
        ("", false), ("a.b-c_D9", true), ("-a", false), (".a", false), ("a.", false), ("..", false), ("a..b", false),
        ("a/b", false),
        ("a@b", false), ("a:1", false), ("a%2f", false), ("a b", false), ("ä", false), ("a?b", false), ("a#b", false),
        ("a\\b", false),
    ])
    func `takes values that can stand in a host name or a path`(value: String, isUsable: Bool) {
        #expect((AddressTemplate.fault(WireText(value)) == nil) == isUsable)
    }
}

@Suite struct `JSON pointer` {
    @Test(
        arguments: [
            ("/a", "1"), ("/b/c", "2"), ("/b/d/0", "3"), ("/b/d/1", nil), ("/b/d/x", nil), ("/e~1f", "4"),
            ("/g~0h", "5"),
            ("/n", nil), ("/a/b", nil), ("/", nil), ("/b/d/-1", nil),
        ] as [(String, String?)])
    func `finds a value, unless it is null`(pointer: String, found: String?) throws {
        let json = try JSONValue(
            parsing: Array(#"{"a": "1", "b": {"c": "2", "d": ["3"]}, "e/f": "4", "g~h": "5", "n": null}"#.utf8))
        let value = try #require(JSONPointer(WireText(pointer))).value(in: json)
        #expect(value?.string?.text == found)
    }

    @Test func `begins with a slash`() {
        #expect(JSONPointer("a") == nil && JSONPointer("") == nil)
    }
}
