import BrokerTesting
import Cryptography
import ExternalText
import FoundationEssentials
import HTTPCodec
import HTTPServer
import JSON
import Reactor
import Synchronization
import Testing

/// What the program writes to its output, to a database and to its directories while secrets pass through every endpoint, and
/// while a provider repeats them in its faults.
@Suite(.timeLimit(.minutes(5)))
struct `Secrets in what the program writes` {
    // MARK: What is looked for

    /// The forms in which a secret can stand in an output.
    static func forms(of secret: String) -> [(name: String, bytes: [UInt8])] {
        let bytes = Array(secret.utf8)
        var forms: [(name: String, bytes: [UInt8])] = [
            ("raw", bytes), ("percent-encoded", Array(FormEncoding.percentEncode(secret).utf8)),
            ("in JSON", Array(JSONWriter.object { $0.member("s", secret) }.dropFirst(6).dropLast(2))),
            ("hexadecimal", bytes.flatMap { Array((($0 < 16 ? "0" : "") + String($0, radix: 16)).utf8) }),
        ]
        // Of base64 the digits that depend on no neighbour, for each place that the secret can have in a group of three octets.
        for place in 0..<3 {
            let group = [UInt8](repeating: 0, count: place) + bytes
            let whole = Array(group.dropLast(group.count % 3))
            let digits = Array(Base64URL.encode(whole).utf8.dropFirst(place == 0 ? 0 : 4))
            forms.append(("base64url, place \(place)", digits))
            let ordinary = digits.map {
                $0 == UInt8(ascii: "-") ? UInt8(ascii: "+") : $0 == UInt8(ascii: "_") ? UInt8(ascii: "/") : $0
            }
            forms.append(("base64, place \(place)", ordinary))
        }
        return forms
    }

    private static func contains(_ text: [UInt8], _ part: [UInt8]) -> Bool {
        Data(text).firstRange(of: Data(part)) != nil
    }

    /// The secrets of one run. Characters that each encoding changes are among them.
    private struct Marks: Sendable {
        let clientSecret = mark("client-secret")
        let code = mark("code")
        let access = (0..<6).map { mark("access-\($0)", isPlain: true) }
        let refresh = (0..<6).map { mark("refresh-\($0)") }
        let deviceCode = mark("device-code")
        let wrongKey = mark("wrong-key", isPlain: true)
        let inQuery = mark("in-query")
        let inBody = mark("in-body")
        let adopted = [mark("adopted-access"), mark("adopted-refresh")]

        var all: [(name: String, secret: String)] {
            [("client secret", clientSecret), ("code", code), ("device code", deviceCode), ("wrong key", wrongKey)]
                + [("query", inQuery), ("body", inBody), ("admin key", BrokerHarness.adminKey)]
                + access.map { ("access token", $0) } + refresh.map { ("refresh token", $0) }
                + adopted.map { ("adopted token", $0) }
        }

        private static func mark(_ name: String, isPlain: Bool = false) -> String {
            name + (isPlain ? "-" : #"+/~%&="\"#) + String(UInt64.random(in: .min ... .max))
        }
    }

    @Test func `a planted secret is found in each form`() {
        let secret = "a+b/c\"d\\e%&=~\u{7a}123"
        let outputs: [[UInt8]] = [
            Array("x \(secret) y".utf8), Array("x=\(FormEncoding.percentEncode(secret))&y".utf8),
            JSONWriter.object { $0.member("k", secret) },
            Array("x\(secret)".utf8.flatMap { String($0, radix: 16).utf8 }),
        ]
        let encoded = (0..<3).map { place in
            Array(Base64URL.encode(Array(String(repeating: "p", count: place).utf8) + Array(secret.utf8)).utf8)
        }
        for output in outputs + encoded {
            #expect(Self.forms(of: secret).contains { Self.contains(output, $0.bytes) })
        }
        #expect(!Self.forms(of: secret).contains { Self.contains(Array("another text, and longer".utf8), $0.bytes) })
    }

    // MARK: The provider

    /// A provider that grants the marked tokens, or repeats secrets in a fault.
    private final class EchoingProvider: Sendable {
        private struct State {
            /// What the next requests of a grant get; afterwards they are granted.
            var faults: [(grant: String, answer: Response)] = []
            var granted = 0
            var asked = 0
        }

        private let state = Mutex(State())
        private let marks: Marks

        init(_ marks: Marks) { self.marks = marks }

        func script(_ grant: String, _ answer: Response) { state.withLock { $0.faults.append((grant, answer)) } }

        var faultsLeft: Int { state.withLock { $0.faults.count } }

        @Sendable func respond(_ request: Request) async -> Response {
            let form = (try? FormEncoding.decode(request.body.span)) ?? []
            func value(_ name: WireText) -> String { form.first { $0.name == name }?.value.text ?? "" }
            switch request.path {
            case "/device":
                let code = marks.deviceCode
                return Self.json(
                    .ok,
                    JSONWriter.object { json in
                        json.member("device_code", code)
                        json.member("user_code", "WDJB")
                        json.member("verification_uri", "https://login.example/link")
                        json.member("expires_in", 300)
                        json.member("interval", 1)
                    })
            case "/token":
                let grant = value("grant_type")
                let fault = state.withLock { state -> Response? in
                    guard let index = state.faults.firstIndex(where: { $0.grant == grant }) else { return nil }
                    return state.faults.remove(at: index).answer
                }
                if let fault { return fault }
                let number = state.withLock { state in
                    defer { state.granted += 1 }
                    return min(state.granted, marks.access.count - 1)
                }
                return Self.json(
                    .ok,
                    JSONWriter.object { json in
                        json.member("access_token", marks.access[number])
                        json.member("refresh_token", marks.refresh[number])
                        json.member("token_type", "Bearer")
                        json.member("expires_in", 3600)
                        json.member("user_id", "7")
                    })
            default:
                return Self.json(.serviceUnavailable, Array(marks.all.map(\.secret).joined(separator: " ").utf8))
            }
        }

        static func json(_ status: Status, _ body: [UInt8]) -> Response {
            Response(status, fields: ["Content-Type": "application/json"], body: body)
        }
    }

    /// Answers of a token endpoint that repeat secrets, none of which ends a session.
    private static func faults(_ marks: Marks) -> [Response] {
        let everything = marks.all.map(\.secret).joined(separator: " ")
        func refusal(_ status: Status, _ error: String, challenge: String? = nil) -> Response {
            var answer = EchoingProvider.json(
                status,
                JSONWriter.object { json in
                    json.member("error", error)
                    json.member("error_description", everything)
                    json.member("error_uri", "https://login.example/?about=\(everything)")
                })
            if let challenge { answer.fields.append("WWW-Authenticate", challenge) }
            return answer
        }
        return [
            refusal(.badRequest, "invalid_request"), refusal(.badRequest, marks.refresh[0]),
            refusal(.badRequest, marks.wrongKey), refusal(.badRequest, "code.0a1b2c3d4e5f6a7b8c9d0e1f"),
            Response(.internalServerError, fields: ["X-Token": marks.wrongKey], body: Array(everything.utf8)),
            Response(.found, fields: ["Location": "https://login.example/?token=\(marks.wrongKey)"]),
            EchoingProvider.json(.ok, Array("{\"access_token\": \(everything)".utf8)),
            EchoingProvider.json(
                .ok,
                JSONWriter.object { json in
                    json.member("refresh_token", marks.refresh[5])
                    json.member("token_type", everything)
                }),
            // The last one: a client that the provider does not accept is not sent again for a while.
            refusal(.unauthorized, "invalid_client", challenge: "Basic realm=\"\(marks.wrongKey)\""),
        ]
    }

    // MARK: The run

    enum Store: CaseIterable { case files, postgres }

    // H020 H046 H056 H057 H061 H075
    @Test(arguments: Store.allCases)
    func `stand nowhere, in no encoding, whatever passes through`(_ store: Store) async throws {
        let marks = Marks()
        let provider = EchoingProvider(marks)
        let server = try Server(
            configuration: ServerConfiguration(
                address: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0), loopCount: 1),
            handler: HTTPClosureHandler(provider.respond))
        let directory = StoreFixtureDirectory()
        var variables = [
            "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true", "LOG_LEVEL": "debug",
        ]
        var database: String?
        switch store {
        case .files: variables["DATA_DIR"] = directory.path
        case .postgres:
            let postgres = try await PostgresServer.shared.value
            database = postgres.uri(database: try await postgres.makeDatabase())
            variables["DATABASE_URL"] = database
            variables["JOURNAL_DIR"] = directory.path
        }
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, variables)
        let broker = try BrokerClient(port: port)
        let told = Mutex<[[UInt8]]>([])
        let (created, key) = try await drive(broker, marks, provider, "http://\(server.address)") { answer in
            told.withLock { $0.append(answer.body + Array("\(answer.fields)".utf8)) }
        }
        #expect(created > 0)
        #expect(provider.faultsLeft == 0)
        #expect(await process.terminate() == 0)

        let secrets = marks.all + [("API key", key), ("master key", String(BrokerHarness.masterKeys.dropFirst(3)))]
        let lines = process.lines
        #expect(lines.contains { $0.contains(#""provider_error":"withheld""#) })
        #expect(lines.contains { $0.contains(#""event":"request""#) })
        var outputs: [(name: String, bytes: [UInt8])] = [("output", Array(lines.joined(separator: "\n").utf8))]
        outputs += told.withLock { $0.enumerated().map { ("answer \($0.offset)", $0.element) } }
        outputs += try Self.files(below: directory.path)
        if let database { outputs.append(("database", try await Self.dump(database))) }
        #expect(outputs.contains { $0.bytes.count > 4000 })
        for (name, secret) in secrets {
            for form in Self.forms(of: secret) {
                for output in outputs where Self.contains(output.bytes, form.bytes) {
                    // The file of the master keys is the secret's own place.
                    if name == "master key", output.name.hasSuffix("master.keys") { continue }
                    Issue.record("\(name), \(form.name), in \(output.name)")
                }
            }
        }
        await broker.close()
        await server.close()
    }

    /// Sends every secret through the endpoints.
    /// - Parameter report: called with each answer that is to have no secret.
    /// - Returns: how many logins were completed, and an API key.
    private func drive(
        _ broker: BrokerClient, _ marks: Marks, _ provider: EchoingProvider, _ base: String,
        _ report: (BrokerHarness.Answer) -> Void
    ) async throws -> (logins: Int, key: String) {
        let configuration = JSONWriter.object { json in
            json.member("provider", "oidc")
            json.member("client_id", "app")
            json.member("client_secret", marks.clientSecret)
            json.member("client_credentials", "off")
            json.name("scopes")
            json.array { $0.string("music") }
            json.name("endpoints")
            json.object { json in
                json.member("authorization", base + "/authorize")
                json.member("token", base + "/token")
                json.member("device_authorization", base + "/device")
                json.member("revocation", base + "/revoke")
            }
        }
        let made = try await broker.call(.put, "/tenants/t1", body: String(decoding: configuration, as: UTF8.self))
        #expect(made.status == 201, "\(made.text)")
        report(made)
        let key = try await broker.call(
            .post, "/tenants/t1/api-keys",
            body: #"{"name": "all", "permissions": ["credentials:read", "credentials:write", "login"]}"#)
        let secret = try #require(key.json["api_key"]?.text, "\(key.text)")

        // Logins: one whose code the provider refuses and repeats, and one that succeeds.
        var logins = 0
        for fault in [refusedCode(marks), nil] {
            if let fault { provider.script("authorization_code", fault) }
            let begun = try await broker.call(.post, "/login/initialize", key: secret, tenant: "t1", body: "{}")
            let uri = try #require(begun.json["login_uri"]?.text, "\(begun.text)")
            let state = try #require(uri.split(separator: "state=").last?.split(separator: "&").first)
            let code = FormEncoding.percentEncode(marks.code)
            let done = try await broker.call(.get, "/login/callback?code=\(code)&state=\(state)", key: nil)
            if done.status == 200 { logins += 1 }
            report(done)
            report(try await broker.call(.get, "/login/callback?code=\(code)&state=\(state)", key: nil))
            report(try await broker.call(.get, "/login/callback?error=\(code)&state=\(code)", key: nil))
        }

        // Refreshes, each with a fault.
        for fault in Self.faults(marks) {
            provider.script("refresh_token", fault)
            let answer = try await broker.call(
                .get, "/credentials?policy=local_force_refresh", key: secret, tenant: "t1")
            if answer.status != 200 { report(answer) }
            report(try await broker.call(.get, "/credentials/status", key: secret, tenant: "t1"))
        }
        let good = try await broker.call(.get, "/credentials", key: secret, tenant: "t1")
        #expect(good.json["level"]?.text == "user", "\(good.text)")

        // A device login whose first poll is refused with secrets.
        provider.script(
            "urn:ietf:params:oauth:grant-type:device_code",
            Response(.internalServerError, body: Array(marks.all.map(\.secret).joined(separator: " ").utf8)))
        let device = try await broker.call(.post, "/device", key: secret, tenant: "t1", body: #"{"storage_key": "tv"}"#)
        let handle = try #require(device.json["device_code"]?.text, "\(device.text)")
        #expect(handle != marks.deviceCode)
        report(try await broker.call(.get, "/device/\(handle)?wait=60", key: secret, tenant: "t1"))

        // Credentials that a caller brings.
        let adopted = JSONWriter.object { json in
            json.member("storage_key", "bob")
            json.member("refresh_token", marks.adopted[1])
            json.name("credentials")
            json.object { json in
                json.member("client_id", "app")
                json.member("user_id", "7")
                json.member("token", marks.adopted[0])
                json.member("expires", "2099-01-01T00:00:00Z")
            }
        }
        let put = try await broker.call(
            .put, "/credentials", key: secret, tenant: "t1", body: String(decoding: adopted, as: UTF8.self))
        #expect(put.status == 200, "\(put.text)")

        try await misuse(broker, marks, report)
        for path in ["/tenants", "/tenants/t1", "/tenants/t1/api-keys", "/credentials/list?tenant=t1", "/metrics"] {
            report(try await broker.call(.get, path, tenant: "t1"))
        }
        report(try await broker.call(.post, "/tenants/t1/check", body: "{}"))
        for storageKey in ["default", "bob", "tv"] {
            let removed = try await broker.call(
                .delete, "/credentials?storage_key=\(storageKey)&revoke=true", key: secret, tenant: "t1")
            #expect(removed.status == 204, "\(removed.text)")
            report(removed)
        }
        return (logins, secret)
    }

    private func refusedCode(_ marks: Marks) -> Response {
        EchoingProvider.json(.badRequest, JSONWriter.object { $0.member("error", marks.code) })
    }

    /// Secrets at places where they do not belong.
    private func misuse(
        _ broker: BrokerClient, _ marks: Marks, _ report: (BrokerHarness.Answer) -> Void
    ) async throws {
        let query = FormEncoding.percentEncode(marks.inQuery)
        let body = String(
            decoding: JSONWriter.object { $0.member(WireText(marks.inBody).text, marks.inBody) }, as: UTF8.self)
        for path in [
            "/credentials?token=\(query)", "/credentials?storage_key=\(query)%00", "/credentials?policy=\(query)",
            "/\(query)", "/tenants/\(query)", "/device/\(query)", "/events?after=\(query)",
        ] {
            report(try await broker.call(.get, path, tenant: "t1"))
        }
        for (method, path) in [
            (Method.put, "/tenants/t2"), (.post, "/login/initialize"), (.post, "/device"), (.put, "/credentials"),
            (.post, "/tenants/t1/api-keys"), (.post, "/oauth2/token"),
        ] {
            report(try await broker.call(method, path, tenant: "t1", body: body))
            report(try await broker.call(method, path, tenant: "t1", body: String(body.dropLast())))
            report(
                try await broker.call(
                    method, path, tenant: "t1", body: body, fields: ["Content-Type": "application/x-\(marks.wrongKey)"])
            )
        }
        for key in [marks.wrongKey, "sk_\(marks.wrongKey)"] {
            report(try await broker.call(.get, "/credentials", key: key, tenant: "t1"))
            report(try await broker.call(.get, "/credentials", tenant: key))
        }
        report(
            try await broker.call(
                .get, "/tenants/t1",
                fields: ["If-None-Match": "\"\(marks.wrongKey)\"", "X-Request-ID": marks.wrongKey]))
    }

    // MARK: What is looked through

    private static func files(below path: String) throws -> [(name: String, bytes: [UInt8])] {
        let manager = FileManager.default
        return try manager.subpathsOfDirectory(atPath: path).compactMap { name in
            let whole = path + "/" + name
            var isDirectory = false
            guard manager.fileExists(atPath: whole, isDirectory: &isDirectory), !isDirectory else { return nil }
            return (name, Array(try Data(contentsOf: URL(filePath: whole))))
        }
    }

    private static func dump(_ uri: String) async throws -> [UInt8] {
        let text = try await DialogueProcess.blocking {
            let process = try DialogueProcess(
                ["sh", "-c", #"/usr/lib/postgresql/15/bin/pg_dump --inserts "$1" | tr '\n' ' '"#, "sh", uri])
            return try process.readLine(within: .seconds(60)) ?? ""
        }
        #expect(text.contains("INSERT INTO"))
        return Array(text.utf8)
    }
}
