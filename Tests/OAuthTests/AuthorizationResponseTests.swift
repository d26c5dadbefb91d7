import ExternalText
import GroundTesting
import OAuth
import Testing

@Suite struct `Authorization response` {
    typealias Outcome = AuthorizationResponse.Outcome

    // T56
    @Test(
        arguments: [
            ("code=abc&state=st", .code("abc")), ("state=st&code=abc", .code("abc")),
            ("?code=abc&state=st", .code("abc")),
            ("code=abc&state=st&lang=en&appMode=ios", .code("abc")), ("&&code=abc&&state=st&", .code("abc")),
            ("code=a%2Bb%2Fc%3D&state=st", .code("a+b/c=")), ("code=a+b&state=st", .code("a b")),
            ("code=a%20b&state=st", .code("a b")), ("code=a=b==&state=st", .code("a=b==")),
            ("c%6Fde=abc&state=st", .code("abc")), ("code=%C3%A4&state=st", .code("ä")),
            ("code=abc&state=st&session_state=1&session_state=2", .code("abc")),
        ] as [(String, Outcome)])
    func `a code is percent-decoded, whatever other parameters there are`(query: String, outcome: Outcome) throws {
        let response = try AuthorizationResponse(query: query)
        #expect(response.outcome == outcome)
        #expect(response.state == "st")
    }

    // X09
    @Test(
        arguments: [
            ("xcode=1&code=2&state=st", .code("2")), ("code=2&xcode=1&state=st", .code("2")),
            ("xcode=1&state=st", .incomplete), ("device_code=1&state=st", .incomplete),
            ("Code=1&state=st", .incomplete),
            ("code%3D1&state=st", .incomplete), ("x=code=1&state=st", .incomplete),
            ("xerror=e&code=2&state=st", .code("2")),
            ("Error=e&code=2&state=st", .code("2")), ("x=1%26error%3De&code=2&state=st", .code("2")),
            ("error_description=e&code=2&state=st", .code("2")), ("xstate=1&code=2&state=st", .code("2")),
        ] as [(String, Outcome)])
    func `a name with the same beginning or end is another parameter`(query: String, outcome: Outcome) throws {
        let response = try AuthorizationResponse(query: query)
        #expect(response.outcome == outcome)
        #expect(response.state == "st")
    }

    // T06 T56 X08
    @Test(
        arguments: [
            ("error=access_denied&state=st", "access_denied"), ("?error=access_denied&state=st", "access_denied"),
            ("state=st&error=access_denied", "access_denied"),
            ("code=abc&error=access_denied&state=st", "access_denied"),
            ("error=access_denied&code=abc&state=st", "access_denied"),
            ("error=login_required&error_description=%3Cscript%3E&state=st", "login_required"),
            ("error=a%5Fb&state=st", "a_b"), ("error=%3Cscript%3E&state=st", nil), ("error=not+allowed&state=st", nil),
            ("error&state=st", nil), ("error=&state=st", nil), ("error=&code=abc&state=st", nil),
            ("error=%0d%0aX:1&state=st", nil),
        ] as [(String, String?)])
    func `an error counts in any position, even besides a code`(query: String, code: String?) throws {
        let response = try AuthorizationResponse(query: query)
        #expect(response.outcome == .error(code: code))
        #expect(response.state == "st")
    }

    // T56 T61
    @Test(arguments: ["", "?", "&", "state=st", "code=&state=st", "code&state=st", "?code", "foo=bar", "abc", "=abc"])
    func `a response without code and error is incomplete`(query: String) throws {
        #expect(try AuthorizationResponse(query: query).outcome == .incomplete)
    }

    // H015
    @Test(arguments: [
        ("code=1&code=2&state=st", "code"), ("code=1&code=1&state=st", "code"), ("code=1&state=a&state=b", "state"),
        ("code=1&state=a&state=a", "state"), ("error=a&error=b&state=st", "error"), ("iss=a&iss=a&code=1", "iss"),
        ("code=1&c%6fde=2&state=st", "code"), ("code=&code=1&state=st", "code"), ("error=e&code=1&code=2", "code"),
    ])
    func `a repeated parameter of the protocol is refused`(query: String, name: String) {
        #expect(throws: AuthorizationResponse.Fault.repeatedParameter(name)) {
            try AuthorizationResponse(query: query)
        }
    }

    @Test(arguments: ["code=%", "code=%4", "code=%zz", "code=%ff", "code=abc&state=%C3", "x=%&code=abc&state=st"])
    func `a query that cannot be decoded is refused`(query: String) {
        #expect(throws: AuthorizationResponse.Fault.malformed) { try AuthorizationResponse(query: query) }
    }

    @Test(
        arguments: [
            ("code=1", nil), ("code=1&state", nil), ("code=1&state=", nil), ("code=1&state=s", "s"),
            ("code=1&state=a%2Bb", "a+b"), ("code=1&state=a+b", "a b"), ("code=1&state=na", "na"),
        ] as [(String, String?)])
    func `an empty state counts as none`(query: String, state: String?) throws {
        #expect(try AuthorizationResponse(query: query).state == state)
    }

    @Test(
        arguments: [
            ("code=1", nil), ("code=1&iss=https%3A%2F%2Fid.example", "https://id.example"),
            ("code=1&iss=https://id.example/", "https://id.example/"),
            ("code=1&iss=HTTPS://ID.EXAMPLE", "HTTPS://ID.EXAMPLE"),
            ("code=1&iss=", ""), ("error=e&iss=https://id.example", "https://id.example"),
        ] as [(String, String?)])
    func `the issuer is given as it was sent`(query: String, issuer: String?) throws {
        #expect(try AuthorizationResponse(query: query).issuer == issuer)
    }

    @Test func `only one question mark is removed`() throws {
        #expect(try AuthorizationResponse(query: "??code=1").outcome == .incomplete)
        #expect(try AuthorizationResponse(query: "code=1?&state=s").outcome == .code("1?"))
    }
}

@Suite struct `Error text` {
    @Test(arguments: [
        (0, false), (1, true), (2, true), (63, true), (64, true), (65, false), (100_000, false),
    ])
    func `has 1 to 64 characters`(length: Int, isPresentable: Bool) {
        let text = String(repeating: "e", count: length)
        #expect(ErrorText.presentable(WireText(text)) == (isPresentable ? text : nil))
    }

    @Test(arguments: 0...0x7f)
    func `is made of letters, digits and five signs`(scalar: Int) {
        let text = String(Unicode.Scalar(UInt8(scalar)))
        let allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-"
        #expect(ErrorText.presentable(WireText(text)) == (allowed.contains(text) ? text : nil))
    }

    // H075
    @Test(arguments: ["ungültig", "e\u{301}", "\u{ff45}", "<script>", "a b", "a\nb", "Bearer abc"])
    func `any other text is not shown`(text: String) {
        #expect(ErrorText.presentable(WireText(text)) == nil)
    }

    /// The provider may repeat a token that was not in the request.
    @Test(arguments: [
        // 19, 20 and 21 characters.
        ("a1b2c3d4e5f6a7b8c9d", true), ("a1b2c3d4e5f6a7b8c9d0", false), ("a1b2c3d4e5f6a7b8c9d0e", false),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", false), ("eyJhbGciOiJIUzI1NiJ9.e30.x", false),
        ("code_a1b2c3d4e5f6a7b8c9d0", false), ("a1b2c3d4e5._f6a7b8c9d0e1", true),
        ("12345678901234567890", true), ("NotAuthorizedExceptionOfAPool", true), ("account-selection-required", true),
        ("AADSTS700082", true), ("invalid_grant", true), ("11003", true),
        // As base64url: 19, 20 and 21 characters; and names of errors of that length.
        ("aB1_cD2_eF3_gH4_iJ5", true), ("aB1_cD2_eF3_gH4_iJ5k", false), ("aB1_cD2_eF3_gH4_iJ5kL", false),
        ("_aB1_cD2_eF3_gH4.iJ5", true), ("mO3_vXq-L0_kZ8wTfRy4_hVbN2sJd7_eGp5cUa9i_Qx", false),
        ("client_secret_expired_since_2024", true), ("INVALID_CLIENT_SECRET_CODE_7000215", true),
        ("Account_Selection_Is_Required", true),
    ])
    func `an error that looks like a token is not shown`(text: String, isShown: Bool) {
        #expect(ErrorText.shown(text, answering: .none) == (isShown ? text : "withheld"))
    }
}
