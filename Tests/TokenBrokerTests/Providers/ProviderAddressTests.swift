import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// A provider's address changes in a tenant's configuration, by mistake or because the provider moves.
@Suite struct `A provider's address that changes` {
    /// A tenant's configuration before and after, and how the two differ.
    struct Change: Sendable, CustomTestStringConvertible {
        let name: String
        let before: String
        let after: String
        /// Where tokens are asked for.
        let tokenEndpoints: (before: String, after: String)
        let difference: String

        var testDescription: String { name }
    }

    private static func oidc(_ host: String, issuer: String? = nil) -> String {
        let issuer = issuer.map { #""issuer": "\#($0)", "# } ?? ""
        return #"""
            "provider": "oidc", \#(issuer)"endpoints": {"authorization": "https://\#(host)/a",
             "token": "https://\#(host)/t", "revocation": "https://\#(host)/r",
             "device_authorization": "https://\#(host)/d"}
            """#
    }

    private static let endpoint = Change(
        name: "endpoints.token", before: oidc("old.example"), after: oidc("new.example"),
        tokenEndpoints: ("https://old.example/t", "https://new.example/t"), difference: "token_endpoint")

    static let changes = [
        endpoint,
        Change(
            name: "auth_service_base_uri", before: #""provider": "tidal""#,
            after: #""auth_service_base_uri": "https://auth.example/v1", "certificate_pinning": false"#,
            tokenEndpoints: ("https://auth.tidal.com/v1/oauth2/token", "https://auth.example/v1/oauth2/token"),
            difference: "token_endpoint"),
        Change(
            name: "issuer", before: oidc("op.example", issuer: "https://a.example"),
            after: oidc("op.example", issuer: "https://b.example"),
            tokenEndpoints: ("https://op.example/t", "https://op.example/t"), difference: "issuer"),
        Change(
            name: "issuer that is new", before: oidc("old.example"),
            after: oidc("new.example", issuer: "https://new.example"),
            tokenEndpoints: ("https://old.example/t", "https://new.example/t"), difference: "token_endpoint"),
        Change(
            name: "issuer that is gone", before: oidc("old.example", issuer: "https://old.example"),
            after: oidc("new.example"), tokenEndpoints: ("https://old.example/t", "https://new.example/t"),
            difference: "token_endpoint"),
        Change(
            name: "provider", before: oidc("old.example"), after: #""provider": "spotify""#,
            tokenEndpoints: ("https://old.example/t", "https://accounts.spotify.com/api/token"),
            difference: "token_endpoint"),
    ]

    /// A broker with a user logged in, whose token lives for an hour.
    private static func loggedIn(
        _ members: String, secret: Bool = false, more: String = "", store: any RecordStore = MemoryRecordStore(),
        time: ManualTime = ManualTime()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time)
        await configure(broker, members, secret: secret, more: more)
        await broker.logIn()
        return broker
    }

    private static func configure(
        _ broker: BrokerHarness, _ members: String, secret: Bool = false, more: String = ""
    ) async {
        let secret = secret ? #""client_secret": "s1", "# : ""
        await broker.makeTenant("t1", #"{"client_id": "c1", \#(secret)\#(more)\#(members)}"#)
    }

    /// Where requests with that refresh token, in whatever form, were sent.
    private static func receivers(of refreshToken: String, _ broker: BrokerHarness) -> Set<String> {
        Set(broker.transport.seen.filter { $0.form.values.contains(refreshToken) }.map(\.url))
    }

    private static let row = RecordID(.credentials, TenantName("t1")!, key: "default")

    private static func record(_ broker: BrokerHarness) async throws -> CredentialRecord {
        let record = try #require(try await broker.vault.read(row))
        return try #require(CredentialRecord(decoding: record.content.revealedBytes))
    }

    // MARK: Change and change back

    @Test(arguments: changes, [false, true])
    func `the session is kept, told, sent nowhere, and goes on when the address is back`(
        change: Change, secret: Bool
    ) async throws {
        let broker = try await Self.loggedIn(change.before, secret: secret)
        let before = try await Self.record(broker)
        let tag = await broker.get("policy=local").tag
        await Self.configure(broker, change.after, secret: secret, more: #""refresh_lead_time": 1800, "#)
        let count = broker.transport.seen.count

        // While the token lives it serves, whatever is asked.
        for query in ["", "policy=local_force_refresh", "policy=create_if_needed", "level=user", "min_ttl=7200"] {
            #expect(await broker.get(query).token == "access-1", "\(query)")
        }
        let status = await broker.status()
        #expect(status.differences == [change.difference])
        #expect(status.isLoggedIn == true)
        #expect(status.json["refreshable"] == .bool(true))

        // An API that refuses it, and its end, leave the next lower level, and the session where it is.
        let queries = ["api_error_sub_status=11003", "", "policy=local_force_refresh", "policy=create_if_needed"]
        for (index, query) in queries.enumerated() {
            if index == 1 { broker.time.advance(by: .seconds(3540) + .milliseconds(1)) }
            let answer = await broker.get(query)
            if secret {
                #expect((answer.status, answer.code) == (424, "illegal_configuration"))
                #expect(answer.json["detail"]?.text?.contains("previous_token_endpoints") == true)
            } else {
                #expect((answer.status, answer.level) == (200, "basic"))
                #expect(answer.json["client_id"] == .string("c1"))
            }
        }
        #expect(await broker.get("min_ttl=0").token == "access-1")
        broker.time.advance(by: .seconds(86_400))
        #expect(await broker.get("level=user").code == "level_not_available")
        #expect(await broker.get("policy=local").token == "access-1")
        #expect(await broker.get("policy=local").tag == tag)
        #expect(await broker.status().differences == [change.difference])
        #expect(try await Self.record(broker) == before)
        #expect(try await broker.quarantined() == nil)
        #expect(try await broker.causes() == ["login"])
        #expect(broker.transport.seen.count == count)

        await Self.configure(broker, change.before, secret: secret)
        #expect(await broker.status().differences == nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        let answer = await broker.get()
        #expect((answer.level, answer.token) == ("user", "access-2"))
        #expect(answer.json["user_id"] == .string("42"))
        #expect(Self.receivers(of: "refresh-1", broker) == [change.tokenEndpoints.before])
        #expect(try await broker.causes() == ["login", "refresh"])
    }

    @Test(arguments: changes)
    func `a new login belongs to the new address`(change: Change) async throws {
        let broker = try await Self.loggedIn(change.before)
        await Self.configure(broker, change.after)
        await broker.logIn(token: BrokerHarness.token("access-2", refresh: "refresh-2"))
        #expect(await broker.status().differences == nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-3", refresh: "refresh-3")))
        #expect(await broker.get("policy=local_force_refresh").token == "access-3")
        #expect(Self.receivers(of: "refresh-2", broker) == [change.tokenEndpoints.after])
        #expect(Self.receivers(of: "refresh-1", broker) == [])
        await Self.configure(broker, change.before)
        #expect(await broker.status().differences?.count == 1)
    }

    @Test func `a slash at the end of a base is no other address`() async throws {
        let base = #""auth_service_base_uri": "https://auth.example/v1"#
        let broker = try await Self.loggedIn(base + #"""#)
        await Self.configure(broker, base + #"/""#)
        #expect(await broker.status().differences == nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2")))
        #expect(await broker.get("policy=local_force_refresh").token == "access-2")
    }

    @Test func `a token endpoint that a tenant moves under one issuer is the same provider's where it is declared`()
        async throws
    {
        let broker = try await Self.loggedIn(Self.oidc("old.example", issuer: "https://op.example"))
        await Self.configure(broker, Self.oidc("new.example", issuer: "https://op.example"))
        #expect(await broker.status().differences == ["token_endpoint"])
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get().level == "basic")
        #expect(Self.receivers(of: "refresh-1", broker) == [])
        await Self.configure(
            broker,
            Self.oidc("new.example", issuer: "https://op.example")
                + #", "previous_token_endpoints": ["https://old.example/t"]"#)
        #expect(await broker.status().differences == nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.get("policy=local_force_refresh").token == "access-2")
        #expect(Self.receivers(of: "refresh-1", broker) == ["https://new.example/t"])
        #expect(try await Self.record(broker).held?.grantedBy?.tokenEndpoint == "https://new.example/t")
    }

    @Test func `no upgrade carries a session over to another address`() async throws {
        let broker = try await Self.loggedIn(#""client_unique_key": "u1""#)
        await broker.makeTenant(
            "t1", #"{"client_id": "c2", "auth_service_base_uri": "https://auth.example", "certificate_pinning": false}"#
        )
        #expect(await broker.status().differences == ["client_id", "client_unique_key", "token_endpoint"])
        #expect(await broker.get().token == "access-1")
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get().level == "basic")
        #expect(Self.receivers(of: "refresh-1", broker) == [])
        // At the address of before it is carried over as ever.
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2")))
        #expect(await broker.get().token == "access-2")
        #expect(broker.transport.seen.last?.form["grant_type"] == "update_client")
    }

    @Test func `what has no refresh token ends at its expiry as ever`() async throws {
        let broker = try await BrokerHarness()
        await Self.configure(broker, Self.endpoint.before)
        await broker.logIn(token: BrokerHarness.token("access-1"))
        await Self.configure(broker, Self.endpoint.after)
        #expect(await broker.get().token == "access-1")
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get().level == "basic")
        #expect(try await broker.causes() == ["login", "expired"])
    }

    @Test func `the client's own token serves until it expires, and the next is the new address's`() async throws {
        let broker = try await BrokerHarness()
        await Self.configure(broker, Self.endpoint.before, secret: true)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1")), .json(200, BrokerHarness.token("client-2")))
        #expect(await broker.get().token == "client-1")
        await Self.configure(broker, Self.endpoint.after, secret: true)
        #expect(await broker.get().token == "client-1")
        #expect(await broker.status().differences == ["token_endpoint"])
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get().token == "client-2")
        #expect(await broker.status().differences == nil)
        #expect(broker.transport.seen.map(\.url) == ["https://old.example/t", "https://new.example/t"])
    }

    // MARK: Logging out and putting back

    @Test(arguments: [true, false])
    func `a revocation is not sent to the new address, and the logout holds`(hasRefreshToken: Bool) async throws {
        let broker = try await BrokerHarness()
        await Self.configure(broker, Self.endpoint.before)
        await broker.logIn(token: BrokerHarness.token("access-1", refresh: hasRefreshToken ? "refresh-1" : nil))
        await Self.configure(broker, Self.endpoint.after)
        let count = broker.transport.seen.count
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect((answer.status, answer.fields["Token-Revocation"]) == (204, "unsupported"))
        #expect(broker.transport.seen.count == count)
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `a client's token is not revoked at the new address either`() async throws {
        let broker = try await BrokerHarness()
        await Self.configure(broker, Self.endpoint.before, secret: true)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        await Self.configure(broker, Self.endpoint.after, secret: true)
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(answer.fields["Token-Revocation"] == "unsupported")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a revocation endpoint that moves is asked, where tokens are still given at the same place`()
        async throws
    {
        let broker = try await Self.loggedIn(Self.endpoint.before)
        await Self.configure(broker, Self.endpoint.before.replacing("old.example/r", with: "new.example/r"))
        broker.transport.enqueue(.json(200, ""))
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(answer.fields["Token-Revocation"] == "revoked")
        #expect(Self.receivers(of: "refresh-1", broker) == ["https://new.example/r"])
    }

    @Test func `imported credentials belong to the address of that moment`() async throws {
        let broker = try await BrokerHarness()
        await Self.configure(broker, Self.endpoint.before)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        #expect(await broker.status().differences == nil)
        await Self.configure(broker, Self.endpoint.after)
        #expect(await broker.status().differences == ["token_endpoint"])
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.isEmpty)
        // Given again, they belong to the new one.
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(Self.receivers(of: "r1", broker) == ["https://new.example/t"])
    }

    @Test func `what is put back belongs to the address that it had`() async throws {
        let broker = try await Self.loggedIn(Self.endpoint.before)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get("policy=local_force_refresh").json["session"]?["cause"]?.text == "revoked")
        await Self.configure(broker, Self.endpoint.after)
        #expect(await broker.restore().status == 200)
        #expect(await broker.status().differences == ["token_endpoint"])
        #expect(await broker.get("policy=local_force_refresh").token == "access-1")
        #expect(await broker.restore().status == 409)
        await Self.configure(broker, Self.endpoint.before)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2")))
        #expect(await broker.get("policy=local_force_refresh").token == "access-2")
        #expect(Self.receivers(of: "refresh-1", broker) == ["https://old.example/t"])
    }

    // MARK: Logins under way

    @Test func `a login is redeemed at the address of its beginning, and belongs to that`() async throws {
        let broker = try await BrokerHarness()
        await Self.configure(broker, Self.endpoint.before)
        let login = await broker.beginLogin()
        await Self.configure(broker, Self.endpoint.after)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(broker.transport.seen.map(\.url) == ["https://old.example/t"])
        #expect(await broker.status().differences == ["token_endpoint"])
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get().level == "basic")
        #expect(Self.receivers(of: "refresh-1", broker) == [])
    }

    @Test func `a device login likewise`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let (broker, script) = try await BrokerHarness.devices(time: time, tenant: nil)
        await Self.configure(broker, Self.endpoint.before)
        script.enqueue(DeviceScript.granted())
        let handle = await broker.beginDevice()
        await Self.configure(broker, Self.endpoint.after)
        await time.sleepers(of: .seconds(5))
        time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle).contains("completed"))
        #expect(broker.transport.seen.map(\.url) == ["https://old.example/d", "https://old.example/t"])
        #expect(await broker.status().differences == ["token_endpoint"])
        #expect(await broker.get("policy=local_force_refresh").token == "access-1")
        #expect(Self.receivers(of: "refresh-of-access-1", broker) == [])
    }

    // MARK: The same provider

    static let declarations: [(Change, String)] = changes.flatMap { change in
        var declarations = [#""previous_token_endpoints": ["https://x.example/t", "\#(change.tokenEndpoints.before)"]"#]
        for issuer in ["https://a.example", "https://old.example"] where change.before.contains("\"\(issuer)\"") {
            declarations.append(#""previous_issuers": ["\#(issuer)"]"#)
        }
        return declarations.map { (change, $0) }
    }

    @Test(arguments: declarations, [false, true])
    func `an address that is declared to be the same provider's has its sessions refreshed at the present one`(
        declaration: (change: Change, members: String), isExpired: Bool
    ) async throws {
        let change = declaration.change
        let broker = try await Self.loggedIn(change.before)
        if isExpired { broker.time.advance(by: .seconds(7200)) }
        await Self.configure(broker, change.after)
        #expect(await broker.status().differences == [change.difference])
        await Self.configure(broker, change.after, more: declaration.members + ", ")
        #expect(await broker.status().differences == nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.get(isExpired ? "" : "policy=local_force_refresh").token == "access-2")
        #expect(Self.receivers(of: "refresh-1", broker) == [change.tokenEndpoints.after])
        // From then on it belongs to the present provider only.
        await Self.configure(broker, change.after)
        #expect(await broker.status().differences == nil)
        await Self.configure(broker, change.before)
        #expect(await broker.status().differences?.count == 1)
    }

    @Test func `an upgrade and a revocation go to the present one, too`() async throws {
        let broker = try await Self.loggedIn(#""provider": "tidal""#)
        let moved = #"""
            {"client_id": "c2", "auth_service_base_uri": "https://auth.example/v1", "certificate_pinning": false,
             "endpoints": {"revocation": "https://auth.example/r"},
             "previous_token_endpoints": ["https://auth.tidal.com/v1/oauth2/token"]}
            """#
        await broker.makeTenant("t1", moved)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2")), .json(200, ""))
        #expect(await broker.get().token == "access-2")
        #expect(broker.transport.seen.last?.form["grant_type"] == "update_client")
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(answer.fields["Token-Revocation"] == "revoked")
        #expect(
            Self.receivers(of: "refresh-1", broker) == [
                "https://auth.example/v1/oauth2/token", "https://auth.example/r",
            ])
    }

    @Test func `a declaration of another address helps no caller`() async throws {
        let broker = try await Self.loggedIn(Self.endpoint.before)
        await Self.configure(
            broker, Self.endpoint.after,
            more:
                #""previous_issuers": ["https://old.example"], "previous_token_endpoints": ["https://old.example/t/"], "#
        )
        #expect(await broker.status().differences == ["token_endpoint"])
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get().level == "basic")
        #expect(Self.receivers(of: "refresh-1", broker) == [])
    }

    // MARK: What an earlier build stored

    /// Writes the record as a build does that knows nothing of addresses.
    private static func rewriteAsEarlierBuild(_ broker: BrokerHarness) async throws {
        let record = try #require(try await broker.vault.read(row))
        var content = try #require(CredentialRecord(decoding: record.content.revealedBytes))
        content.granted?.grantedBy = nil
        #expect(!String(decoding: content.encoded, as: UTF8.self).contains("token_endpoint"))
        try await broker.vault.commit([
            .replace(
                OpenRecord(id: row, version: record.version + 1, content: SecretBytes(content.encoded)),
                version: record.version)
        ])
    }

    @Test func `belongs to what is configured, and gets the address with the next refresh`() async throws {
        let first = try await Self.loggedIn(Self.endpoint.before)
        try await Self.rewriteAsEarlierBuild(first)
        // A process of its own, which has nothing in memory.
        let broker = try await BrokerHarness(store: first.store, time: first.time)
        await Self.configure(broker, Self.endpoint.after)
        #expect(await broker.status().differences == nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2")))
        #expect(await broker.get("policy=local_force_refresh").token == "access-2")
        #expect(Self.receivers(of: "refresh-1", broker) == ["https://new.example/t"])
        #expect(
            try await Self.record(broker).held?.grantedBy
                == GrantingProvider(issuer: nil, tokenEndpoint: "https://new.example/t"))
        await Self.configure(broker, Self.endpoint.before)
        #expect(await broker.status().differences == ["token_endpoint"])
    }

    // MARK: Metadata

    private static let byIssuer = #""provider": "oidc", "issuer": "https://op.example""#

    private static func metadata(_ host: String) -> ScriptedTransport.Step {
        .json(
            200,
            #"""
            {"issuer": "https://op.example", "authorization_endpoint": "https://\#(host)/a",
             "token_endpoint": "https://\#(host)/t", "revocation_endpoint": "https://\#(host)/r"}
            """#)
    }

    @Test func `a token endpoint that moves in the issuer's metadata is the same provider's`() async throws {
        let broker = try await BrokerHarness()
        await Self.configure(broker, Self.byIssuer)
        broker.transport.enqueue(Self.metadata("old.example"))
        _ = await broker.beginLogin()
        await broker.logIn()
        broker.time.advance(by: .seconds(3601))
        broker.transport.enqueue(
            Self.metadata("new.example"), .json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.get().token == "access-2")
        #expect(Self.receivers(of: "refresh-1", broker) == ["https://new.example/t"])
    }

    @Test(arguments: [false, true])
    func `an issuer in place of endpoints is held against what its metadata says`(isExpired: Bool) async throws {
        for (host, isSame) in [("old.example", true), ("new.example", false)] {
            let broker = try await Self.loggedIn(Self.endpoint.before)
            await Self.configure(broker, Self.byIssuer)
            // Nothing is known yet, and nothing is asked for that.
            #expect(await broker.status().differences == nil)
            #expect(await broker.get().token == "access-1")
            #expect(broker.transport.seen.count == 1)
            if isExpired { broker.time.advance(by: .seconds(3600)) }
            broker.transport.enqueue(Self.metadata(host))
            if isSame { broker.transport.enqueue(.json(200, BrokerHarness.token("access-2"))) }
            let answer = await broker.get("policy=local_force_refresh")
            #expect(answer.token == (isSame ? "access-2" : isExpired ? nil : "access-1"))
            #expect(answer.level == (isSame || !isExpired ? "user" : "basic"))
            #expect(await broker.status().differences == (isSame ? nil : ["token_endpoint"]))
            #expect(Self.receivers(of: "refresh-1", broker) == (isSame ? ["https://old.example/t"] : []))
            #expect(broker.transport.unforeseen == 0)
            #expect(try await broker.causes() == (isSame ? ["login", "refresh"] : ["login"]))
            let delete = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
            if !isSame { #expect(delete.fields["Token-Revocation"] == "unsupported") }
        }
    }

    @Test func `metadata that cannot be had sends nothing anywhere and ends nothing`() async throws {
        let broker = try await Self.loggedIn(Self.endpoint.before)
        await Self.configure(broker, Self.byIssuer)
        broker.transport.always(.failure(.connectFailed))
        #expect(await broker.get("policy=local_force_refresh").code == "network_error")
        #expect(await broker.get().token == "access-1")
        #expect(Self.receivers(of: "refresh-1", broker) == [])
        // What the metadata said once is asked again in time.
        broker.transport.always(nil)
        broker.transport.enqueue(Self.metadata("new.example"))
        #expect(await broker.get("policy=local_force_refresh").token == "access-1")
        #expect(await broker.status().differences == ["token_endpoint"])
        broker.time.advance(by: .seconds(3601))
        broker.transport.enqueue(Self.metadata("old.example"), .json(200, BrokerHarness.token("access-2")))
        #expect(await broker.get().token == "access-2")
        #expect(Self.receivers(of: "refresh-1", broker) == ["https://old.example/t"])
    }

    @Test func `what is imported before the metadata is known belongs to the issuer`() async throws {
        let broker = try await BrokerHarness()
        await Self.configure(broker, Self.byIssuer)
        await broker.set("a1", refresh: "r1")
        #expect(
            try await Self.record(broker).held?.grantedBy
                == GrantingProvider(issuer: "https://op.example", tokenEndpoint: nil))
        await Self.configure(broker, Self.endpoint.after)
        #expect(await broker.status().differences == ["issuer"])
        await Self.configure(broker, Self.byIssuer)
        broker.transport.enqueue(Self.metadata("old.example"), .json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        // Now the metadata is known.
        await broker.set("a3", refresh: "r3")
        #expect(
            try await Self.record(broker).held?.grantedBy
                == GrantingProvider(issuer: "https://op.example", tokenEndpoint: "https://old.example/t"))
    }

    // MARK: Renewals without a caller

    @Test func `nothing is refreshed ahead of time at another address, and the expiry is told`() async throws {
        let broker = try await Self.loggedIn(
            Self.endpoint.before, more: #""proactive_refresh": 1800, "#, time: ManualTime(skipsSleeps: false))
        await Self.configure(broker, Self.endpoint.after, more: #""proactive_refresh": 1800, "#)
        for elapsed in [1801, 1500] {
            broker.time.advance(by: .seconds(elapsed))
            _ = await broker.broker.core.expiryJob.handleAllDue()
            await broker.broker.core.expiryJob.finish()
        }
        #expect(Self.receivers(of: "refresh-1", broker) == [])
        #expect(try await broker.loggedEvents().count { $0.name == "credentials.expiring" } == 1)
        #expect(try await broker.causes() == ["login"])
    }

    @Test(arguments: [false, true])
    func `a replica's unknown outcome is still known when the address or the client is back`(isClient: Bool)
        async throws
    {
        let time = ManualTime()
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(5), time: time)
        await Self.configure(one, Self.endpoint.before)
        await one.logIn()
        let version = try #require(try await one.vault.read(Self.row)).version
        try await one.vault.commit([
            .claim(Self.row, version: version, holder: "dead", replacing: nil, for: .seconds(12))
        ])
        if isClient {
            await one.makeTenant("t1", #"{"client_id": "c2", \#(Self.endpoint.before)}"#)
        } else {
            await Self.configure(one, Self.endpoint.after)
        }
        time.advance(by: .seconds(12))
        time.holdSleeps()
        two.broker.core.start()
        // Everything that the broker does by itself has been begun once.
        await time.sleepers(of: SleepLength.jobsOfReplica)
        while try #require(try await one.vault.read(Self.row)?.lease).wasGivenUp == false { await Task.yield() }
        #expect(try await one.vault.lapsed(.credentials, limit: 9).isEmpty)
        two.broker.beginDraining()
        await two.broker.core.finish()
        #expect(two.transport.seen.isEmpty)

        await Self.configure(one, Self.endpoint.before)
        one.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await one.get("policy=local_force_refresh").json["session"]?["cause"]?.text == "revoked")
        #expect(one.log.contains { $0.contains("session_lost") })
        #expect(Self.receivers(of: "refresh-1", one) == ["https://old.example/t"])
    }

    @Test func `a renewal under way ends where it began, and those who wait for it have what it brought`() async throws
    {
        let broker = try await Self.loggedIn(Self.endpoint.before)
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("access-2", refresh: "refresh-2"))))
        async let first = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        await Self.configure(broker, Self.endpoint.after)
        gate.open()
        #expect(await first.token == "access-2")
        #expect(await broker.get().token == "access-2")
        #expect(await broker.status().differences == ["token_endpoint"])
        #expect(
            try await Self.record(broker).held?.grantedBy
                == GrantingProvider(issuer: nil, tokenEndpoint: "https://old.example/t"))
    }

    @Test func `a refusal that comes after the change ends nothing`() async throws {
        let broker = try await Self.loggedIn(Self.endpoint.before)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(400, #"{"error": "invalid_grant"}"#)))
        async let first = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        await Self.configure(broker, Self.endpoint.after)
        gate.open()
        #expect(await first.token == "access-1")
        #expect(try await broker.causes() == ["login"])
        #expect(try await broker.quarantined() == nil)
    }
}
