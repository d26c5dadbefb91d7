internal import BrokerCore
internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import HTTPSClient
internal import OAuth
internal import Reactor
internal import TokenBroker

/// Reads the variables with the prefix TOKEN_BROKER_ and collects their faults.
struct EnvironmentReader: TextReader {
    private static let prefix = "TOKEN_BROKER_"

    private let environment: [String: String]
    private var known: Set<String> = []
    private(set) var faults: [String] = []
    /// The variables that name a file which other users can read.
    private(set) var exposedFiles: [StaticString] = []

    init(_ environment: [String: String]) {
        self.environment = environment
    }

    mutating func note(_ name: String, _ detail: String) {
        faults.append("\(Self.prefix)\(name) \(detail)")
    }

    /// The value of a variable. An empty value counts as not set, because compose files and charts write unset
    /// variables that way.
    mutating func value(_ name: String) -> String? {
        known.insert(Self.prefix + name)
        return environment[Self.prefix + name].flatMap { $0.isEmpty ? nil : $0 }
    }

    /// Absolute paths of directories, separated by commas; nil where the variable is not set.
    mutating func directories(_ name: String) -> [String]? {
        guard let text = value(name) else { return nil }
        let paths = text.split(separator: ",", omittingEmptySubsequences: false).map { path in
            String(path.drop { $0 == " " }.reversed().drop { $0 == " " }.reversed())
        }
        let isUsable = paths.allSatisfy { path in
            let names = path.split(separator: "/")
            return path.hasPrefix("/") && !names.isEmpty && !names.contains("..")
        }
        if !isUsable {
            note(
                name, "must be a comma-separated list of absolute paths of directories, such as /run/secrets,/srv/keys")
        }
        return paths
    }

    /// The value of a variable that many programs read, with its name as it is set, in upper or in lower case.
    func common(_ name: String) -> (name: String, value: String)? {
        for name in [name, String(decoding: name.utf8.map { $0 == UInt8(ascii: "_") ? $0 : $0 | 0x20 }, as: UTF8.self)]
        {
            if let value = environment[name], !value.isEmpty { return (name, value) }
        }
        return nil
    }

    mutating func string(_ name: String) -> WireText? { value(name).map { WireText($0) } }

    /// The value of a variable, or the content of the file that its `_FILE` form names, without trailing newlines.
    /// - Parameters:
    ///   - fileVariable: the full name of the `_FILE` form.
    ///   - mayBeMissing: whether a file that does not exist is accepted.
    mutating func secret(_ name: String, fileVariable: StaticString, mayBeMissing: Bool = false) -> String? {
        guard let (text, access) = content(name, mayBeMissing: mayBeMissing) else { return nil }
        guard let access else { return text }
        check(access, variable: name + "_FILE", fullName: fileVariable)
        let trimmed = text.trimmingNewlines
        if trimmed.isEmpty { note(name + "_FILE", "names an empty file") }
        return trimmed.isEmpty ? nil : trimmed
    }

    /// The master keys, and where they come from. Notes keys that cannot be used. Blocks.
    /// - Parameters:
    ///   - mayBeMissing: whether a file that does not exist is accepted.
    ///   - outbound: how the service that decrypts the keys is reached.
    mutating func masterKeys(
        mayBeMissing: Bool, for command: Command, over outbound: HTTPSClientConfiguration
    ) -> (source: MasterKeySource, keys: SecretBytes?) {
        let asksService = command.needsMasterKeys && command != .healthCheck
        let (source, text) =
            if let line = value("MASTER_KEYS_COMMAND") {
                printedKeys(by: MasterKeySource.words(line), runs: asksService)
            } else if value("MASTER_KEYS_VAULT") != nil || value("MASTER_KEYS_VAULT_FILE") != nil {
                decryptedKeys(asksService ? outbound : nil)
            } else {
                configuredKeys(mayBeMissing: mayBeMissing)
            }
        if let text {
            do throws(KeyringError) {
                _ = try Keyring(parsing: text)
            } catch {
                switch source {
                case .command: note("MASTER_KEYS_COMMAND", "names a program whose keys cannot be used: \(error)")
                case .transit: note("MASTER_KEYS", "has keys that cannot be used once they are decrypted: \(error)")
                case .variable, .file, .store: note("MASTER_KEYS", "\(error)")
                }
            }
        }
        return (source, text.map { SecretBytes(utf8: $0) })
    }

    private mutating func configuredKeys(mayBeMissing: Bool) -> (MasterKeySource, String?) {
        let path = value("MASTER_KEYS_FILE")
        let text = secret("MASTER_KEYS", fileVariable: "TOKEN_BROKER_MASTER_KEYS_FILE", mayBeMissing: mayBeMissing)
        return (path.map { .file($0) } ?? (value("MASTER_KEYS") == nil ? .store : .variable), text)
    }

    private mutating func printedKeys(by words: [String], runs: Bool) -> (MasterKeySource, String?) {
        let others = ["MASTER_KEYS", "MASTER_KEYS_FILE", "MASTER_KEYS_VAULT", "MASTER_KEYS_VAULT_FILE"]
        // All of them are read, so that none counts as unknown.
        if others.compactMap({ value($0) }).count > 0 {
            note("MASTER_KEYS_COMMAND", "and another source of the master keys are both set; set one of them")
        } else if words.isEmpty {
            note("MASTER_KEYS_COMMAND", "names no program")
        } else if runs {
            do throws(ProgramOutput.Failure) {
                let text = try MasterKeySource.output(of: words, environment: environment)
                if let text, !text.isEmpty { return (.command(words), text) }
                note("MASTER_KEYS_COMMAND", "names a program that prints no text")
            } catch {
                note("MASTER_KEYS_COMMAND", "names a program that \(error)")
            }
        }
        return (.command(words), nil)
    }

    /// - Parameter outbound: nil where the keys are not needed.
    private mutating func decryptedKeys(_ outbound: HTTPSClientConfiguration?) -> (MasterKeySource, String?) {
        let list = secret("MASTER_KEYS", fileVariable: "TOKEN_BROKER_MASTER_KEYS_FILE")
        guard let settings = document("MASTER_KEYS_VAULT") else { return (.transit, nil) }
        do throws(TransitEngine.Fault) {
            let engine = try TransitEngine(parsing: Array(settings.utf8))
            guard let outbound else { return (.transit, nil) }
            guard let list else {
                note("MASTER_KEYS_VAULT", "requires TOKEN_BROKER_MASTER_KEYS, with the keys that it decrypts")
                return (.transit, nil)
            }
            // The engine's token belongs to the agent that writes it.
            if let file = engine.tokenFile, let access = try? SmallFile.readWithAccess(file, limit: 65_536).access {
                if access.isWritableByOthers {
                    note("MASTER_KEYS_VAULT", "names a token's file that other users can write to")
                }
                if access.isReadableByOthers { exposedFiles.append("TOKEN_BROKER_MASTER_KEYS_VAULT") }
            }
            // With a proxy or authorities that cannot be used, the engine would be asked in another way than the operator wants.
            if faults.isEmpty { return (.transit, try engine.decrypt(list, over: outbound)) }
        } catch {
            note("MASTER_KEYS_VAULT", error.description)
        }
        return (.transit, nil)
    }

    /// The issuers of workloads' tokens: a list of objects, in the variable or in the file that its `_FILE` form names.
    /// - Parameter allowsHTTP: whether their addresses may be of http.
    mutating func workloadIssuers(allowsHTTP: Bool) -> [WorkloadIssuer] {
        let name = "WORKLOAD_ISSUERS"
        guard let text = document(name) else { return [] }
        do throws(WorkloadIssuers.Fault) {
            return try WorkloadIssuers.read(Array(text.utf8), allowsHTTP: allowsHTTP)
        } catch {
            note(name, error.description)
            return []
        }
    }

    /// The value of a variable, or the content of the file that its `_FILE` form names. It is no secret, but other users must not
    /// be able to change it.
    private mutating func document(_ name: String) -> String? {
        guard let (text, access) = content(name) else { return nil }
        if let access { checkOwner(access, variable: name + "_FILE") }
        return text
    }

    /// The value of a variable, or the content of the file that its `_FILE` form names with what other users may do with that
    /// file; nil for neither, and where a fault is noted.
    private mutating func content(
        _ name: String, mayBeMissing: Bool = false
    ) -> (text: String, access: FileAccess?)? {
        let direct = value(name)
        guard let path = value(name + "_FILE") else { return direct.map { ($0, nil) } }
        if direct != nil {
            note(name, "and \(Self.prefix)\(name)_FILE are both set; set one of them")
            return nil
        }
        if mayBeMissing, !SmallFile.exists(path) { return nil }
        guard let (bytes, access) = try? SmallFile.readWithAccess(path, limit: 65_536),
            let text = String(validating: bytes, as: UTF8.self)
        else {
            note(name + "_FILE", "names a file that cannot be read")
            return nil
        }
        return (text, access)
    }

    /// Notes that other users can change a file which was found readable, and that they can read it.
    mutating func checkAccess(toSecretFile path: String, variable name: String, fullName: StaticString) {
        guard let (_, access) = try? SmallFile.readWithAccess(path, limit: 1 << 20) else {
            return note(name, "names a file that cannot be read")
        }
        check(access, variable: name, fullName: fullName)
    }

    private mutating func check(_ access: FileAccess, variable name: String, fullName: StaticString) {
        checkOwner(access, variable: name)
        if access.isReadableByOthers { exposedFiles.append(fullName) }
    }

    private mutating func checkOwner(_ access: FileAccess, variable name: String) {
        if access.belongsToAnother {
            note(name, "names a file that belongs to another user; it must be this user's or root's")
        }
        if access.isWritableByOthers {
            note(name, "names a file that other users can write to; allow its owner only (chmod 600)")
        }
    }

    /// A rate per second, with a burst of four seconds' worth; nil when the variable is 0.
    mutating func rate(_ name: String, _ usual: Rate?) -> Rate? {
        guard let perSecond = integer(name, in: 0...1_000_000) else { return usual }
        return perSecond == 0 ? nil : Rate(perSecond: perSecond)
    }

    /// A number of days up to ten years; nil when the variable is 0 or not set.
    mutating func days(_ name: String) -> Duration? {
        guard let days = integer(name, in: 0...3650), days > 0 else { return nil }
        return .seconds(Int64(days) * 86_400)
    }

    /// A maximum count; nil when the variable is 0.
    mutating func limit(_ name: String, _ usual: Int?) -> Int? {
        guard let count = integer(name, in: 0...10_000_000) else { return usual }
        return count == 0 ? nil : count
    }

    mutating func fault(_ text: String) { faults.append(text) }

    mutating func fault(unknown variable: UnknownVariable) { faults.append(variable.text) }

    /// How many variables Kubernetes has set for services whose names begin with token-broker.
    var serviceLinkCount: Int {
        environment.count { name, value in
            name.hasPrefix(Self.prefix) && !known.contains(name) && !UnknownVariable.documented.contains(name)
                && UnknownVariable.isOfKubernetes(name, value)
        }
    }

    /// The variables with the prefix TOKEN_BROKER_ that are neither read by this build nor set by Kubernetes for a
    /// service with this name.
    var unknownVariables: [UnknownVariable] {
        let documented = UnknownVariable.documented
        return environment.keys.sorted().compactMap { name in
            guard name.hasPrefix(Self.prefix), !known.contains(name), !documented.contains(name),
                !UnknownVariable.isOfKubernetes(name, environment[name] ?? "")
            else { return nil }
            return UnknownVariable(name)
        }
    }
}

extension String {
    var trimmingNewlines: String {
        var text = Substring(self)
        while let last = text.last, last.isNewline { text.removeLast() }
        return String(text)
    }
}
