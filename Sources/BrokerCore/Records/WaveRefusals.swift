import CredentialStore
import Cryptography
import ExternalText
import JSON
package import OAuth
import Reactor

/// The sessions of a tenant that the provider has lately ended by a refused refresh, as all replicas count them. Each commit that
/// ends such a session writes this record anew, so that no two replicas count refusals past each other. Refreshes that succeed are
/// not in it: see `WaveTallies`.
package struct WaveRefusals: Sendable, Equatable {
    /// One user whose session has ended.
    package struct Refusal: Sendable, Equatable {
        package let storageKey: StorageKey
        package let time: Timestamp
    }

    /// How many refusals are counted. Where there are more within the window, the latest ones count, and the window begins with
    /// the first of those: a record has a bound, and a provider that ends so many sessions is looked at over a shorter time.
    package static let most = 200

    /// The earliest first, one for each storage key.
    package private(set) var refused: [Refusal] = []
    /// How many refreshes have shown that the wave before was none of all users any more, and when. They count for one more window,
    /// so that the sets which that wave had held do not make the next one.
    package private(set) var proven: (count: Int, time: Timestamp)?
    /// Whether earlier refusals within the window have made room for later ones.
    package private(set) var isCut = false

    package init() {}

    /// Counts one more user, and forgets what is older than the window.
    package mutating func add(_ storageKey: StorageKey, at now: Timestamp, within window: Duration) {
        forget(before: now.advanced(by: .zero - window))
        refused.removeAll { $0.storageKey == storageKey }
        refused.append(Refusal(storageKey: storageKey, time: now))
        if refused.count > Self.most {
            isCut = true
            refused.removeFirst(refused.count - Self.most)
        }
    }

    /// Notes that so many refreshes have ended a wave.
    package mutating func note(proven count: Int, at now: Timestamp) { proven = (count, now) }

    private mutating func forget(before time: Timestamp) {
        let count = refused.count
        refused.removeAll { $0.time < time }
        if refused.count < count { isCut = false }
        if let proven, proven.time < time { self.proven = nil }
    }

    /// Since when refreshes count: for the window, or since the first refusal that is kept.
    package func beginning(at now: Timestamp, _ window: Duration) -> Timestamp {
        let start = now.advanced(by: .zero - window)
        return isCut ? refused.first.map { max($0.time, start) } ?? start : start
    }

    /// Whether these refreshes are a wave.
    /// - Parameter renewed: how many have succeeded since `beginning`.
    package func isWave(_ settings: WaveSettings, renewed: Int) -> Bool {
        settings.isWave(refused: refused.count, renewed: renewed + (proven?.count ?? 0))
    }

    package static func == (left: WaveRefusals, right: WaveRefusals) -> Bool { left.encoded == right.encoded }
}

/// The sealed content of the record, as JSON.
extension WaveRefusals {
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.name("refused")
            json.array { json in
                for refusal in refused {
                    json.object { json in
                        json.member("key", refusal.storageKey.description)
                        json.member("time", refusal.time.milliseconds)
                    }
                }
            }
            // Replicas of an earlier build, which keep the successes here, read no record without it.
            json.member("renewed", [String]())
            if let proven {
                json.member("proven", Int64(proven.count))
                json.member("proven_at", proven.time.milliseconds)
            }
            json.member("cut", isCut)
        }
    }

    /// Nil where `bytes` are not such a record.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let refused = json["refused"]?.array else { return nil }
        self.refused = refused.compactMap { item in
            guard let key = item["key"]?.string, let time = item["time"]?.integer else { return nil }
            return StorageKey(key).map { Refusal(storageKey: $0, time: Timestamp(milliseconds: time)) }
        }
        if let count = json["proven"]?.integer, let time = json["proven_at"]?.integer {
            proven = (Int(clamping: max(0, count)), Timestamp(milliseconds: time))
        }
        isCut = json["cut"]?.bool ?? false
    }
}

extension CredentialsRecords {
    static func refusalsID(_ tenant: TenantName) -> RecordID { RecordID(.wave, tenant, key: "refusals") }

    /// For how long the record is kept after the last refusal.
    private static let refusalsLife: Duration = .seconds(2 * 3600)

    /// The refusals, with the version of their record; nil where there is none. Those that this build cannot read count as none.
    func waveRefusals(
        _ tenant: TenantName
    ) async throws(StoreError) -> (refusals: WaveRefusals, version: Int64)? {
        guard let stored = try await note(Self.refusalsID(tenant)) else { return nil }
        let refusals = stored.content.flatMap { WaveRefusals(decoding: $0.revealedBytes) }
        return (refusals ?? WaveRefusals(), stored.version)
    }

    /// The change that writes the record.
    /// - Parameter version: the version that is replaced; nil where there is none.
    func change(of refusals: WaveRefusals, _ tenant: TenantName, over version: Int64?) -> VaultChange {
        change(
            ofNote: refusals.encoded, Self.refusalsID(tenant), until: time.now.advanced(by: Self.refusalsLife),
            over: version)
    }
}
