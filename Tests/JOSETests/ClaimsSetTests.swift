import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

@Suite struct `Reading a claims set` {
    private func fault(of json: String) -> ClaimsFault? {
        do throws(ClaimsFault) {
            _ = try ClaimsSet(parsing: Array(json.utf8))
            return nil
        } catch {
            return error
        }
    }

    @Test func `gives each claim, and keeps those that are not known`() throws {
        let claims = try ClaimsSet(
            parsing: Array(
                #"""
                {"iss":"https://a.example","sub":"u","aud":["a","b"],"exp":20,"nbf":10.5,"iat":1e1,"auth_time":0,
                "jti":"j","email":null,"entitlements":[{"product":"Network Protection","name":"subscriber"}]}
                """#.utf8))
        #expect(claims.issuer == "https://a.example")
        #expect(claims.subject == "u")
        #expect(claims.audience == ["a", "b"] as [WireText])
        #expect(claims.expiry == NumericDate(seconds: 20))
        #expect(claims.notBefore == NumericDate(sinceEpoch: .milliseconds(10_500)))
        #expect(claims.issuedAt == NumericDate(seconds: 10))
        #expect(claims.authenticatedAt == NumericDate(seconds: 0))
        #expect(try claims.text(.jti) == "j")
        #expect(try claims.text(.scope) == nil)
        #expect(claims.members["email"] == .null)
    }

    // D24
    @Test func `keeps entitlements to products that are not known`() throws {
        let claims = try ClaimsSet(
            parsing: Array(
                #"{"entitlements":[{"product":"Network Protection","name":"subscriber"},{"product":"Flying Carpet"},7]}"#
                    .utf8))
        let entitlements = try #require(claims.members["entitlements"]?.array)
        #expect(entitlements.map { $0["product"]?.text } == ["Network Protection", "Flying Carpet", nil])
    }

    @Test func `has none of the claims that are missing`() throws {
        let claims = try ClaimsSet(parsing: Array("{}".utf8))
        #expect(claims.issuer == nil && claims.subject == nil && claims.audience.isEmpty)
        #expect(claims.expiry == nil && claims.notBefore == nil && claims.issuedAt == nil)
        #expect(claims.authenticatedAt == nil)
    }

    @Test(arguments: [
        ("", ClaimsFault.malformed), ("[]", .malformed), ("null", .malformed), (#""{}""#, .malformed),
        ("{", .malformed),
        ("{}x", .malformed), ("\u{feff}{}", .malformed), (#"{"exp":1,"exp":1}"#, .malformed),
        (#"{"exp":1,"\u0065xp":2}"#, .malformed), (#"{"a":{"b":1,"b":1}}"#, .malformed),
        (#"{"iss":1}"#, .wrongType(.iss)), (#"{"iss":null}"#, .wrongType(.iss)), (#"{"iss":["a"]}"#, .wrongType(.iss)),
        (#"{"sub":1}"#, .wrongType(.sub)), (#"{"sub":null}"#, .wrongType(.sub)),
        (#"{"aud":1}"#, .wrongType(.aud)), (#"{"aud":null}"#, .wrongType(.aud)), (#"{"aud":[]}"#, .wrongType(.aud)),
        (#"{"aud":["a",1]}"#, .wrongType(.aud)), (#"{"aud":["a",null]}"#, .wrongType(.aud)),
        (#"{"aud":[["a"]]}"#, .wrongType(.aud)), (#"{"aud":{"a":1}}"#, .wrongType(.aud)),
    ])
    func `refuses what is none`(json: String, fault: ClaimsFault) {
        #expect(self.fault(of: json) == fault)
    }

    private static let numbers: [(text: String, isDate: Bool)] = [
        ("-1", false), ("-0.5", false), ("0", true), ("-0", true), ("0.5", true), ("1", true), ("1700000000.125", true),
        ("1.7e9", true), ("253402300798", true), ("253402300799", true), ("253402300800", false),
        ("253402300798.5", true), ("253402300799.5", false), ("9223372036854775807", false),
        ("9223372036854775808", false), ("1e300", false), (#""1700000000""#, false), ("null", false), ("true", false),
        ("[1]", false), ("{}", false), (#""""#, false),
    ]

    @Test(arguments: numbers.indices, [Claim.exp, .nbf, .iat, .authTime])
    func `takes numbers from 1970 to the end of 9999 as times`(index: Int, claim: Claim) {
        let (text, isDate) = Self.numbers[index]
        #expect(fault(of: #"{"\#(claim.rawValue)":\#(text)}"#) == (isDate ? nil : .wrongType(claim)), "\(text)")
    }

    @Test func `refuses numbers that no double holds`() {
        #expect(fault(of: #"{"exp":1e309}"#) == .malformed)
        #expect(fault(of: #"{"exp":NaN}"#) == .malformed)
    }

    @Test(arguments: [(99, nil), (100, nil), (101, ClaimsFault.wrongType(.aud))])
    func `has at most 100 audiences`(count: Int, fault: ClaimsFault?) {
        let list = [String](repeating: #""a""#, count: count).joined(separator: ",")
        #expect(self.fault(of: #"{"aud":[\#(list)]}"#) == fault)
    }

    @Test(arguments: [(0, 0), (1_000, 1), (1_999, 1), (2_000, 2), (-1, -1), (-1_000, -1), (-1_001, -2)])
    func `rounds a time down to whole seconds`(milliseconds: Int, seconds: Int64) {
        #expect(NumericDate(sinceEpoch: .milliseconds(milliseconds)).wholeSeconds == seconds)
    }
}
