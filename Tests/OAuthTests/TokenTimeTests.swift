import ExternalText
import GroundTesting
import JSON
import OAuth
import Testing

/// The ends that an answer tells as times, by a profile with either unit.
@Suite struct `A time in a token response` {
    private static let now = Sample.now.seconds

    private static func response(_ member: String, _ value: String, unit: String) throws -> TokenResponse {
        let document = #"""
            {"name": "oauth2", "documentation": "https://a.example", "as_of": "2026-11-29", "required": ["client_id"],
             "notes": [], "expires_unit": "\#(unit)", "response_fields": {"earliest_refresh_at": "/earliest"}}
            """#
        var reader = ObjectReader(try JSONValue(parsing: Array(document.utf8)))
        let profile = ProviderPreset(&reader)
        let body = #"{"access_token": "at-1", "\#(member)": \#(value)}"#
        return try #require(TokenResponse(body: Array(body.utf8), askedAt: Sample.now, from: profile))
    }

    /// The times, and the seconds from the request until then.
    private static let times: [(value: String, seconds: Int64)] = [
        ("\(now + 3600)", 3600), ("\(now + 3600).9", 3600), (#""\#(now + 3600)""#, 3600),
        ("\((now + 3600) * 1000)", 3600), ("\((now + 3600) * 1000).5", 3600), (#""\#((now + 3600) * 1000)""#, 3600),
        (#""\#(Sample.now.advanced(by: .seconds(3600)))""#, 3600),
        // Before the request.
        ("0", -now), ("-1", -now), ("\((now - 1) * 1000)", -1), ("1000000000000", 1_000_000_000 - now),
        // Ten years at most.
        ("\(now + 315_360_000)", 315_360_000), ("\(now + 315_360_001)", 315_360_000),
        ("\((now + 315_360_000) * 1000)", 315_360_000), ("\((now + 315_360_001) * 1000)", 315_360_000),
        ("99999999999", 315_360_000), (#""9999-12-31T23:59:59Z""#, 315_360_000),
        ("9223372036854775807", 315_360_000), ("1e300", 315_360_000),
    ]

    @Test(arguments: times, ["seconds", "milliseconds"])
    func `is read in the unit that its size tells`(time: (value: String, seconds: Int64), unit: String) throws {
        let response = try Self.response("expires_at", time.value, unit: unit)
        #expect(response.expires.map { $0.seconds - Self.now } == time.seconds)
        #expect(response.lifetime.map { $0 < .seconds(315_360_001) } == true)
        let later = try Self.response("earliest", time.value, unit: unit)
        #expect(later.earliestRefresh.map { $0.seconds - Self.now } == time.seconds)
    }

    /// Numbers that are times after 5138 in seconds, and from 1973 to 2001 in milliseconds.
    @Test(arguments: [100_000_000_000, 253_402_300_799, 253_402_300_800, 999_999_999_999])
    func `is read in the profile's unit where its size does not tell it`(number: Int64) throws {
        let inSeconds = try Self.response("expires_at", "\(number)", unit: "seconds")
        #expect(inSeconds.expires?.seconds == Self.now + 315_360_000)
        let inMilliseconds = try Self.response("expires_at", "\(number)", unit: "milliseconds")
        #expect(inMilliseconds.expires?.milliseconds == number)
    }

    @Test(
        arguments: [
            ("expires_in", "seconds", 3600), ("expires_in", "milliseconds", 3_600_000),
        ] as [(String, String, Int64)])
    func `does not change how lifetimes are read`(member: String, unit: String, value: Int64) throws {
        #expect(try Self.response(member, "\(value)", unit: unit).lifetime == .seconds(3600))
    }
}
