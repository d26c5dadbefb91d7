import CommandLineClient
import CredentialStore
import Cryptography
import Reactor

/// Where the master keys are read: at the start, and again at SIGHUP.
enum MasterKeySource: Equatable, Sendable {
    /// The value of TOKEN_BROKER_MASTER_KEYS, which is the same for as long as the process runs.
    case variable
    case file(String)
    /// A program and its arguments.
    case command([String])
    /// A transit engine of Vault or OpenBao, which decrypts the value of TOKEN_BROKER_MASTER_KEYS.
    case transit
    /// The directory of the embedded store.
    case store

    /// The longest output of a command, in octets; the same as the longest file.
    private static let limit = 65_536
    /// For how long a command may run. A key service in another region answers within a second or two.
    private static let time: Duration = .seconds(30)

    /// What the command prints, without trailing newlines. Blocks until it has ended.
    /// - Parameter environment: of this service; the command is handed what every program is.
    static func output(
        of words: [String], environment: [String: String]
    ) throws(ProgramOutput.Failure) -> String? {
        let bytes = try ProgramOutput.read(
            words, environment: ChildEnvironment.variables(of: environment), limit: limit, within: time)
        return String(validating: bytes, as: UTF8.self)?.trimmingNewlines
    }

    /// The words of a command line: separated by spaces, without quotes and without a shell.
    static func words(_ line: String) -> [String] {
        line.utf8.split(separator: UInt8(ascii: " ")).map { String(decoding: $0, as: UTF8.self) }
    }
}
