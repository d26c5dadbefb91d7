package import BrokerCore
package import CredentialStore
import Cryptography
import ExternalText
package import HTTPCodec
package import HTTPSClient
package import HTTPServer
package import JSON
import OAuth
package import Reactor
import Synchronization
import Testing
package import TokenBroker

/// A whole broker without sockets: memory store, scripted provider, time by hand. Requests go to the handler as the
/// server would bring them.
package final class BrokerHarness: Sendable {
    package static let adminKey = "admin-key-of-the-tests-0123456789"
    package static let masterKeys = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

    /// An answer, with its body as JSON where it is JSON.
    package struct Answer: Sendable {
        package let status: Int
        package let fields: Fields
        package let body: [UInt8]

        package var text: String { String(decoding: body, as: UTF8.self) }
        package var json: JSONValue { (try? JSONValue(parsing: body)) ?? .null }
        /// The problem's code, or nil.
        package var code: String? { json["code"]?.text }

        package init(_ response: ClientResponse) {
            status = response.status.code
            fields = response.fields
            body = response.body
        }

        package init(_ response: Response) {
            status = response.status.code
            fields = response.fields
            body = response.body
        }
    }

    package let time: ManualTime
    package let transport: ScriptedTransport
    package let store: any RecordStore
    package let vault: Vault
    package let broker: Broker
    package let service: Service
    private let lines: LineCollector

    /// - Parameters:
    ///   - store: shared by several harnesses where a test has several replicas; nil for one whose leases go by `time`.
    ///   - transport: likewise.
    ///   - time: moved by the test.
    ///   - brokerTime: the broker's; nil for `time`.
    package init(
        store: (any RecordStore)? = nil, transport: ScriptedTransport = ScriptedTransport(),
        time: ManualTime = ManualTime(), brokerTime: (any Time)? = nil,
        publicBaseURL: String = "https://broker.example", journal: Journal? = nil, masterKeys: String = masterKeys,
        _ adjust: (inout Broker.Settings) -> Void = { _ in }
    ) async throws {
        let store = store ?? MemoryRecordStore { time.monotonic }
        self.store = store
        self.transport = transport
        self.time = time
        let collector = LineCollector()
        lines = collector
        vault = Vault(store: store, keyring: try Keyring(parsing: masterKeys))
        try await vault.unlock()
        var settings = Broker.Settings()
        settings.core.publicBaseURL = publicBaseURL
        settings.adminKeys = try AdminKeys(parsing: SecretBytes(utf8: Self.adminKey))
        // Where sleeps take no time, no caller's patience would last.
        if time.skipsSleeps { settings.core.renewalPatience = nil }
        adjust(&settings)
        broker = Broker(
            settings: settings, vault: vault, journal: journal, transport: transport, time: brokerTime ?? time,
            log: Log(threshold: .debug, time: time) { collector.append($0) })
        service = Service(broker)
    }

    /// Everything logged so far.
    package var log: [String] { lines.all }

    /// The first line of the log, past or future, that fits: what the broker tells callers first and logs then.
    package func logLine(where fits: (String) -> Bool) async -> String { await lines.first(where: fits) }

    // MARK: Calling

    /// Sends a request with the given key (nil: none).
    /// - Parameters:
    ///   - source: where it comes from, for what is counted by that.
    ///   - waited: for how long it has waited in a process that stood still.
    package func call(
        _ method: Method, _ target: String, key: String? = adminKey, tenant: String? = nil, body: String? = nil,
        fields: Fields = [:], source: NetworkSource = .unknown, waited: Duration = .zero
    ) async -> Answer {
        var fields = fields
        if let key { fields.append("Authorization", "Bearer \(key)") }
        if let tenant { fields.append("X-Tenant", tenant) }
        if body != nil, fields["Content-Type"] == nil { fields.append("Content-Type", "application/json") }
        let parts = target.split(separator: "?", maxSplits: 1, omittingEmptySubsequences: false)
        var request = Request(
            method: method, path: String(parts[0]), query: parts.count > 1 ? String(parts[1]) : nil,
            fields: fields, body: Array((body ?? "").utf8), source: source)
        if waited > .zero { request.arrival = time.monotonic.advanced(by: .zero - waited) }
        return Answer(await service.respond(to: request))
    }

    /// Sends a request without a key, of a client that has shown a certificate with that identity.
    package func call(
        _ method: Method, _ target: String, by peer: PeerIdentity, body: String? = nil, fields: Fields = [:]
    ) async -> Answer {
        let parts = target.split(separator: "?", maxSplits: 1, omittingEmptySubsequences: false)
        var request = Request(
            method: method, path: String(parts[0]), query: parts.count > 1 ? String(parts[1]) : nil, fields: fields,
            body: Array((body ?? "").utf8))
        if body != nil { request.fields.append("Content-Type", "application/json") }
        request.peer = peer
        return Answer(await service.respond(to: request))
    }

    // MARK: Preparing

    /// Makes a tenant. Fails the test when it cannot.
    package func makeTenant(_ name: String = "t1", _ body: String = #"{"client_id": "c1"}"#) async {
        let answer = await call(.put, "/tenants/\(name)", body: body)
        #expect(answer.status == 201 || answer.status == 200, "tenant refused: \(answer.text)")
    }

    /// Makes an API key and returns its secret. Fails the test when it cannot.
    package func makeKey(
        _ tenant: String = "t1",
        _ body: String =
            #"{"name": "k", "permissions": ["credentials:read", "credentials:write", "login", "events"]}"#
    ) async -> String {
        let answer = await call(.post, "/tenants/\(tenant)/api-keys", body: body)
        guard answer.status == 201, let secret = answer.json["api_key"]?.text else {
            Issue.record("API key refused: \(answer.text)")
            return ""
        }
        return secret
    }

    /// The body of a token endpoint's answer.
    package static func token(
        _ access: String, refresh: String? = nil, expiresIn: Int? = 3600, scope: String? = nil, userID: Int? = nil
    ) -> String {
        var members = [#""access_token":"\#(access)""#, #""token_type":"Bearer""#]
        if let refresh { members.append(#""refresh_token":"\#(refresh)""#) }
        if let expiresIn { members.append(#""expires_in":\#(expiresIn)"#) }
        if let scope { members.append(#""scope":"\#(scope)""#) }
        if let userID { members.append(#""user_id":\#(userID)"#) }
        return "{" + members.joined(separator: ",") + "}"
    }

    /// Begins a login and returns its identifier, its address and the state in it. Fails the test when it cannot.
    package func beginLogin(
        tenant: String = "t1", body: String = "{}"
    ) async -> (id: String, uri: String, startURI: String, state: String) {
        let answer = await call(.post, "/login/initialize", tenant: tenant, body: body)
        guard answer.status == 201, let id = answer.json["login_id"]?.text,
            let uri = answer.json["login_uri"]?.text, let startURI = answer.json["start_uri"]?.text
        else {
            Issue.record("login refused: \(answer.text)")
            return ("", "", "", "")
        }
        return (id, uri, startURI, Self.parameters(of: uri)["state"] ?? "")
    }

    /// A whole login: the provider answers the code with `token`. Fails the test when the login does not succeed.
    package func logIn(
        tenant: String = "t1", storageKey: String = "default",
        token: String = token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)
    ) async {
        let login = await beginLogin(tenant: tenant, body: #"{"storage_key": "\#(storageKey)"}"#)
        transport.enqueue(.json(200, token))
        let answer = await call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(answer.status == 200, "login failed: \(answer.text)")
    }

    /// The query parameters of a URI.
    package static func parameters(of uri: String) -> [String: String] {
        let query = uri.split(separator: "?", maxSplits: 1).dropFirst().first.map(String.init) ?? ""
        let pairs = (try? FormEncoding.decode(query)) ?? []
        return Dictionary(pairs.map { ($0.name.text, $0.value.text) }) { first, _ in first }
    }
}

private final class LineCollector: Sendable {
    private struct State {
        var lines: [String] = []
        var waiters: [CheckedContinuation<Void, Never>] = []
    }

    private let state = Mutex(State())

    var all: [String] { state.withLock { $0.lines } }

    func append(_ line: [UInt8]) {
        let waiters = state.withLock { state in
            state.lines.append(String(decoding: line, as: UTF8.self))
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter.resume() }
    }

    /// The first line, past or future, that fits.
    func first(where fits: (String) -> Bool) async -> String {
        while true {
            let (found, count) = state.withLock { ($0.lines.first(where: fits), $0.lines.count) }
            if let found { return found }
            await withCheckedContinuation { continuation in
                let hasMore = state.withLock { state in
                    if state.lines.count > count { return true }
                    state.waiters.append(continuation)
                    return false
                }
                if hasMore { continuation.resume() }
            }
        }
    }
}
