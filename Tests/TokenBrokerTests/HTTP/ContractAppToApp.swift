import AuthTesting
import BrokerTesting
import HTTPCodec
import HTTPSClient
import Testing

/// Brings about the answers of `/app2app/…` that openapi.yaml describes.
struct ContractAppToApp {
    let recorder: ExchangeRecorder

    private static let challenge = "https://op.example/oauth2/challenge"
    private static let request =
        #""uri": "https://a.example/x?client_id=b&redirect_uri=https%3A%2F%2Fb.example%2Fr&code_challenge=c""#

    func run() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            """
            {"provider": "authgear", "client_id": "c1", "scopes": ["offline_access"], "endpoints": {"authorization": \
            "https://op.example/a", "token": "https://op.example/t", "challenge": "\(Self.challenge)"}, \
            "app2app": {"enabled": true, "insecure_device_key_binding": null, "authorization_endpoints": \
            ["https://a.example/x"]}}
            """)
        await recorder.call(broker, .get, "/tenants/t1")
        broker.transport.standing(at: Self.challenge, .json(200, #"{"result":{"token":"CH1"}}"#))
        let begin = #"{"app2app": {"authorization_endpoint": "https://a.example/x"}}"#
        #expect(await call(broker, "/login/initialize", begin).status == 201)
        for path in ["/app2app/requests", "/app2app/approve", "/app2app/reject"] {
            #expect(await call(broker, path, #"{"uri": "https://a.example/x"}"#).status == 422)
        }
        #expect(await call(broker, "/app2app/requests", "{\(Self.request)}").status == 200)
        #expect(await call(broker, "/app2app/reject", #"{"storage_key": null, \#(Self.request)}"#).status == 200)
        #expect(await call(broker, "/app2app/approve", "{\(Self.request)}").code == "unauthenticated")
        await broker.logIn()
        broker.transport.enqueue(
            .json(200, #"{"code":"c1"}"#), .json(400, #"{"error":"invalid_grant"}"#), .json(200, "{}"), .json(503, ""))
        #expect(await call(broker, "/app2app/approve", "{\(Self.request)}").status == 200)
        let explicit = #"{"storage_key": "default", "verify_app_link": null, \#(Self.request)}"#
        #expect(await call(broker, "/app2app/approve", explicit).status == 200)
        #expect(await call(broker, "/app2app/approve", "{\(Self.request)}").code == "token_response_error")
        #expect(await call(broker, "/app2app/approve", "{\(Self.request)}").code == "retryable_error")
        broker.transport.standing(at: Self.challenge, .json(404, ""))
        #expect(await call(broker, "/app2app/approve", "{\(Self.request)}").code == "illegal_configuration")
    }

    private func call(_ broker: BrokerHarness, _ path: String, _ body: String) async -> BrokerHarness.Answer {
        await recorder.call(broker, .post, path, tenant: "t1", body: body)
    }
}
