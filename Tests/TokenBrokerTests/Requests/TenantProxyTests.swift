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

/// The proxy by which a tenant's requests leave.
@Suite(.timeLimit(.minutes(1))) struct `A tenant's outbound proxy` {
    private static let shown = "http://proxy.example:3128"
    private static let named = "http://user:p%40ss@proxy.example:3128"

    private static func tenant(_ more: String = "", proxy: String? = named) -> String {
        let member = proxy.map { #", "outbound_proxy": "\#($0)""# } ?? ""
        return #"""
            {"provider": "oidc", "client_id": "c1", "client_secret": "s1", "issuer": "https://op.example"\#(member)\#(more)}
            """#
    }

    private static let metadata = ScriptedTransport.Step.json(
        200,
        #"""
        {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
         "token_endpoint": "https://op.example/t", "revocation_endpoint": "https://op.example/r",
         "device_authorization_endpoint": "https://op.example/d", "jwks_uri": "https://op.example/k"}
        """#)

    @Test func `is used for metadata, codes, refreshes, device logins and revocations`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.metadata)
        await broker.logIn(token: BrokerHarness.token("access-1", refresh: "refresh-1", userID: 42))
        broker.time.advance(by: .seconds(3601))
        broker.transport.enqueue(Self.metadata)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2")))
        _ = await broker.get()
        broker.transport.enqueue(.json(200, ""))
        _ = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        broker.transport.enqueue(.json(200, DeviceScript.codes()))
        _ = await broker.call(.post, "/device", tenant: "t1", body: #"{"storage_key": "d"}"#)
        let seen = broker.transport.seen
        for address in ["/t", "/r", "/d"] {
            #expect(seen.contains { $0.url == "https://op.example" + address }, "\(address)")
        }
        #expect(seen.allSatisfy { $0.proxy == Self.shown }, "\(seen.map { ($0.url, $0.proxy) })")
    }

    @Test func `is used for a tenant's check`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.always(Self.metadata)
        _ = await broker.call(.post, "/tenants/t1/check")
        #expect(!broker.transport.seen.isEmpty)
        #expect(broker.transport.seen.allSatisfy { $0.proxy == Self.shown })
    }

    @Test func `shares no metadata with tenants that leave otherwise`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        await broker.makeTenant("t2", Self.tenant(proxy: nil))
        await broker.makeTenant("t3", Self.tenant())
        for (tenant, isFetched) in [("t1", true), ("t2", true), ("t3", false)] {
            let before = broker.transport.seen.count
            broker.transport.enqueue(Self.metadata)
            _ = await broker.beginLogin(tenant: tenant)
            #expect((broker.transport.seen.count > before) == isFetched, "\(tenant)")
        }
        #expect(broker.transport.seen.map(\.proxy) == [Self.shown, nil])
    }

    @Test func `is shown without its password, and kept by a change of other members`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        let shown = await broker.call(.get, "/tenants/t1")
        #expect(shown.json["outbound_proxy"]?.text == Self.shown)
        #expect(!shown.text.contains("p%40ss") && !shown.text.contains("p@ss"))
        let patched = await broker.call(
            .patch, "/tenants/t1", body: #"{"display_name": "D"}"#,
            fields: ["Content-Type": "application/merge-patch+json"])
        #expect(patched.status == 200 && !patched.text.contains("p%40ss"), "\(patched.text)")
        let name = try #require(TenantName("t1"))
        let record = try #require(try await broker.vault.read(RecordID(.tenant, name)))
        #expect(record.content.revealedText.contains("p%40ss"))
        let removed = await broker.call(
            .patch, "/tenants/t1", body: #"{"outbound_proxy": null}"#,
            fields: ["Content-Type": "application/merge-patch+json"])
        #expect(removed.status == 200 && removed.json["outbound_proxy"] == nil, "\(removed.text)")
    }

    @Test(arguments: [
        "proxy.example:3128", "https://proxy.example:3128", "socks5://proxy.example:1080", "http://", "http://a b:80",
        "http://proxy.example:3128/path", "http://proxy.example:22", "http://u%4@proxy.example:3128", "",
    ])
    func `is an http address`(text: String) async throws {
        let answer = await (try await BrokerHarness()).call(.put, "/tenants/t1", body: Self.tenant(proxy: text))
        #expect(answer.status == 400, "\(answer.text)")
        #expect(answer.text.contains(#""pointer":"/outbound_proxy""#), "\(answer.text)")
        #expect(!answer.text.contains("u%4"))
    }

    @Test func `that refuses is named in the error`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.metadata)
        let login = await broker.beginLogin()
        broker.transport.enqueue(.failure(.proxyRefused(Status(407))))
        let ended = await broker.callback("code=c&state=\(login.state)", accept: "application/json")
        #expect(ended.text.contains("outbound_proxy") && !ended.text.contains("p%40ss"), "\(ended.text)")
    }
}
