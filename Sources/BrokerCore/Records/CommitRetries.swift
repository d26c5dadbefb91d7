import CredentialStore
import Waiting

/// How often a commit is sent again to a store that does not answer, after the pauses of `CredentialsRecords.pause(beforeTry:)`.
/// One that is sent once goes by `Vault.commit` alone.
enum CommitRetries: Sendable {
    case times(Int)
    /// Until the store answers, or the task is cancelled.
    case untilAnswered

    fileprivate func allow(after retries: Int) -> Bool {
        switch self {
        case .times(let count): retries < count
        case .untilAnswered: true
        }
    }
}

extension Vault {
    /// Sends a commit, and again while the store does not answer; see `Vault.commit`.
    /// - Throws: `.unavailable` if the store has not answered, or the task was cancelled in a pause. It is not known then whether
    ///   the commit was carried out, and it may be sent again.
    @discardableResult
    func commit(
        _ commit: PreparedCommit, retrying retries: CommitRetries, by time: any Time
    ) async throws(StoreError) -> PreparedCommit.Arrival {
        try await time.retrying(retries) { () async throws(StoreError) in try await self.commit(commit) }
    }
}

extension Time {
    /// Runs `body`, and again while it finds that the store does not answer.
    /// - Parameter unanswered: called after each such try.
    /// - Throws: what `body` throws; `.unavailable` also if the task was cancelled in a pause.
    func retrying<R>(
        _ retries: CommitRetries, _ body: () async throws(StoreError) -> R, unanswered: () -> Void = {}
    ) async throws(StoreError) -> R {
        var count = 0
        while true {
            do throws(StoreError) {
                return try await body()
            } catch {
                guard error == .unavailable else { throw error }
                unanswered()
                guard retries.allow(after: count) else { throw error }
            }
            count += 1
            do {
                try await sleep(for: CredentialsRecords.pause(beforeTry: count))
            } catch {
                throw .unavailable
            }
        }
    }

    /// Limits the time that the caller waits for work with the store or the journal. Work that takes longer goes on without its
    /// caller, who gets `.unavailable`: a statement may hang for seconds while the next one, on another connection, does not.
    func within<Value: Sendable>(
        _ limit: Duration, _ work: @escaping @Sendable () async throws(StoreError) -> Value
    ) async throws(StoreError) -> Value {
        let flight = SingleFlight<Int, Result<Value, StoreError>>()
        // In a task of its own, so that a cancelled caller still waits: a lease is released before its process ends.
        let result = await Task {
            await flight.run(0, within: { await self.tick(for: limit) }) {
                do throws(StoreError) {
                    return .success(try await work())
                } catch {
                    return .failure(error)
                }
            }
        }.value
        return try (result?.value ?? .failure(.unavailable)).get()
    }
}
