import CommandLineClient
import ExternalText
import JSON
import OAuth
import Testing

@Suite struct `The formats of a token` {
    private static let jwt = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiI0MiJ9.c2lnbmF0dXJl"

    private static func answer(_ token: String, _ more: String = "") throws -> TokenAnswer {
        TokenAnswer(
            try JSONValue(
                parsing: Array(
                    #"""
                    {"level": "user", "token_type": "Bearer", "expires": "2026-11-21T10:00:00Z", "user_id": "42",
                     "token": \#(token)\#(more)}
                    """#.utf8)))
    }

    private static func json(_ bytes: [UInt8]) throws -> JSONValue { try JSONValue(parsing: bytes) }

    private static func value(_ text: String) throws -> JSONValue { try JSONValue(parsing: Array(text.utf8)) }

    // MARK: The broker's answer

    @Test(arguments: [
        ("1970-01-01T00:00:00Z", 0), ("2026-11-21T10:00:00Z", 1_795_255_200),
        ("2026-11-21T10:00:00.999Z", 1_795_255_200),
        ("2028-02-29T23:59:59Z", 1_835_481_599), ("2026-11-21T10:00:00", nil), ("2026-13-21T10:00:00Z", nil),
        ("tomorrow", nil), ("", nil),
    ])
    func `have the expiry in seconds since 1970`(time: String, seconds: Int64?) throws {
        let answer = TokenAnswer(try Self.value(#"{"level": "user", "token": "t", "expires": "\#(time)"}"#))
        #expect(answer.expiry == seconds)
    }

    @Test func `tell of a session that has ended`() throws {
        let answer = TokenAnswer(
            try Self.value(
                #"""
                {"level": "basic", "token": null, "expires": null,
                 "session": {"ended": "2026-11-21T09:58:00Z", "cause": "revoked", "reconnect_uri": "https://b.example/r"}}
                """#))
        #expect(answer.token == nil && answer.expiry == nil)
        #expect(answer.ending?.contains("2026-11-21T09:58:00Z (revoked)") == true)
        #expect(answer.ending?.hasSuffix("at https://b.example/r") == true)
        #expect(try Self.answer(#""t""#).ending == nil)
    }

    // MARK: env

    @Test func `env quotes what a shell would take for something else`() {
        #expect(TokenFormats.env("a'b $c `d` \\", names: ["T"]) == "export T='a'\\''b $c `d` \\'\n")
        #expect(TokenFormats.env("t", names: ["A", "B_1"]) == "export A='t'\nexport B_1='t'\n")
    }

    @Test(arguments: [
        ("TOKEN", true), ("_t1", true), ("", false), ("1T", false), ("A-B", false), ("A=B", false), ("A B", false),
        ("Ä", false), ("$(x)", false),
    ])
    func `env has names that a variable can have only`(name: String, isOne: Bool) {
        #expect(TokenFormats.isVariableName(name) == isOne)
    }

    // MARK: Kubernetes

    @Test(arguments: [
        (nil, "client.authentication.k8s.io/v1"),
        (
            #"{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}"#,
            "client.authentication.k8s.io/v1"
        ),
        (#"{"apiVersion": "client.authentication.k8s.io/v1beta1"}"#, "client.authentication.k8s.io/v1beta1"),
    ])
    func `exec-credential has the version that is asked for`(information: String?, version: String) throws {
        let bytes = try TokenFormats.execCredential("t", expires: "2026-11-21T10:00:00Z", information: information)
        #expect(
            try Self.json(bytes)
                == Self.value(
                    #"""
                    {"apiVersion": "\#(version)", "kind": "ExecCredential",
                     "status": {"token": "t", "expirationTimestamp": "2026-11-21T10:00:00Z"}}
                    """#))
    }

    @Test func `exec-credential has no time for a token that does not expire`() throws {
        let bytes = try TokenFormats.execCredential("t", expires: nil, information: nil)
        #expect(try Self.json(bytes)["status"] == Self.value(#"{"token": "t"}"#))
    }

    @Test(arguments: [#"{"apiVersion": "client.authentication.k8s.io/v1alpha1"}"#, "{}", "nonsense"])
    func `exec-credential refuses another version`(information: String) {
        #expect(throws: CommandError.self) {
            try TokenFormats.execCredential("t", expires: nil, information: information)
        }
    }

    // MARK: Google

    @Test(arguments: [nil, "urn:ietf:params:oauth:token-type:jwt", "urn:ietf:params:oauth:token-type:id_token"])
    func `google-executable has a JWT with the kind that is asked for`(asked: String?) throws {
        let bytes = try TokenFormats.googleExecutable(try Self.answer(#""\#(Self.jwt)""#), asked: asked)
        #expect(
            try Self.json(bytes)
                == Self.value(
                    #"""
                    {"version": 1, "success": true, "token_type": "\#(asked ?? "urn:ietf:params:oauth:token-type:jwt")",
                     "id_token": "\#(Self.jwt)", "expiration_time": 1795255200}
                    """#))
    }

    @Test func `google-executable prefers the ID token`() throws {
        let answer = try Self.answer(#""opaque""#, #", "extra": {"id_token": "\#(Self.jwt)"}"#)
        #expect(
            try Self.json(TokenFormats.googleExecutable(answer, asked: nil))["id_token"] == .string(WireText(Self.jwt)))
    }

    @Test func `google-executable refuses what Google does not exchange`() throws {
        let (opaque, jwt) = (try Self.answer(#""opaque""#), try Self.answer(#""\#(Self.jwt)""#))
        #expect(throws: CommandError.self) { try TokenFormats.googleExecutable(opaque, asked: nil) }
        #expect(throws: CommandError.self) {
            try TokenFormats.googleExecutable(jwt, asked: "urn:ietf:params:oauth:token-type:saml2")
        }
    }

    @Test func `google-executable tells a failure in Google's form`() throws {
        let failure = TokenFormats.googleFailure(CommandError(.notLoggedIn, "no user", next: "token-broker login web"))
        #expect(
            try Self.json(failure)
                == Self.value(
                    #"""
                    {"version": 1, "success": false, "code": "notLoggedIn",
                     "message": "no user. Try: token-broker login web"}
                    """#))
    }

    @Test(arguments: [
        (jwt, true), ("a.b.c", false), ("eyJhbGciOiJFUzI1NiJ9..x", false), ("eyJhbGciOiJFUzI1NiJ9.e30", false),
        ("e30.e30.e30", false), ("", false),
    ])
    func `are told from JWTs`(text: String, isOne: Bool) {
        #expect(TokenFormats.isJWT(text) == isOne)
    }

    // MARK: AWS

    @Test func `aws-process has the keys that a token is`() throws {
        let answer = try Self.answer(
            #""{\"AccessKeyId\": \"AKIA1\", \"SecretAccessKey\": \"s\", \"SessionToken\": \"x\"}""#)
        #expect(
            try Self.json(AWSCredentials(answer).document)
                == Self.value(
                    #"""
                    {"Version": 1, "AccessKeyId": "AKIA1", "SecretAccessKey": "s", "SessionToken": "x",
                     "Expiration": "2026-11-21T10:00:00Z"}
                    """#))
    }

    @Test func `aws-process has the keys that stand beside a token`() throws {
        let answer = try Self.answer(
            #""opaque""#,
            #", "extra": {"AccessKeyId": "AKIA1", "SecretAccessKey": "s", "Expiration": "2030-01-01T00:00:00Z"}"#)
        #expect(
            try Self.json(AWSCredentials(answer).document)
                == Self.value(
                    #"{"Version": 1, "AccessKeyId": "AKIA1", "SecretAccessKey": "s", "Expiration": "2030-01-01T00:00:00Z"}"#
                ))
    }

    @Test(arguments: [#""opaque""#, #""{\"AccessKeyId\": \"AKIA1\"}""#, #""[1]""#])
    func `aws-process refuses a token without keys`(token: String) throws {
        let answer = try Self.answer(token)
        let error = #expect(throws: CommandError.self) { try AWSCredentials(answer) }
        #expect(error?.status == .failed)
    }

    @Test func `aws-process has the keys of a role`() throws {
        let keys = AWSCredentials(
            roleCredentials: try Self.value(
                #"""
                {"roleCredentials": {"accessKeyId": "ASIA1", "secretAccessKey": "s", "sessionToken": "x",
                 "expiration": 1795255200123}}
                """#))
        #expect(keys?.expiration == "2026-11-21T10:00:00Z")
        #expect(keys?.accessKeyID == "ASIA1" && keys?.secretAccessKey == "s" && keys?.sessionToken == "x")
        #expect(AWSCredentials(roleCredentials: try Self.value(#"{"roleCredentials": {}}"#)) == nil)
    }

    // MARK: Git

    @Test func `git is answered for what it asks`() {
        let asked = GitCredential(
            Array(
                "protocol=https\r\nhost=Git.Example\ncapability[]=authtype\nwwwauth[]=Basic realm=x\npath=a=b\n\nhost=late\n"
                    .utf8))
        #expect(asked.attributes == ["protocol": "https", "host": "Git.Example", "path": "a=b"])
        #expect(asked.host == "git.example")
        #expect(
            asked.answer("t", username: "oauth2", expiry: 17) == "username=oauth2\npassword=t\npassword_expiry_utc=17\n"
        )
        #expect(asked.answer("t", username: "oauth2", expiry: nil) == "username=oauth2\npassword=t\n")
    }

    @Test func `git keeps the user that it names`() {
        let asked = GitCredential(Array("protocol=https\nhost=h\nusername=alice\n".utf8))
        #expect(asked.answer("t", username: "oauth2", expiry: nil) == "username=alice\npassword=t\n")
    }

    @Test(arguments: [
        ("https", "git.example", false), ("http", "git.example", true), ("http", "git.example:8080", true),
        ("http", "localhost:3000", false), ("http", "127.0.0.1", false), ("http", "[::1]:3000", false),
        ("http", "localhost.example", true), ("http", "", true), ("HTTPS", "git.example", false),
        ("http", "127.0.0.1.evil.example", true), ("http", "127.evil.example", true),
        ("http", "127.0.0.1@evil.example", true),
        ("http", "localhost:80@evil.example", true), ("http", "127.0.0.2:80", false), ("http", "LOCALHOST", false),
        ("HTTP", "git.example", true), ("HTTP", "localhost", false), ("ftp", "git.example", true),
        ("ws", "localhost", true),
        ("", "git.example", true), ("http", "[::1", true), ("http", "[::1].evil.example", true),
    ])
    func `git is given no token for a network that others read`(scheme: String, host: String, isExposed: Bool) {
        #expect(GitCredential(Array("protocol=\(scheme)\nhost=\(host)\n".utf8)).isExposed == isExposed)
    }

    @Test(arguments: [
        ("host=git.example", "git.example", true), ("url=http://git.example/a", "git.example", true),
        ("url=https://git.example/a", "git.example", false), ("url=git.example\nhost=h", "h", true),
        ("url=http://localhost:80@evil.example/a", "evil.example", true), ("protocol=https\nurl=http://h", "h", true),
        ("url=https://alice:x@git.example:8443?a", "git.example:8443", false),
    ])
    func `git's address stands for its parts, and without a protocol there is no token`(
        lines: String, host: String, isExposed: Bool
    ) {
        let asked = GitCredential(Array((lines + "\n").utf8))
        #expect(asked.host == host)
        #expect(asked.isExposed == isExposed)
    }

    // MARK: Docker

    @Test func `docker is answered for a server`() throws {
        let bytes = TokenFormats.docker("t", server: "https://ghcr.io", username: "oauth2")
        #expect(
            try Self.json(bytes)
                == Self.value(#"{"ServerURL": "https://ghcr.io", "Username": "oauth2", "Secret": "t"}"#))
    }

    @Test(arguments: [
        ("ghcr.io", "ghcr.io"), ("https://index.docker.io/v1/", "index.docker.io"),
        ("Registry.Example:5000", "registry.example:5000"),
        ("http://h:1/x://y", "h:1"), ("", ""),
    ])
    func `docker names servers in two ways`(server: String, host: String) {
        #expect(TokenFormats.host(ofServer: server) == host)
    }
}
