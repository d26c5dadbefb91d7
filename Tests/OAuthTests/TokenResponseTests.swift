import Cryptography
import ExternalText
import GroundTesting
import OAuth
import Testing

@Suite struct `Token response` {
    private func parse(_ body: String) -> TokenResponse? {
        TokenResponse(body: Array(body.utf8), askedAt: Sample.now, from: .oidc)
    }

    /// A body with a token and the given members.
    private func parse(with members: String) -> TokenResponse? {
        parse(#"{"access_token":"at-1","token_type":"Bearer","# + members + "}")
    }

    /// The expiry in seconds from the time of the request.
    private func lifetime(_ response: TokenResponse?) -> Int64? {
        response?.expires.map { $0.seconds - Sample.now.seconds }
    }

    @Test func `TIDAL's response is read, and its additional members are ignored`() throws {
        let response = try #require(
            parse(
                #"""
                {"scope":"w_usr r_usr w_sub","user":{"userId":42,"email":"jo@example.com"},"clientName":"Car",
                "token_type":"Bearer","access_token":"at-1","refresh_token":"rt-1","expires_in":43200,"user_id":42}
                """#))
        #expect(response.accessToken.revealedText == "at-1")
        #expect(response.refreshToken?.revealedText == "rt-1")
        #expect(response.expires == Sample.now.advanced(by: .seconds(43_200)))
        #expect(response.scopes?.values == ["r_usr", "w_sub", "w_usr"])
        #expect(response.userID == "42")
    }

    @Test func `an access token alone is enough`() throws {
        let response = try #require(parse(#"{"access_token":"at-1"}"#))
        #expect(response.accessToken.revealedText == "at-1")
        #expect(response.refreshToken == nil)
        #expect(response.expires == nil)
        #expect(response.scopes == nil)
        #expect(response.userID == nil)
    }

    // H096
    @Test(arguments: [
        "", " ", "null", "true", "42", #""at-1""#, "[]", #"[{"access_token":"at-1"}]"#, "{}", "{",
        #"{"access_token":"at-1""#, #"{"access_token":"at-1"}}"#, #"{"access_token":"at-1"} x"#,
        #"{"access_token":"at-1"}{"access_token":"at-2"}"#, "{access_token:at-1}", "{'access_token':'at-1'}",
        "access_token=at-1&token_type=bearer", "<!doctype html><html><body>Sign in</body></html>",
        "<?xml version=\"1.0\"?><access_token>at-1</access_token>", #"{"access_token":null}"#,
        #"{"access_token":""}"#, #"{"access_token":1}"#, #"{"access_token":true}"#, #"{"access_token":["at-1"]}"#,
        #"{"access_token":{"value":"at-1"}}"#, #"{"access_token":" at-1"}"#, #"{"access_token":"at 1"}"#,
        #"{"access_token":"at-1\n"}"#, #"{"access_token":"at-1\r\nX-Injected: 1"}"#, #"{"access_token":"at\u00001"}"#,
        #"{"access_token":"\u007f"}"#, #"{"access_token":"ät"}"#, #"{"Access_Token":"at-1"}"#,
        #"{"accessToken":"at-1"}"#, #"{"data":{"access_token":"at-1"}}"#,
        #"{"access_token":"at-1","access_token":"at-2"}"#, #"{"access_token":"at-1","\u0061ccess_token":"at-2"}"#,
        #"{"error":"invalid_grant"}"#, #"{"token_type":"Bearer","expires_in":3600}"#,
        #"{"access_token":"at-1","token_type":"mac"}"#, #"{"access_token":"at-1","token_type":"DPoP"}"#,
        #"{"access_token":"at-1","token_type":""}"#, #"{"access_token":"at-1","token_type":" Bearer"}"#,
        #"{"access_token":"at-1","token_type":"Bearer "}"#, #"{"access_token":"at-1","token_type":"Bearer,mac"}"#,
        #"{"access_token":"at-1","token_type":1}"#, #"{"access_token":"at-1","token_type":["Bearer"]}"#,
        #"{"access_token":"at-1","token_type":false}"#,
        #"{"access_token":"at-1","refresh_token":1}"#, #"{"access_token":"at-1","refresh_token":false}"#,
        #"{"access_token":"at-1","refresh_token":["rt-1"]}"#, #"{"access_token":"at-1","refresh_token":{}}"#,
    ])
    func `a body without a usable token is refused`(body: String) {
        #expect(parse(body) == nil)
    }

    @Test(
        arguments: [
            ("access_token=at-1&token_type=bearer", true), ("access_token=at-1&access_token=at-2", false),
            ("access_token=at-1&access_token=at-1", false), ("access_token=at-1&%61ccess_token=at-2", false),
            ("access_token=at-1&refresh_token=rt-1&refresh_token=rt-2", false),
            ("access_token=at-1&x=1&x=2", false), ("access_token=at-1&x=1&X=2", true),
        ])
    func `a form with a parameter twice is refused`(body: String, isRead: Bool) {
        let response = TokenResponse(body: Array(body.utf8), askedAt: Sample.now, from: .oidc, isForm: true)
        #expect((response?.accessToken.revealedText == "at-1") == isRead)
        #expect((response == nil) != isRead)
    }

    /// The member with the bytes, and whether the answer is read all the same.
    @Test(arguments: [
        ("access_token", false), ("refresh_token", false), ("token_type", false), ("scope", true), ("name", true),
    ])
    func `bytes that are not UTF-8 are refused in what is used`(member: String, isRead: Bool) {
        var members = ["access_token": Array("at-1".utf8), "token_type": Array("Bearer".utf8)]
        members[member, default: []] += [0xff]
        let body = members.map { Array("\"\($0.key)\":\"".utf8) + $0.value + Array("\"".utf8) }
        let response = TokenResponse(
            body: Array("{".utf8) + Array(body.joined(separator: Array(",".utf8))) + Array("}".utf8),
            askedAt: Sample.now, from: .oidc)
        #expect((response != nil) == isRead)
        #expect(response?.scopes?.values.isEmpty ?? true)
    }

    @Test(arguments: [31, 32])
    func `nesting is bounded`(depth: Int) {
        let nested = String(repeating: "[", count: depth) + String(repeating: "]", count: depth)
        #expect((parse(with: #""x":"# + nested) != nil) == (depth < 32))
    }

    @Test(arguments: [#""Bearer""#, #""bearer""#, #""BEARER""#, "null"])
    func `the type is Bearer in any case, or absent`(type: String) {
        #expect(parse(#"{"access_token":"at-1","token_type":"# + type + "}") != nil)
    }

    @Test(arguments: [#""rt-1""#, #""rt 1""#, #""ä\u0000""#])
    func `a new refresh token is kept as it is`(text: String) {
        #expect(parse(with: #""refresh_token":"# + text)?.refreshToken != nil)
    }

    // H079 Q22
    @Test(arguments: ["null", #""""#])
    func `a refresh token that is null or empty counts as absent`(value: String) throws {
        let response = try #require(parse(with: #""expires_in":60,"refresh_token":"# + value))
        #expect(response.accessToken.revealedText == "at-1")
        #expect(response.refreshToken == nil)
        #expect(lifetime(response) == 60)
    }

    @Test(arguments: ["1", "false", "[]", "{}", #"["rt-1"]"#])
    func `a refresh token of a wrong type counts as absent in the answer to a refresh only`(value: String) throws {
        let body = Array(#"{"access_token":"at-1","refresh_token":\#(value)}"#.utf8)
        let response = try #require(
            TokenResponse(body: body, askedAt: Sample.now, from: .oidc, isRefresh: true))
        #expect(response.refreshToken == nil)
        #expect(response.hasUnreadableRefreshToken)
        #expect(TokenResponse(body: body, askedAt: Sample.now, from: .oidc) == nil)
        #expect(try #require(parse(with: #""refresh_token":null"#)).hasUnreadableRefreshToken == false)
    }

    // H081 Q03 Q49
    @Test(
        arguments: [
            ("3600", 3600), ("1", 1), ("0", 0), ("-1", 0), ("-9223372036854775808", 0), (#""3600""#, 3600),
            (#""0""#, 0),
            (#""-1""#, 0), ("3600.0", 3600), ("3600.9", 3600), ("0.5", 0), ("-0.5", 0),
            ("3.6e3", 3600),
            ("315359999", 315_359_999), ("315360000", 315_360_000), ("315360001", 315_360_000),
            ("1000000000000", 315_360_000), ("1e12", 315_360_000), ("1e300", 315_360_000), ("-1e300", 0),
            ("9223372036854775807", 315_360_000), ("9223372036854775808", 315_360_000),
            (#""1000000000000""#, 315_360_000), (#""70.5""#, 70), (#""70.999""#, 70), ("70.5", 70), (#""0.9""#, 0),
            (#""-0.5""#, 0), (#""-1.5""#, 0), (#""3600.0""#, 3600), (#""315359999.9""#, 315_359_999),
            (#""99999999999999999999""#, 315_360_000), (#""99999999999999999999.9""#, 315_360_000),
        ] as [(String, Int64)])
    func `a lifetime is limited to between zero and ten years`(value: String, seconds: Int64) {
        #expect(lifetime(parse(with: #""expires_in":"# + value)) == seconds)
    }

    private static let unreadable = [
        #""""#, #""soon""#, #""abc""#, #"" 3600""#, #""3600 s""#, #""3600.""#, #"".5""#, #""-""#, #""1.2.3""#,
        #""1e3""#,
        #""0x10""#, #""3 600""#, #""3,600""#, #""nan""#, #""infinity""#, "true", "false", "[3600]", "{}",
        #"{"seconds":3600}"#, #""\#(String(repeating: "1", count: 41))""#,
    ]

    // H081
    @Test(arguments: unreadable)
    func `a lifetime that cannot be read is distinguished from none, and the token is kept`(value: String) throws {
        let response = try #require(parse(with: #""expires_in":"# + value + #","refresh_token":"rt-2""#))
        #expect(response.expires == nil)
        #expect(response.hasUnreadableLifetime)
        #expect(response.refreshToken?.revealedText == "rt-2")
    }

    @Test(arguments: [#""expires_in":null"#, #""x":1"#, #""expires_in":60"#, #""expires_in":"60.5""#])
    func `a lifetime that is null, absent or readable does not count as unreadable`(member: String) throws {
        #expect(try #require(parse(with: member)).hasUnreadableLifetime == false)
    }

    @Test(
        arguments: [
            (#"{"exp":1795255200}"#, 1_795_255_200), (#"{"exp":1795255200.9}"#, 1_795_255_200),
            (#"{"exp":"1795255200"}"#, 1_795_255_200), (#"{"exp":1795251599}"#, 1_795_251_599), (#"{"exp":0}"#, 0),
            (#"{"exp":-5}"#, 0), (#"{"exp":253402300798}"#, 253_402_300_798),
            (#"{"exp":253402300799}"#, 253_402_300_799),
            (#"{"exp":253402300800}"#, 253_402_300_799), (#"{"exp":9223372036854775807}"#, 253_402_300_799),
            (#"{"exp":1e300}"#, 253_402_300_799), ("{}", nil), (#"{"exp":null}"#, nil), (#"{"exp":"soon"}"#, nil),
            (#"{"exp":true}"#, nil), ("[]", nil), (#"{"exp":1,"exp":2}"#, nil), ("not JSON", nil),
        ] as [(String, Int64?)])
    func `without a lifetime the exp claim is used if the token is a JWT`(payload: String, seconds: Int64?) throws {
        let token = Sample.jsonWebToken(payload)
        let response = try #require(parse(#"{"access_token":"\#(token)"}"#))
        #expect(response.expires == seconds.map(Timestamp.init(seconds:)))
    }

    @Test func `a readable lifetime takes precedence over exp`() {
        let token = Sample.jsonWebToken(#"{"exp":1795255200}"#)
        #expect(lifetime(parse(#"{"access_token":"\#(token)","expires_in":60}"#)) == 60)
        #expect(lifetime(parse(#"{"access_token":"\#(token)","expires_in":"soon"}"#)) == 3600)
    }

    @Test(arguments: [
        "opaque", "a.b", "a.b.c", "..", "a..c", "a.eyJleHAiOjF9", "a.eyJleHAiOjF9.b.c", "a.eyJleHAiOjF9=.c",
        "a.eyJleHAiOjF9.c.d.e", ".eyJleHAiOjF.",
    ])
    func `a token that is not a JWT has no known lifetime`(token: String) throws {
        let response = try #require(parse(#"{"access_token":"\#(token)"}"#))
        #expect(response.expires == nil)
    }

    @Test(
        arguments: [
            (#""a b""#, ["a", "b"]), (#""b a b""#, ["a", "b"]), (#""a,b""#, ["a", "b"]), (#"["b","a"]"#, ["a", "b"]),
            (#"["a b","c"]"#, ["a", "b", "c"]), (#"["a",1,null]"#, ["a"]), (#""""#, []), ("[]", []), ("null", nil),
            ("1", nil), ("true", nil), ("{}", nil),
        ] as [(String, [String]?)])
    func `scopes are a text or a list, otherwise they count as absent`(value: String, scopes: [String]?) throws {
        let response = try #require(parse(with: #""scope":"# + value))
        #expect(response.scopes?.values == scopes)
    }

    @Test(
        arguments: [
            ("42", "42"), ("0", "0"), ("9223372036854775807", "9223372036854775807"), (#""42""#, "42"),
            (#""auth0|x y""#, "auth0|x y"), (#""""#, nil), ("null", nil), ("true", nil), ("4.2", nil), ("1e30", nil),
            ("[42]", nil), (#"{"id":42}"#, nil),
        ] as [(String, String?)])
    func `the user is a whole number or a text`(value: String, userID: String?) throws {
        let response = try #require(parse(with: #""user_id":"# + value))
        #expect(response.userID?.text == userID)
    }

    @Test func `an ID token is kept as it came, and nothing of it is believed`() {
        let token = Sample.jsonWebToken(#"{"sub":"s-1"}"#)
        let told = parse(with: #""user_id":42,"id_token":"\#(token)""#)
        #expect((told?.userID, told?.idToken?.revealedText) == ("42", token))
        for member in [#""user_id":null"#, #""user_id":"""#] {
            let response = parse(with: #"\#(member),"id_token":"\#(token)""#)
            #expect((response?.userID, response?.idToken?.revealedText) == (nil, token))
            #expect(response?.identity.isUnknown == true)
        }
        #expect(parse(with: #""id_token":"opaque""#)?.idToken?.revealedText == "opaque")
        for value in [#""""#, "5", "null", "{}"] { #expect(parse(with: #""id_token":"# + value)?.idToken == nil) }
    }
}

@Suite struct `Token text` {
    @Test(arguments: [(0x1f, false), (0x20, false), (0x21, true), (0x7e, true), (0x7f, false), (0x80, false)])
    func `is visible ASCII`(scalar: Int, isSendable: Bool) {
        let text = String(Unicode.Scalar(UInt32(scalar))!)
        #expect(TokenText.isSendable(WireText(text)) == isSendable)
        #expect(TokenText.isSendable(WireText("a" + text + "z")) == isSendable)
    }

    @Test func `is not empty`() {
        #expect(!TokenText.isSendable(""))
    }
}

@Suite struct `Token error response` {
    private func parse(_ body: String) -> TokenErrorResponse {
        TokenErrorResponse(body: Array(body.utf8), answering: .none)
    }

    @Test(
        arguments: [
            (
                #"{"status":400,"error":"invalid_grant","sub_status":11101,"error_description":"Token could not be verified"}"#,
                "invalid_grant", "11101"
            ),
            (
                #"{"status":401,"subStatus":11003,"userMessage":"The token has expired. (Expired on time)"}"#, nil,
                "11003"
            ),
            (#"{"error":"invalid_request"}"#, "invalid_request", nil),
            (#"{"error":"e","subStatus":"6001"}"#, "e", "6001"),
            (#"{"error":"e","sub_status":"6001"}"#, "e", "6001"), (#"{"sub_status":1,"subStatus":2}"#, nil, "1"),
            (#"{"sub_status":-1}"#, nil, "-1"),
        ] as [(String, String?, String?)])
    func `both spellings are read`(body: String, error: String?, subStatus: String?) {
        #expect(parse(body) == TokenErrorResponse(error: error, subStatus: subStatus))
    }

    /// Bodies, and whether they are malformed.
    private static let nameless = [
        ("", false), ("{}", false), (#"{"error":null}"#, false), (#"{"error_description":"e"}"#, false),
        (#"{"sub_status":1.5}"#, false), (#"{"sub_status":true}"#, false), (#"{"sub_status":"a b"}"#, false),
        (" ", true), ("null", true), ("[]", true), ("<html>502 Bad Gateway</html>", true), (#""invalid_grant""#, true),
        ("error=invalid_grant", true), (#"{"error":400}"#, true), (#"{"error":""}"#, true),
        (#"{"error":{"code":"invalid_grant"}}"#, true), (#"{"error":["invalid_grant"]}"#, true),
        (#"{"error":"<script>"}"#, true), (#"{"error":"not a code"}"#, true), (#"{"error":"invalid_grant\n"}"#, true),
        (#"{"error":"invalid_grant","error":"e"}"#, true), (#"{"error":"invalid_grant""#, true),
    ]

    @Test(arguments: nameless)
    func `a body without an error is an error without a name, and isMalformed says whether it could be read`(
        body: String, isMalformed: Bool
    ) {
        let answer = parse(body)
        #expect((answer.error, answer.subStatus, answer.errorCode) == (nil, nil, nil))
        #expect(answer.isMalformed == isMalformed)
        let isObject = body.hasPrefix("{") && body.hasSuffix("}") && !body.contains(#","error""#)
        #expect(answer.isReadable == (isObject || body.isEmpty))
    }

    @Test func `an error that cannot be read does not hide the sub-status`() {
        #expect(
            parse(#"{"error":400,"sub_status":11003}"#)
                == TokenErrorResponse(error: nil, subStatus: "11003", isMalformed: true))
    }

    @Test(arguments: [64, 65])
    func `an error of more than 64 characters is not shown`(length: Int) {
        let text = String(repeating: "e", count: length)
        #expect(parse(#"{"error":"\#(text)"}"#).error == (length == 64 ? text : nil))
    }
}
