package import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor
import Synchronization

/// Tells operators where replicas of one store have different public base URLs: then users come back from a login to an
/// address of another replica's, and one replica does not take the tokens of apps that another one has issued.
///
/// A record names the URL of the replica that wrote it last. A replica with another URL warns while that is confirmed, and
/// takes the record over once it has not been confirmed for `memory`: then the URL was changed at all replicas.
package final class BaseURLWatch: Sendable {
    private struct State {
        var other: String?
        var told: MonotonicInstant?
    }

    private static let id = RecordID(.lineage, .broker, key: "public-base-url")
    /// How old a record may become before the replica confirms it.
    private static let interval: Duration = .seconds(50)
    static let memory: Duration = .seconds(180)
    private static let pause: Duration = .seconds(3600)

    private let vault: Vault
    private let url: String
    private let time: any Time
    private let log: Log
    private let state = Mutex(State())

    init(vault: Vault, url: String, instruments: Instruments) {
        self.vault = vault
        self.url = url
        (time, log) = (instruments.time, instruments.log)
        instruments.metrics.show(.publicBaseURLDiffers) { [weak self] in self.map { $0.differs ? 1 : 0 } }
    }

    /// Whether another replica had another URL when this one looked last.
    var differs: Bool { state.withLock { $0.other != nil } }

    /// Compares the record with this replica's URL. Does nothing where no other process uses the store.
    func check() async {
        guard vault.revalidateAfter != nil else { return }
        do throws(StoreError) {
            try await compare()
        } catch .conflict {
            // Another replica has written the record.
        } catch {
            log.storeFailed(error)
        }
    }

    private func compare() async throws(StoreError) {
        let now = time.now
        let record = try await vault.read(Self.id)
        let noted = Self.noted(in: record)
        let age = noted?.seen.duration(to: now) ?? Self.memory
        if let noted, noted.url != url, age < Self.memory { return note(noted.url) }
        note(nil)
        if noted?.url == url, age < Self.interval { return }
        let content = JSONWriter.object { json in
            json.member("url", url)
            json.member("seen", now.milliseconds)
        }
        let next = OpenRecord(id: Self.id, version: (record?.version ?? 0) + 1, content: SecretBytes(content))
        try await vault.commit([record.map { .replace(next, version: $0.version) } ?? .insert(next)])
    }

    /// The URL that the store's replicas have, where it is another one.
    package static func other(than url: String, in vault: Vault) async throws(StoreError) -> String? {
        noted(in: try await vault.read(id)).flatMap { $0.url == url ? nil : $0.url }
    }

    private static func noted(in record: OpenRecord?) -> (url: String, seen: Timestamp)? {
        guard let json = record.flatMap({ try? JSONValue(parsing: $0.content.revealedBytes) }),
            let url = json["url"]?.string?.text, let seen = json["seen"]?.integer
        else { return nil }
        return (url, Timestamp(milliseconds: seen))
    }

    private func note(_ other: String?) {
        let now = time.monotonic
        let isDue = state.withLock { state in
            let isNews = state.other != other || state.told.map { $0.advanced(by: Self.pause) <= now } ?? true
            state.other = other
            if other == nil { state.told = nil } else if isNews { state.told = now }
            return isNews
        }
        if let other, isDue { log.warning("public_base_url_differs", [.endpoint(other)]) }
    }
}
