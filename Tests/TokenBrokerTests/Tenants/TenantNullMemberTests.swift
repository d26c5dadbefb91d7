import BrokerTesting
import HTTPCodec
import JSON
import Testing
import TokenBroker

/// Members of a change that are null, and so are to be removed.
@Suite(.timeLimit(.minutes(1))) struct `A member that is null` {
    private static let tenant = #"""
        {"provider": "oidc", "client_id": "c1", "client_secret": "s1", "display_name": "T",
         "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t",
                       "revocation": "https://op.example/r"},
         "retry": {"tries": 2, "follow_retry_after": false}, "request_headers": {"X-A": "1", "X-B": "2"},
         "authorize_parameters": {"a": "1", "b": "2"},
         "refresh": {"endpoint": "https://op.example/f", "parameters": {"a": "1", "b": "2"}}}
        """#

    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        return broker
    }

    @Test(arguments: [
        (#"{"client_secrt": null}"#, "/client_secrt"), (#"{"endpoints": {"tokn": null}}"#, "/endpoints/tokn"),
        (#"{"endpont": {"token": null}}"#, "/endpont"), (#"{"retry": {"trys": null}}"#, "/retry/trys"),
        (#"{"refresh": {"endpont": null}}"#, "/refresh/endpont"),
        (#"{"token_verification": {"jwks": "https://op.example/k", "jwk": null}}"#, "/token_verification/jwk"),
        (#"{"wave": {"user": null}}"#, "/wave/user"), (#"{"profile": null}"#, "/profile"),
    ])
    func `must be one that there is`(patch: String, pointer: String) async throws {
        let broker = try await Self.broker()
        let before = await broker.call(.get, "/tenants/t1")
        let answer = await broker.call(.patch, "/tenants/t1", body: patch)
        #expect((answer.status, answer.code) == (400, "invalid_request"), "\(answer.text)")
        #expect(answer.pointers == [pointer])
        #expect(answer.json["errors"]?.array?.first?["detail"]?.text == "is not a known member")
        let after = await broker.call(.get, "/tenants/t1")
        #expect(after.tag == before.tag && after.text == before.text)
    }

    @Test func `is removed, also where the operator has chosen its name`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(
            .patch, "/tenants/t1",
            body: #"""
                {"client_secret": null, "display_name": null, "endpoints": {"revocation": null, "jwks": null},
                 "retry": {"tries": null}, "request_headers": {"X-A": null, "X-None": null},
                 "authorize_parameters": {"b": null}, "refresh": {"parameters": {"b": null}}, "token_parameters": null,
                 "wave": null}
                """#)
        #expect(answer.status == 200, "\(answer.text)")
        #expect(
            answer.json["dropped"]?.array?.compactMap(\.text) == [
                "authorize_parameters.b", "client_secret", "display_name", "endpoints.revocation",
                "refresh.parameters.b", "request_headers.X-A", "retry.tries",
            ], "\(answer.text)")
        #expect(answer.json["client_secret_set"]?.bool == false)
        #expect(answer.json["endpoints"]?["token"]?.text == "https://op.example/t")
        #expect(answer.json["retry"]?["follow_retry_after"]?.bool == false)
        #expect(!answer.text.contains("null"))
    }

    @Test func `of a profile counts as left out, and must be one that there is`() async throws {
        let broker = try await BrokerHarness()
        func profile(_ more: String) -> String {
            #"""
            {\#(more)"documentation": "https://a.example", "as_of": "2026-11-29", "required": ["client_id"], "notes": [],
             "endpoints": {"authorization": "https://a.example/a", "token": "https://a.example/t"}}
            """#
        }
        let wrong = await broker.call(.put, "/providers/acme", body: profile(#""titel": null, "#))
        #expect((wrong.status, wrong.code) == (400, "invalid_request"), "\(wrong.text)")
        #expect(wrong.pointers == ["/titel"])
        let made = await broker.call(
            .put, "/providers/acme", body: profile(#""title": null, "name": null, "source": null, "pkce": null, "#))
        #expect(made.status == 201, "\(made.text)")
        #expect(made.json["name"]?.text == "acme" && made.json["title"] == nil && !made.text.contains("null"))
    }
}
