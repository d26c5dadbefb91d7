import Cryptography
import ExternalText
import GroundTesting
import HTTPCodec
import JSON
import OAuth
import Testing

/// The time for reading text from browsers and providers is proportional to its size, whatever it contains.
struct `Cost of OAuth` {
    private static let texts: [(name: String, make: @Sendable (Int) -> String)] = [
        ("marks", { HostileText.marks($0) }), ("escaped marks", { HostileText.escapedMarks($0) }),
        ("spaces", { HostileText.repeated(" ", $0) }), ("commas", { HostileText.repeated(",", $0) }),
        ("many words", { size in (0..<size / 8).map { "w\($0)" }.joined(separator: " ") }),
        ("full stops", { HostileText.repeated(".", $0) }), ("digits", { HostileText.repeated("9", $0) }),
        ("many pairs", { HostileText.repeated("a&", $0) }), ("letters", { HostileText.repeated("a", $0) }),
        ("colons", { HostileText.repeated(":", $0) }),
    ]

    private static let readers: [(name: String, read: @Sendable (WireText) -> Void)] = [
        ("a browser's answer", { _ = try? AuthorizationResponse(query: $0) }),
        (
            "a browser's answer with it as the state",
            { _ = try? AuthorizationResponse(query: WireText("state=" + $0.text)) }
        ),
        ("a list of scopes", { _ = ScopeSet(granted: $0) }), ("a scope", { _ = ScopeSet([$0]) }),
        ("an error code", { _ = ErrorText.presentable($0) }),
        ("Retry-After", { _ = RetryAfter.parse($0, status: 429, now: Sample.now) }),
        ("a token", { _ = TokenText.isSendable($0) }),
        ("the end of a token", { _ = TokenResponse.expiry(ofToken: $0) }),
        ("a tenant", { _ = TenantName($0) }), ("a storage key", { _ = StorageKey($0) }),
        ("a provider's name", { _ = ProviderPreset.named($0) }),
        ("a sub-status", { _ = APISubStatus.forcesRefresh($0) }),
        ("a time", { _ = Timestamp(rfc3339: $0.text) }),
    ]

    @Test(arguments: readers.map(\.name))
    func `reading a text is linear`(name: String) throws {
        let read = try #require(Self.readers.first { $0.name == name }).read
        for text in Self.texts {
            let growth = ReadingCost.growth(from: 16_384) {
                WireText(text.make($0))
            } _: { input in
                // Most of these texts are refused at once; the loop makes the time long enough to measure.
                _ = input.utf8.reduce(0) { $0 &+ Int($1) }
                read(input)
            }
            #expect(growth < ReadingCost.limit, "\(text.name)")
        }
    }

    private static let answers: [(name: String, make: @Sendable (String) -> String)] = [
        ("an access token", { #"{"access_token":"\#($0)"}"# }),
        ("a type", { #"{"access_token":"a","token_type":"\#($0)"}"# }),
        ("a refresh token", { #"{"access_token":"a","refresh_token":"\#($0)"}"# }),
        ("scopes", { #"{"access_token":"a","scope":"\#($0)"}"# }),
        ("a list of scopes", { #"{"access_token":"a","scope":["\#($0)","a"]}"# }),
        ("a user", { #"{"access_token":"a","user_id":"\#($0)"}"# }),
        ("an ID token", { #"{"access_token":"a","id_token":"\#($0)"}"# }),
        ("a lifetime", { #"{"access_token":"a","expires_in":"\#($0)"}"# }),
        ("a member", { #"{"access_token":"a","\#($0)":1}"# }), ("an error", { #"{"error":"\#($0)"}"# }),
        ("a sub-status", { #"{"error":"a","sub_status":"\#($0)"}"# }),
        ("a user code", { #"{"device_code":"a","user_code":"\#($0)","verification_uri":"https://a/"}"# }),
        ("an address", { #"{"device_code":"a","user_code":"a","verification_uri":"\#($0)"}"# }),
        (
            "an interval",
            { #"{"device_code":"a","user_code":"a","verification_uri":"https://a/","interval":"\#($0)"}"# }
        ),
    ]

    @Test(arguments: answers.map(\.name))
    func `reading a provider's answer is linear`(name: String) throws {
        let make = try #require(Self.answers.first { $0.name == name }).make
        for text in Self.texts {
            let growth = ReadingCost.growth(from: 16_384) {
                Array(make(text.make($0)).utf8)
            } _: { body in
                _ = TokenResponse(body: body, askedAt: Sample.now, from: .oidc)
                _ = TokenErrorResponse(body: body, answering: .none)
                _ = DeviceAuthorizationResponse(body: body)
            }
            #expect(growth < ReadingCost.limit, "\(text.name)")
        }
    }

    @Test func `looking for secrets in an error is linear in the length of the request`() {
        for text in Self.texts {
            let growth = ReadingCost.growth(from: 16_384) {
                Array("refresh_token=\(FormEncoding.percentEncode(text.make($0)))".utf8)
            } _: { form in
                let sent = SentSecrets(form: form, authorization: nil)
                _ = sent.areRepeated(in: WireText(String(repeating: "a", count: 64)))
            }
            #expect(growth < ReadingCost.limit, "\(text.name)")
        }
    }

    @Test func `comparing credentials is linear in what a provider said`() {
        let growth = ReadingCost.growth(from: 16_384) { size in
            (
                Sample.held(userID: HostileText.marks(size)),
                Sample.held(userID: HostileText.marks(size) + "x")
            )
        } _: { one, other in
            for _ in 0..<10 { _ = one == other }
        }
        #expect(growth < ReadingCost.limit)
    }

    @Test func `a thousand scopes of a grant are read`() {
        let scopes = (0..<1500).map { "s\($0)" }
        #expect(ScopeSet(granted: WireText(scopes.joined(separator: " "))).values.count == 1000)
        #expect(ScopeSet(granted: WireText(scopes.prefix(1000).joined(separator: " "))).values.count == 1000)
    }

    @Test func `user identifiers are compared by their bytes`() {
        #expect(Sample.held(userID: "e\u{301}") != Sample.held(userID: "\u{e9}"))
    }
}
