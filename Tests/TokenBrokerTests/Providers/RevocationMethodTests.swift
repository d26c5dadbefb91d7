import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Revoking a token` {
    /// A logout with a revocation, of a tenant found by its issuer.
    private static func request(
        metadata: String, tenant: String = ""
    ) async throws -> ScriptedTransport.Seen {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"provider": "oidc", "client_id": "c1", "client_secret": "s1", "issuer": "https://op.example"\#(tenant)}"#
        )
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
                 "token_endpoint": "https://op.example/t", "revocation_endpoint": "https://op.example/r"\#(metadata)}
                """#), .json(200, ""))
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(answer.fields["Token-Revocation"] == "revoked")
        return try #require(broker.transport.seen.last)
    }

    // RFC 8414 §2: left out, client_secret_basic.
    @Test(arguments: [
        ("", "", "basic"), (#", "token_endpoint_auth_methods_supported": ["client_secret_post"]"#, "", "basic"),
        (#", "revocation_endpoint_auth_methods_supported": ["client_secret_post"]"#, "", "post"),
        (
            #", "revocation_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"]"#, "",
            "basic"
        ),
        (
            #", "revocation_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"]"#,
            #", "token_endpoint_auth_method": "client_secret_post""#, "post"
        ),
        (
            #", "revocation_endpoint_auth_methods_supported": ["client_secret_basic"]"#,
            #", "token_endpoint_auth_method": "client_secret_post""#, "basic"
        ),
        (#", "revocation_endpoint_auth_methods_supported": ["none"]"#, "", "none"),
        (#", "revocation_endpoint_auth_methods_supported": ["private_key_jwt"]"#, "", "basic"),
        (#", "revocation_endpoint_auth_methods_supported": 7"#, "", "basic"),
        // An address that the tenant names is spoken to as the token endpoint is.
        (
            "",
            #", "endpoints": {"revocation": "https://op.example/own"}, "token_endpoint_auth_method": "client_secret_post""#,
            "post"
        ),
    ])
    func `shows the client as the provider's metadata says`(
        metadata: String, tenant: String, method: String
    ) async throws {
        let request = try await Self.request(metadata: metadata, tenant: tenant)
        #expect(request.form["token"] == "r1")
        switch method {
        case "basic":
            #expect(request.fields["Authorization"]?.text == "Basic " + Base64.encode(Array("c1:s1".utf8)))
            #expect(request.form["client_secret"] == nil)
        case "post":
            #expect(request.fields["Authorization"] == nil)
            #expect(request.form["client_id"] == "c1" && request.form["client_secret"] == "s1")
        default:
            #expect(request.fields["Authorization"] == nil && request.form["client_secret"] == nil)
            #expect(request.form["client_id"] == "c1")
        }
    }
}

@Suite struct `A client without scopes` {
    @Test(arguments: ["tidal", "oidc"])
    func `sends no empty scope, whatever it asks for`(provider: String) async throws {
        let time = ManualTime(skipsSleeps: false)
        let (broker, script) = try await BrokerHarness.devices(time: time, tenant: nil)
        let endpoints = #"""
            "provider": "\#(provider)", "endpoints": {"authorization": "https://p.example/authorize",
             "token": "https://p.example/token", "device_authorization": "https://p.example/device"}
            """#
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1", \#(endpoints)}"#)
        let login = await broker.beginLogin()
        #expect(BrokerHarness.parameters(of: login.uri)["scope"] == nil)
        let handle = await broker.beginDevice()
        script.enqueue(DeviceScript.granted())
        time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)

        broker.transport.always(nil)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a1", refresh: "r1")), .json(200, BrokerHarness.token("a2", refresh: "r2")),
            .json(200, BrokerHarness.token("a3", refresh: "r3")), .json(200, BrokerHarness.token("client-1")))
        #expect(await broker.callback("code=c&state=\(login.state)").status == 200)
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        if provider == "tidal" {
            await broker.makeTenant("t1", #"{"client_id": "c2", "client_secret": "s1", \#(endpoints)}"#)
            #expect(await broker.get().token == "a3")
            #expect(broker.transport.seen.last?.form["grant_type"] == "update_client")
        }
        await broker.logOut()
        #expect(await broker.get().level == "client")
        #expect(broker.transport.seen.count >= 5)
        for request in broker.transport.seen { #expect(request.form["scope"] == nil, "\(request.form)") }
    }
}
