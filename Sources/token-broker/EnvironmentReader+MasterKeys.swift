import BrokerCore
import CredentialStore
import Cryptography
import HTTPSClient
import Reactor

extension EnvironmentReader {
    /// The master keys, and where they come from. Notes keys that cannot be used. Blocks.
    /// - Parameters:
    ///   - mayBeMissing: whether a file that does not exist is accepted.
    ///   - outbound: how the service that decrypts the keys is reached; nil if the proxy or the authorities for it cannot be used.
    mutating func masterKeys(
        _ given: Configuration.Given, mayBeMissing: Bool, for command: Command,
        over outbound: HTTPSClientConfiguration?
    ) -> (source: MasterKeySource, keys: SecretBytes?) {
        let asksService = command.needsMasterKeys && command != .healthCheck
        let (source, text) =
            if let line = given.masterKeysCommand {
                printedKeys(by: MasterKeySource.words(line), beside: given, runs: asksService)
            } else if let vault = given.masterKeysVault, vault.isSet {
                decryptedKeys(by: vault, given.masterKeys, asks: asksService, over: outbound)
            } else {
                configuredKeys(given.masterKeys, mayBeMissing: mayBeMissing)
            }
        if let text {
            do throws(KeyringError) {
                _ = try Keyring(parsing: text)
            } catch {
                switch source {
                case .command:
                    fault("TOKEN_BROKER_MASTER_KEYS_COMMAND names a program whose keys cannot be used: \(error)")
                case .transit:
                    fault("TOKEN_BROKER_MASTER_KEYS has keys that cannot be used once they are decrypted: \(error)")
                case .variable, .file, .store: fault("TOKEN_BROKER_MASTER_KEYS \(error)")
                }
            }
        }
        return (source, text.map { SecretBytes(utf8: $0) })
    }

    private mutating func configuredKeys(_ given: TextSource?, mayBeMissing: Bool) -> (MasterKeySource, String?) {
        guard let given, given.isSet else { return (.store, nil) }
        return (given.path.map { .file($0) } ?? .variable, secret(given, mayBeMissing: mayBeMissing))
    }

    private mutating func printedKeys(
        by words: [String], beside given: Configuration.Given, runs: Bool
    ) -> (MasterKeySource, String?) {
        let name = "TOKEN_BROKER_MASTER_KEYS_COMMAND"
        if [given.masterKeys, given.masterKeysVault].contains(where: { $0?.isSet ?? false }) {
            fault("\(name) and another source of the master keys are both set; set one of them")
        } else if words.isEmpty {
            fault("\(name) names no program")
        } else if runs {
            do throws(ProgramOutput.Failure) {
                let text = try MasterKeySource.output(of: words, environment: environment)
                if let text, !text.isEmpty { return (.command(words), text) }
                fault("\(name) names a program that prints no text")
            } catch {
                fault("\(name) names a program that \(error)")
            }
        }
        return (.command(words), nil)
    }

    private mutating func decryptedKeys(
        by vault: TextSource, _ given: TextSource?, asks: Bool, over outbound: HTTPSClientConfiguration?
    ) -> (MasterKeySource, String?) {
        let before = faults.count
        let list = given.flatMap { secret($0) }
        guard let settings = document(vault) else { return (.transit, nil) }
        do throws(TransitEngine.Fault) {
            let engine = try TransitEngine(parsing: Array(settings.utf8))
            guard asks else { return (.transit, nil) }
            guard let list else {
                note(vault.name, "requires TOKEN_BROKER_MASTER_KEYS, with the keys that it decrypts")
                return (.transit, nil)
            }
            if let file = engine.tokenFile { checkAccess(toTokenFile: file, in: vault.name) }
            // An engine is not shown a list or a token that other users can change.
            if faults.count == before, let outbound { return (.transit, try engine.decrypt(list, over: outbound)) }
        } catch {
            note(vault.name, error.description)
        }
        return (.transit, nil)
    }
}
