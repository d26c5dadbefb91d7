import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// What a caller is told of credentials that are stored and cannot serve the request.
@Suite struct `Credentials that are stored and do not suit` {
    struct Row: Sendable, CustomTestStringConvertible {
        let tenant: String
        /// The stored access token; nil for a user of whom nothing is stored.
        var token: String?
        let words: [String]

        var testDescription: String { tenant }
    }

    @Test(arguments: [
        Row(tenant: #"{"client_id": "c1"}"#, token: "a1", words: ["are stored", "no refresh token", "log in anew"]),
        Row(
            tenant: #"{"provider": "static"}"#, token: "a1",
            words: ["are stored", "no refresh token", "do not come by OAuth", "PUT /credentials"]),
        Row(
            tenant: #"""
                {"provider": "linkedin", "client_id": "c1", "client_secret": "s"}
                """#, token: "a1", words: ["are stored", "no refresh token", "setting", "LinkedIn", "log in anew"]),
        Row(tenant: #"{"client_id": "c1"}"#, words: ["Nothing is stored"]),
    ])
    func `are told apart from none by a forced refresh, with the cause`(row: Row) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", row.tenant)
        if let token = row.token {
            let client = row.tenant.contains("client_id") ? #""client_id": "c1", "# : ""
            let stored = await broker.call(
                .put, "/credentials", tenant: "t1",
                body: #"{"credentials": {\#(client)"level": "user", "token": "\#(token)", "expires_in": 3600}}"#)
            #expect(stored.status == 200, "\(stored.text)")
        }
        let answer = await broker.get("policy=local_force_refresh")
        #expect((answer.status, answer.code) == (404, "missing_token_container"))
        #expect(answer.json["title"]?.text == "No suitable credentials are stored")
        let detail = answer.json["detail"]?.text ?? ""
        for words in row.words { #expect(detail.contains(words), "\(detail)") }
        #expect(broker.transport.seen.isEmpty)
        if let token = row.token { #expect(await broker.get("policy=local").token == token) }
    }

    @Test func `have no access token yet, which policy=local says`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1"}"#)
        let imported = await broker.importing(#"{"storage_key": "alice", "refresh_token": "r1"}"#)
        #expect(imported.outcomes == ["1 alice imported"])
        let answer = await broker.get("storage_key=alice&policy=local")
        #expect((answer.status, answer.code) == (404, "missing_token_container"))
        let detail = answer.json["detail"]?.text ?? ""
        #expect(detail.contains("are stored") && detail.contains("imported without an access token"), "\(detail)")
    }
}
