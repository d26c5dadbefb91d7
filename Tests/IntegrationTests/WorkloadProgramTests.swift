import BrokerTesting
import ExternalText
import FoundationEssentials
import HTTPCodec
import JSON
import OAuth
import Testing

/// `token-broker` with an issuer of workloads' tokens, whose keys it fetches by HTTPS.
@Suite(.timeLimit(.minutes(3))) struct `The program with tokens of workloads` {
    private let directory = StoreFixtureDirectory()

    @Test func `lets a workload in by its token until its key is deleted`() async throws {
        let provider = SigningProvider()
        let set = provider.keySet
        let issuer = try await TLSTestServer([
            .serve(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: \(set.utf8.count)\r\n\r\n\(set)")
        ])
        let name = issuer.url("")
        let list = #"[{"issuer": "\#(name)", "audience": "token-broker", "jwks_uri": "\#(issuer.url("/keys"))"}]"#
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let file = directory.path + "/issuers.json"
        try Data(list.utf8).write(to: URL(filePath: file))
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port,
            [
                "DATA_DIR": directory.path + "/data", "TRUSTED_CA_FILE": TLSTestCertificates.shared.root,
                "ALLOW_INSECURE_PROVIDERS": "true", "WORKLOAD_ISSUERS_FILE": file,
            ])
        let broker = try BrokerClient(port: port)
        #expect(try await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        let made = try await broker.call(
            .post, "/tenants/t1/api-keys",
            body: """
                {"name": "cart", "identity": "jwt:\(name)#system:serviceaccount:shop:cart",
                 "permissions": ["credentials:read"]}
                """)
        #expect(made.status == 201 && made.json["api_key"] == nil, "\(made.text)")
        let id = try #require(made.json["id"]?.text)
        let now = Int64(Date().timeIntervalSince1970)
        func token(audience: String, subject: String = "system:serviceaccount:shop:cart") -> String {
            provider.token(
                #"{"iss": "\#(name)", "aud": ["\#(audience)"], "sub": "\#(subject)", "exp": \#(now + 600)}"#)
        }
        let good = token(audience: "token-broker")
        for (text, status) in [
            (good, 200), (token(audience: "other"), 401), (token(audience: "token-broker", subject: "x"), 401),
            (good, 200),
        ] {
            #expect(try await broker.call(.get, "/credentials", key: text).status == status)
        }
        #expect(try await broker.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        #expect(try await broker.call(.get, "/credentials", key: good).status == 401)
        await broker.close()
        #expect(await process.terminate() == 0)
        #expect(!process.lines.contains { $0.contains("eyJ") })
        #expect(try await issuer.report(afterRequests: 1).requests.count == 1)
    }

    private static func list(_ count: Int) -> String {
        let members = (0..<count).map { #"{"issuer": "https://op\#($0).example", "audience": "a"}"# }
        return "[" + members.joined(separator: ",") + "]"
    }

    @Test(
        arguments: [
            (list(1), nil), (list(16), nil), (list(0), "1 to 16 members"), (list(17), "1 to 16 members"),
            (#"[{"issuer": "https://op.example", "audience": "a", "jwks_uri": "https://op.example/keys"}]"#, nil),
            ("{}", "must be a JSON array"), ("https://op.example", "must be a JSON array"),
            ("[5]", "/0 must be an object"),
            (#"[{"issuer": "https://op.example"}]"#, "/0/audience is required"),
            (#"[{"audience": "a"}]"#, "/0/issuer is required"),
            (#"[{"issuer": "http://op.example", "audience": "a"}]"#, "/0/issuer must be an address of https"),
            (#"[{"issuer": "https://op.example?a", "audience": "a"}]"#, "/0/issuer must be an address of https"),
            (#"[{"issuer": "https://op.example#a", "audience": "a"}]"#, "/0/issuer must be an address of https"),
            (
                #"[{"issuer": "https://a.example", "audience": "a", "jwks_uri": "http://a.example"}]"#,
                "/0/jwks_uri must be"
            ),
            (
                #"[{"issuer": "https://a.example", "audience": "a", "ca_file": "x"}]"#,
                "/0/ca_file is not a known member"
            ),
            (
                #"[{"issuer": "https://a.example", "audience": "a"}, {"issuer": "https://a.example", "audience": "b"}]"#,
                "/1/issuer is that of another member"
            ),
        ] as [(String, String?)])
    func `checks the issuers before it starts`(issuers: String, fault: String?) async throws {
        let checked = try await BrokerProcess.run(["config", "check"], ["WORKLOAD_ISSUERS": issuers])
        #expect(checked.status == (fault == nil ? 0 : 78), "\(checked.output)")
        if let fault {
            #expect(checked.output.contains("TOKEN_BROKER_WORKLOAD_ISSUERS") && checked.output.contains(fault))
        }
    }

    @Test func `has the doctor tell of the issuers`() async throws {
        let found = try await BrokerProcess.run(
            ["doctor"],
            ["DATA_DIR": directory.path, "ADMIN_KEY": BrokerHarness.adminKey, "WORKLOAD_ISSUERS": Self.list(1)])
        #expect(found.output.contains("workloads may send tokens"), "\(found.output)")
        #expect(found.output.contains("https://op0.example for a"))
    }
}
