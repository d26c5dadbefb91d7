import AuthTesting
import BrokerTesting
import HTTPCodec
import JSON
import Testing
import TokenBroker

/// What the `error_rules` of a profile say of a refused refresh, where its lists of errors name the codes that mean the same.
@Suite(.timeLimit(.minutes(1))) struct `The rules of a profile` {
    /// - Parameter lists: members with lists of errors, with a comma after each.
    private static func profile(_ lists: String) -> String {
        #"""
        {\#(lists)"documentation": "https://acme.example/oauth", "as_of": "2026-11-29", "required": ["client_id"], "notes": [],
         "endpoints": {"authorization": "https://acme.example/authorize", "token": "https://acme.example/token"},
         "error_rules": [{"equals": "bad_client", "means": "configuration"}, {"equals": "gone", "means": "session_ended"},
                         {"equals": "busy", "means": "transient"}]}
        """#
    }

    /// As at TIDAL: a refusal of the client ends the session, and no error is about the configuration.
    private static let likeTIDAL =
        #""session_ending_answers": [{"status": 400, "error": "unauthorized_client"}, {"status": 400, "error": "invalid_grant"}], "#
        + #""session_ending_errors": [], "configuration_errors": [], "#

    private static let own = #""session_ending_errors": ["over"], "configuration_errors": ["wrong_client"], "#

    private static func refused(_ lists: String, _ status: Int, _ error: String) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        let put = await broker.call(.put, "/providers/acme", body: profile(lists))
        try #require(put.status == 201, "\(put.text)")
        await broker.makeTenant("t1", #"{"provider": "acme", "client_id": "c1"}"#)
        await broker.set("a", refresh: "r", lifetime: .zero)
        broker.transport.always(.json(status, #"{"error": "\#(error)"}"#))
        return broker
    }

    @Test(arguments: ["", likeTIDAL, own], [400, 401, 403])
    func `keep the session where they say that the client is refused`(lists: String, status: Int) async throws {
        let broker = try await Self.refused(lists, status, "bad_client")
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"), "\(answer.text)")
        #expect(answer.json["error_code"]?.text == "bad_client")
        #expect(await broker.status().isLoggedIn == true)
    }

    @Test(arguments: ["", likeTIDAL, own], [400, 401, 403])
    func `end the session where they say that it is over`(lists: String, status: Int) async throws {
        let broker = try await Self.refused(lists, status, "gone")
        #expect(await broker.get().level == "basic")
        #expect(await broker.status().isLoggedIn == false)
    }

    @Test(arguments: ["", likeTIDAL, own], [400, 403])
    func `keep the session where they say that the refusal will pass`(lists: String, status: Int) async throws {
        let broker = try await Self.refused(lists, status, "busy")
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, "retryable_error"), "\(answer.text)")
        #expect(await broker.status().isLoggedIn == true)
    }
}
