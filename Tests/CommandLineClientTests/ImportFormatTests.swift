import ExternalText
import JSON
import OAuth
import Reactor
import Testing

@testable import CommandLineClient

/// The files of tokens that programs have written, with made-up values.
enum TokenFiles {
    static func path(_ name: String) -> String {
        let here = #filePath
        return here[..<(here.lastIndex(of: "/") ?? here.startIndex)] + "/token-files/" + name
    }

    static func bytes(_ name: String) throws -> [UInt8] { try SmallFile.read(path(name), limit: 1 << 20) }
}

@Suite struct `The files of other programs` {
    private static func entries(_ format: TokenFileFormat, _ file: String) throws -> [TokenFileEntry] {
        try format.read(TokenFiles.bytes(file))
    }

    private static func entries(_ format: TokenFileFormat, text: String) throws(TokenFileFault) -> [TokenFileEntry] {
        try format.read(Array(text.utf8))
    }

    private static func fault(_ format: TokenFileFormat, _ text: String) -> TokenFileFault? {
        do throws(TokenFileFault) {
            _ = try entries(format, text: text)
            return nil
        } catch {
            return error
        }
    }

    // MARK: As they are written

    struct Expected: Sendable, CustomStringConvertible {
        let format: String
        let file: String
        let access: String?
        let refresh: String?
        var expires: String? = nil
        var client: String? = nil
        var scopes: [String] = []
        var key: String? = nil

        var description: String { file }
    }

    private static let expected = [
        Expected(
            format: "google-authorized-user", file: "google-auth-authorized-user.json", access: "at-example-0",
            refresh: "rt-example-0", expires: "2030-01-02T03:04:05Z", client: "client-1.apps.example",
            scopes: ["read", "write"]),
        Expected(
            format: "spotipy", file: "spotipy-cache.json", access: "at-example-9", refresh: "rt-example-9",
            expires: "2026-11-29T02:25:45Z", scopes: ["read", "write"]),
        Expected(
            format: "requests-oauthlib", file: "requests-oauthlib-token.json", access: "at-example-16",
            refresh: "rt-example-16", expires: "2026-11-29T02:25:46Z", scopes: ["read", "write"]),
        Expected(
            format: "authlib", file: "authlib-token.json", access: "at-example-27", refresh: "rt-example-27",
            expires: "2026-11-29T02:25:45Z", scopes: ["read", "write"]),
        Expected(
            format: "go-oauth2", file: "go-oauth2-token.json", access: "at-example-36", refresh: "rt-example-36",
            expires: "2026-11-29T02:26:37Z"),
        Expected(
            format: "tidalapi", file: "tidalapi-session.json", access: "at-example-0", refresh: "rt-example-0"),
        Expected(
            format: "rclone", file: "rclone.conf", access: "at-example-46", refresh: "rt-example-46",
            expires: "2026-11-29T02:29:41Z", scopes: ["https://www.googleapis.com/auth/drive.readonly"], key: "gd"),
        Expected(
            format: "aws-sso", file: "aws-sso-session.json", access: "at-example-1", refresh: "rt-example-1",
            expires: "2026-11-29T02:31:15Z", client: "client-1"),
        Expected(
            format: "aws-sso", file: "aws-sso-session-after-refresh.json", access: "at-example-5",
            refresh: "rt-example-5", expires: "2026-11-29T02:34:33Z", client: "client-1"),
        Expected(
            format: "aws-sso", file: "aws-sso-session-after-refresh-without-refresh-token.json",
            access: "at-example-4", refresh: nil, expires: "2026-11-29T02:31:45Z", client: "client-1"),
        Expected(
            format: "gh", file: "gh-hosts.yml", access: "gho_exampletoken0000000000000000000000000", refresh: nil,
            key: "ada"),
    ]

    @Test(arguments: expected)
    func `are read as the program has written them`(_ expected: Expected) throws {
        let format = try #require(TokenFileFormat.all.first { $0.name == expected.format })
        let entries = try Self.entries(format, expected.file)
        #expect(entries.count == 1)
        let entry = try #require(entries.first)
        #expect(entry.refusal == nil)
        #expect(entry.accessToken == expected.access)
        #expect(entry.refreshToken == expected.refresh)
        #expect(entry.expires?.description == expected.expires)
        #expect(entry.clientID == expected.client)
        #expect(entry.scopes == expected.scopes)
        #expect(entry.storageKey == expected.key)
    }

    @Test func `of MSAL give the user's tokens together, and refuse the app's own`() throws {
        let entries = try Self.entries(.msal, "msal-token-cache.json")
        #expect(entries.count == 2)
        let user = try #require(entries.first)
        #expect(user.name == "ada@example.com")
        #expect(user.storageKey == "ada@example.com")
        #expect(user.accessToken == "at-example-1")
        #expect(user.refreshToken == "rt-example-1")
        #expect(user.clientID == "client-1")
        #expect(user.scopes == ["User.Read", "offline_access", "openid", "profile"])
        #expect(user.expires?.description == "2026-11-29T02:26:35Z")
        #expect(user.granted?.description == "2026-11-29T01:26:35Z")
        #expect(entries[1].refusal?.contains("no user's") == true)
    }

    // MARK: Boundaries

    @Test(arguments: [
        ("2026-11-29T02:26:37.765991693+09:00", "2026-11-28T17:26:37Z"),
        ("2026-11-29T02:26:37-03:30", "2026-11-29T05:56:37Z"),
        ("0001-01-01T00:00:00Z", nil), ("", nil),
    ])
    func `of Go have the end of a token with an offset, and the year 1 for none`(expiry: String, read: String?) throws {
        let text = #"{"access_token": "a", "token_type": "Bearer", "refresh_token": "r", "expiry": "\#(expiry)"}"#
        let entries = try Self.entries(.goOAuth2, text: text)
        #expect(entries.map { $0.expires?.description } == [read])
        #expect(entries.first?.refusal == nil)
    }

    @Test(arguments: [
        ("1795919145", "2026-11-29T02:25:45Z"), ("1795919145.75", "2026-11-29T02:25:45Z"),
        (#""1795919145""#, "2026-11-29T02:25:45Z"), ("1795919145000", "2026-11-29T02:25:45Z"), ("null", nil),
    ])
    func `have times as numbers and texts of seconds`(value: String, read: String?) throws {
        let entries = try Self.entries(.authlib, text: #"{"access_token": "a", "expires_at": \#(value)}"#)
        #expect(entries.map { $0.expires?.description } == [read])
        #expect(entries.first?.refusal == nil)
    }

    @Test(arguments: ["true", #""soon""#, "-1", "1e300", "[]"])
    func `with a time that is none are refused, and told`(value: String) throws {
        let entries = try Self.entries(.authlib, text: #"{"access_token": "a", "expires_at": \#(value)}"#)
        #expect(entries.first?.refusal == "its expires_at is no time")
    }

    @Test func `may have several accounts by their names`() throws {
        let entries = try Self.entries(
            .spotipy, text: #"{"bob": {"refresh_token": "r2"}, "ada": {"access_token": "a1", "scope": "x,y"}}"#)
        #expect(entries.map(\.name) == ["ada", "bob"])
        #expect(entries.map(\.storageKey) == ["ada", "bob"])
        #expect(entries[0].scopes == ["x", "y"])
        #expect(entries[1].refreshToken == "r2")
    }

    @Test(arguments: [
        "", "{", "[]", "3", "{}", #"{"a": 1}"#, #"{"access_token": "a", "access_token": "b"}"#,
        String(repeating: "[", count: 1 << 20), String(repeating: #"{"a":"#, count: 200_000),
        "\u{0}", "{\"access_token\": \"\u{1}\"}",
    ])
    func `that are none are refused at once`(text: String) {
        for format in TokenFileFormat.all where format.name != "nango" && format.name != "oauth2-proxy" {
            if format.name == "rclone" || format.name == "gh" { continue }
            #expect(Self.fault(format, text) != nil, "\(format.name)")
        }
        #expect(Self.fault(.rclone, text) != nil)
    }

    @Test func `with a member of another kind refuse the entry alone`() throws {
        let entries = try Self.entries(
            .authlib,
            text:
                #"{"ada": {"access_token": 7}, "bob": {"access_token": "b", "scope": 3}, "cy": {"access_token": "c"}}"#)
        #expect(entries.map(\.refusal) == ["its access_token is no text", "its scopes are no texts", nil])
    }

    // MARK: google

    @Test(arguments: [
        ("2030-01-02T03:04:05", "2030-01-02T03:04:05Z"), ("2030-01-02T03:04:05.5+01:00", "2030-01-02T02:04:05Z"),
    ])
    func `of google-auth have times in UTC unless they say otherwise`(expiry: String, read: String) throws {
        let entries = try Self.entries(
            .googleAuthorizedUser, text: #"{"token": "a", "refresh_token": "r", "expiry": "\#(expiry)"}"#)
        #expect(entries.map { $0.expires?.description } == [read])
    }

    @Test func `of gcloud have a refresh token only, and the account's name`() throws {
        let entries = try Self.entries(
            .googleAuthorizedUser,
            text:
                #"{"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r", "account": "ada@example.com"}"#
        )
        #expect(entries.map(\.accessToken) == [nil])
        #expect(entries.map(\.storageKey) == ["ada@example.com"])
        #expect(
            Self.fault(.googleAuthorizedUser, #"{"type": "service_account"}"#)?.text.contains("service_account") == true
        )
    }

    // MARK: rclone

    @Test func `of rclone give each remote, and say which has no token`() throws {
        let entries = try Self.entries(
            .rclone,
            text: """
                ; a comment
                [gd]
                type = drive
                client_id = c1
                scope = drive,drive.file
                token = {"access_token":"a","token_type":"Bearer","refresh_token":"r","expiry":"0001-01-01T00:00:00Z"}

                [s3]
                type = s3
                [box]\r
                type = box\r
                token = {broken\r
                """)
        #expect(entries.map(\.name) == ["gd", "s3", "box"])
        #expect(entries[0].clientID == "c1")
        #expect(entries[0].expires == nil)
        #expect(entries[0].notes.isEmpty)
        #expect(
            entries[0].scopes
                == ["https://www.googleapis.com/auth/drive", "https://www.googleapis.com/auth/drive.file"])
        #expect(entries[1].refusal == "a remote of the type s3 without a token")
        #expect(entries[2].refusal == "its token is no JSON object")
    }

    @Test(arguments: [
        ("# Encrypted rclone configuration File\n\nRCLONE_ENCRYPT_V0:\nabc", 3), ("[a]\n[a]", 2), ("x", 1),
        ("[a]\nx", 2),
    ])
    func `of rclone that cannot be read are refused with the line`(text: String, line: Int) {
        #expect(Self.fault(.rclone, text)?.line == line)
    }

    // MARK: gh

    @Test func `of gh give each user of each host, and say whose token is in the keyring`() throws {
        let entries = try Self.entries(
            .gitHubCLI,
            text: """
                github.com:
                    users:
                        ada:
                            oauth_token: gho_1
                        bob:
                    git_protocol: https
                    oauth_token: gho_1
                    user: ada
                ghe.example:
                    user: "cy"
                    oauth_token: 'gho_3'
                """)
        #expect(entries.map(\.name) == ["ada at github.com", "bob at github.com", "cy at ghe.example"])
        #expect(entries.map(\.accessToken) == ["gho_1", nil, "gho_3"])
        #expect(entries[1].refusal?.contains("keyring") == true)
        #expect(entries.map(\.group) == ["github.com", "github.com", "ghe.example"])
    }

    @Test(arguments: [
        ("a:\n\tuser: x", 2), ("a:\n    user: &x y", 2), ("a:\n    - x", 2), ("a:\n    user: |\n        x", 2),
        ("a: {user: x}", 1), ("a:\n    user: \"x\\n\"", 2), ("a:\n    user: x\n      token: y", 3),
        ("a:\n    b: 1\n  c: 2", 3),
        ("a:\n    b: 1\n    b: 2", 3), ("  a:\n    b: 1", 1), ("a:\n b:\n  c:\n   d:\n    e: 1", 5), ("just text", 1),
        ("a:\n    user: x # y", 2),
    ])
    func `of gh in YAML that gh does not write are refused with the line`(text: String, line: Int) {
        #expect(Self.fault(.gitHubCLI, text)?.line == line, "\(text)")
    }

    @Test func `of gh made to hurt are refused soon`() {
        #expect(Self.fault(.gitHubCLI, (0..<2000).map { String(repeating: " ", count: $0) + "a:\n" }.joined()) != nil)
        #expect(Self.fault(.gitHubCLI, String(repeating: "a:\n", count: 300_000)) != nil)
        #expect(Self.fault(.gitHubCLI, String(repeating: " ", count: 1 << 20)) != nil)
    }

    // MARK: AWS, Nango, oauth2-proxy

    @Test func `of AWS that are a client's registration are refused with what to name`() throws {
        let text = String(decoding: try TokenFiles.bytes("aws-sso-client-registration.json"), as: UTF8.self)
        #expect(Self.fault(.awsSSO, text)?.text.contains("registration of a client") == true)
    }

    private static let connection =
        #"{"connection_id": "u1", "provider_config_key": "github", "credentials": {"type": "OAUTH2", "access_token": "a", "#
        + #""refresh_token": "r", "expires_at": "2026-03-08T09:43:03.725Z", "raw": {"scope": "repo,user", "token_type": "bearer"}}}"#

    @Test(arguments: [
        connection, "[\(connection)]", #"{"connections": [\#(connection)]}"#,
        connection + "\n" + connection.replacing("u1", with: "u2") + "\n",
    ])
    func `of Nango are one connection, a list, or lines`(text: String) throws {
        let entries = try Self.entries(.nango, text: text)
        #expect(entries.map(\.storageKey) == (text.contains("u2") ? ["u1", "u2"] : ["u1"]))
        let entry = try #require(entries.first)
        #expect(entry.refusal == nil)
        #expect(entry.group == "github")
        #expect(entry.accessToken == "a")
        #expect(entry.refreshToken == "r")
        #expect(entry.expires?.description == "2026-03-08T09:43:03Z")
        #expect(entry.scopes == ["repo", "user"])
    }

    @Test func `of Nango say which connections have nothing to take over`() throws {
        let entries = try Self.entries(
            .nango,
            text: #"[{"connection_id": "1"}, {"connection_id": 2, "credentials": {"type": "BASIC"}}, 3, "#
                + #"{"connection_id": "4", "credentials": {"type": "API_KEY", "apiKey": "k"}}]"#)
        #expect(entries[0].refusal?.contains("GET /connection/") == true)
        #expect(entries[1].refusal?.contains("BASIC") == true)
        #expect(entries[2].refusal == "it is no object")
        #expect(entries[3].refusal == nil)
        #expect(entries[3].accessToken == "k")
    }

    @Test func `of oauth2-proxy are read in clear, and refused with the reason otherwise`() throws {
        let entries = try Self.entries(
            .oauth2Proxy,
            text:
                #"{"AccessToken": "a", "RefreshToken": "r", "Email": "ada@example.com", "ExpiresOn": "2030-01-01T00:00:00Z", "#
                + #""CreatedAt": "2026-11-01T00:00:00Z"}"#)
        #expect(entries.map(\.storageKey) == ["ada@example.com"])
        #expect(entries.first?.granted?.description == "2026-11-01T00:00:00Z")
        #expect(Self.fault(.oauth2Proxy, "gAAAAABk")?.text.contains("encrypted") == true)
        #expect(Self.fault(.oauth2Proxy, "") != nil)
    }

    // MARK: MSAL

    @Test func `of MSAL with tokens for several resources keep the refresh token alone`() throws {
        func token(_ target: String) -> String {
            #"{"home_account_id": "a.b", "client_id": "c", "environment": "e", "secret": "at-\#(target)", "target": "\#(target)", "expires_on": "9"}"#
        }
        let entries = try Self.entries(
            .msal,
            text:
                #"{"AccessToken": {"1": \#(token("x")), "2": \#(token("y"))}, "RefreshToken": {"1": {"home_account_id": "a.b", "#
                + #""client_id": "c", "environment": "e", "secret": "r"}}, "Account": {"1": {"home_account_id": "a.b", "#
                + #""username": "ada_example.com#EXT#@x"}}}"#)
        #expect(entries.count == 1)
        #expect(entries.first?.refreshToken == "r")
        #expect(entries.first?.accessToken == nil)
        // A guest's name cannot be a storage key.
        #expect(entries.first?.storageKey == "a.b")
        #expect(entries.first?.notes.count == 1)
    }
}
