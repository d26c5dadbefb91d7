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
    private struct Noted {
        let answer: SecretBytes
        let trace: [UInt8]
        let end: MonotonicInstant
    }

    private let answers = Mutex(BoundedTable<[UInt8], Noted>(capacity: 4096))

    init(time: any Time) {
        self.time = time
    }

    /// - Parameters:
    ///   - digest: of the code or of the secret that the app presented.
    ///   - trace: what the store has if it has carried out the commit, and would not have otherwise.
    func note(_ answer: SecretBytes, to digest: [UInt8], provenBy trace: [UInt8]) {
        let now = time.monotonic
        answers.withLock { answers in
            // The oldest is the first to end. It must not stay in memory for longer than it can be given out.
            while let oldest = answers.oldest, oldest.value.end <= now { _ = answers.removeValue(forKey: oldest.key) }
            let noted = Noted(answer: answer, trace: trace, end: now.advanced(by: Self.validity))
            _ = answers.setNewest(noted, forKey: digest)
        }
    }

    /// The answer; nil where none was noted, or the store has not carried out its commit.
    /// - Parameter trace: what the store has.
    func answer(to digest: [UInt8], provenBy trace: [UInt8]) -> SecretBytes? {
        let now = time.monotonic
        return answers.withLock { answers in
            guard let noted = answers[digest], noted.trace == trace else { return nil }
            return noted.end > now ? noted.answer : nil
        }
    }

    func forget(_ digest: [UInt8]) { answers.withLock { _ = $0.removeValue(forKey: digest) } }
}
