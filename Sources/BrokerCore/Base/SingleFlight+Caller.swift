import Reactor
import Waiting

extension SingleFlight {
    /// Runs work of one caller, which goes on when the caller's task is cancelled: another system may have acted on it by then.
    /// - Parameters:
    ///   - executor: where the work runs, and the caller waits; nil for the default executor.
    ///   - interruption: what a caller is told that was cancelled first, as `retryable_error`.
    ///   - report: called with the error of work that failed, also after the caller has left.
    func runToEnd<Outcome>(
        _ key: Key, on executor: (any TaskExecutor)?, interruption: String,
        work: @escaping @Sendable () async throws(BrokerError) -> Outcome,
        reporting report: @escaping @Sendable (BrokerError) -> Void
    ) async throws(BrokerError) -> Outcome where Value == Result<Outcome, BrokerError> {
        let run = await withDefaultTaskExecutor(executor) {
            await self.run(key, within: nil) { () -> Result<Outcome, BrokerError> in
                do throws(BrokerError) {
                    return .success(try await work())
                } catch {
                    report(error)
                    return .failure(error)
                }
            }
        }
        guard let run else { throw BrokerError(.retryableError, interruption, retryAfter: 1) }
        return try run.value.get()
    }
}
