import Cryptography
import Reactor

/// The answers to requests whose commit the store may have carried out without telling so. The apps were told to try again, and
/// their repeated requests must not pass for those of a thief of codes and tokens.
///
/// Kept in memory only, for ten minutes. Safe to use from any task.
final class UnansweredGrants: Sendable {
    private let answers: ExpiringTable<[UInt8], (answer: SecretBytes, trace: [UInt8])>

    init(time: any Time) {
        answers = ExpiringTable(validity: .seconds(600), capacity: 4096, time: time)
    }

    /// - Parameters:
    ///   - digest: of the code or of the secret that the app presented.
    ///   - trace: what the store has if it has carried out the commit, and would not have otherwise.
    func note(_ answer: SecretBytes, to digest: [UInt8], provenBy trace: [UInt8]) {
        answers.set(digest, (answer, trace))
    }

    /// The answer; nil where none was noted, or the store has not carried out its commit.
    /// - Parameter trace: what the store has.
    func answer(to digest: [UInt8], provenBy trace: [UInt8]) -> SecretBytes? {
        answers[digest].flatMap { $0.trace == trace ? $0.answer : nil }
    }

    func forget(_ digest: [UInt8]) { answers.remove(digest) }
}
