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

/// What callers are told of a user's session that is over.
@Suite struct `A session that is over` {
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1"}"#
    private static let end = "2026-11-21T09:00:00Z"

    /// A user whose session the provider ends at the next read.
    private static func make(
        _ tenant: String = withSecret, refresh: String? = "r1", store: any RecordStore = MemoryRecordStore()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: refresh, lifetime: .zero)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        return broker
    }

    private static func session(_ cause: String) -> JSONValue {
        .object(["ended": .string("2026-11-21T09:00:00Z"), "cause": .string(.init(cause))])
    }

    /// What an answer tells of the session, without the address at which the user logs in again, which belongs to it.
    private static func told(_ answer: BrokerHarness.Answer) -> JSONValue? {
        guard var members = answer.json["session"]?.object else { return answer.json["session"] }
        let address = members.removeValue(forKey: "reconnect_uri")?.text ?? ""
        #expect(address.hasPrefix("https://broker.example/login/reconnect/t1/"))
        return .object(members)
    }

    // MARK: Beside the lower level

    @Test func `is told beside the client's token, from memory too, until a user logs in`() async throws {
        let broker = try await Self.make()
        broker.transport.always(.json(200, BrokerHarness.token("client-1")))
        for _ in 0..<3 {
            let answer = await broker.get()
            #expect((answer.level, answer.token) == ("client", "client-1"))
            #expect(Self.told(answer) == Self.session("revoked"))
            broker.time.advance(by: .seconds(60))
        }
        // The client's next token is of the same time after the session.
        broker.time.advance(by: .seconds(3600))
        #expect(Self.told(await broker.get()) == Self.session("revoked"))
        let restarted = try await BrokerHarness(store: broker.store, time: broker.time)
        #expect(Self.told(await restarted.get()) == Self.session("revoked"))
        await broker.set("b1", refresh: "r2")
        let answer = await broker.get()
        #expect((answer.level, Self.told(answer)) == ("user", nil))
    }

    @Test func `is told beside the client's identifier, and after a logout no more`() async throws {
        let broker = try await Self.make(#"{"client_id": "c1"}"#)
        for _ in 0..<2 {
            let answer = await broker.get()
            #expect((answer.level, Self.told(answer)) == ("basic", Self.session("revoked")))
        }
        #expect(await broker.status().json["state"] == .string("ended"))
        await broker.logOut()
        #expect(Self.told(await broker.get()) == nil)
        #expect(await broker.status().json["state"] == nil)
    }

    @Test func `is told where the token was over and nothing could renew it`() async throws {
        let broker = try await Self.make(#"{"client_id": "c1"}"#, refresh: nil)
        #expect(Self.told(await broker.get()) == Self.session("expired"))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `is not told where there was none`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1", expiresIn: 60)))
        #expect(Self.told(await broker.get()) == nil)
        await broker.makeTenant()
        #expect(Self.told(await broker.get()) == nil)
    }

    @Test func `is told with the error where there is no answer`() async throws {
        let broker = try await Self.make()
        broker.transport.always(.json(401, #"{"error": "invalid_client"}"#))
        let refused = await broker.get()
        #expect((refused.status, refused.code) == (424, "illegal_configuration"))
        #expect(Self.told(refused) == Self.session("revoked"))
        let demanding = await broker.get("level=user")
        #expect((demanding.code, Self.told(demanding)) == ("level_not_available", Self.session("revoked")))
        let local = await broker.get("policy=local")
        #expect((local.code, Self.told(local)) == ("missing_token_container", Self.session("revoked")))
    }

    @Test func `is told after a restoration no more`() async throws {
        let broker = try await Self.make(#"{"client_id": "c1"}"#)
        #expect(Self.told(await broker.get()) != nil)
        #expect(await broker.restore().status == 200)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.token, Self.told(answer)) == ("a2", nil))
    }

    @Test func `stands in the record, which builds before and after can read`() throws {
        let time = ManualTime.beginning
        let record = CredentialRecord(
            held: nil, ended: Array(repeating: 7, count: 32), session: EndedSession(.revoked, at: time))
        #expect(CredentialRecord(decoding: record.encoded) == record)
        // What an earlier build has left.
        let text = String(decoding: record.encoded, as: UTF8.self)
        let old = #"{"ended":"\#(Base64URL.encode(Array(repeating: 7, count: 32)))"}"#
        #expect(text.hasPrefix(old.dropLast()))
        #expect(CredentialRecord(decoding: Array(old.utf8))?.session == nil)
        // What a later one may leave.
        let later = old.dropLast() + #","session_ended":1,"session_end":"unheard_of","more":{}}"#
        let read = try #require(CredentialRecord(decoding: Array(later.utf8)))
        #expect((read.ended, read.session) == (record.ended, nil))
    }

    // MARK: Client credentials that are refused

    @Test(arguments: [
        #"{"client_id": "c1", "client_secret": "s1"}"#,
        "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#,
    ])
    func `and a client that gets no credentials of its own cost one call in 30 s`(tenant: String) async throws {
        let broker = try await Self.make(tenant)
        broker.transport.always(.json(400, #"{"error": "unauthorized_client"}"#))
        for _ in 0..<20 { #expect(await broker.get().code == "illegal_configuration") }
        // The refresh that ended the session, and the client's.
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["refresh_token", "client_credentials"])
        // Another user's as well: it is the client that is refused.
        #expect(await broker.get("storage_key=other").code == "illegal_configuration")
        broker.time.advance(by: .milliseconds(29_999))
        #expect(await broker.get().retryAfter == 1)
        #expect(broker.transport.seen.count == 2)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.always(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        #expect(await broker.get("storage_key=other").token == "client-1")
        #expect(broker.transport.seen.count == 4)
    }

    @Test func `and refused client credentials stop no refresh`() async throws {
        let broker = try await Self.make("{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.always(
            .decide { seen in
                seen.form["grant_type"] == "client_credentials"
                    ? .json(400, #"{"error": "unauthorized_client"}"#) : .json(200, BrokerHarness.token("b2"))
            })
        #expect(await broker.get().code == "illegal_configuration")
        await broker.set("b1", refresh: "r2", lifetime: .zero, storageKey: "other")
        #expect(await broker.get("storage_key=other").token == "b2")
        #expect(try await broker.events().allSatisfy { $0.kind != .providerDegraded })
    }

    @Test func `and a secret that is for refreshes only costs none`() async throws {
        let broker = try await Self.make(
            #"{"client_id": "c1", "client_secret": "s1", "client_credentials": "off"}"#)
        for _ in 0..<3 {
            let answer = await broker.get()
            #expect((answer.level, Self.told(answer)) == ("basic", Self.session("revoked")))
        }
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["refresh_token"])
        #expect(broker.transport.seen.map(\.form["client_secret"]) == ["s1"])
        #expect(await broker.get("level=client").code == "level_not_available")
    }

    @Test(arguments: [(#""on""#, 200), (#""off""#, 200), (#""maybe""#, 400), ("false", 400)])
    func `client_credentials is on or off`(value: String, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1", "client_credentials": \#(value)}"#)
        #expect(answer.status == status)
        if status == 400 { #expect(answer.pointers == ["/client_credentials"]) }
        let shown = await broker.call(.get, "/tenants/t1").json["client_credentials"]
        // What was not said is what the profile says, and is not shown.
        #expect(shown == [#""on""#: .string("on"), #""off""#: .string("off")][value])
    }
}
