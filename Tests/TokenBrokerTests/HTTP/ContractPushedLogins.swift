import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Testing

/// Begins logins at a provider that takes pushed requests, and reads tokens that are bound to keys.
struct ContractPushedLogins {
    let recorder: ExchangeRecorder

    private static let tenant = #"""
        {"client_id": "c1", "provider": "oidc", "pushed_authorization_requests": "required", "dpop": true,
         "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t",
                       "pushed_authorization_request": "https://id.example/par"}}
        """#
    private static let pushed = ScriptedTransport.Step.json(201, #"{"request_uri": "u", "expires_in": 60}"#)

    func run() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let failures: [(ScriptedTransport.Step, BrokerError.Code)] = [
            (.json(400, #"{"error": "invalid_request"}"#), .unexpectedError), (.json(200, "{}"), .tokenResponseError),
            (.failure(.untrusted(.pin)), .providerUntrusted), (.failure(.insecureTarget), .illegalConfiguration),
            (.failure(.connectFailed), .networkError), (.json(503, "{}"), .retryableError),
        ]
        for (step, code) in failures {
            broker.transport.always(step)
            let answer = await recorder.call(broker, .post, "/login/initialize", tenant: "t1")
            #expect(answer.code == code.rawValue)
        }
        broker.transport.always(Self.pushed)
        let begun = await recorder.call(broker, .post, "/login/initialize", tenant: "t1")
        let path = BrokerHarness.path(of: try #require(begun.json["start_uri"]?.text))
        let state = try #require(broker.transport.seen.last?.form["state"])
        await starting(broker, path)
        broker.transport.always(
            .json(
                200, #"{"access_token": "a", "token_type": "DPoP", "expires_in": 3600, "refresh_token": "r"}"#))
        let other = await broker.call(.get, "/login/callback?code=c&state=\(state)", key: nil)
        #expect(other.status == 403)
        try await bound()
    }

    /// The provider refuses what the start address pushes.
    private func starting(_ broker: BrokerHarness, _ path: String) async {
        await recorder.call(broker, .get, path, key: nil)
        let button: Fields = [
            "Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin",
        ]
        for accept in [BrokerHarness.browserAccept, "application/json"] {
            var fields = button
            fields.append("Accept", accept)
            for step in [ScriptedTransport.Step.json(400, #"{"error": "invalid_request"}"#), .json(503, "{}")] {
                broker.transport.always(step)
                await recorder.call(broker, .post, path, key: nil, body: "decision=continue", fields: fields)
            }
        }
        // The browser that was the first one has no cookie here, and a new login has no browser yet.
        for accept in [BrokerHarness.browserAccept, "application/json"] {
            broker.transport.always(Self.pushed)
            let login = await broker.beginLogin()
            broker.transport.always(.json(400, #"{"error": "invalid_request"}"#))
            let refused = await recorder.call(
                broker, .get, BrokerHarness.path(of: login.startURI), key: nil, fields: ["Accept": accept])
            #expect(refused.status == 424)
        }
    }

    private func bound() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(Self.pushed)
        _ = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        let state = try #require(broker.transport.seen.last?.form["state"])
        broker.transport.enqueue(
            .json(
                200, #"{"access_token": "a", "token_type": "DPoP", "expires_in": 3600, "refresh_token": "r"}"#))
        #expect(await broker.call(.get, "/login/callback?code=c&state=\(state)", key: nil).status == 200)
        for fields in [[:], ["DPoP-Htm": "GET", "DPoP-Htu": "https://api.example/"], ["DPoP-Htm": "GET"]] as [Fields] {
            await recorder.call(broker, .get, "/credentials", tenant: "t1", fields: fields)
        }
    }
}
