import Cryptography
import ExternalText
import OAuth
import Reactor
import Synchronization
import Testing

@testable import BrokerCore

extension CredentialsSnapshot {
    /// What a user has under that name.
    static func sample(_ id: CredentialsID, _ token: String, version: Int64 = 5) throws -> CredentialsSnapshot {
        let scopes = try #require(ScopeSet(["r_usr", "w_usr"]))
        let client = ClientConfiguration(
            clientID: "client-1", clientSecret: nil, clientUniqueKey: nil, scopes: scopes)
        let held = HeldCredentials(
            level: .user, accessToken: SecretBytes(utf8: token), refreshToken: SecretBytes(utf8: "refresh"),
            expires: Timestamp(milliseconds: 1_800_000_000_000), grantedScopes: scopes, userID: "42",
            obtainedWith: client.fingerprint,
            grantedBy: GrantingProvider(
                issuer: "https://login.example.com", tokenEndpoint: "https://login.example.com/oauth2/token"))
        return CredentialsSnapshot(CredentialRecord(held: held), of: id, version: version)
    }
}

/// What warm reads find of credentials without a look at them.
@Suite struct `The answer that is found by its place` {
    private typealias Shard = CacheShard<CredentialsID, CredentialsSnapshot>

    private final class End: Sendable {
        private let word = Atomic(false)
        var hasCome: Bool { word.load(ordering: .relaxed) }
        func come() { word.store(true, ordering: .relaxed) }

        /// How many readers have found something.
        private let found = Atomic(0)
        var readers: Int { found.load(ordering: .relaxed) }
        func noteReader() { found.add(1, ordering: .relaxed) }
    }

    private static let now = MonotonicInstant(nanoseconds: 1)
    private static let time = Timestamp(milliseconds: 1_799_999_000_000)

    private static func id(_ tenant: String, _ storageKey: String) throws -> CredentialsID {
        CredentialsID(
            tenant: try #require(TenantName(tenant)), storageKey: try #require(StorageKey(storageKey)))
    }

    /// All have one hash, so that only their names tell them apart.
    private static func shard(_ all: [(CredentialsID, CredentialsSnapshot)]) -> Shard {
        var shard = Shard(limit: 1 << 20)
        for (id, snapshot) in all {
            shard.set(id, 1, to: (Shard.Entry(id, snapshot, version: snapshot.version), 1), checked: now)
        }
        return shard
    }

    private static func find(_ tenant: TenantName, _ storageKey: String, in shard: Shard) -> Int? {
        shard.find(1, tenant: tenant, storageKey: storageKey.utf8.span)?.place
    }

    // H024
    @Test func `is that of the tenant and the storage key, whatever their lengths`() throws {
        let (longTenant, longKey) = (String(repeating: "t", count: 63), String(repeating: "k", count: 200))
        let names = [
            ("a", "bc"), ("ab", "c"), ("a", "b"), ("a", "bcd"), ("b", "bc"), (longTenant, longKey), (longTenant, "a"),
            ("a", longKey), (longTenant, String(longKey.dropLast())),
        ]
        let all = try names.map { tenant, storageKey in
            let id = try Self.id(tenant, storageKey)
            return (id, try CredentialsSnapshot.sample(id, "token-of-\(storageKey)"))
        }
        let shard = Self.shard(all)
        for (id, snapshot) in all {
            let place = try #require(Self.find(id.tenant, id.storageKey.description, in: shard))
            let body = try #require(snapshot.body(at: Self.time))
            let isAnswer = shard.withAnswer(place) { facts, bytes in
                #expect(facts.expires == 1_800_000_000_000)
                func text(_ range: Range<Int>) -> String { String(decoding: range.map { bytes[$0] }, as: UTF8.self) }
                #expect(text(facts.tag) == "\"5\"")
                #expect(
                    text(facts.fieldLines)
                        == "Content-Type: application/json\r\nCache-Control: no-store\r\nETag: \"5\"\r\n\r\n")
                #expect(
                    text(CredentialsSnapshot.notModifiedStart..<facts.fieldLines.upperBound)
                        == "Cache-Control: no-store\r\nETag: \"5\"\r\n\r\n")
                let (before, after) = (text(facts.bodyBeforeSeconds), text(facts.bodyAfterSeconds))
                return before + "1000" + after == String(decoding: body, as: UTF8.self)
            }
            #expect(isAnswer == true)
        }
        for (tenant, storageKey) in [("abc", ""), ("a", "bcde"), ("c", "bc"), ("ab", "b")] {
            #expect(Self.find(try #require(TenantName(tenant)), storageKey, in: shard) == nil)
        }
    }

    @Test func `is none where there is nothing, or nothing that can be sent as it stands`() throws {
        let id = try Self.id("t1", "default")
        let others = [
            CredentialsSnapshot.nothing, CredentialsSnapshot(CredentialRecord(held: nil), of: id, version: 3),
            try CredentialsSnapshot.sample(id, "with\"quote"), try CredentialsSnapshot.sample(id, "with\\backslash"),
            try CredentialsSnapshot.sample(id, "a b"),
        ]
        for snapshot in others {
            let shard = Self.shard([(id, snapshot)])
            #expect(shard.find(id, 1) != nil)
            #expect(Self.find(id.tenant, "default", in: shard) == nil)
        }
        // One that has something in place of one that has not, and the other way round.
        for other in others {
            let plain = try CredentialsSnapshot.sample(id, "plain", version: 6)
            #expect(Self.find(id.tenant, "default", in: Self.shard([(id, other), (id, plain)])) != nil)
            #expect(Self.find(id.tenant, "default", in: Self.shard([(id, plain), (id, other)])) == nil)
        }
    }

    @Test func `is whole, although another thread replaces or removes it meanwhile`() async throws {
        let bus = EventBus(cacheValidity: CacheValidity(lifetime: nil))
        // Room for some of them in each shard.
        let cache = RevalidatingCache<CredentialsID, CredentialsSnapshot>.credentials(
            bytes: 1 << 20, invalidatedBy: bus)
        let ids = try (0..<1000).map { try Self.id("t1", "user-\($0)") }
        let hashing = CredentialsID.Hashing(ids[0].tenant)
        let end = End()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for seed in 0..<2 {
                group.addTask {
                    var (found, step) = (0, seed)
                    while !end.hasCome {
                        step += 1
                        // There may be fewer threads than tasks.
                        if step % 100 == 0 { await Task.yield() }
                        let id = ids[step &* 31 % ids.count]
                        let text = id.storageKey.description
                        let hash = hashing.hashValue(storageKey: id.storageKey)
                        let seen: [UInt8]? = cache.withContents(of: hash) { shard in
                            guard
                                let (_, place) = shard.find(hash, tenant: id.tenant, storageKey: text.utf8.span)
                            else { return nil }
                            return shard.withAnswer(place) { _, bytes in
                                (0..<bytes.count).map { bytes[$0] }
                            }
                        }
                        guard let seen else { continue }
                        found += 1
                        if found == 1 { end.noteReader() }
                        // The token is the last member, and tells whose it is.
                        let member = Array("\"token\":\"token-of-\(text)-".utf8)
                        let tail = seen.suffix(member.count + 7).prefix(member.count)
                        #expect(Array(tail) == member, "\(String(decoding: seen, as: UTF8.self))")
                    }
                }
            }
            group.addTask {
                defer { end.come() }
                var step = 0
                // Where the readers got no thread yet, it goes on.
                while step < 20_000 || end.readers < 2 {
                    step += 1
                    if step % 100 == 0 { await Task.yield() }
                    let id = ids[step &* 7919 % ids.count]
                    if step % 5 == 0 {
                        cache.remove(id)
                    } else {
                        let number = 10_000 + step % 90_000
                        cache.put(
                            id,
                            try CredentialsSnapshot.sample(
                                id, "token-of-\(id.storageKey)-\(number)", version: Int64(step)),
                            cache.ticket(id, now: Self.now))
                    }
                    if step % 1000 == 0 { cache.removeAll { id, _ in id.storageKey.description.hasSuffix("7") } }
                }
            }
            try await group.waitForAll()
        }
    }
}
