import BrokerCore
import CommandLineClient
import CredentialStore
import Cryptography
import Reactor

/// Reports on the configured data directory, or on the journal directory if there is a database. If `target` is given,
/// writes the intact records to it. Sends nothing over a network and does not change the examined directory.
func examineStore(repair target: String?) -> Never {
    let configuration = loadConfiguration(for: .examineStore(repair: target))
    do throws(CommandFailure) {
        endCommand(try StoreDoctor(configuration).run(repair: target) ? ExitStatus.damaged.rawValue : 0)
    } catch {
        Console.printError("token-broker: \(error.text)")
        Console.exit(1)
    }
}

private struct StoreDoctor {
    private let directory: String
    private let examination: StoreExamination
    private let keyring: Keyring?
    private let usesOwnKeys: Bool
    /// Why the keys cannot be used; nil when they can.
    private let keyFault: String?

    init(_ configuration: Configuration) throws(CommandFailure) {
        if case .files(let directory) = configuration.store {
            self.directory = directory
        } else if let journal = configuration.resources.journalDirectory {
            directory = journal
        } else {
            throw CommandFailure(text: "there is no directory to examine")
        }
        do throws(FileStoreError) {
            examination = try StoreExamination(directory)
        } catch {
            throw CommandFailure(
                text: "\(error)" + (error == .alreadyOpen(directory: directory) ? "; stop the service first" : ""))
        }
        usesOwnKeys = configuration.leavesMasterKeysToStore
        let text = configuration.masterKeys?.revealedText ?? (usesOwnKeys ? examination.secret(.masterKeys) : nil)
        guard let text else {
            keyring = nil
            keyFault =
                usesOwnKeys
                ? "the file \(StoreSecret.masterKeys.rawValue) is missing or empty"
                : "the file that TOKEN_BROKER_MASTER_KEYS_FILE names is missing"
            return
        }
        do throws(KeyringError) {
            keyring = try Keyring(parsing: text)
            keyFault = nil
        } catch {
            keyring = nil
            keyFault = "\(error)"
        }
    }

    /// Prints the report, and repairs if requested.
    /// - Returns: whether anything is damaged.
    func run(repair target: String?) throws(CommandFailure) -> Bool {
        examination.examine(with: keyring, usesOwnKeys: usesOwnKeys)
        for file in examination.files {
            let path = Self.printable(file.path)
            if let flaw = file.flaw {
                Console.print("damaged  \(path): \(flaw.text) (\(file.subject)); lost: \(file.loss ?? "nothing")")
            } else {
                Console.print("whole    \(path) (\(file.subject))")
            }
        }
        if let keyFault {
            Console.print("damaged  the master keys: \(keyFault); so the records were not decrypted")
        }
        let count = examination.files.count { $0.flaw != nil }
        Console.print(
            "\(directory): \(count) of \(examination.files.count) files are damaged; "
                + "\(examination.savableCount) records can be saved")
        if let target { try repair(target) }
        return examination.isDamaged || keyFault != nil
    }

    /// The path on one line, whatever characters the name of an unknown file has.
    private static func printable(_ path: String) -> String {
        String(decoding: path.utf8.map { $0 < 0x20 || $0 == 0x7F ? UInt8(ascii: "?") : $0 }, as: UTF8.self)
    }

    private func repair(_ target: String) throws(CommandFailure) {
        if let keyFault {
            throw CommandFailure(
                text: "nothing is repaired without the master keys (\(keyFault)); restore the keys and try again")
        }
        if examination.savableCount == 0, examination.files.contains(where: { $0.flaw?.isUnknownKey ?? false }) {
            throw CommandFailure(text: "nothing is repaired: the configured master keys decrypt no record")
        }
        do throws(RepairError) {
            try examination.repair(into: target)
        } catch {
            throw CommandFailure(text: "\(error)")
        }
        Console.print("\(target): written with all intact records; \(directory) is unchanged")
    }
}
