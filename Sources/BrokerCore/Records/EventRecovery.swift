import Containers
import CredentialStore
import Cryptography
import OAuth

/// Appends events again that the store has lost after listeners of this process may have got them: listeners of other
/// replicas would else never get them. They get new positions in the log, so a listener may get an event twice.
///
/// Of credentials that the log tells something newer about, only the other events are appended: an event that comes late
/// must not tell that a user was logged out who is logged in.
final class EventRecovery: Sendable {
    private struct Subject: Hashable {
        let tenant: TenantName
        let key: String
    }

    private let vault: Vault
    private let feed: EventFeed
    private let bus: EventBus
    private let log: Log

    /// How many entries of the log are compared at most.
    private static let longest = 8192
    private static let appendedAtOnce = 50

    init(vault: Vault, feed: EventFeed, bus: EventBus, log: Log) {
        self.vault = vault
        self.feed = feed
        self.bus = bus
        self.log = log
    }

    /// Appends again what the log lacks.
    func restoreLost() async throws(StoreError) {
        let recent = feed.takeRecent()
        if recent.isEmpty { return }
        do throws(StoreError) {
            try await restore(recent)
        } catch {
            feed.putBack(recent)
            throw error
        }
    }

    private func restore(_ recent: [VaultLogEntry]) async throws(StoreError) {
        guard let first = recent.map(\.sequence).min() else { return }
        let trimmed = try await vault.logBounds().trimmed
        let (present, reach) = try await entries(from: first)
        var known: [Subject: [OpenLogEntry]] = [:]
        // The last entry of each tenant that was removed because there were too many.
        var removed: [TenantName: Int64] = [:]
        for entry in present {
            if entry.isMarker { removed[entry.tenant] = entry.sequence }
            guard let open = Self.open(entry) else { continue }
            known[Self.subject(open), default: []].append(open)
        }
        var lost: [TenantName: [OpenLogEntry]] = [:]
        for entry in recent where entry.sequence > max(trimmed, removed[entry.tenant] ?? 0) && entry.sequence <= reach {
            guard let open = Self.open(entry) else { continue }
            let others = known[Self.subject(open)] ?? []
            guard !others.contains(open), let rest = Self.rest(of: open, among: others), !others.contains(rest) else {
                continue
            }
            lost[open.tenant, default: []].append(rest)
        }
        var count = 0
        for (tenant, entries) in lost { count += try await append(entries, of: tenant) }
        if count > 0 { log.warning("events_stored_again", [.count(count)]) }
    }

    /// The entries of the log from a sequence on, and the sequence up to which all of them are there.
    private func entries(from first: Int64) async throws(StoreError) -> (entries: [VaultLogEntry], reach: Int64) {
        var (found, last) = ([VaultLogEntry](), first - 1)
        while found.count < Self.longest {
            let page = try await vault.entries(after: last, limit: EventFeed.pageLength)
            found += page
            guard page.count == EventFeed.pageLength, let end = page.last?.sequence else { return (found, .max) }
            last = end
        }
        return (found, last)
    }

    private static func open(_ entry: VaultLogEntry) -> OpenLogEntry? {
        entry.isMarker ? nil : entry.content.map { entry.entry.with($0) }
    }

    private static func subject(_ entry: OpenLogEntry) -> Subject { Subject(tenant: entry.tenant, key: entry.key) }

    /// The entry without the events that something newer in the log has overtaken; nil where none is left.
    private static func rest(of entry: OpenLogEntry, among others: [OpenLogEntry]) -> OpenLogEntry? {
        let isOvertaken = others.contains { other in
            other.time > entry.time && lines(of: other).contains(where: tellsOfCredentials)
        }
        let kept = lines(of: entry).filter { !isOvertaken || !tellsOfCredentials($0) }
        if kept.isEmpty { return nil }
        var rest = entry
        rest.content = SecretBytes(Array(kept.joined(separator: [UInt8(ascii: "\n")])) + [UInt8(ascii: "\n")])
        return rest
    }

    private static func lines(of entry: OpenLogEntry) -> [ArraySlice<UInt8>] {
        entry.content.revealedBytes.split(separator: UInt8(ascii: "\n"))
    }

    private static func tellsOfCredentials(_ line: ArraySlice<UInt8>) -> Bool {
        line.starts(with: "credentials.".utf8)
    }

    /// Appends the entries; none of a tenant that is gone. Returns how many were appended.
    private func append(_ entries: [OpenLogEntry], of tenant: TenantName) async throws(StoreError) -> Int {
        var count = 0
        for batch in entries.inBatches(of: Self.appendedAtOnce) {
            do throws(StoreError) {
                try await vault.commit(
                    [.require(RecordID(.tenant, tenant))] + batch.map { VaultChange.append($0) })
            } catch .conflict {
                return count
            }
            count += batch.count
        }
        bus.announce(tenant)
        return count
    }
}

extension LogEntry<SecretBytes?> {
    fileprivate func with(_ content: SecretBytes) -> OpenLogEntry {
        OpenLogEntry(tenant: tenant, key: key, version: version, time: time, content: content)
    }
}
