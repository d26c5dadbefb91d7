internal import Synchronization

/// Asks one question at a time, for any number of askers.
///
/// An answer that was asked for before an asker came may lack what was done in between. So whoever comes while the
/// question is under way waits for its end, and then for the next answer, which is one for all who came meanwhile.
final class SharedQuestion<Answer: Sendable>: Sendable {
    private struct State {
        /// Those for whom the question is under way, and those who came after it had been asked.
        var asked: [UInt64: CheckedContinuation<Answer?, Never>] = [:]
        var coming: [UInt64: CheckedContinuation<Answer?, Never>] = [:]
        var lastAsker: UInt64 = 0
        /// Those who were cancelled before they had begun to wait.
        var left: Set<UInt64> = []
        /// What asks, as long as anybody waits.
        var run: Task<Void, Never>?
    }

    private let question: @Sendable () async -> Answer
    private let state = Mutex(State())

    /// - Parameter question: must end by itself; it is not cancelled with the askers.
    init(_ question: @escaping @Sendable () async -> Answer) {
        self.question = question
    }

    /// The answer to the question, asked after this call: a wait of two questions at most.
    /// - Returns: nil when the caller's task was cancelled first.
    func answer() async -> Answer? {
        let asker = state.withLock { state in
            state.lastAsker += 1
            return state.lastAsker
        }
        let answer = await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                let isWaiting = state.withLock { state in
                    if state.left.remove(asker) != nil { return false }
                    state.coming[asker] = continuation
                    if state.run == nil { state.run = TraceContext.leaving { Task { await self.ask() } } }
                    return true
                }
                if !isWaiting { continuation.resume(returning: nil) }
            }
        } onCancel: {
            let continuation = state.withLock { state in
                if let waiting = state.coming.removeValue(forKey: asker) ?? state.asked.removeValue(forKey: asker) {
                    return Optional(waiting)
                }
                state.left.insert(asker)
                return nil
            }
            continuation?.resume(returning: nil)
        }
        // A cancellation that came after the end of the wait has left a mark that nobody reads.
        state.withLock { _ = $0.left.remove(asker) }
        return answer
    }

    /// Suspends until the question is not under way. Whoever asks after this call may have it asked again.
    func finish() async {
        await state.withLock { $0.run }?.value
    }

    private func ask() async {
        while true {
            let isWanted = state.withLock { state in
                (state.asked, state.coming) = (state.coming, [:])
                if state.asked.isEmpty { state.run = nil }
                return !state.asked.isEmpty
            }
            guard isWanted else { return }
            let answer = await question()
            let asked = state.withLock { state in
                defer { state.asked = [:] }
                return state.asked
            }
            for continuation in asked.values { continuation.resume(returning: answer) }
        }
    }
}
