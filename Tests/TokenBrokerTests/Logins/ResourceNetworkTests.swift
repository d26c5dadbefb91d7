import AuthTesting
import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// The private networks that an operator has listed for providers are not for hosts that a resource, or what it has named, names.
@Suite struct `What a resource names` {
    private static let registration = "https://as.example/register/c-1"

    private func broker(resource: String = Servers.resource, listed: [NetworkRange] = []) async throws -> BrokerHarness
    {
        let broker = try await BrokerHarness { $0.core.providerTargets = TargetPolicy(networks: listed) }
        await broker.makeTenant("t1", #"{"provider": "mcp", "resource": "\#(resource)"}"#)
        Servers.publish(at: broker.transport)
        return broker
    }

    /// Whether each address that was called was kept out of the listed networks, by its host.
    private func avoidance(_ broker: BrokerHarness) -> [String: Set<Bool>] {
        var found: [String: Set<Bool>] = [:]
        for seen in broker.transport.standingSeen + broker.transport.seen {
            let host = URLTarget(seen.url)?.host ?? ""
            found[host, default: []].insert(seen.avoidsListedNetworks)
        }
        return found
    }

    @Test func `is not called in listed networks, from the challenge to the end of the registration`() async throws {
        let broker = try await broker()
        Servers.publish(
            at: broker.transport, challenge: #"Bearer resource_metadata="https://meta.example/document""#,
            members: #", "jwks_uri": "https://keys.example/jwks", "revocation_endpoint": "https://end.example/revoke""#)
        broker.transport.standing(at: "https://meta.example/document", .json(404, ""))
        broker.transport.standing(at: "https://keys.example/jwks", .json(200, #"{"keys": []}"#))
        broker.transport.standing(at: "https://end.example/revoke", .json(200, ""))
        broker.transport.standing(
            at: Servers.registration,
            .json(
                201,
                #"""
                {"client_id": "c-1", "client_secret": "s", "registration_client_uri": "\#(Self.registration)",
                 "registration_access_token": "token-1"}
                """#))
        broker.transport.standing(at: Self.registration, .json(200, #"{"client_id": "c-1"}"#))
        await broker.logIn(token: BrokerHarness.token("a-1", refresh: "r-1"))
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        // The registration is read, its metadata are fetched again, and its keys are.
        broker.time.advance(by: .seconds(601))
        _ = await broker.beginLogin()
        _ = await broker.call(.post, "/tenants/t1/check")
        broker.transport.always(.json(200, BrokerHarness.token("a-2", refresh: "r-2")))
        #expect(await broker.get("policy=local_force_refresh").status == 200)
        #expect(await broker.call(.delete, "/credentials?revoke=true", tenant: "t1").status == 204)
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        _ = await broker.logLine { $0.contains("client_registration_ended") }
        #expect(
            avoidance(broker) == [
                // The operator has named this host.
                "mcp.example": [false], "meta.example": [true], "as.example": [true], "keys.example": [true],
                "end.example": [true],
            ])
    }

    @Test func `is called in listed networks at the resource's own host and port only`() async throws {
        for (host, isAvoided) in [("mcp.example", false), ("mcp.example:8443", true), ("other.example", true)] {
            let broker = try await broker()
            let issuer = "https://\(host)"
            Servers.publish(at: broker.transport, issuers: [issuer])
            let metadata = "\(issuer)/.well-known/oauth-authorization-server"
            Servers.publishServer(at: broker.transport, issuer: issuer, host: host, address: metadata)
            Servers.register(at: broker.transport, address: "\(issuer)/register")
            _ = await broker.beginLogin()
            let asked = broker.transport.standingSeen.filter { [metadata, "\(issuer)/register"].contains($0.url) }
            #expect(asked.count == 2 && asked.allSatisfy { $0.avoidsListedNetworks == isAvoided }, "\(host)")
        }
    }

    @Test func `may not be an address in a listed network`() async throws {
        let network = try #require(NetworkRange(parsing: "10.0.0.0/8"))
        let broker = try await broker(listed: [network])
        broker.transport.standing(
            at: Servers.metadata,
            .json(
                200,
                #"""
                {"issuer": "\#(Servers.issuer)", "authorization_endpoint": "https://as.example/authorize",
                 "token_endpoint": "https://as.example/token", "registration_endpoint": "https://10.1.2.3/register"}
                """#))
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect(answer.status == 424 && answer.text.contains("registers no clients by itself"), "\(answer.text)")
        #expect(avoidance(broker)["10.1.2.3"] == nil)
    }

    @Test func `is told about where it is not called`() async throws {
        let broker = try await broker()
        broker.transport.standing(at: Servers.metadata, .failure(.forbiddenAddress))
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect(answer.status == 424 && answer.code == "illegal_configuration")
        #expect(answer.text.contains("not for hosts that an MCP server names"), "\(answer.text)")
    }

    @Test func `does not stand in the way of a provider that the operator has named`() async throws {
        let broker = try await broker()
        await broker.makeTenant(
            "t2", #"{"provider": "oidc", "client_id": "c", "issuer": "\#(Servers.issuer)"}"#)
        Servers.register(at: broker.transport)
        _ = await broker.beginLogin()
        let first = broker.transport.standingSeen.filter { $0.url == Servers.metadata }
        _ = await broker.beginLogin(tenant: "t2")
        let second = broker.transport.standingSeen.filter { $0.url == Servers.metadata }.dropFirst(first.count)
        // What was fetched for the one is not taken for the other.
        #expect(first.map(\.avoidsListedNetworks) == [true] && second.map(\.avoidsListedNetworks) == [false])
    }
}
