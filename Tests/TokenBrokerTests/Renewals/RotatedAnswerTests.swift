import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// Answers to refreshes that have a new refresh token and nothing to serve.
@Suite struct `Answers with a refresh token only` {
    private static func broker(_ lifetime: Duration = .zero) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: lifetime)
        return broker
    }

    struct Unusable: Sendable, CustomTestStringConvertible {
        let status: Int
        let body: String
        var type: String?
        var testDescription: String { "\(status) \(body)" }

        init(_ status: Int, _ body: String) { (self.status, self.body) = (status, body) }

        static func form(_ body: String) -> Unusable {
            var answer = Unusable(200, body)
            answer.type = "application/x-www-form-urlencoded; charset=utf-8"
            return answer
        }

        var step: ScriptedTransport.Step {
            var fields = Fields()
            if let type { fields.append("Content-Type", type) }
            return .json(status, body, fields: fields)
        }
    }

    @Test func `an answer that says that it is a form is read as one`() async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(Unusable.form("access_token=a2&token_type=bearer&refresh_token=r2&expires_in=60").step)
        #expect(await broker.get().token == "a2")
        broker.time.advance(by: .seconds(61))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    // H077 Q06
    @Test(arguments: [
        Unusable(200, #"{"access_token": null, "token_type": "Bearer", "refresh_token": "r2"}"#),
        Unusable(200, #"{"token_type": "Bearer", "refresh_token": "r2"}"#),
        Unusable(200, #"{"access_token": "", "refresh_token": "r2"}"#),
        Unusable(200, #"{"access_token": 5, "refresh_token": "r2"}"#),
        Unusable(200, #"{"access_token": "a b", "refresh_token": "r2"}"#),
        Unusable(200, #"{"access_token": "a2", "token_type": "mac", "refresh_token": "r2"}"#),
        Unusable(201, #"{"refresh_token": "r2"}"#), Unusable(206, #"{"refresh_token": "r2"}"#),
        Unusable(299, #"{"refresh_token": "r2"}"#),
        Unusable(200, #"{"access_token": "a2", "refresh_token": "r2"} <!-- a page -->"#),
        Unusable(200, #"{"access_token": "a2", "access_token": "a3", "refresh_token": "r2"}"#),
        Unusable(200, #"{"access_token": "a2", "refresh_token": "r2", "refresh_token": "r2"}"#),
        Unusable.form("token_type=bearer&refresh_token=r2"), Unusable.form("access_token=&refresh_token=r2"),
        Unusable.form("access_token=a2&access_token=a3&refresh_token=r2"),
        Unusable.form("access_token=a2&scope=x&refresh_token=r2&scope=x"),
        Unusable(200, "access_token=a2&token_type=bearer&refresh_token=r2"),
        // What was cut off came after it.
        Unusable(200, #"{"access_token": "a2", "refresh_token": "r2""#),
        Unusable(200, #"{"refresh_token" : "r2", "access_token": "a"#),
        Unusable(200, #"{"access_token": "a2", "refresh_token": "r2",}"#),
        Unusable(200, #")]}'  {"access_token": "a2", "refresh_token": "r2"}"#),
        Unusable(
            200,
            "<br />\n<b>Warning</b>: x in <b>t.php</b><br />\n{\"access_token\": \"a2\", \"refresh_token\": \"r2\"}\n"),
        Unusable(200, #"{"note": "\"refresh_token\": \"r9\"", "refresh_token": "r2", "x": tru}"#),
        Unusable(200, #"{"refresh_token": "r\u0032", "x": "\q"}"#),
    ])
    func `the refresh token is stored, and the next try presents it`(answer: Unusable) async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(answer.step)
        let refused = await broker.get()
        #expect((refused.status, refused.code) == (502, "token_response_error"))
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.status().json["refreshable"]?.bool == true)
        let told = try await broker.events().filter { $0.kind == .credentialsUpdated }
        #expect(told.count == 1)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
        #expect(try await broker.quarantined() == nil)
    }

    /// The token at hand is as old as it was: it does not count as one of short life that has just been granted.
    @Test func `the token beside it is not taken for a new one`() async throws {
        let broker = try await Self.broker(.seconds(50))
        broker.transport.enqueue(Unusable(200, #"{"access_token": null, "refresh_token": "r2"}"#).step)
        let first = await broker.get()
        #expect((first.token, first.json["degraded"]?["code"]?.text) == ("a1", "token_response_error"), "\(first.text)")
        broker.time.advance(by: .seconds(20))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    @Test(arguments: [
        Unusable(200, #"{"access_token": "a2", "refresh_token": "r"#),
        Unusable(200, #"{"refresh_token": "r2", "refresh_token": "r3", "access_token": "a"#),
        Unusable(200, #"{"refresh_token": "r\ud83d", "access_token": "a"#),
        Unusable(200, #"{"note": "\"refresh_token\": \"r2\"", "x": tru}"#),
        Unusable(200, #"{"access_token": null, "refresh_token": "r2", "refresh_token": "r3"}"#),
        Unusable(200, #"{"access_token": null, "refresh_token": 5}"#),
        Unusable(200, #"{"access_token": null, "refresh_token": ""}"#),
        Unusable(200, #"{"access_token": null, "refresh_token": "r1"}"#),
        Unusable(200, #"<p>{"refresh_token": "r2"}</p>"#), Unusable(204, ""),
        Unusable.form("refresh_token=r2&refresh_token=r3"),
        Unusable.form("access_token=a2&refresh_token=r2&refresh_token=r3"),
    ])
    func `where none can be read beyond doubt, the answer counts as lost`(answer: Unusable) async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(answer.step, .json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r1", "r1"])
    }

    /// Beside a token that can be served, a refresh token of a wrong type is none.
    @Test(arguments: ["7", "7.5", "0", "true", "false", "[]", #"["r2"]"#, "{}", #"{"value": "r2"}"#])
    func `a refresh token of a wrong type counts as none, and the answer is no lost one`(value: String) async throws {
        for tenant in [#"{"client_id": "c1"}"#, #"{"client_id": "c1", "rotation": "always"}"#] {
            let broker = try await BrokerHarness.expired(tenant)
            broker.transport.enqueue(
                .json(
                    200,
                    #"{"access_token": "a2", "token_type": "Bearer", "expires_in": 3600, "refresh_token": \#(value)}"#))
            #expect(await broker.get().token == "a2")
            #expect(broker.transport.seen.count == 1)
            #expect(broker.log.contains { $0.contains(#""event":"refresh_token_unreadable""#) })
            broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
            #expect(await broker.get("policy=local_force_refresh").token == "a3")
            #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r1", "r1"])
        }
    }

    /// Texts that are not right, beside the tokens, as in a display name.
    @Test(arguments: [
        #""name": "a\ud83d""#, #""name": "\ude00\ud83d\ude00""#, "\"name\": \"a\tb\"", #""big": 1e400"#,
        #""big": \#(String(repeating: "9", count: 2000))"#,
    ])
    func `other members do not keep the tokens from being served`(member: String) async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(
            .json(200, #"{\#(member), "access_token": "a2", "token_type": "Bearer", "refresh_token": "r2"}"#))
        #expect(await broker.get().token == "a2")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    @Test func `the stored token is served with its entity tag while it is valid`() async throws {
        let broker = try await Self.broker(.seconds(3600))
        let tag = await broker.get().tag
        broker.transport.enqueue(.json(200, #"{"access_token": null, "refresh_token": "r2"}"#))
        #expect(await broker.get("policy=local_force_refresh").status == 502)
        let served = await broker.get()
        #expect((served.status, served.token, served.tag) == (200, "a1", tag))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    @Test func `an upgrade that is answered so presents the new refresh token at its next try`() async throws {
        let broker = try await Self.broker(.seconds(3600))
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.enqueue(.json(200, #"{"access_token": null, "refresh_token": "r2"}"#))
        let refused = await broker.get()
        #expect((refused.status, refused.code) == (503, "retryable_error"))
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .seconds(60))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    // H077
    @Test func `a session that another user's answer ends is put aside with the newest refresh token`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn(token: BrokerHarness.token("a1", refresh: "r1", userID: 42))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2", userID: 43)))
        #expect(await broker.get("policy=local_force_refresh").code == "token_response_error")
        let aside = try await broker.quarantined()?.credentials
        #expect((aside?.accessToken.revealedText, aside?.refreshToken?.revealedText) == ("a1", "r2"))
    }
}
