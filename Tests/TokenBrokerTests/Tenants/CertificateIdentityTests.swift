import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Reactor
import TLS
import Testing
import TokenBroker

/// Callers that prove who they are by a certificate, through the server's TLS.
@Suite(.timeLimit(.minutes(3))) struct `A client's certificate` {
    private static let certificates = ClientCertificates.shared
    private static let dns = "dns:service.example"
    private static let spiffe = "spiffe://example.org/ns/shop/sa/cart"

    private static func context(_ authorities: String = certificates.authority) throws -> TLSServerContext {
        let server = TLSTestCertificates.shared
        return try TLSServerContext(
            certificateFile: server.chain(.good), keyFile: server.key(.good), clientAuthoritiesFile: authorities)
    }

    private static func withServer(
        _ body: (WarmServer, TLSCertificateClient, TLSServerContext) async throws -> Void
    ) async throws {
        let context = try context()
        try await withWarmServer(tls: context) { server in
            try await body(server, try await TLSCertificateClient(port: server.address.port), context)
        }
    }

    /// Makes a key with that identity, and returns its identifier.
    @discardableResult private static func makeKey(
        _ broker: BrokerHarness, _ identity: String, tenant: String = "t1", permission: String = "credentials:read",
        _ members: String = ""
    ) async throws -> String {
        let made = await broker.call(
            .post, "/tenants/\(tenant)/api-keys",
            body: #"{"name": "k", "identity": "\#(identity)", "permissions": ["\#(permission)"]\#(members)}"#)
        #expect(made.status == 201, "\(made.text)")
        return try #require(made.json["id"]?.text)
    }

    /// A client whose certificate has that identity, in place of a connection.
    private static func peer(_ identity: String = dns) throws -> PeerIdentity {
        let identity = try #require(CallerIdentity(WireText(identity)))
        return PeerIdentity([identity.digest.vector], expirySeconds: 4_070_908_800)
    }

    // MARK: The handshake

    /// What certificate is answered with which status, where keys have the identities `dns` and `spiffe`; nil where the
    /// handshake fails.
    private static let outcomes: [(ClientCertificates.Name?, Int?)] = [
        (nil, 401), (.dns, 200), (.upperCase, 200), (.spiffe, 200), (.spiffeAndDNS, 200), (.twoSPIFFE, 401),
        (.spiffeAndURI, 401), (.upperCaseScheme, 401), (.otherURI, 200), (.wildcard, 401), (.nulInName, 401),
        (.notASCII, 401), (.commonNameOnly, 401), (.many, 401), (.deep, 200), (.tooDeep, nil), (.serverPurpose, nil),
        (.expired, nil), (.wrongAuthority, nil),
    ]

    @Test(arguments: TLSCertificateClient.Version.allCases)
    func `stands for the key of its names, and one that cannot be verified ends the connection`(
        version: TLSCertificateClient.Version
    ) async throws {
        try await Self.withServer { server, client, _ in
            for identity in [Self.dns, Self.spiffe] { try await Self.makeKey(server.harness, identity) }
            for (certificate, status) in Self.outcomes {
                let name = certificate?.rawValue ?? "none"
                _ = try await client.connect(name, certificate, version)
                let answer = try await client.get(name, "/credentials")
                #expect(answer?.status == status, "\(name)")
                if status == 200 { #expect(answer?.body.contains("access-1") == true, "\(name)") }
            }
            // Without a certificate the API key counts, as on every connection.
            let key = "Authorization: Bearer \(server.key)"
            #expect(try await client.get("none", "/credentials", key)?.status == 200)
        }
    }

    @Test func `is accepted of an authority between, if that is the one that is named`() async throws {
        try await Self.withServer { server, client, context in
            try await Self.makeKey(server.harness, Self.dns)
            let names = TLSTestCertificates.shared
            try context.reload(
                certificateFile: names.chain(.good), keyFile: names.key(.good),
                clientAuthoritiesFile: Self.certificates.intermediateAuthority)
            for (certificate, status) in [(.deep, 200), (.dns, nil)] as [(ClientCertificates.Name, Int?)] {
                _ = try await client.connect(certificate.rawValue, certificate)
                #expect(try await client.get(certificate.rawValue, "/credentials")?.status == status)
            }
        }
    }

    @Test(arguments: [(15, 200), (16, 200), (17, 401)])
    func `counts with its first sixteen names`(number: Int, status: Int) async throws {
        try await Self.withServer { server, client, _ in
            try await Self.makeKey(server.harness, "dns:n\(number).example")
            _ = try await client.connect("a", .many)
            #expect(try await client.get("a", "/credentials")?.status == status)
        }
    }

    @Test func `with a SPIFFE ID stands for its key before that of a DNS name`() async throws {
        try await Self.withServer { server, client, _ in
            try await Self.makeKey(server.harness, Self.dns)
            let other = try await Self.makeKey(server.harness, Self.spiffe, permission: "events")
            _ = try await client.connect("a", .spiffeAndDNS)
            #expect(try await client.get("a", "/credentials")?.status == 403)
            // Without that key the certificate stands for no key, and not for the other one, also on the same connection.
            #expect(await server.harness.call(.delete, "/tenants/t1/api-keys/\(other)").status == 204)
            #expect(try await client.get("a", "/credentials")?.status == 401)
            _ = try await client.connect("b", .spiffeAndDNS)
            #expect(try await client.get("b", "/credentials")?.status == 401)
            // A certificate without that name stands for the other key as before.
            _ = try await client.connect("c", .dns)
            #expect(try await client.get("c", "/credentials")?.status == 200)
        }
    }

    /// How the key of the first name ends.
    enum End: CaseIterable {
        case deletion, expiry, itsTenant
    }

    @Test(arguments: End.allCases)
    func `with two names is no other tenant's caller after the key of the first name has ended`(_ end: End) async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        await broker.set("of-2", tenant: "t2")
        let digests = try ["dns:a.example", "dns:b.example"].map { try #require(CallerIdentity($0)).digest.vector }
        func connect() -> PeerIdentity { PeerIdentity(digests, expirySeconds: 4_070_908_800) }
        let first = try await Self.makeKey(broker, "dns:a.example", #", "expires_in": 60"#)
        let open = connect()
        #expect(await broker.call(.get, "/credentials/status", by: open).status == 200)
        try await Self.makeKey(broker, "dns:b.example", tenant: "t2")
        // The first name counts, on each connection.
        #expect(await broker.call(.get, "/credentials", by: connect(), fields: ["X-Tenant": "t2"]).status == 403)
        switch end {
        case .deletion: #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(first)").status == 204)
        case .expiry: broker.time.advance(by: .seconds(60))
        case .itsTenant: #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        }
        for peer in [open, connect()] {
            let refused = await broker.call(.get, "/credentials", by: peer)
            #expect((refused.status, refused.code) == (401, "unauthorized"), "\(refused.text)")
            #expect(refused.text.contains("was deleted or has expired"))
        }
        // A key for the name lets the certificate in again, as that key's caller.
        if end == .expiry { return }
        try await Self.makeKey(broker, "dns:a.example", tenant: "t2", permission: "events")
        #expect(await broker.call(.get, "/credentials", by: connect()).status == 403)
    }

    @Test func `of two names of which the second alone has a key stands for that key`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("of-1")
        let digests = try ["dns:a.example", "dns:b.example"].map { try #require(CallerIdentity($0)).digest.vector }
        try await Self.makeKey(broker, "dns:b.example")
        let peer = PeerIdentity(digests, expirySeconds: 4_070_908_800)
        #expect(await broker.call(.get, "/credentials", by: peer).json["token"]?.text == "of-1")
    }

    // MARK: Sessions

    @Test(arguments: TLSCertificateClient.Version.allCases)
    func `counts in a resumed session as in the session before`(version: TLSCertificateClient.Version) async throws {
        try await Self.withServer { server, client, _ in
            let id = try await Self.makeKey(server.harness, Self.dns)
            #expect(try await client.connect("a", .dns, version) == false)
            #expect(try await client.get("a", "/credentials")?.status == 200)
            #expect(try await client.connect("b", .dns, version, resuming: "a") == true)
            #expect(try await client.get("b", "/credentials")?.status == 200)
            #expect(await server.harness.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
            #expect(try await client.connect("c", .dns, version, resuming: "b") == true)
            for name in ["a", "b", "c"] { #expect(try await client.get(name, "/credentials")?.status == 401) }
        }
    }

    @Test(arguments: TLSCertificateClient.Version.allCases)
    func `of an authority that is accepted no more has no session that can be resumed`(
        version: TLSCertificateClient.Version
    ) async throws {
        try await Self.withServer { server, client, context in
            try await Self.makeKey(server.harness, Self.dns)
            let names = TLSTestCertificates.shared
            func reload(_ authorities: String?) throws {
                try context.reload(
                    certificateFile: names.chain(.good), keyFile: names.key(.good), clientAuthoritiesFile: authorities)
            }
            _ = try await client.connect("a", .dns, version)
            #expect(try await client.get("a", "/credentials")?.status == 200)
            // New keys of tickets, with the same authorities: a full handshake, in which the certificate is accepted again.
            try context.renewTicketKeys()
            #expect(try await client.connect("b", .dns, version, resuming: "a") == false)
            #expect(try await client.get("b", "/credentials")?.status == 200)

            try reload(Self.certificates.otherAuthority)
            #expect(try await client.connect("c", .dns, version, resuming: "b") != true)
            #expect(try await client.get("c", "/credentials") == nil)
            // Where no client is asked for a certificate, none counts.
            try reload(nil)
            #expect(try await client.connect("d", .dns, version, resuming: "b") == false)
            #expect(try await client.get("d", "/credentials")?.status == 401)
            #expect(throws: TLSServerError.clientAuthorities("/nowhere")) { try reload("/nowhere") }
        }
    }

    @Test func `counts until it expires, and then the connection ends`() async throws {
        try await Self.withServer { server, client, _ in
            try await Self.makeKey(server.harness, Self.dns)
            _ = try await client.connect("a", .dns)
            #expect(try await client.get("a", "/credentials")?.status == 200)
            // 2099-01-01T00:00:00Z
            let rest = server.harness.time.now.duration(to: Timestamp(seconds: 4_070_908_800))
            server.harness.time.advance(by: rest - .milliseconds(1))
            let last = try #require(try await client.get("a", "/credentials/status"))
            #expect(last.status == 200 && !last.closes)
            server.harness.time.advance(by: .milliseconds(1))
            for target in ["/credentials", "/credentials/status"] {
                _ = try await client.connect("b", .dns)
                let expired = try #require(try await client.get("b", target))
                #expect(expired.status == 401 && expired.closes)
                #expect(expired.body.contains("has expired"))
                #expect(try await client.get("b", target) == nil)
            }
        }
    }

    // MARK: Requests

    @Test func `is not needed by a request with an Authorization field, and no help to it`() async throws {
        try await Self.withServer { server, client, _ in
            try await Self.makeKey(server.harness, Self.dns)
            await server.harness.makeTenant("t2")
            await server.harness.set("other", tenant: "t2")
            let other = await server.harness.makeKey("t2")
            _ = try await client.connect("a", .dns)
            for _ in 0..<2 {
                #expect(try await client.get("a", "/credentials")?.status == 200)
                let key = try await client.get("a", "/credentials", "Authorization: Bearer \(other)")
                #expect(key?.status == 200 && key?.body.contains("other") == true)
                for field in [
                    "Bearer \(Self.dns)", "Bearer service.example", "Bearer unknown", "Bearer ", "Basic dTpw", "",
                ] {
                    let answer = try await client.get("a", "/credentials", "Authorization: \(field)")
                    #expect(answer?.status == 401, "\(field)")
                }
            }
        }
    }

    /// What proxies write about their clients' certificates.
    @Test(arguments: [
        "X-Forwarded-Client-Cert: URI=spiffe://example.org/ns/shop/sa/cart;DNS=service.example",
        "Client-Cert: :AAAA:", "X-SSL-Client-Verify: SUCCESS", "X-SSL-Client-S-DN: CN=service.example",
        "Forwarded: for=10.0.0.1;by=dns:service.example",
    ])
    func `is not believed where a header field tells of it`(field: String) async throws {
        try await Self.withServer { server, client, _ in
            for identity in [Self.dns, Self.spiffe] { try await Self.makeKey(server.harness, identity) }
            _ = try await client.connect("a", nil)
            #expect(try await client.get("a", "/credentials", field)?.status == 401)
        }
    }

    @Test func `answers warm reads at once, as often as an API key does, until its key is deleted`() async throws {
        try await Self.withServer { server, client, _ in
            let id = try await Self.makeKey(server.harness, Self.dns)
            // Its first name has no key.
            try await Self.makeKey(server.harness, "dns:n3.example")
            for certificate in [ClientCertificates.Name.dns, .many] {
                let name = certificate.rawValue
                _ = try await client.connect(name, certificate)
                let first = try await client.get(name, "/credentials")
                let usual = server.usual()
                for _ in 0..<5 {
                    let warm = try #require(try await client.get(name, "/credentials"))
                    #expect(warm.status == 200 && warm.body == first?.body)
                }
                #expect(server.usual() == usual)
            }
            #expect(await server.harness.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
            #expect(try await client.get("dns", "/credentials")?.status == 401)
            #expect(try await client.get("many", "/credentials")?.status == 200)
            // The identity is free again.
            try await Self.makeKey(server.harness, Self.dns)
            #expect(try await client.get("dns", "/credentials")?.status == 200)
        }
    }

    // H025
    @Test func `allows what its key does, for the storage keys that its key names`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", storageKey: "team.a")
        let peer = try Self.peer()
        try await Self.makeKey(broker, Self.dns, #", "storage_keys": ["team.*"], "expires_in": 60"#)
        for (target, status) in [
            ("/credentials?storage_key=team.a", 200), ("/credentials?storage_key=other", 403), ("/credentials", 403),
            ("/events", 403), ("/tenants", 403),
        ] {
            #expect(await broker.call(.get, target, by: peer).status == status, "\(target)")
        }
        let set = await broker.call(
            .put, "/credentials", by: peer,
            body: #"{"storage_key": "team.a", "credentials": {"client_id": "c1", "token": "x"}}"#)
        #expect((set.status, set.code) == (403, "forbidden"))
        #expect(await broker.call(.get, "/credentials", by: peer, fields: ["X-Tenant": "t2"]).status == 403)

        broker.time.advance(by: .milliseconds(59_999))
        #expect(await broker.call(.get, "/credentials?storage_key=team.a", by: peer).status == 200)
        broker.time.advance(by: .milliseconds(1))
        let expired = await broker.call(.get, "/credentials?storage_key=team.a", by: peer)
        #expect((expired.status, expired.code) == (401, "unauthorized"))
        #expect(expired.fields["WWW-Authenticate"] == "Bearer")
    }

    @Test func `without a key of its names costs the store one look at each`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        let digests = try ["dns:a", "dns:b", "dns:c"].map { try #require(CallerIdentity($0)).digest.vector }
        let peer = PeerIdentity(digests, expirySeconds: 4_070_908_800)
        let reads = store.reads
        #expect(await broker.call(.get, "/tenants/t1", by: peer).status == 401)
        #expect(store.reads == reads + 3)
        let none = PeerIdentity([], expirySeconds: 4_070_908_800)
        #expect(await broker.call(.get, "/tenants/t1", by: none).status == 401)
        #expect(store.reads == reads + 3)
    }

    // H026
    @Test func `has its event streams ended when its key is deleted`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant()
        let id = try await Self.makeKey(broker, Self.dns, permission: "events")
        let listener = await broker.listen(by: try Self.peer())
        #expect(listener.answer.status == 200 && !listener.isOver)
        #expect(await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        await listener.end()
    }
}

/// API keys that have an identity in place of a secret, as operators see them.
@Suite struct `An API key with an identity` {
    private static let path = "/tenants/t1/api-keys"

    private static func make(
        _ broker: BrokerHarness, _ identity: String, tenant: String = "t1"
    ) async -> BrokerHarness.Answer {
        await broker.call(
            .post, "/tenants/\(tenant)/api-keys",
            body: #"{"name": "k", "identity": \#(identity), "permissions": ["login"]}"#)
    }

    @Test(arguments: ["dns:service.example", "spiffe://example.org/ns/shop/sa/cart"])
    func `has no secret, and is shown with its identity`(identity: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let made = await Self.make(broker, "\"\(identity)\"")
        #expect(made.status == 201)
        let id = try #require(made.json["id"]?.text)
        let text = """
            {"id":"\(id)","name":"k","identity":"\(identity)","permissions":["login"],\
            "created":"2026-11-21T09:00:00Z","expires":null}
            """
        #expect(made.text == text)
        #expect(await broker.call(.get, "\(Self.path)/\(id)").text == text)
        #expect(await broker.call(.get, Self.path).text == "{\"api_keys\":[\(text)]}")
        let rotated = await broker.call(.post, "\(Self.path)/\(id)/rotate")
        #expect((rotated.status, rotated.code) == (409, "conflict"))
        #expect(rotated.text.contains("no secret to replace"))
        #expect(await broker.call(.get, "\(Self.path)/\(id)").text == text)
    }

    @Test func `is the only one with it, in all tenants, until it is deleted`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let id = try #require(await Self.make(broker, #""dns:a.example""#).json["id"]?.text)
        for tenant in ["t1", "t2"] {
            let second = await Self.make(broker, #""dns:a.example""#, tenant: tenant)
            #expect((second.status, second.code) == (409, "conflict"))
            #expect(second.text.contains("The API key \(id) of the tenant t1 has this identity"))
        }
        #expect(await Self.make(broker, #""dns:b.example""#, tenant: "t2").status == 201)
        #expect(await Self.make(broker, #""dns:c.example""#, tenant: "t3").status == 404)
        #expect(await broker.call(.delete, "\(Self.path)/\(id)").status == 204)
        #expect(await Self.make(broker, #""dns:a.example""#, tenant: "t2").status == 201)
        // The end of a tenant is that of its keys.
        #expect(await broker.call(.delete, "/tenants/t2").status == 204)
        for name in ["a", "b"] { #expect(await Self.make(broker, "\"dns:\(name).example\"").status == 201) }
    }

    @Test(arguments: [
        "\"\"", "5", "[\"dns:a\"]", "\"dns:\"", "\"dns:*.example\"", "\"dns:A.example\"", "\"a.example\"",
        "\"spiffe://example.org\"", "\"spiffe://example.org/a/\"", "\"dns:a\\u0000\"", "\"https://example.org/a\"",
        "\"spiffe://example.org/\(String(repeating: "a", count: 2028))\"",
    ])
    func `is not made with another text`(identity: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let refused = await Self.make(broker, identity)
        #expect((refused.status, refused.code) == (400, "invalid_request"))
        #expect(refused.pointers == ["/identity"])
    }

    @Test func `may be null, which is a key with a secret`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let made = await Self.make(broker, "null")
        #expect(made.status == 201 && made.json["api_key"] != nil && made.json["identity"] == nil)
    }
}
