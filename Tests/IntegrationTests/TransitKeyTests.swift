import BrokerTesting
import FoundationEssentials
import HTTPCodec
import JSON
import Reactor
import Testing

/// Master keys that a transit engine of Vault or OpenBao decrypts. The engine is a stand-in, as its HTTP API is documented.
@Suite(.timeLimit(.minutes(3))) struct `Master keys that a key service decrypts` {
    private let directory = StoreFixtureDirectory()
    private static let plain = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    private static let next = "HxAeHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgE="

    private func write(_ text: String, _ name: String) throws -> String {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let path = directory.path + "/" + name
        try SmallFile.replace(path, Array(text.utf8))
        return path
    }

    private func variables(_ keys: String, _ settings: String) -> [String: String] {
        [
            "DATA_DIR": directory.path + "/data", "MASTER_KEYS": keys, "MASTER_KEYS_VAULT": settings,
            "TRUSTED_CA_FILE": TLSTestCertificates.shared.root,
        ]
    }

    @Test func `are decrypted at each start and at SIGHUP, and stand nowhere in clear`() async throws {
        let engine = try TransitServer(.token("hvs.secret"), namespace: "team")
        let token = try write("hvs.secret\n", "token")
        let first = "k1:" + (try engine.encrypt(Self.plain))
        let keys = try write(first, "keys")
        var variables = variables(
            "", #"{"decrypt_url": "\#(engine.decryption)", "namespace": "team", "token_file": "\#(token)"}"#)
        variables["MASTER_KEYS"] = nil
        variables["MASTER_KEYS_FILE"] = keys
        let port = try PostgresServer.freePort()
        let serving = try await BrokerProcess.start(port: port, variables)
        let client = try BrokerClient(port: port)
        #expect(try await client.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        #expect(engine.counts.decryptions == 1)

        func reload(_ event: String, _ detail: String) async throws {
            serving.hangUp()
            _ = try await serving.line { $0.contains(#""event":"\#(event)""#) && $0.contains(detail) }
        }
        try await reload("master_keys_unchanged", #""master_key":"k1""#)
        _ = try write("k2:\(try engine.encrypt(Self.next)), \(first)\n", "keys")
        try await reload("master_keys_replaced", #""master_key":"k2""#)
        // Where the keys cannot be had, those of before stay.
        _ = try write("hvs.other", "token")
        try await reload("master_keys_not_replaced", "403")
        _ = try write("hvs.secret", "token")
        #expect(try await client.call(.put, "/tenants/t2", body: #"{"client_id": "c1"}"#).status == 201)
        #expect(await serving.terminate() == 0)

        let again = try await BrokerProcess.start(port: port, variables)
        for tenant in ["t1", "t2"] { #expect(try await client.call(.get, "/tenants/\(tenant)").status == 200) }
        await client.close()
        #expect(await again.terminate() == 0)
        #expect(engine.counts.decryptions == 1 + 1 + 2 + 2)
        for line in serving.lines + again.lines {
            for secret in [Self.plain, Self.next, "hvs."] { #expect(!line.contains(secret)) }
        }
        await engine.close()
    }

    @Test func `are decrypted for a workload that logs in by its token`() async throws {
        let engine = try TransitServer(.workload(role: "broker", proof: "eyJ.workload.token"))
        let proof = try write("eyJ.workload.token", "jwt")
        let keys = "k1:" + (try engine.encrypt(Self.plain))
        func check(_ settings: String) async throws -> (status: Int32, output: String) {
            try await BrokerProcess.run(["config", "check"], variables(keys, settings))
        }
        let url = engine.decryption
        let good = try await check(#"{"decrypt_url": "\#(url)", "role": "broker", "jwt_file": "\#(proof)"}"#)
        #expect(good.status == 0, "\(good.output)")
        #expect(engine.counts == (1, 1))
        let login = #""login": "auth/kubernetes/login""#
        let named = try await check(
            #"{"decrypt_url": "\#(url)", "role": "broker", "jwt_file": "\#(proof)", \#(login)}"#)
        #expect(named.status == 0 && engine.counts == (2, 2), "\(named.output)")
        #expect(engine.tokensLeft == 0)
        for (settings, fault) in [
            (#""role": "other", "jwt_file": "\#(proof)""#, "refuses the login (400)"),
            (
                #""role": "broker", "jwt_file": "\#(try write("eyJ.other", "jwt-2"))""#,
                "does not permit the login (403)"
            ),
            (
                #""role": "broker", "jwt_file": "\#(proof)", "login": "auth/none/login""#,
                "names a path of the login that the engine does not have (404)"
            ),
            (#""namespace": "team""#, "names a path of the decryption that the engine does not have (404)"),
        ] {
            let refused = try await check(#"{"decrypt_url": "\#(url)", \#(settings)}"#)
            #expect(refused.status == 78 && refused.output.contains(fault), "\(refused.output)")
            #expect(!refused.output.contains("eyJ"))
        }
        let other = try await check(#"{"decrypt_url": "\#(url)-2", "role": "broker", "jwt_file": "\#(proof)"}"#)
        #expect(other.status == 78 && other.output.contains("refuses the decryption (400)"), "\(other.output)")
        #expect(engine.tokensLeft == 0)
        await engine.close()
    }

    @Test func `are asked for once the token's file is there, and not past a proxy that cannot be used`() async throws {
        let engine = try TransitServer(.token("t"))
        let path = try write("", "token")
        let settings = #"{"decrypt_url": "\#(engine.decryption)", "token_file": "\#(path)"}"#
        let keys = "k1:" + (try engine.encrypt(Self.plain))
        var environment = [String: String]()
        for (name, value) in variables(keys, settings) { environment["TOKEN_BROKER_\(name)"] = value }
        environment["HTTPS_PROXY"] = "no proxy"
        let refused = try await BrokerProcess.run(["config", "check"], environment: environment)
        #expect(refused.status == 78 && refused.output.contains("HTTPS_PROXY"), "\(refused.output)")
        #expect(!refused.output.contains("MASTER_KEYS") && engine.counts.decryptions == 0, "\(refused.output)")
        async let checked = BrokerProcess.run(["config", "check"], variables(keys, settings))
        _ = try write("t", "token")
        #expect(try await checked.status == 0)
        // One that never will be is told at once.
        let wrong = try await BrokerProcess.run(
            ["config", "check"],
            variables(keys, #"{"decrypt_url": "\#(engine.decryption)", "token_file": "\#(directory.path)"}"#))
        #expect(wrong.status == 78 && wrong.output.contains("cannot be read"), "\(wrong.output)")
        await engine.close()
    }

    @Test(arguments: [503, 500, 429, 307])
    func `are waited for while the service cannot decrypt them`(status: Int) async throws {
        let engine = try TransitServer(.token("t"))
        let token = try write("t", "token")
        engine.setOutage(status)
        async let checked = BrokerProcess.run(
            ["config", "check"],
            variables(
                "k1:" + (try engine.encrypt(Self.plain)),
                #"{"decrypt_url": "\#(engine.decryption)", "token_file": "\#(token)"}"#))
        for await _ in engine.refused { break }
        engine.setOutage(nil)
        let result = try await checked
        #expect(result.status == 0, "\(result.output)")
        await engine.close()
    }

    @Test func `that are not all its own are named by their places`() async throws {
        let engine = try TransitServer(.token("t"))
        let token = try write("t", "token")
        let settings = #"{"decrypt_url": "\#(engine.decryption)", "token_file": "\#(token)"}"#
        let (good, bad) = (try engine.encrypt(Self.plain), "vault:v1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==")
        for (keys, fault) in [
            ("k1:\(good),k2:\(bad)", "cannot decrypt entry 2"), ("k1:\(bad)", "cannot decrypt entry 1"),
            ("k1:\(good),k2:\(Self.plain)", "entry 2 of TOKEN_BROKER_MASTER_KEYS has another form"),
            (Self.plain, "entry 1 of"), ("k1:\(good),", "entry 2 of"),
            ("k1:\(good),k1:\(try engine.encrypt(Self.next))", "TOKEN_BROKER_MASTER_KEYS has keys that cannot be used"),
            ("k1:\(try engine.encrypt("AAAA"))", "TOKEN_BROKER_MASTER_KEYS has keys that cannot be used"),
        ] {
            let before = engine.counts.decryptions
            let checked = try await BrokerProcess.run(["config", "check"], variables(keys, settings))
            #expect(checked.status == 78 && checked.output.contains(fault), "\(checked.output)")
            #expect(!checked.output.contains(Self.plain) && !checked.output.contains("AAAA"))
            // A key in clear is not sent.
            if fault.contains("another form") { #expect(engine.counts.decryptions == before) }
        }
        await engine.close()
    }

    @Test(arguments: [
        ("5", "must be a JSON object"), ("[]", "must be a JSON object"), ("{}", "/decrypt_url is required"),
        (#"{"decrypt_url": "http://vault.example/v1/transit/decrypt/b"}"#, "/decrypt_url must be an address of https"),
        (#"{"decrypt_url": "https://vault.example/v1/transit/encrypt/b"}"#, "/decrypt_url must be"),
        (#"{"decrypt_url": "https://vault.example/v1/transit/decrypt/"}"#, "/decrypt_url must be"),
        (#"{"decrypt_url": "https://vault.example/v1/transit/decrypt/b?x"}"#, "/decrypt_url must be"),
        (
            #"{"decrypt_url": "https://vault.example/v1/transit/decrypt/b", "token": "t"}"#,
            "/token is not a known member"
        ),
        (#"{"decrypt_url": "https://vault.example/v1/transit/decrypt/b", "jwt_file": "t"}"#, "/jwt_file requires role"),
        (#"{"decrypt_url": "https://vault.example/v1/transit/decrypt/b", "login": "t"}"#, "/login requires role"),
        (
            #"{"decrypt_url": "https://vault.example/v1/transit/decrypt/b", "role": "r", "token_file": "t"}"#,
            "/token_file cannot be used together with role"
        ),
        (
            #"{"decrypt_url": "https://vault.example/v1/transit/decrypt/b", "namespace": "a b"}"#,
            "/namespace must consist of visible characters"
        ),
    ])
    func `have their settings checked`(settings: String, fault: String) async throws {
        let checked = try await BrokerProcess.run(
            ["config", "check"], variables("k1:vault:v1:AAAA", settings))
        #expect(checked.status == 78, "\(checked.output)")
        #expect(checked.output.contains("TOKEN_BROKER_MASTER_KEYS_VAULT"), "\(checked.output)")
        #expect(checked.output.contains(fault), "\(checked.output)")
    }

    @Test func `have one source, and a service without keys has nothing to decrypt`() async throws {
        let settings = #"{"decrypt_url": "https://127.0.0.1:8200/v1/transit/decrypt/b"}"#
        var variables = variables("k1:vault:v1:AAAA", settings)
        variables["MASTER_KEYS_COMMAND"] = "/bin/true"
        let two = try await BrokerProcess.run(["config", "check"], variables)
        #expect(two.status == 78 && two.output.contains("MASTER_KEYS_COMMAND and another source"), "\(two.output)")
        variables["MASTER_KEYS_COMMAND"] = nil
        variables["MASTER_KEYS"] = nil
        let none = try await BrokerProcess.run(["config", "check"], variables)
        #expect(none.status == 78 && none.output.contains("MASTER_KEYS_VAULT requires"), "\(none.output)")
    }
}
