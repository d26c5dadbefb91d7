import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// What a client asks for when it acts for itself, and of whom.
@Suite struct `Client credentials that are asked for` {
    private static func tenant(_ scopes: String) -> String {
        "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1", "scopes": [\#(scopes)]}"#
    }

    @Test(
        arguments: [
            (#""openid", "read""#, "read"), (#""read", "write""#, "read write"),
            (#""openid", "profile", "email", "address", "phone", "offline_access""#, nil), ("", nil),
            (#""OpenID", "profiles""#, "OpenID profiles"),
        ] as [(String, String?)])
    func `name no scope of OpenID's, and none at all where there is no other`(
        scopes: String, sent: String?
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(scopes))
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        let answer = await broker.get()
        #expect(answer.token == "client-1")
        #expect(broker.transport.seen.last?.form["scope"].map { String(describing: $0) } == sent)
        let granted = answer.json["granted_scopes"]?.array?.compactMap(\.text)
        #expect(granted == sent.map { $0.split(separator: " ").map(String.init) } ?? [])
    }

    @Test(arguments: [(400, "invalid_scope"), (401, "invalid_scope"), (400, "unauthorized_client"), (400, "strange")])
    func `are asked for once in half a minute where they are refused`(status: Int, error: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""read""#))
        // A client's token of an earlier configuration, which is to be replaced.
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get("storage_key=other").token == "client-1")
        await broker.makeTenant("t1", Self.tenant(#""write""#))
        broker.transport.always(.json(status, #"{"error": "\#(error)"}"#))
        let (count, began) = (broker.transport.seen.count, broker.time.now)
        for round in 1...2 {
            for key in ["other", "default", "third"] {
                let answer = await broker.get("storage_key=\(key)")
                #expect((answer.status, answer.code) == (424, "illegal_configuration"), "\(round) \(key)")
            }
            #expect(broker.transport.seen.count == count + round)
            if round == 1 {
                // Nothing was waited for.
                #expect(began == broker.time.now)
                broker.time.advance(by: .seconds(30))
            }
        }
    }

    private static func metadata(_ grants: String?) -> ScriptedTransport.Step {
        let grants = grants.map { #", "grant_types_supported": \#($0)"# } ?? ""
        return .json(
            200,
            #"""
            {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
             "token_endpoint": "https://op.example/t"\#(grants)}
            """#)
    }

    private static let found = #"""
        {"provider": "oidc", "client_id": "c1", "client_secret": "s1", "issuer": "https://op.example"}
        """#

    @Test(arguments: [
        (nil, true), (#"["authorization_code", "client_credentials"]"#, true),
        (#"["authorization_code", "refresh_token"]"#, false), ("[]", false),
    ])
    func `are not where the metadata announces the grants and not that one`(
        grants: String?, isAsked: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.found)
        broker.transport.enqueue(Self.metadata(grants))
        if isAsked { broker.transport.enqueue(.json(200, BrokerHarness.token("client-1"))) }
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (200, isAsked ? "client" : "basic"))
        #expect(broker.transport.seen.count == (isAsked ? 2 : 1))
        guard !isAsked else { return }
        for _ in 0..<2 { #expect(await broker.get("storage_key=other").level == "basic") }
        let refused = await broker.get("level=client")
        #expect((refused.status, refused.code) == (424, "level_not_available"))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `are not after the end of a session at such a provider`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.found)
        broker.transport.enqueue(
            Self.metadata(#"["authorization_code", "refresh_token"]"#), .json(400, #"{"error": "invalid_grant"}"#))
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(broker.transport.seen.count == 2)
    }
}
