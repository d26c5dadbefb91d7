internal import Auth
internal import Testing

@Suite struct `Auth configuration` {
    @Test func `credentials do not print their token`() {
        let credentials = Credentials(clientID: "c1", token: "a-secret-token")
        #expect(!"\(credentials)".contains("a-secret-token"))
        #expect(!String(reflecting: credentials).contains("a-secret-token"))
        var text = ""
        dump(credentials, to: &text)
        #expect(!text.contains("a-secret-token"))
    }
}
