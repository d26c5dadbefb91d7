import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import Testing
import TokenBroker

@Suite struct `Choosing between a page and JSON` {
    private static func type(of accept: [String]) async throws -> String? {
        let broker = try await BrokerHarness()
        var fields = Fields()
        for value in accept { fields.append("Accept", value) }
        let answer = await broker.following(
            await broker.call(.get, "/login/callback?code=c&state=unknown", key: nil, fields: fields))
        #expect(answer.status == 410)
        return answer.fields["Content-Type"]?.text
    }

    @Test(arguments: [
        [], [""], ["*/*"], [BrokerHarness.browserAccept], ["text/html"], ["text/*"], ["image/png"],
        ["text/html, application/json"], ["application/json, text/html"], ["application/json;q=0.9, text/html"],
        ["application/json;q=0"], ["application/json;q=0, */*"], ["application/json;q=0.5, */*"], ["nonsense"],
        ["application/json; q=x"], ["application/*;q=0.5, text/*"],
        ["text/html;q=0.5, */*;q=0.1"], ["application/jsonx"],
    ])
    func `a page is shown`(accept: [String]) async throws {
        #expect(try await Self.type(of: accept) == "text/html; charset=utf-8")
    }

    @Test(arguments: [
        ["application/json"], ["APPLICATION/JSON"], ["application/problem+json"], ["application/*"],
        ["application/json; charset=utf-8"], ["text/html;q=0.5, application/json"],
        ["text/html ; q=0.5", "application/json ; q=0.6"], ["text/html;q=0, */*"], ["application/json;q=0.1"],
        // Common clients: JSON by name, and anything else if it must be.
        ["application/json, */*"], ["application/json, text/plain, */*"], ["application/json, */*;q=0.8"],
        ["application/*, */*"], ["*/*, text/*;q=0.5"],
    ])
    func `JSON is sent`(accept: [String]) async throws {
        #expect(try await Self.type(of: accept) == "application/problem+json")
    }
}
