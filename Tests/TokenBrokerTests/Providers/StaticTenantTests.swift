import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// A tenant whose keys do not come by OAuth, and what it cannot do.
@Suite struct `A static tenant` {
    private static func broker(_ members: String = "") async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "static"\#(members)}"#)
        return broker
    }

    @Test(arguments: ["", #""credentials": {"token": "sk-1"}, "#])
    func `imports no refresh token, which nothing could use`(credentials: String) async throws {
        let broker = try await Self.broker()
        let answer = await broker.importing(
            #"{"storage_key": "alice", \#(credentials)"refresh_token": "r-1"}"#,
            #"{"storage_key": "bob", "credentials": {"token": "sk-2"}}"#)
        #expect(answer.outcomes == ["1 alice illegal_argument", "2 bob imported"])
        #expect(answer.values[0]["detail"]?.text?.contains("keys and access tokens only") == true)
        #expect(!answer.lines.joined().contains("r-1"))
        let status = await broker.status(storageKey: "alice")
        #expect(status.isLoggedIn == false)
        #expect(await broker.get("storage_key=bob").token == "sk-2")
    }

    @Test func `is brought no refresh token`() async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(
            .put, "/credentials", tenant: "t1", body: #"{"credentials": {"token": "sk-1"}, "refresh_token": "r-1"}"#)
        #expect((answer.status, answer.code) == (422, "illegal_argument"))
        #expect(answer.text.contains("keys and access tokens only") && !answer.text.contains("r-1"), "\(answer.text)")
        #expect(await broker.status().isLoggedIn == false)
    }

    @Test(arguments: [
        "/login/initialize", "/device",
    ])
    func `says that it has no logins`(path: String) async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(.post, path, tenant: "t1", body: "{}")
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(answer.text.contains("has no logins") && answer.text.contains("PUT /credentials"), "\(answer.text)")
    }

    @Test func `takes a refresh token where it names a provider`() async throws {
        let broker = try await Self.broker(
            #", "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"}"#)
        #expect(
            await broker.importing(#"{"storage_key": "alice", "refresh_token": "r-1"}"#).outcomes == [
                "1 alice imported"
            ])
    }
}
