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

@Suite struct `Logging out` {
    private static let withRevocation = """
        {"provider": "oidc", "client_id": "c1", "client_secret": "s1", "endpoints": {
         "authorization": "https://op.example/a", "token": "https://op.example/t",
         "revocation": "https://op.example/revoke"}}
        """

    private static func delete(_ broker: BrokerHarness, _ query: String = "") async -> BrokerHarness.Answer {
        await broker.call(.delete, "/credentials\(query)", tenant: "t1")
    }

    // T65
    @Test func `a logout leaves the next lower level and can be repeated`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        let before = await broker.get()
        for _ in 0..<3 {
            let answer = await Self.delete(broker)
            #expect(answer.status == 204)
            #expect(answer.body.isEmpty)
            #expect(answer.fields["Cache-Control"] == "no-store")
            #expect(answer.fields["Token-Revocation"] == nil)
        }
        let after = await broker.get()
        #expect((after.status, after.level) == (200, "basic"))
        #expect(after.tag != before.tag)
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.get("policy=local_force_refresh").code == "missing_token_container")
    }

    @Test func `a logout before any login is 204`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await Self.delete(broker).status == 204)
        #expect(await Self.delete(broker, "?storage_key=never&revoke=true").status == 204)
    }

    @Test func `a logout ends one storage key and no other`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", storageKey: "alice")
        await broker.set("b1", storageKey: "bob")
        #expect(await Self.delete(broker, "?storage_key=alice").status == 204)
        #expect(await broker.get("storage_key=alice").level == "basic")
        #expect(await broker.get("storage_key=bob").token == "b1")
    }

    // T66
    @Test func `a logout purges client credentials too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1")), .json(200, BrokerHarness.token("client-2")))
        #expect(await broker.get().token == "client-1")
        _ = await Self.delete(broker)
        #expect(await broker.get().token == "client-2")
    }

    @Test func `versions go on rising after a logout`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        let before = await broker.get().version
        _ = await Self.delete(broker)
        await broker.set("a1", refresh: "r1")
        #expect(await broker.get().version > before)
    }

    // T50 H054
    @Test func `nothing that was logged out is left in the store`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        _ = await Self.delete(broker)
        let record = try #require(
            try await broker.vault.read(RecordID(.credentials, TenantName("t1")!, key: "default")))
        let content = try #require(CredentialRecord(decoding: record.content.revealedBytes))
        #expect(content == CredentialRecord(held: nil))
    }

    @Test func `what the provider ended is marked and what a caller ended is not`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get("api_error_sub_status=11003").level == "basic")
        let id = RecordID(.credentials, TenantName("t1")!, key: "default")
        let ended = try await broker.vault.read(id).flatMap { CredentialRecord(decoding: $0.content.revealedBytes) }
        #expect(
            ended
                == CredentialRecord(
                    held: nil, ended: SHA256.digest(Array("r1".utf8)),
                    session: EndedSession(
                        .revoked, at: broker.time.now, code: "unexpected_error", errorCode: "invalid_grant")))
        _ = await Self.delete(broker)
        let purged = try await broker.vault.read(id).flatMap { CredentialRecord(decoding: $0.content.revealedBytes) }
        #expect(purged == CredentialRecord(held: nil))
    }

    // MARK: Revocation

    // H054
    @Test func `the refresh token is revoked as RFC 7009 has it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withRevocation)
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(.json(200, ""))
        let answer = await Self.delete(broker, "?revoke=true")
        #expect(answer.status == 204)
        #expect(answer.fields["Token-Revocation"] == "revoked")
        let request = try #require(broker.transport.seen.first)
        #expect(request.method == .post)
        #expect(request.url == "https://op.example/revoke")
        #expect(request.form == ["token": "r1", "token_type_hint": "refresh_token", "client_id": "c1"])
        #expect(request.fields["Authorization"] == "Basic YzE6czE=")
    }

    @Test func `without a refresh token the access token is revoked`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withRevocation)
        await broker.set("a1")
        broker.transport.enqueue(.json(200, ""))
        #expect(await Self.delete(broker, "?revoke=true").fields["Token-Revocation"] == "revoked")
        #expect(
            broker.transport.seen.first?.form == ["token": "a1", "token_type_hint": "access_token", "client_id": "c1"])
    }

    @Test(
        arguments: [
            .json(400, #"{"error": "unsupported_token_type"}"#), .json(401, ""), .json(429, ""), .json(503, ""),
            .json(302, ""), .failure(.connectFailed), .failure(.untrusted(.pin)),
            .failure(.timedOut(.firstByte, requestSent: true)),
        ] as [ScriptedTransport.Step])
    func `a revocation that fails leaves the logout as it is`(step: ScriptedTransport.Step) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withRevocation)
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(step)
        let answer = await Self.delete(broker, "?revoke=true")
        #expect((answer.status, answer.fields["Token-Revocation"]) == (204, "failed"))
        #expect(await broker.get("policy=local").code == "missing_token_container")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a provider without a revocation endpoint is told as unsupported`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        let answer = await Self.delete(broker, "?revoke=true")
        #expect((answer.status, answer.fields["Token-Revocation"]) == (204, "unsupported"))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `metadata that cannot be had is told as failed`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "oidc", "client_id": "c1", "issuer": "https://op.example"}"#)
        await broker.set("a1", refresh: "r1")
        let answer = await Self.delete(broker, "?revoke=true")
        #expect((answer.status, answer.fields["Token-Revocation"]) == (204, "failed"))
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `the logout holds while the revocation is under way`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withRevocation)
        await broker.set("a1", refresh: "r1")
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, "")))
        async let answer = Self.delete(broker, "?revoke=true")
        await gate.arrivals()
        #expect(await broker.get("policy=local").code == "missing_token_container")
        gate.open()
        #expect(await answer.status == 204)
    }

    @Test func `revoke=false is a local logout`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withRevocation)
        await broker.set("a1", refresh: "r1")
        let answer = await Self.delete(broker, "?revoke=false")
        #expect((answer.status, answer.fields["Token-Revocation"]) == (204, nil))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test(arguments: [
        ("revoke=yes", "revoke"), ("revoke=", "revoke"), ("revoke=1", "revoke"), ("token=a1", "token"),
        ("revoke=true&revoke=true", "revoke"), ("storage_key=a%20b", "storage_key"),
    ])
    func `a parameter that is wrong is refused and nothing is logged out`(query: String, name: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        let answer = await Self.delete(broker, "?" + query)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == [name])
        #expect(await broker.get().token == "a1")
    }
}
