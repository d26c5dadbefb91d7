import Synchronization

/// Holds an answer for a test that looks at it from another task.
package final class AnswerBox: Sendable {
    private let answer = Mutex<BrokerHarness.Answer?>(nil)

    package init() {}

    package var value: BrokerHarness.Answer? { answer.withLock { $0 } }

    package func put(_ value: BrokerHarness.Answer) { answer.withLock { $0 = value } }
}
