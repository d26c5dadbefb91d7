import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// `/.well-known/assetlinks.json` and `/.well-known/apple-app-site-association`.
@Suite(.timeLimit(.minutes(2))) struct `Link files of apps` {
    private static let assetLinks = "/.well-known/assetlinks.json"
    private static let association = "/.well-known/apple-app-site-association"

    private static func fingerprint(_ byte: String) -> String {
        Array(repeating: byte, count: 32).joined(separator: ":")
    }

    private static func client(android: [(String, [String])] = [], apple: [String] = []) -> String {
        let apps = android.map { name, bytes in
            #"{"package_name": "\#(name)", "sha256_cert_fingerprints": [\#(bytes.map { "\"\(fingerprint($0))\"" }.joined(separator: ","))]}"#
        }
        return #"""
            {"redirect_uris": ["https://app.example/cb"], "android_apps": [\#(apps.joined(separator: ","))],
             "apple_apps": [\#(apple.map { "\"\($0)\"" }.joined(separator: ","))]}
            """#
    }

    private static func statements(_ apps: [(String, [String])]) -> JSONValue? {
        let statements = apps.map { name, bytes in
            let digests = bytes.map { "\"\(fingerprint($0))\"" }.joined(separator: ",")
            return #"""
                {"relation": ["delegate_permission/common.handle_all_urls"],
                 "target": {"namespace": "android_app", "package_name": "\#(name)", "sha256_cert_fingerprints": [\#(digests)]}}
                """#
        }
        return try? JSONValue(parsing: Array("[\(statements.joined(separator: ","))]".utf8))
    }

    private static func details(_ apps: [String], prefix: String = "") -> JSONValue? {
        let text = #"""
            {"applinks": {"details": [{"appIDs": [\#(apps.map { "\"\($0)\"" }.joined(separator: ","))],
             "components": [{"/": "\#(prefix)/login/*", "exclude": true}, {"/": "\#(prefix)/oauth2/*", "exclude": true},
                            {"/": "*"}]}]}}
            """#
        return try? JSONValue(parsing: Array(text.utf8))
    }

    private static func get(_ broker: BrokerHarness, _ path: String) async -> BrokerHarness.Answer {
        await broker.call(.get, path, key: nil)
    }

    @Test func `have the apps of all clients of all tenants, each once`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeTenant("t2")
        await broker.makeClient(
            "b", of: "t1", Self.client(android: [("com.example.b", ["BB", "AA"])], apple: ["TEAM000002.b"]))
        await broker.makeClient(
            "a", of: "t2", Self.client(android: [("com.example.b", ["CC", "AA"]), ("com.example.a", ["0a"])]))
        await broker.makeClient("c", of: "t2", Self.client(apple: ["TEAM000001.a", "TEAM000002.b"]))
        await broker.makeClient("none", of: "t2", Self.client())
        let links = await Self.get(broker, Self.assetLinks)
        #expect(links.status == 200)
        #expect(
            links.json
                == Self.statements([("com.example.a", ["0A"]), ("com.example.b", ["AA", "BB", "CC"])]))
        let association = await Self.get(broker, Self.association)
        #expect(association.json == Self.details(["TEAM000001.a", "TEAM000002.b"]))
        for answer in [links, association] {
            #expect(answer.fields["Content-Type"] == "application/json")
            #expect(answer.fields["Cache-Control"] == "no-store")
        }
        #expect(await broker.call(.head, Self.assetLinks, key: nil).status == 200)
        #expect(await Self.get(broker, Self.assetLinks + "?x=1").status == 400)
    }

    @Test func `are there without apps, and claim nothing then`() async throws {
        let broker = try await BrokerHarness()
        #expect(await Self.get(broker, Self.assetLinks).text == "[]")
        #expect(await Self.get(broker, Self.association).text == #"{"applinks":{"details":[]}}"#)
    }

    @Test func `leave the login pages to the browser, wherever they are`() async throws {
        let broker = try await BrokerHarness(publicBaseURL: "https://example.com/broker")
        await broker.makeTenant()
        await broker.makeClient("a", of: "t1", Self.client(apple: ["TEAM000001.a"]))
        #expect(await Self.get(broker, Self.association).json == Self.details(["TEAM000001.a"], prefix: "/broker"))
    }

    @Test func `are made once a minute, and forget clients that are gone`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.makeClient("a", of: "t1", Self.client(apple: ["TEAM000001.a"]))
        #expect(await Self.get(broker, Self.association).json == Self.details(["TEAM000001.a"]))
        await broker.makeClient("b", of: "t1", Self.client(apple: ["TEAM000002.b"]))
        #expect(await broker.call(.delete, "/tenants/t1/clients/a").status == 204)
        let reads = store.reads
        broker.time.advance(by: .seconds(60) - .milliseconds(1))
        for path in [Self.association, Self.assetLinks] { _ = await Self.get(broker, path) }
        #expect(store.reads == reads)
        #expect(await Self.get(broker, Self.association).json == Self.details(["TEAM000001.a"]))
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.get(broker, Self.association).json == Self.details(["TEAM000002.b"]))
    }

    @Test func `stay as they were while the store does not answer`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.makeClient("a", of: "t1", Self.client(apple: ["TEAM000001.a"]))
        store.setDown(true)
        let refused = await Self.get(broker, Self.association)
        #expect((refused.status, refused.code) == (503, "storage_unavailable"))
        store.setDown(false)
        #expect(await Self.get(broker, Self.association).status == 200)
        store.setDown(true)
        broker.time.advance(by: .seconds(3600))
        #expect(await Self.get(broker, Self.association).json == Self.details(["TEAM000001.a"]))
    }

    @Test func `are read page by page, and no longer than devices take them`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        // 600 clients on two pages.
        for number in 0..<600 {
            await broker.makeClient(
                "c\(number)", of: "t1", Self.client(apple: ["TEAM000001.a\(number)"]))
        }
        #expect(
            await Self.get(broker, Self.association).json["applinks"]?["details"]?.array?.first?["appIDs"]?.array?.count
                == 600)
        // Each has twenty apps of 14 certificates: some 30 KiB.
        let certificates = (0..<14).map { "0\(String($0, radix: 16))" }
        for number in 0..<50 {
            await broker.makeClient(
                "d\(number)", of: "t1",
                Self.client(android: (0..<20).map { ("com.example.d\(number).a\($0)", certificates) }))
        }
        broker.time.advance(by: .seconds(60))
        let answer = await Self.get(broker, Self.assetLinks)
        #expect(answer.body.count <= AppLinkFiles.longestFile)
        #expect(answer.body.count > AppLinkFiles.longestFile * 9 / 10)
        #expect(answer.json.array?.count == 33 * 20)
        #expect(broker.log.contains { $0.contains("app_links_too_many") })
    }
}
