import BrokerTesting
import HTTPCodec
import JSON
import Testing
import TokenBroker

/// Parameters that the addresses of a profile need and a tenant does not have.
@Suite(.timeLimit(.minutes(1))) struct `A parameter that is missing` {
    private static func profile(_ issuer: String, _ more: String = "", required: String = "") -> String {
        #"""
        {\#(more)"documentation": "https://acme.example/oauth", "as_of": "2026-11-29", "notes": [], "issuer": "\#(issuer)",
         "required": ["client_id"\#(required)]}
        """#
    }

    private static let withHost = profile(
        "https://{host}.example/{path}",
        #"""
        "parameters": {"host": {"description": "The host.", "example": "eu"},
                       "path": {"description": "The path.", "example": "p"}},
        """#, required: #", "parameters.host", "parameters.path""#)

    @Test func `is named with each other one, and nothing else`() async throws {
        let broker = try await BrokerHarness()
        #expect(await broker.call(.put, "/providers/acme", body: Self.withHost).status == 201)
        for (more, pointers) in [
            ("", ["/parameters/host", "/parameters/path"]),
            (#", "parameters": {"path": "p"}"#, ["/parameters/host"]),
        ] {
            let answer = await broker.call(
                .put, "/tenants/t1", body: #"{"provider": "acme", "client_id": "c1"\#(more)}"#)
            #expect((answer.status, answer.code) == (400, "invalid_request"))
            #expect(answer.pointers == pointers, "\(answer.text)")
        }
    }

    @Test func `is why a profile is refused that a tenant could not be used with`() async throws {
        let broker = try await BrokerHarness()
        let plain = Self.profile("https://id.acme.example")
        #expect(await broker.call(.put, "/providers/acme", body: plain).status == 201)
        await broker.makeTenant("t1", #"{"provider": "acme", "client_id": "c1"}"#)
        let answer = await broker.call(.put, "/providers/acme", body: Self.withHost)
        #expect((answer.status, answer.code) == (409, "conflict"))
        let cause =
            "t1 (/parameters/host is required with this profile; /parameters/path is required with this profile)"
        #expect(answer.text.contains(cause) && !answer.text.contains("/issuer"), "\(answer.text)")
    }
}
