import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing

/// Brings the answers about that operators get who put providers' profiles.
struct ContractProviders {
    let recorder: ExchangeRecorder

    static let profile = profile()

    /// A profile whose addresses need a region.
    static func profile(_ more: String = "") -> String {
        #"""
        {\#(more)"documentation": "https://acme.example/oauth", "as_of": "2026-11-29",
         "required": ["client_id", "parameters.region"], "notes": [],
         "parameters": {"region": {"description": "The region.", "example": "eu"}},
         "endpoints": {"authorization": "https://{region}.acme.example/a", "token": "https://{region}.acme.example/t"}}
        """#
    }

    func run() async throws {
        let broker = try await BrokerHarness()
        let path = "/providers/acme"
        let made = await recorder.call(broker, .put, path, body: Self.profile)
        #expect(made.status == 201, "\(made.text)")
        let replaced = await recorder.call(
            broker, .put, path, body: Self.profile(#""title": "Acme", "#), fields: ["If-Match": made.tag])
        #expect(replaced.status == 200, "\(replaced.text)")
        await recorder.call(broker, .get, path)
        await recorder.call(broker, .get, "/providers")
        for method in [Method.put, .delete] {
            let answer = await recorder.call(
                broker, method, path, body: method == .put ? Self.profile : nil, fields: ["If-Match": #""1""#])
            #expect(answer.status == 412)
        }
        await recorder.call(broker, .put, path, body: #"{"pkce": "odd"}"#)
        await recorder.call(broker, .put, path, body: "[]")
        #expect(await recorder.call(broker, .put, path).status == 400)
        await recorder.call(broker, .put, "/providers/No", body: Self.profile)
        await recorder.call(broker, .put, "/providers/%FF", body: Self.profile)
        let note = #""\#(String(repeating: "a", count: 2000))""#
        let long = Self.profile.replacing(
            #""notes": []"#, with: #""notes": [\#(Array(repeating: note, count: 9).joined(separator: ","))]"#)
        #expect(await recorder.call(broker, .put, path, body: long).status == 413)

        await broker.makeTenant(
            "t1", #"{"provider": "acme", "client_id": "c1", "parameters": {"region": "eu"}}"#)
        await recorder.call(broker, .get, "/tenants/t1")
        let other = Self.profile.replacing("region", with: "zone")
        #expect(await recorder.call(broker, .put, path, body: other).status == 409)
        #expect(await recorder.call(broker, .delete, path).status == 409)
        #expect(await recorder.call(broker, .delete, "/tenants/t1").status == 204)
        #expect(await recorder.call(broker, .delete, path).status == 204)
        #expect(await recorder.call(broker, .delete, path).status == 404)
        #expect(await recorder.call(broker, .delete, "/providers/slack").status == 404)
        #expect(await recorder.call(broker, .put, "/tenants/t1", body: #"{"provider": "acme"}"#).status == 400)
        try await resources()
    }

    /// A tenant whose authorization server is found by its resource, and the document about its client.
    private func resources() async throws {
        let broker = try await BrokerHarness()
        await recorder.call(
            broker, .put, "/tenants/docs", body: #"{"provider": "mcp", "resource": "https://mcp.example/mcp"}"#)
        #expect(await recorder.call(broker, .get, "/oauth-client/docs", key: nil).status == 200)
        #expect(await recorder.call(broker, .get, "/oauth-client/docs?x=1", key: nil).status == 400)
        #expect(await recorder.call(broker, .get, "/oauth-client/other", key: nil).status == 404)
    }
}
