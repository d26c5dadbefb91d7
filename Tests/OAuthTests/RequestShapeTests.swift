import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing

/// What a profile says about requests.
@Suite struct `The shape of requests` {
    /// A profile with these members beside the required ones, and the places of its faults.
    private static func profile(_ members: String) throws -> (preset: ProviderPreset, faults: [String]) {
        let text = #"""
            {"name": "oauth2", "documentation": "https://a.example", "as_of": "2026-11-29", "required": ["client_id"],
             "notes": [], \#(members)}
            """#
        var reader = ObjectReader(try JSONValue(parsing: Array(text.utf8)))
        let preset = ProviderPreset(&reader)
        reader.refuseUnknown()
        return (preset, reader.faults.told.map(\.pointer))
    }

    @Test(arguments: [
        (#""request_format": "form""#, ProviderPreset.TokenRequestMethod.post),
        (#""request_format": "json", "token_method": "POST""#, .post), (#""request_format": "query""#, .get),
        (#""request_format": "query", "token_method": "POST""#, .post),
        (#""request_format": "query", "token_method": "GET""#, .get),
    ])
    func `has a method for its token requests`(members: String, method: ProviderPreset.TokenRequestMethod) throws {
        let (preset, faults) = try Self.profile(members)
        #expect(preset.tokenRequestMethod == method && faults.isEmpty)
    }

    @Test(arguments: [
        (#""token_method": "GET""#, "/token_method"),
        (#""request_format": "json", "token_method": "GET""#, "/token_method"),
        (#""token_method": "PUT""#, "/token_method"), (#""nonce": true"#, "/nonce"),
        (#""omit_empty": 1"#, "/omit_empty"),
        (#""resource": "a""#, "/resource"), (#""audience": ["a"]"#, "/audience"),
        (#""revocation": {"format": "none"}"#, "/revocation/token_in"),
        (#""revocation": {"auth_method": "x"}"#, "/revocation/auth_method"),
    ])
    func `is refused with its place`(members: String, pointer: String) throws {
        #expect(try Self.profile(members).faults == [pointer])
    }

    @Test func `is the profile's where the tenant says nothing, member by member`() throws {
        let (preset, faults) = try Self.profile(
            #""resource": ["urn:a"], "audience": "x", "nonce": "on", "omit_empty": true, "repeat_scope": true"#)
        #expect(faults.isEmpty)
        var own = RequestShape.Own()
        #expect(preset.shape.replaced(by: own) === preset.shape)
        own.audience = "y"
        own.repeatsScopes = false
        let shape = preset.shape.replaced(by: own)
        #expect(shape.asked == AskedGrant(resources: ["urn:a"], audience: "y"))
        #expect(shape.nonce == .on && shape.omitsEmpty && !shape.repeatsScopes)
    }

    @Test(arguments: [
        AskedGrant(scopes: ScopeSet(["a", "b"])), AskedGrant(resources: ["urn:a", "urn:b"]), AskedGrant(audience: "x"),
        AskedGrant(scopes: ScopeSet(["a"]), resources: ["urn:a"], audience: "x"),
    ])
    func `asks for the same when it was kept`(asked: AskedGrant?) throws {
        let asked = try #require(asked)
        var json = JSONWriter()
        asked.encode(to: &json)
        #expect(AskedGrant(try JSONValue(parsing: json.bytes)) == asked)
        #expect(AskedGrant() == nil)
    }
}
