import BrokerCore
import ExternalText
import Glibc
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor

/// The transit engine of a HashiCorp Vault or OpenBao that decrypts the master keys, and what this program proves to it.
///
/// Source: Vault's HTTP API, "Transit secrets engine", "Decrypt data"; "Kubernetes auth method", "Login"; "Token auth method",
/// "Revoke a token (self)".
struct TransitEngine: Equatable, Sendable {
    /// Why the engine cannot be used, without a value of the configuration and without a key.
    struct Fault: Error, Equatable, CustomStringConvertible {
        let description: String
        /// Whether it may be over soon.
        var mayPass = false
    }

    private enum Access: Equatable {
        /// Nothing is shown: an agent on this machine, which is called instead of the engine, adds a token of its own.
        case agent
        /// The token in this file, which an agent renews.
        case token(file: String)
        /// A login with the token of the workload in this file.
        case workload(role: WireText, tokenFile: String, login: URLTarget)
    }

    private let decryption: URLTarget
    private let namespace: WireText?
    private let access: Access

    /// How long a call for the keys may take, with its repetitions.
    private static let time: Duration = .seconds(30)
    /// How long the engine may take to end a token that is not needed any more. The token also ends by itself.
    private static let longestRevocation: Duration = .seconds(2)
    /// Between two tries.
    private static let pause: Duration = .seconds(1)
    /// Of one request.
    private static let longestRequest: Duration = .seconds(10)
    /// The longest file with a token, in bytes.
    private static let longestToken = 16_384
    /// The longest ciphertext of a key, in bytes. A key of 32 bytes has one of about 90.
    private static let longestCiphertext = 1024
    /// Where Kubernetes puts the token of a pod's service account.
    private static let usualTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

    // MARK: Configuration

    /// Reads `{"decrypt_url": URL, "namespace": name}` with `"token_file": path`, or with `"role": name, "jwt_file": path,
    /// "login": path`, or with neither.
    init(parsing bytes: [UInt8]) throws(Fault) {
        guard let json = try? JSONValue(parsing: bytes), json.object != nil else {
            throw Fault(description: "must be a JSON object")
        }
        var reader = ObjectReader(json, at: "")
        let address = reader.requiredString("decrypt_url")
        namespace = reader.string("namespace")
        let (tokenFile, role) = (reader.string("token_file"), reader.string("role"))
        let (workloadFile, login) = (reader.string("jwt_file"), reader.string("login"))
        let url = address.flatMap { URLTarget($0.text) }
        if address != nil, url.map(Self.isDecryption) != true {
            reader.note(
                "decrypt_url",
                "must be an address of https, or of http at this machine, with a path such as /v1/transit/decrypt/NAME")
        }
        if let namespace, !Self.isFieldValue(namespace) {
            reader.note("namespace", "must consist of visible characters")
        }
        if role == nil {
            if workloadFile != nil { reader.note("jwt_file", "requires role") }
            if login != nil { reader.note("login", "requires role") }
        } else if tokenFile != nil {
            reader.note("token_file", "cannot be used together with role")
        }
        let loginURL = url.flatMap { Self.address(login ?? "auth/kubernetes/login", beside: $0) }
        if login != nil, url != nil, loginURL == nil {
            reader.note("login", "must be the path of a login behind /v1/, such as auth/kubernetes/login")
        }
        do throws(BrokerError) {
            try reader.finish()
        } catch {
            throw Fault(
                description: "has faults: " + error.faults.map { "\($0.pointer) \($0.detail)" }.joined(separator: "; "))
        }
        guard let url, let loginURL else { throw Fault(description: "has no address that can be used") }
        decryption = url
        if let role {
            access = .workload(role: role, tokenFile: workloadFile?.text ?? Self.usualTokenFile, login: loginURL)
        } else {
            access = tokenFile.map { .token(file: $0.text) } ?? .agent
        }
    }

    private static func isDecryption(_ url: URLTarget) -> Bool {
        let path = WireText(url.pathAndQuery)
        return (url.scheme == .https || LocalNames.isLoopback(url.host)) && path.starts(with: "/v1/")
            && !path.contains("?")
            && path.split(at: "/").dropLast().last == "decrypt" && !path.ends(with: "/")
    }

    /// The address of another path of the engine's server.
    private static func address(_ path: WireText, beside url: URLTarget) -> URLTarget? {
        URLTarget("\(url.scheme.rawValue)://\(url.origin.authority)/v1/\(path)")
    }

    private static func isFieldValue(_ text: WireText) -> Bool {
        text.utf8.allSatisfy { (0x21...0x7e).contains($0) }
    }

    /// The file with the engine's token; nil for none.
    var tokenFile: String? { if case .token(let file) = access { file } else { nil } }

    // MARK: Decryption

    private struct Entry {
        let id: WireText
        let ciphertext: WireText
    }

    /// Decrypts a list `ID:CIPHERTEXT,…` to one that `Keyring` reads. Blocks, for 30 seconds at most: where the engine does not
    /// answer, or says that it cannot at present, it is asked again.
    /// - Parameter client: how servers are reached and which authorities are trusted.
    func decrypt(_ list: String, over client: HTTPSClientConfiguration) throws(Fault) -> String {
        let entries = try Self.entries(of: list)
        return try BlockingCall.result { await self.keys(entries, over: client) }.get()
    }

    private static func entries(of list: String) throws(Fault) -> [Entry] {
        var entries: [Entry] = []
        for (index, part) in WireText(list).split(at: ",").enumerated() {
            let entry = part.trimmed.split(at: ":", limit: 2)
            // A key that is not encrypted must not be sent to anyone.
            guard entry.count == 2, entry[1].starts(with: "vault:"), entry[1].count <= longestCiphertext,
                isFieldValue(entry[1])
            else {
                throw Fault(
                    description:
                        "needs entries ID:vault:v1:…, and entry \(index + 1) of TOKEN_BROKER_MASTER_KEYS has another form"
                )
            }
            entries.append(Entry(id: entry[0], ciphertext: entry[1]))
        }
        return entries
    }

    private func keys(
        _ entries: [Entry], over settings: HTTPSClientConfiguration
    ) async -> Result<String, Fault> {
        let loop: EventLoop
        let client: HTTPSClient
        do {
            loop = try EventLoop(name: "key-service")
            client = try HTTPSClient(configuration: settings, loop: loop, resolver: try NameResolver())
        } catch {
            return .failure(Fault(description: "cannot be used: \(error)"))
        }
        var call = Call(engine: self, client: client, end: .now.advanced(by: Self.time))
        let result = await call.keys(entries)
        await call.endToken()
        await client.close()
        loop.shutDown()
        return result
    }

    /// One call for the keys, with its repetitions.
    private struct Call {
        let engine: TransitEngine
        let client: HTTPSClient
        let end: MonotonicInstant
        /// What a login has given.
        private var token: WireText?

        init(engine: TransitEngine, client: HTTPSClient, end: MonotonicInstant) {
            (self.engine, self.client, self.end) = (engine, client, end)
        }

        mutating func keys(_ entries: [Entry]) async -> Result<String, Fault> {
            let time = SystemTime()
            while true {
                do throws(Fault) {
                    return .success(try await decrypt(entries))
                } catch {
                    guard error.mayPass, time.monotonic.advanced(by: TransitEngine.pause) < end else {
                        return .failure(error)
                    }
                    // Only a cancelled task has its sleep broken off, and this one is not cancelled.
                    try? await time.sleep(for: TransitEngine.pause)
                }
            }
        }

        /// Ends the token of a login, so that it does not stay in the engine until it expires.
        func endToken() async {
            guard let token else { return }
            guard let url = TransitEngine.address("auth/token/revoke-self", beside: engine.decryption) else { return }
            let end = MonotonicInstant.now.advanced(by: TransitEngine.longestRevocation)
            // A token that was not ended now is ended by the engine, when its time is over.
            _ = try? await post([], to: url, token: token, until: end)
        }

        private mutating func decrypt(_ entries: [Entry]) async throws(Fault) -> String {
            let token = try await currentToken()
            let body = JSONWriter.object { json in
                json.name("batch_input")
                json.array { json in
                    for entry in entries { json.object { json in json.member("ciphertext", entry.ciphertext.text) } }
                }
            }
            let response = try await post(body, to: engine.decryption, token: token, until: end)
            let results = (try? JSONValue(parsing: response.body))?["data"]?["batch_results"]?.array ?? []
            // Where an entry cannot be decrypted, the status is 400, its plaintext is empty, and the other ones have theirs.
            guard [.ok, .badRequest].contains(response.status), results.count == entries.count else {
                throw TransitEngine.fault(response.status, of: "decryption")
            }
            let plaintexts = results.map { $0["plaintext"]?.string ?? "" }
            if let index = plaintexts.firstIndex(of: "") {
                throw Fault(
                    description: "names an engine that cannot decrypt entry \(index + 1) of TOKEN_BROKER_MASTER_KEYS "
                        + "('\(entries[index].id)'): the entry is damaged, or another key encrypted it")
            }
            return zip(entries, plaintexts).map { "\($0.id):\($1)" }.joined(separator: ",")
        }

        /// The token for the engine; nil for none.
        private mutating func currentToken() async throws(Fault) -> WireText? {
            switch engine.access {
            case .agent: return nil
            case .token(let file): return try TransitEngine.read(file)
            case .workload(let role, let file, let login):
                if let token { return token }
                let proof = try TransitEngine.read(file)
                let body = JSONWriter.object { json in
                    json.member("role", role.text)
                    json.member("jwt", proof.text)
                }
                let response = try await post(body, to: login, token: nil, until: end)
                guard response.status == .ok,
                    let given = (try? JSONValue(parsing: response.body))?["auth"]?["client_token"]?.string,
                    !given.isEmpty, TransitEngine.isFieldValue(given)
                else { throw TransitEngine.fault(response.status, of: "login") }
                token = given
                return given
            }
        }

        private func post(
            _ body: [UInt8], to url: URLTarget, token: WireText?, until end: MonotonicInstant
        ) async throws(Fault) -> ClientResponse {
            // An agent can be configured to refuse requests without the first field.
            var fields: Fields = ["X-Vault-Request": "true", "Content-Type": "application/json"]
            if let token { fields.append("X-Vault-Token", token.text) }
            if let namespace = engine.namespace { fields.append("X-Vault-Namespace", namespace.text) }
            let limit = min(TransitEngine.longestRequest, max(.zero, MonotonicInstant.now.duration(to: end)))
            do throws(TransportError) {
                return try await client.send(
                    ClientRequest(method: .post, url: url, fields: fields, body: body, timeLimit: limit))
            } catch {
                let mayPass =
                    switch error {
                    case .nameResolutionFailed, .connectFailed, .tlsFailed, .timedOut, .connectionLost: true
                    case .proxyRefused(let status): status.code >= 500
                    default: false
                    }
                throw Fault(
                    description: "names an engine that cannot be reached: \(TenantCheck.words(error))", mayPass: mayPass
                )
            }
        }
    }

    private static func read(_ file: String) throws(Fault) -> WireText {
        // An agent that has just been started has not written it yet.
        let notYet = Fault(description: "names a token's file that does not exist or is empty", mayPass: true)
        let bytes: [UInt8]
        do throws(SystemError) {
            bytes = try SmallFile.read(file, limit: longestToken)
        } catch {
            if error.number == ENOENT { throw notYet }
            throw Fault(description: "names a token's file that cannot be read (\(error))")
        }
        let token = WireText(String(decoding: bytes, as: UTF8.self).trimmingNewlines).trimmed
        if token.isEmpty { throw notYet }
        guard isFieldValue(token) else {
            throw Fault(description: "names a token's file with something else than a token")
        }
        return token
    }

    /// What an answer without the keys means. Nothing of its body is shown.
    private static func fault(_ status: Status, of what: String) -> Fault {
        switch status.code {
        case 400:
            Fault(
                description: "names an engine that refuses the \(what) (400): the key, the role or the entries of "
                    + "TOKEN_BROKER_MASTER_KEYS are not known to it")
        case 403:
            Fault(
                description:
                    "names an engine that does not permit the \(what) (403): the token or the role lacks the permission"
            )
        case 404: Fault(description: "names a path of the \(what) that the engine does not have (404)")
        case 307:
            Fault(
                description:
                    "names a standby of the engine, which sends callers elsewhere (307): name the active node, or an address "
                    + "that leads to it", mayPass: true)
        case 412, 429, 500...599:
            Fault(description: "names an engine that answers \(status.code) to the \(what) at present", mayPass: true)
        default: Fault(description: "names an engine whose answer to the \(what) cannot be used (\(status.code))")
        }
    }
}
