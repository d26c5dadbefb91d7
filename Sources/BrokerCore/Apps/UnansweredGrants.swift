internal import Containers
internal import Cryptography
internal import Reactor
internal import Synchronization

/// The answers to requests whose commit the store may have carried out without telling so. The apps were told to try again, and
/// their repeated requests must not pass for those of a thief of codes and tokens.
///
/// Kept in memory only, for ten minutes. Safe to use from any task.
final class UnansweredGrants: Sendable {
    private static let validity: Duration = .seconds(600)

    private let time: any Time
    private let answers = Mutex(BoundedTable<[UInt8], (answer: SecretBytes, end: MonotonicInstant)>(capacity: 4096))

    init(time: any Time) {
        self.time = time
    }

    /// - Parameter digest: of the code or of the secret that the app presented.
    func note(_ answer: SecretBytes, to digest: [UInt8]) {
        let end = time.monotonic.advanced(by: Self.validity)
        answers.withLock { _ = $0.setNewest((answer, end), forKey: digest) }
    }

    func answer(to digest: [UInt8]) -> SecretBytes? {
        let now = time.monotonic
        return answers.withLock { answers in
            guard let (answer, end) = answers[digest] else { return nil }
            return end > now ? answer : nil
        }
    }

    func forget(_ digest: [UInt8]) { answers.withLock { _ = $0.removeValue(forKey: digest) } }
}
