internal import BrokerTesting
internal import HTTPCodec
internal import JSON
internal import Testing
internal import TokenBroker

@Suite struct `Handing out credentials` {
    @Test func `a login's token is handed out and its refresh token never`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["r_usr"]}"#)
        let key = await broker.makeKey()
        await broker.logIn()
        let answer = await broker.call(.get, "/credentials", key: key)
        #expect(answer.status == 200)
        #expect(
            answer.text == #"{"level":"user","client_id":"c1","requested_scopes":["r_usr"],"client_unique_key":null,"#
                + #""granted_scopes":["r_usr"],"user_id":"42","expires":"2026-11-21T10:00:00Z","expires_in":3600,"#
                + #""token_type":"Bearer","token":"access-1"}"#)
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(!broker.log.joined().contains("access-1"))
        #expect(!broker.log.joined().contains("refresh-1"))
    }

    @Test func `a hundred callers of an expired token cause one request`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn()
        broker.time.advance(by: .seconds(3600))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("access-2", refresh: "refresh-2"))))
        let answers = await withTaskGroup(of: BrokerHarness.Answer.self) { group in
            for _ in 0..<100 { group.addTask { await broker.call(.get, "/credentials", tenant: "t1") } }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(answers.count == 100)
        #expect(answers.allSatisfy { $0.status == 200 && $0.json["token"]?.string == "access-2" })
        #expect(broker.transport.seen.count == 2)
    }
}
