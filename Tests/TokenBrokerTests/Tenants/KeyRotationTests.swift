import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

/// `POST /tenants/{tenant}/api-keys/{id}/rotate`.
@Suite(.timeLimit(.minutes(2))) struct `The rotation of an API key` {
    private struct Key {
        let id: String
        let secret: String

        init(_ answer: BrokerHarness.Answer) throws {
            #expect(answer.status == 201, "\(answer.text)")
            id = try #require(answer.json["id"]?.text)
            secret = try #require(answer.json["api_key"]?.text)
        }
    }

    private static let path = "/tenants/t1/api-keys"

    private static func make(
        _ broker: BrokerHarness, _ members: String = ""
    ) async throws -> Key {
        let all = #""permissions": ["credentials:read", "credentials:write", "login", "events"]"#
        return try Key(await broker.call(.post, path, body: #"{"name": "k", \#(all)\#(members)}"#))
    }

    private static func rotate(
        _ broker: BrokerHarness, _ id: String, _ body: String? = nil
    ) async -> BrokerHarness.Answer {
        await broker.call(.post, "\(path)/\(id)/rotate", body: body)
    }

    private static func status(_ broker: BrokerHarness, _ key: Key) async -> Int {
        await broker.call(.get, "/credentials?storage_key=a", key: key.secret).status
    }

    private static func statuses(_ broker: BrokerHarness, _ keys: [Key]) async -> [Int] {
        var statuses: [Int] = []
        for key in keys { statuses.append(await status(broker, key)) }
        return statuses
    }

    // MARK: The answer

    @Test func `makes another secret of the same key, and the one before is accepted until the overlap ends`()
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let old = try await Self.make(broker, #", "storage_keys": ["a"], "expires_in": 86400"#)
        #expect(await Self.status(broker, old) == 200)
        broker.time.advance(by: .seconds(60))
        let answer = await Self.rotate(broker, old.id, #"{"overlap": 3600}"#)
        let new = try Key(answer)
        #expect(new.id == old.id && new.secret != old.secret)
        let rest = """
            "id":"\(old.id)","name":"k",\
            "permissions":["credentials:read","credentials:write","login","events"],"storage_keys":["a"],\
            "created":"2026-11-21T09:00:00Z","expires":"2026-11-22T09:00:00Z","generation":2,\
            "rotated":"2026-11-21T09:01:00Z","earlier_secret_expires":"2026-11-21T10:01:00Z"
            """
        #expect(answer.text == "{\(rest),\"api_key\":\"\(new.secret)\"}")
        #expect(await broker.call(.get, Self.path).text == "{\"api_keys\":[{\(rest)}]}")
        #expect(await broker.call(.get, "\(Self.path)/\(old.id)").text == "{\(rest)}")
        for key in [old, new] {
            #expect(await Self.status(broker, key) == 200)
            #expect(await broker.call(.get, "/credentials?storage_key=b", key: key.secret).status == 403)
            #expect(broker.log.last?.contains(#""api_key":"\#(old.id)""#) == true)
        }
        broker.time.advance(by: .milliseconds(3_599_999))
        #expect(await Self.status(broker, old) == 200)
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.status(broker, old) == 401)
        #expect(await Self.status(broker, new) == 200)
        let later = await broker.call(.get, "\(Self.path)/\(old.id)")
        #expect(later.json["earlier_secret_expires"] == .null)
        #expect(later.json["generation"]?.integer == 2)
    }

    /// The member `overlap` and for how many seconds the secret before the rotation is accepted.
    @Test(
        arguments: [
            (nil, 86_400), ("{}", 86_400), (#"{"overlap": null}"#, 86_400), (#"{"overlap": 0}"#, 0),
            (#"{"overlap": 1}"#, 1),
            (#"{"overlap": 2592000}"#, 2_592_000),
        ] as [(String?, Int64)])
    func `overlaps for as long as it is asked to, or a day`(body: String?, seconds: Int64) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let old = try await Self.make(broker)
        let new = try Key(await Self.rotate(broker, old.id, body))
        if seconds > 0 {
            broker.time.advance(by: .seconds(seconds) - .milliseconds(1))
            #expect(await Self.status(broker, old) == 200)
            broker.time.advance(by: .milliseconds(1))
        }
        #expect(await Self.status(broker, old) == 401)
        #expect(await Self.status(broker, new) == 200)
    }

    @Test(arguments: [
        (#"{"overlap": -1}"#, "/overlap"), (#"{"overlap": 2592001}"#, "/overlap"), (#"{"overlap": "1"}"#, "/overlap"),
        (#"{"overlap": 1.5}"#, "/overlap"), (#"{"replaces": 0}"#, "/replaces"), (#"{"replaces": "1"}"#, "/replaces"),
        (#"{"expires_in": 0}"#, "/expires_in"), (#"{"expires_in": 315360001}"#, "/expires_in"),
        (#"{"name": "n"}"#, "/name"),
    ])
    func `is refused where it is not well described, and changes nothing`(body: String, pointer: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = try await Self.make(broker)
        let answer = await Self.rotate(broker, key.id, body)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == [pointer])
        #expect(await broker.call(.get, "\(Self.path)/\(key.id)").json["generation"] == nil)
    }

    @Test func `of a key that does not exist, or that has expired, is refused`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let key = try await Self.make(broker, #", "expires_in": 60"#)
        for path in [
            "/tenants/t2/api-keys/\(key.id)", "/tenants/t3/api-keys/\(key.id)", "\(Self.path)/\(key.id).earlier",
            "\(Self.path)/000000000000000000000000", "\(Self.path)/x",
        ] {
            let answer = await broker.call(.post, path + "/rotate")
            #expect((answer.status, answer.code) == (404, "not_found"), "\(path)")
        }
        let old = try Key(await Self.rotate(broker, key.id))
        for path in ["\(Self.path)/\(key.id).earlier", "\(Self.path)/\(key.id)%2Eearlier"] {
            #expect(await broker.call(.get, path).status == 404)
            #expect(await broker.call(.delete, path).status == 404)
        }
        broker.time.advance(by: .milliseconds(59_999))
        #expect(await Self.statuses(broker, [key, old]) == [200, 200])
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.statuses(broker, [key, old]) == [401, 401])
        let late = await Self.rotate(broker, key.id, #"{"expires_in": 60}"#)
        #expect((late.status, late.code) == (409, "conflict"))
    }

    // MARK: Several rotations

    @Test func `within the overlap of another ends the oldest secret`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let first = try await Self.make(broker)
        let second = try Key(await Self.rotate(broker, first.id))
        #expect(await Self.status(broker, first) == 200)
        let third = try Key(await Self.rotate(broker, first.id))
        #expect(await Self.status(broker, first) == 401)
        #expect(await Self.statuses(broker, [second, third]) == [200, 200])
        // Without an overlap none of those before is left.
        let fourth = try Key(await Self.rotate(broker, first.id, #"{"overlap": 0}"#))
        for key in [first, second, third] { #expect(await Self.status(broker, key) == 401) }
        #expect(await Self.status(broker, fourth) == 200)
        let shown = await broker.call(.get, "\(Self.path)/\(first.id)")
        #expect(shown.json["generation"]?.integer == 4)
        #expect(shown.json["earlier_secret_expires"] == .null)
        #expect(try await broker.store.list(.apiKey, tenant: nil, after: nil, limit: 9).count == 1)
    }

    @Test func `can be repeated after a lost answer, and the secret in use is accepted all the time`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let used = try await Self.make(broker)
        let body = #"{"overlap": 3600, "replaces": 1}"#
        for _ in 0..<3 {
            store.onCommit(of: .apiKey, .loseAnswer)
            #expect(await Self.rotate(broker, used.id, body).status == 503)
            #expect(await Self.status(broker, used) == 200)
            broker.time.advance(by: .seconds(1))
        }
        let lost = try Key(await Self.rotate(broker, used.id, body))
        #expect(await Self.status(broker, lost) == 200)
        let answer = await Self.rotate(broker, used.id, body)
        let new = try Key(answer)
        #expect(answer.json["generation"]?.integer == 6)
        // The overlap began with the rotation whose answer was lost first.
        #expect(answer.json["earlier_secret_expires"]?.text == "2026-11-21T10:00:00Z")
        #expect(await Self.status(broker, lost) == 401)
        #expect(await Self.statuses(broker, [used, new]) == [200, 200])
        // A longer overlap does not lengthen it, a shorter one shortens it.
        let longer = await Self.rotate(broker, used.id, #"{"overlap": 7200, "replaces": 1}"#)
        #expect(longer.json["earlier_secret_expires"]?.text == "2026-11-21T10:00:00Z")
        let shorter = await Self.rotate(broker, used.id, #"{"overlap": 60, "replaces": 1}"#)
        #expect(shorter.json["earlier_secret_expires"]?.text == "2026-11-21T09:01:03Z")
        for replaced in [2, 7, 9] {
            let refused = await Self.rotate(broker, used.id, #"{"replaces": \#(replaced)}"#)
            #expect((refused.status, refused.code) == (409, "conflict"), "\(replaced)")
        }
        broker.time.advance(by: .seconds(60))
        #expect(await Self.rotate(broker, used.id, body).status == 409)
        #expect(try Key(await Self.rotate(broker, used.id, #"{"replaces": 8}"#)).id == used.id)
    }

    @Test func `whose answer was lost leaves both secrets in use without a repetition as well`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let used = try await Self.make(broker)
        store.onCommit(of: .apiKey, .refuse(.unavailable))
        #expect(await Self.rotate(broker, used.id).status == 503)
        #expect(await Self.status(broker, used) == 200)
        #expect(await broker.call(.get, "\(Self.path)/\(used.id)").json["generation"] == nil)
        store.onCommit(of: .apiKey, .refuse(.conflict))
        let new = try Key(await Self.rotate(broker, used.id))
        #expect(await Self.statuses(broker, [used, new]) == [200, 200])
    }

    @Test func `at the same time at two replicas gives each secret its turn`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant()
        let key = try await Self.make(one)
        async let first = Self.rotate(one, key.id)
        async let second = Self.rotate(two, key.id)
        let secrets = [try Key(await first), try Key(await second)]
        #expect(secrets[0].secret != secrets[1].secret)
        for broker in [one, two] {
            for secret in secrets { #expect(await Self.status(broker, secret) == 200) }
            #expect(await Self.status(broker, key) == 401)
        }
        #expect(await two.call(.get, "\(Self.path)/\(key.id)").json["generation"]?.integer == 3)
    }

    // MARK: Expiry

    @Test func `leaves the key its expiry unless it names another`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = try await Self.make(broker, #", "expires_in": 7200"#)
        let same = await Self.rotate(broker, key.id)
        #expect(same.json["expires"]?.text == "2026-11-21T11:00:00Z")
        // The secret before is accepted no longer than the key.
        #expect(same.json["earlier_secret_expires"]?.text == "2026-11-21T11:00:00Z")
        let longer = await Self.rotate(broker, key.id, #"{"expires_in": 604800}"#)
        #expect(longer.json["expires"]?.text == "2026-11-28T09:00:00Z")
        // Nor longer than it would have been.
        #expect(longer.json["earlier_secret_expires"]?.text == "2026-11-21T11:00:00Z")
        let shorter = await Self.rotate(broker, key.id, #"{"expires_in": 60}"#)
        #expect(shorter.json["expires"]?.text == "2026-11-21T09:01:00Z")
        #expect(shorter.json["earlier_secret_expires"]?.text == "2026-11-21T09:01:00Z")
    }

    // MARK: Lists

    @Test func `shows each key once in pages`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        var ids: [String] = []
        for index in 0..<5 {
            let key = try await Self.make(broker)
            ids.append(key.id)
            if index != 2 { _ = try Key(await Self.rotate(broker, key.id)) }
        }
        for limit in 1...6 {
            var (found, cursor): ([String], String?) = ([], nil)
            repeat {
                let page = await broker.call(
                    .get, "\(Self.path)?limit=\(limit)" + (cursor.map { "&cursor=\($0)" } ?? ""))
                let keys = page.json["api_keys"]?.array ?? []
                found += keys.compactMap { $0["id"]?.text }
                cursor = page.json["next_cursor"]?.text
                #expect(keys.count == limit || cursor == nil)
            } while cursor != nil
            #expect(found == ids.sorted(), "\(limit)")
        }
    }

    // MARK: Deletion

    // H026
    @Test func `does not keep a secret of a deleted key alive`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let old = try await Self.make(broker)
        let new = try Key(await Self.rotate(broker, old.id))
        for key in [old, new] { #expect(await Self.status(broker, key) == 200) }
        #expect(await broker.call(.delete, "\(Self.path)/\(old.id)").status == 204)
        for key in [old, new] { #expect(await Self.status(broker, key) == 401) }
        #expect(try await broker.store.list(.apiKey, tenant: nil, after: nil, limit: 9) == [])
        #expect(await Self.rotate(broker, old.id).status == 404)
        #expect(await broker.call(.get, Self.path).json["api_keys"] == .array([]))
    }

    @Test func `and a deletion whose answer was lost refuse both secrets at once`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let old = try await Self.make(broker)
        let new = try Key(await Self.rotate(broker, old.id))
        for key in [old, new] { #expect(await Self.status(broker, key) == 200) }
        store.onCommit(of: .apiKey, .loseAnswer)
        #expect(await broker.call(.delete, "\(Self.path)/\(old.id)").status == 503)
        for key in [old, new] { #expect(await Self.status(broker, key) == 401) }
    }

    // MARK: The log

    @Test func `is in the log and in the audit log once, without the secrets`() async throws {
        let broker = try await BrokerHarness { $0.core.audit.changes = true }
        await broker.makeTenant()
        let old = try await Self.make(broker)
        let second = try Key(await Self.rotate(broker, old.id))
        let third = try Key(await Self.rotate(broker, old.id))
        #expect(await broker.call(.delete, "\(Self.path)/\(old.id)").status == 204)
        let rotations = broker.log.filter {
            $0.contains(#""event":"api_key_rotated","tenant":"t1","api_key":"\#(old.id)""#)
        }
        #expect(rotations.count == 2)
        let lines = Mutex<[[UInt8]]>([])
        let unreadable = try await AuditExport().run(broker.store) { line in lines.withLock { $0.append(Array(line)) } }
        #expect(unreadable == (entries: 0, chains: 0))
        let audit = lines.withLock { $0 }.map { String(decoding: $0, as: UTF8.self) }.joined()
        for (action, count) in [("api-key.created", 1), ("api-key.rotated", 2), ("api-key.removed", 1)] {
            #expect(audit.ranges(of: #""action":"\#(action)""#).count == count, "\(action)")
        }
        #expect(audit.ranges(of: #""key_id":"\#(old.id)""#).count == 4)
        for key in [old, second, third] {
            #expect(!audit.contains(key.secret) && !broker.log.joined().contains(key.secret))
        }
    }
}
