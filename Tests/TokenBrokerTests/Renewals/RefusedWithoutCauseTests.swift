import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// A provider that refuses a refresh token and does not say why, as Glewlwyd does with 400 and an empty body.
@Suite struct `A refusal that names no cause` {
    private static func make(
        _ body: String = "", status: Int = 400, store: any RecordStore = MemoryRecordStore()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.always(provider(.json(status, body)))
        return broker
    }

    /// The answer to a refresh; a made-up code is told from that.
    private static func provider(
        _ refresh: ScriptedTransport.Step, code: ScriptedTransport.Step = .json(403, #"{"error": "invalid_code"}"#)
    ) -> ScriptedTransport.Step {
        .decide { $0.form["grant_type"] == "refresh_token" ? refresh : code }
    }

    private static func state(_ broker: BrokerHarness) async -> String? { await broker.status().json["state"]?.text }

    private static func namesRemedy(_ answer: BrokerHarness.Answer) -> Bool {
        answer.json["detail"]?.text?.contains("session_ending_answers") == true
    }

    @Test func `for an hour degrades the session, and the error says what to change`() async throws {
        let broker = try await Self.make()
        let tag = await broker.get("policy=local").tag
        let first = await broker.get()
        #expect((first.status, first.code, Self.namesRemedy(first)) == (502, "unexpected_error", false))
        broker.time.advance(by: .milliseconds(59_999))
        #expect(!Self.namesRemedy(await broker.get()))
        #expect(broker.transport.seen.count == 2)
        // From then on it is compared.
        broker.time.advance(by: .milliseconds(1))
        #expect(Self.namesRemedy(await broker.get()))
        broker.time.advance(by: .milliseconds(3_539_999))
        #expect(Self.namesRemedy(await broker.get()))
        #expect(await Self.state(broker) == "active")
        broker.time.advance(by: .milliseconds(1))
        // The provider was not asked since.
        #expect(await Self.state(broker) == "active")
        let answer = await broker.get()
        #expect((answer.status, answer.code, Self.namesRemedy(answer)) == (502, "unexpected_error", true))
        #expect(answer.json["detail"]?.text?.contains(#"{"status": 400}"#) == true)
        #expect(answer.json["detail"]?.text?.contains("client_secret") == true)
        #expect(await Self.state(broker) == "degraded")
        // A session that an answer may end one day, and is to be restored, is not ended by us.
        #expect(await broker.status().isLoggedIn == true)
        // Failures are no new credentials.
        #expect(await broker.get("policy=local").tag == tag)
        // Every replica, and the next process, says so.
        let other = try await BrokerHarness(store: broker.store, time: broker.time)
        #expect(await Self.state(other) == "degraded")
    }

    @Test func `is degraded no more when the provider grants, the user logs in, or the tenant says what it means`()
        async throws
    {
        for way in 0..<3 {
            let broker = try await Self.make()
            #expect(await broker.get().status == 502)
            broker.time.advance(by: .seconds(3600))
            #expect(await broker.get().status == 502)
            #expect(await Self.state(broker) == "degraded")
            switch way {
            case 0:
                broker.transport.always(.json(200, BrokerHarness.token("a2")))
                #expect(await broker.get().token == "a2")
                #expect(await Self.state(broker) == "active")
            case 1:
                await broker.set("b1", refresh: "r2")
                #expect(await Self.state(broker) == "active")
            default:
                await broker.makeTenant(
                    "t1",
                    "{" + BrokerHarness.oidc + #""client_id": "c1", "session_ending_answers": [{"status": 400}]}"#)
                #expect(await broker.get().level == "basic")
                #expect(await Self.state(broker) == "ended")
            }
        }
    }

    /// What the provider answers in between, and whether the hour begins anew.
    @Test(
        arguments: [
            (.json(400, ""), true), (.json(403, "{}"), true), (.json(400, #"{"error": "invalid_scope"}"#), false),
            (.json(503, ""), false), (.failure(.connectFailed), true),
            (.failure(.connectionLost(requestSent: true)), true),
        ] as [(ScriptedTransport.Step, Bool)])
    func `must be the provider's answer all the time`(step: ScriptedTransport.Step, isSame: Bool) async throws {
        let broker = try await Self.make()
        #expect(await broker.get().status == 502)
        broker.time.advance(by: .seconds(1800))
        broker.transport.always(Self.provider(step))
        #expect(await broker.get().status >= 502)
        broker.time.advance(by: .seconds(1800))
        broker.transport.always(Self.provider(.json(400, "")))
        #expect(await broker.get().status == 502)
        #expect(await Self.state(broker) == (isSame ? "degraded" : "active"))
    }

    @Test func `lasts until the provider's last refusal, and not until a later call that it did not answer`()
        async throws
    {
        let broker = try await Self.make()
        #expect(await broker.get().status == 502)
        broker.time.advance(by: .seconds(3600))
        broker.transport.always(.failure(.connectFailed))
        #expect(await broker.get().status == 503)
        #expect(await Self.state(broker) == "active")
    }

    @Test func `with 401 points to the client, for an expired secret is refused so as well`() async throws {
        let broker = try await Self.make(status: 401)
        broker.transport.always(.json(401, ""))
        #expect(await broker.get().status == 502)
        broker.time.advance(by: .seconds(3600))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(await Self.state(broker) == "degraded")
        #expect(!Self.namesRemedy(answer))
        #expect(answer.json["detail"]?.text?.contains("client_secret") == true)
    }

    @Test(
        arguments: [
            (401, #"{"sub_status": 6001}"#), (408, ""), (403, "<html>Forbidden</html>"), (400, "[]"),
        ])
    func `is none where there is a cause, or the moment is to blame`(status: Int, body: String) async throws {
        let broker = try await Self.make(body, status: status)
        #expect(await broker.get().status == (status == 408 ? 503 : 502))
        broker.time.advance(by: .seconds(7200))
        #expect(!Self.namesRemedy(await broker.get()))
        #expect(await Self.state(broker) == "active")
    }

    // MARK: What the comparison tells

    /// LemonLDAP::NG refuses the refresh token of an ended session with `invalid_request`. The status and body of the user's
    /// answer, and the answers to a made-up code and to a made-up refresh token.
    @Test(
        arguments: [
            (400, #"{"error": "invalid_request"}"#, .json(400, #"{"error": "invalid_grant"}"#), true, true),
            (400, #"{"error": "invalid_request"}"#, .json(400, #"{"error": "invalid_request"}"#), true, false),
            (403, "", .json(403, ""), false, false), (403, "", .json(400, #"{"error": "invalid_grant"}"#), true, true),
        ] as [(Int, String, ScriptedTransport.Step, Bool, Bool)])
    func `names the entry that a provider needs once the answer has lasted for a minute`(
        status: Int, body: String, code: ScriptedTransport.Step, namesEntry: Bool, isOfGrant: Bool
    ) async throws {
        let broker = try await Self.make()
        broker.transport.always(Self.provider(.json(status, body), code: code))
        let first = await broker.get()
        #expect((first.status, Self.namesRemedy(first)) == (502, false))
        #expect(first.json["detail"]?.text?.contains("configured provider") == false)
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .seconds(60))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "unexpected_error"))
        let detail = try #require(answer.json["detail"]?.text)
        let error = body.isEmpty ? "" : #", "error": "invalid_request""#
        #expect(detail.contains(#"{"status": \#(status)\#(error)}"#) == namesEntry, "\(detail)")
        #expect(detail.contains("not about the client") == isOfGrant)
        #expect(await broker.status().isLoggedIn == true)
        #expect(broker.log.contains { $0.contains("refusal_proves_nothing") } == !isOfGrant)
    }

    @Test func `is a fault of the client where a made-up code shows that`() async throws {
        let broker = try await Self.make()
        broker.transport.always(Self.provider(.json(400, ""), code: .json(401, #"{"error": "invalid_client"}"#)))
        #expect(await broker.get().status == 502)
        broker.time.advance(by: .seconds(60))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (424, "illegal_configuration", 30))
        #expect(await broker.status().isLoggedIn == true)
    }

    @Test func `is told as ever where the store does not take the note of it`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.make(store: store)
        #expect(await broker.get().status == 502)
        store.disturb([.refuse]) { $0.writes(.trouble) }
        #expect(await broker.get().status == 502)
        #expect(store.remainingFaults == 0)
        #expect(await broker.get().code == "unexpected_error")
    }

    @Test func `is written down beside the credentials, for lists`() async throws {
        let broker = try await Self.make()
        #expect(await broker.get().status == 502)
        broker.time.advance(by: .seconds(60))
        broker.transport.always(.json(400, #"{"error": "invalid_scope"}"#))
        #expect(await broker.get().status == 502)
        let id = RecordID(.trouble, try #require(TenantName("t1")), key: "default")
        let record = try #require(try await broker.vault.read(id))
        let trouble = try #require(RenewalTrouble(decoding: record.content.revealedBytes))
        #expect(trouble.failure?.first == ManualTime.beginning)
        #expect(trouble.failure?.last == ManualTime.beginning.advanced(by: .seconds(60)))
        #expect((trouble.failure?.code, trouble.failure?.errorCode) == ("unexpected_error", "invalid_scope"))
        #expect(trouble.failure?.unexplained == nil)
        #expect(RenewalTrouble(decoding: trouble.encoded) == trouble)
        #expect(RenewalTrouble(decoding: Array("{}".utf8)) == nil)
    }
}
