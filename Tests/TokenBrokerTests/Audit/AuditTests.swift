import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

/// What the audit log tells of requests.
@Suite struct `Audit of requests` {
    private static func broker(
        changes: Bool = true, reads: AuditTrail.Reads = .all, store: (any RecordStore)? = nil
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store) { settings in
            settings.core.audit.changes = changes
            settings.core.audit.reads = reads
        }
        await broker.makeTenant()
        return broker
    }

    /// The entries so far, except those about the log itself.
    private static func entries(_ broker: BrokerHarness) async throws -> [JSONValue] {
        let lines = Mutex<[[UInt8]]>([])
        let unreadable = try await AuditExport().run(broker.store) { line in lines.withLock { $0.append(Array(line)) } }
        #expect(unreadable == (0, 0))
        return try lines.withLock { $0 }.map { try JSONValue(parsing: $0) }
            .filter { !($0["action"]?.text?.hasPrefix("audit.") ?? true) }
    }

    private static func actions(_ broker: BrokerHarness) async throws -> [String] {
        try await entries(broker).compactMap { $0["action"]?.text }
    }

    /// An API key that may read no credentials.
    private static let listener = #"{"name": "k", "permissions": ["events"]}"#

    /// The numbers of chains, entries, unsigned entries and open chains. Records an issue for each fault.
    private static func verify(_ broker: BrokerHarness) async throws -> [Int64] {
        let keyring = try Keyring(parsing: BrokerHarness.masterKeys)
        let summary = try await AuditExamination(broker.store, keyring: keyring) { Issue.record("\($0)") }.run()
        return [Int64(summary.chains), summary.entries, summary.unsigned, Int64(summary.open)]
    }

    @Test func `a browser that begins a login for an app writes nothing before the login has ended`() async throws {
        let broker = try await Self.broker()
        await broker.makeClient()
        for _ in 0..<3 { #expect(await broker.authorize(BrokerHarness.authorization()).status == 303) }
        let expected = ["tenant.created", "client.created"]
        #expect(try await Self.entries(broker).compactMap { $0["action"]?.text } == expected)
        _ = await broker.appCode()
        let after = try await Self.entries(broker).compactMap { $0["action"]?.text }
        #expect(after.starts(with: expected) && !after.contains("login.begun") && after.contains("credentials.stored"))
    }

    @Test func `a provider's profile is told of with each tenant that gets it`() async throws {
        let broker = try await Self.broker()
        func profile(_ host: String) -> String {
            #"""
            {"documentation": "https://\#(host)", "as_of": "2026-11-29", "required": ["client_id"], "notes": [],
             "endpoints": {"authorization": "https://\#(host)/a", "token": "https://\#(host)/t"}}
            """#
        }
        _ = await broker.call(.put, "/providers/acme", body: profile("a.example"))
        await broker.makeTenant("t1", #"{"provider": "acme", "client_id": "c1"}"#)
        _ = await broker.call(.put, "/providers/acme", body: profile("b.example"))
        #expect(await broker.call(.delete, "/providers/acme").status == 409)
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        #expect(await broker.call(.delete, "/providers/acme").status == 204)
        #expect(
            try await Self.actions(broker) == [
                "tenant.created", "provider.created", "tenant.changed", "provider.changed", "tenant.changed",
                "tenant.removed", "provider.removed",
            ])
        let told = try await Self.entries(broker).filter { $0["action"]?.text?.hasPrefix("provider.") ?? false }
        #expect(told.allSatisfy { $0["provider"]?.text == "acme" && $0["tenant"] == nil })
        #expect(told.allSatisfy { $0["caller"]?.text == "admin:admin" })
    }

    // H056 H107 H108
    @Test func `each change is told once, with who made it, and nothing that is secret`() async throws {
        let broker = try await Self.broker()
        let key = await broker.makeKey()
        await broker.makeClient()
        await broker.logIn()
        let keys = await broker.call(.get, "/tenants/t1/api-keys").json["api_keys"]?.array
        let id = try #require(keys?.first?["id"]?.text)
        let set = #"{"client_id": "c1", "token": "set-1", "expires_in": 3600, "user_id": "7"}"#
        let put = await broker.call(
            .put, "/credentials", key: key, body: #"{"storage_key": "other", "credentials": \#(set)}"#)
        #expect(put.status == 200, "\(put.text)")
        #expect(await broker.call(.delete, "/credentials?storage_key=other", key: key).status == 204)
        #expect(await broker.call(.delete, "/tenants/t1/clients/app").status == 204)
        #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)

        let entries = try await Self.entries(broker)
        let expected: [(action: String, subject: String?, caller: String, operation: String, events: [String])] = [
            ("tenant.created", nil, "admin:admin", "PUT /tenants/{tenant}", []),
            ("api-key.created", "key_id", "admin:admin", "POST /tenants/{tenant}/api-keys", []),
            ("client.created", "client_id", "admin:admin", "PUT /tenants/{tenant}/clients/{client_id}", []),
            ("login.begun", "login_id", "admin:admin", "POST /login/initialize", []),
            (
                "credentials.stored", "storage_key", "anyone", "GET /login/callback",
                ["credentials.updated", "login.completed"]
            ),
            ("credentials.stored", "storage_key", "key:\(id)", "PUT /credentials", ["credentials.updated"]),
            ("credentials.removed", "storage_key", "key:\(id)", "DELETE /credentials", ["credentials.deauthorized"]),
            ("client.removed", "client_id", "admin:admin", "DELETE /tenants/{tenant}/clients/{client_id}", []),
            ("api-key.removed", "key_id", "admin:admin", "DELETE /tenants/{tenant}/api-keys/{id}", []),
            ("tenant.removed", nil, "admin:admin", "DELETE /tenants/{tenant}", []),
        ]
        #expect(entries.compactMap { $0["action"]?.text } == expected.map(\.action))
        for (entry, expected) in zip(entries, expected) {
            let text = "\(expected.action): \(entry)"
            #expect(entry["tenant"]?.text == "t1", "\(text)")
            #expect(entry["caller"]?.text == expected.caller, "\(text)")
            #expect(entry["operation"]?.text == expected.operation, "\(text)")
            #expect(entry["outcome"]?.text == "done", "\(text)")
            #expect(entry["request_id"]?.text?.isEmpty == false, "\(text)")
            #expect(entry["events"]?.array?.compactMap(\.text) ?? [] == expected.events, "\(text)")
            if let subject = expected.subject { #expect(entry[.init(subject)]?.text?.isEmpty == false, "\(text)") }
        }
        #expect(entries[4]["storage_key"]?.text == "default" && entries[5]["storage_key"]?.text == "other")
        #expect(entries[5]["version"]?.integer.map { "\"\($0)\"" } == put.fields["ETag"]?.text)
        let all = entries.map { entry in
            String(decoding: JSONWriter.object { json in json.member("entry", entry) }, as: UTF8.self)
        }.joined()
        for secret in ["access-1", "refresh-1", "set-1", key, BrokerHarness.adminKey] {
            #expect(!all.contains(secret))
        }
    }

    // H107
    @Test func `a read is told before its answer, with its outcome`() async throws {
        let broker = try await Self.broker()
        let key = await broker.makeKey()
        await broker.logIn()
        let count = try await Self.entries(broker).count
        let read = await broker.call(.get, "/credentials?storage_key=default", key: key)
        #expect(read.status == 200)
        let tag = try #require(read.fields["ETag"]?.text)
        let same = await broker.call(
            .get, "/credentials?storage_key=default", key: key, fields: ["If-None-Match": tag])
        #expect(same.status == 304)
        let missing = await broker.call(.get, "/credentials?storage_key=none&level=user", key: key)
        #expect(missing.status >= 400)
        // These are no reads.
        #expect(await broker.call(.get, "/credentials?storage_key=default", key: "wrong").status == 401)
        #expect(await broker.call(.get, "/credentials?nonsense=1", key: key).status == 400)

        let reads = try await Self.entries(broker).dropFirst(count)
        #expect(reads.compactMap { $0["action"]?.text } == Array(repeating: "credentials.read", count: 3))
        #expect(reads.compactMap { $0["outcome"]?.text } == ["done", "not_modified", missing.code ?? ""])
        #expect(reads.compactMap { $0["storage_key"]?.text } == ["default", "default", "none"])
        #expect(reads.map { $0["version"]?.integer.map { "\"\($0)\"" } } == [tag, tag, nil])
        #expect(reads.allSatisfy { $0["caller"]?.text?.hasPrefix("key:") == true && $0["tenant"]?.text == "t1" })
        #expect(reads.allSatisfy { $0["operation"]?.text == "GET /credentials" })
    }

    // H105 H109
    @Test(arguments: [false, true])
    func `nothing is handed out while the log cannot be written`(isDamaged: Bool) async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.broker(store: store)
        let key = await broker.makeKey()
        await broker.logIn()
        #expect(await broker.call(.get, "/credentials?storage_key=default", key: key).status == 200)
        for query in ["", "&min_ttl=1"] {
            store.disturb([isDamaged ? .damage : .refuse]) { if case .audit = $0 { true } else { false } }
            let refused = await broker.call(.get, "/credentials?storage_key=default\(query)", key: key)
            #expect(refused.status == 503 && refused.code == "storage_unavailable", "\(refused.text)")
            #expect(refused.fields["Retry-After"]?.text == "1")
            #expect(refused.fields["Content-Type"]?.text == "application/problem+json")
            #expect(!refused.text.contains("access-1"))
            #expect(store.remainingFaults == 0)
        }
        #expect(await broker.call(.get, "/credentials?storage_key=default", key: key).status == 200)

        // A change whose entry cannot be written is not made.
        store.disturb([isDamaged ? .damage : .refuse]) { if case .audit = $0 { true } else { false } }
        let change = await broker.call(.put, "/tenants/t2", body: #"{"client_id": "c1"}"#)
        #expect(change.status == (isDamaged ? 500 : 503))
        #expect(await broker.call(.get, "/tenants/t2").status == 404)
        await broker.broker.core.finish()
        _ = try await Self.verify(broker)
    }

    // H107
    @Test func `apps' tokens are told of, also where an answer is repeated`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.broker(store: store)
        await broker.makeClient()
        let token = await broker.appSession()
        let count = try await Self.entries(broker).filter { $0["action"]?.text == "token.issued" }.count
        #expect(count == 1)
        store.disturb([.refuse]) { if case .audit(let block) = $0 { block.tells("token.issued") } else { false } }
        let refused = await broker.refresh(token)
        #expect(refused.status == 503 && refused.json["access_token"] == nil, "\(refused.text)")
        #expect(await broker.refresh(token).status == 200)
        // Within ten seconds the same answer comes again.
        #expect(await broker.refresh(token).status == 200)
        store.disturb([.refuse]) { if case .audit(let block) = $0 { block.tells("token.issued") } else { false } }
        let repeated = await broker.refresh(token)
        #expect(repeated.status == 503 && repeated.json["access_token"] == nil)
        let issued = try await Self.entries(broker).filter { $0["action"]?.text == "token.issued" }
        #expect(issued.count == 3)
        #expect(issued.allSatisfy { $0["caller"]?.text == "app:app" && $0["storage_key"]?.text == "default" })
        #expect(try await Self.actions(broker).contains("session.created"))
    }

    // H107
    @Test func `failures of renewals and logins are told of, with their cause`() async throws {
        let broker = try await Self.broker(reads: .none)
        let key = await broker.makeKey()
        await broker.logIn()
        let login = await broker.beginLogin()
        _ = await broker.call(.get, "/login/callback?error=access_denied&state=\(login.state)", key: nil)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        _ = await broker.call(
            .get, "/credentials?storage_key=default&policy=local_force_refresh", key: key)
        let entries = try await Self.entries(broker)
        let failed = try #require(entries.first { $0["action"]?.text == "login.failed" })
        #expect(failed["outcome"]?.text == "authorization_error" && failed["storage_key"]?.text == "default")
        let ended = try #require(entries.last { $0["action"]?.text == "credentials.removed" })
        let events = ended["events"]?.array?.compactMap(\.text) ?? []
        #expect(events.contains("credentials.deauthorized") && events.contains("refresh.failed"), "\(events)")
        #expect(ended["caller"]?.text?.hasPrefix("key:") == true)
        #expect(entries.contains { $0["action"]?.text == "quarantine.created" })
        #expect(!entries.contains { $0["action"]?.text == "credentials.read" })
    }

    // H107
    @Test(arguments: [(true, AuditTrail.Reads.none), (false, .oneIn(1_000_000))])
    func `a refusal of a known caller is told before its answer, and that of a stranger is not`(
        changes: Bool, reads: AuditTrail.Reads
    ) async throws {
        let broker = try await Self.broker(changes: changes, reads: reads)
        let reader = await broker.makeKey(
            "t1", #"{"name": "k", "permissions": ["credentials:read"], "storage_keys": ["mine"]}"#)
        let writer = await broker.makeKey()
        let count = try await Self.entries(broker).count
        let set = #"{"storage_key": "mine", "credentials": {"client_id": "c1", "token": "t"}}"#
        let requests: [(method: Method, path: String, body: String?, route: String, storageKey: String?)] = [
            (.put, "/credentials", set, "PUT /credentials", nil),
            (.delete, "/credentials?storage_key=mine", nil, "DELETE /credentials", nil),
            (.get, "/credentials?storage_key=other", nil, "GET /credentials", "other"),
            (.get, "/credentials/status?storage_key=other", nil, "GET /credentials/status", "other"),
            (.get, "/tenants/t1", nil, "GET /tenants/{tenant}", nil),
            (.put, "/tenants/t2", #"{"client_id": "c1"}"#, "PUT /tenants/{tenant}", nil),
        ]
        for request in requests {
            let answer = await broker.call(request.method, request.path, key: reader, body: request.body)
            #expect(answer.status == 403, "\(request.path): \(answer.text)")
            let stranger = await broker.call(request.method, request.path, key: "wrong", body: request.body)
            #expect(stranger.status == 401)
        }
        let foreign = await broker.call(
            .get, "/credentials?storage_key=mine", key: writer, fields: ["X-Tenant": "other"])
        #expect(foreign.status == 403)
        // Refused before its content has arrived.
        let admission = await broker.service.admit(
            Request(
                method: .put, path: "/credentials", query: nil,
                fields: ["Authorization": "Bearer \(reader)", "Content-Type": "application/json"], body: []))
        guard case .refused = admission else {
            Issue.record("\(admission)")
            return
        }
        // What is allowed and not there, or not understood, is no refusal.
        #expect(await broker.call(.get, "/credentials/status?storage_key=mine&nonsense=1", key: reader).status == 400)

        let entries = Array(try await Self.entries(broker).dropFirst(count))
        #expect(
            entries.map { $0["operation"]?.text } == requests.map(\.route) + ["GET /credentials", "PUT /credentials"])
        #expect(entries.map { $0["storage_key"]?.text } == requests.map(\.storageKey) + [nil, nil])
        for entry in entries {
            #expect(entry["action"]?.text == "request.refused" && entry["outcome"]?.text == "refused", "\(entry)")
            #expect(entry["tenant"]?.text == "t1" && entry["caller"]?.text?.hasPrefix("key:") == true, "\(entry)")
            #expect(entry["request_id"]?.text?.isEmpty == false, "\(entry)")
        }
        _ = try await Self.verify(broker)
    }

    // H107
    @Test func `a caller that is refused again and again has a bounded number of entries, and one with their count`()
        async throws
    {
        let time = ManualTime()
        let broker = try await BrokerHarness(time: time) { $0.core.audit.changes = true }
        await broker.makeTenant()
        let keys = [await broker.makeKey("t1", Self.listener), await broker.makeKey("t1", Self.listener)]
        var count = try await Self.entries(broker).count
        func refuse(_ number: Int, _ key: String) async throws -> [Int64?] {
            for _ in 0..<number {
                #expect(await broker.call(.get, "/credentials?storage_key=a", key: key).status == 403)
            }
            let entries = try await Self.entries(broker).dropFirst(count)
            count += entries.count
            return entries.map { $0["count"]?.integer }
        }
        #expect(try await refuse(9, keys[0]).count == 9)
        #expect(try await refuse(1, keys[0]).count == 1)
        #expect(try await refuse(1, keys[0]).count == 0)
        #expect(try await refuse(4, keys[0]).count == 0)
        #expect(try await refuse(11, keys[1]) == [Int64?](repeating: nil, count: 10), "each caller counts for itself")
        time.advance(by: .milliseconds(59_999))
        #expect(try await refuse(1, keys[0]).count == 0)
        time.advance(by: .milliseconds(1))
        #expect(try await refuse(1, keys[0]) == [6, nil])
        // The end of the process writes what was only counted.
        await broker.broker.core.finish()
        #expect(try await refuse(0, keys[0]) == [1])
        let last = try #require(try await Self.entries(broker).last)
        #expect(last["action"]?.text == "request.refused" && last["outcome"]?.text == "refused")
        #expect(last["caller"]?.text?.hasPrefix("key:") == true && last["tenant"]?.text == "t1")
        #expect(last["address"] == nil && last["operation"] == nil && last["request_id"] == nil)
        #expect(try await Self.verify(broker)[3] == 0)
    }

    // H107
    @Test func `callers that are refused at the same time are counted together beyond a thousand`() async throws {
        let time = ManualTime()
        let broker = try await BrokerHarness(time: time) { $0.core.audit.changes = true }
        let audit = broker.broker.core.audit
        for index in 0..<1002 {
            for _ in 0..<11 {
                await audit.tell(
                    ofRefusalTo: AuditOrigin(caller: "key:\(index)"), tenant: TenantName("t1"), storageKey: nil)
            }
        }
        // Two of them share one allowance of ten.
        #expect(try await Self.entries(broker).count == 10_010)
        await broker.broker.core.finish()
        let counted = try await Self.entries(broker).dropFirst(10_010)
        #expect(counted.count == 1001)
        let others = counted.filter { $0["caller"]?.text == "others" }
        #expect(others.map { $0["count"]?.integer } == [12] && others.allSatisfy { $0["tenant"] == nil })
    }

    @Test func `a refusal whose entry cannot be written is answered as ever`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.broker(store: store)
        let key = await broker.makeKey("t1", Self.listener)
        store.disturb([.refuse]) { if case .audit = $0 { true } else { false } }
        #expect(await broker.call(.get, "/credentials?storage_key=a", key: key).status == 403)
        #expect(store.remainingFaults == 0)
    }

    @Test(arguments: [(AuditTrail.Reads.none, 0...0), (.all, 400...400), (.oneIn(2), 120...280)])
    func `as many reads are told of as configured`(reads: AuditTrail.Reads, range: ClosedRange<Int>) async throws {
        let broker = try await Self.broker(changes: false, reads: reads)
        let key = await broker.makeKey()
        await broker.logIn()
        for _ in 0..<400 {
            #expect(await broker.call(.get, "/credentials?storage_key=default", key: key).status == 200)
        }
        let entries = try await Self.entries(broker)
        #expect(range.contains(entries.count), "\(entries.count)")
        #expect(entries.allSatisfy { $0["action"]?.text == "credentials.read" })
    }

    @Test func `a broker opens, signs and ends its log`() async throws {
        let time = ManualTime()
        time.holdSleeps()
        let broker = try await BrokerHarness(time: time) { settings in
            settings.core.audit.changes = true
            settings.core.audit.signatureInterval = .seconds(17)
        }
        try await broker.broker.core.audit.open()
        #expect(try await Self.verify(broker) == [1, 2, 0, 1])
        broker.broker.core.start()
        await broker.makeTenant()
        #expect(try await Self.verify(broker)[2] == 1)
        await time.sleepers(of: .seconds(17))
        time.advance(by: .seconds(17))
        await time.sleepers(of: .seconds(17))
        #expect(try await Self.verify(broker)[2] == 0)
        await broker.broker.core.finish()
        #expect(try await Self.verify(broker) == [1, 5, 0, 0])
    }

    @Test func `without an audit nothing is written`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn()
        try await broker.broker.core.audit.open()
        await broker.broker.core.finish()
        #expect(try await broker.store.allAuditChains() == [])
    }
}

extension AuditBlock {
    fileprivate func tells(_ action: String) -> Bool {
        String(decoding: body, as: UTF8.self).contains("\"action\":\"\(action)\"")
    }
}
