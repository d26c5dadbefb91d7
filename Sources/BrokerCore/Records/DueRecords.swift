import CredentialStore
import OAuth
import Reactor

/// The search of a background job for the records whose due marks have passed.
struct DueRecords {
    let vault: Vault
    let time: any Time
    /// How many records are read at once.
    let batch: Int
    /// The longest pause between two searches: marks that other replicas write are not announced.
    let interval: Duration

    /// Hands over all records of a kind that are due, a batch at a time, the earliest first, until none is left or the task is
    /// cancelled.
    /// - Parameters:
    ///   - ahead: how far in the future a mark may be.
    ///   - handle: moves or removes the marks of a batch. Returns false where it has left some of them, which are then read again.
    func handleAll(
        _ kind: RecordKind, ahead: Duration = .zero, _ handle: ([DueRecord]) async throws(StoreError) -> Bool
    ) async throws(StoreError) {
        while !Task.isCancelled {
            let due = try await vault.due(kind, before: time.now.advanced(by: ahead), limit: batch)
            if try await handle(due), due.count < batch { return }
        }
    }

    /// Runs `body`, which handles what is due, and says after how long to search for records of these kinds again. A store that fails is
    /// logged.
    func pause(
        _ kinds: RecordKind..., log: Log, after body: () async throws(StoreError) -> Void
    ) async -> Duration {
        do throws(StoreError) {
            try await body()
            return try await pause(kinds)
        } catch {
            log.storeFailed(error)
            return interval
        }
    }

    /// After how long to search for records of these kinds again.
    func pause(_ kinds: [RecordKind]) async throws(StoreError) -> Duration {
        var next: Timestamp?
        for kind in kinds {
            if let mark = try await vault.nextDue(kind) { next = next.map { min($0, mark) } ?? mark }
        }
        guard let next else { return interval }
        // A mark is due once its time has passed, so one millisecond later.
        return max(.milliseconds(1), min(interval, time.now.duration(to: next) + .milliseconds(1)))
    }
}
