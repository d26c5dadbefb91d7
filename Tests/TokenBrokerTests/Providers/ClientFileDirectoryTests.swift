import BrokerCore
import BrokerTesting
import HTTPCodec
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@Suite struct `A file outside the directories for files of tenants` {
    @Test(arguments: ["client_secret_file", "client_assertion_file"])
    func `is not read, and the answer names the setting`(member: String) async throws {
        let file = StoreFixtureDirectory()
        try SmallFile.replace(file.path, Array("header.payload.signature".utf8))
        let parent = String(file.path.prefix(upTo: try #require(file.path.lastIndex(of: "/"))))
        for (directories, isRead) in [([parent], true), (["/run/secrets", parent], true), (["/run/secrets"], false)] {
            let broker = try await BrokerHarness { $0.core.clientFileDirectories = directories }
            await broker.makeTenant(
                "t1", `What a client shows its provider`.tenant(#""\#(member)": "\#(file.path)""#))
            await broker.set("a1", refresh: "r1", lifetime: .seconds(1))
            broker.time.advance(by: .seconds(2))
            broker.transport.always(.json(200, BrokerHarness.token("a2", refresh: "r2")))
            let answer = await broker.get()
            #expect(broker.transport.seen.count == (isRead ? 1 : 0))
            guard !isRead else {
                #expect(answer.token == "a2", "\(answer.text)")
                continue
            }
            #expect((answer.status, answer.code) == (424, "illegal_configuration"))
            #expect(answer.text.contains("TOKEN_BROKER_CLIENT_FILE_DIRECTORIES"), "\(answer.text)")
            #expect(!answer.text.contains(file.path) && !broker.log.joined().contains("header.payload.signature"))
            #expect(await broker.status().json["logged_in"] == .bool(true))
        }
    }
}
