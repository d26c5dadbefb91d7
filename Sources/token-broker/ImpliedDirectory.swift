import CommandLineClient
import Reactor

/// The directory of a command on the embedded store where no variable names one: that of the service or that of `token-broker up`,
/// whichever exists. Where neither does, it is the service's for `doctor`, which looks before the first start, too.
struct ImpliedDirectory {
    /// The variables, with the directory.
    private(set) var environment: [String: String]
    /// Which directory was chosen, for the operator; nil where a variable has named the store, and for commands without one.
    private(set) var note: String?

    /// - Throws: where both exist, since the one is not guessed, and where neither does: a command makes no store.
    init(_ environment: [String: String], for command: Command) throws(Configuration.Faults) {
        self.environment = environment
        let variables = ["TOKEN_BROKER_DATA_DIR", "TOKEN_BROKER_DATABASE_URL", "TOKEN_BROKER_DATABASE_URL_FILE"]
        guard command.usesStore, variables.allSatisfy({ environment[$0]?.isEmpty ?? true }) else { return }
        let directories = UserDirectories.dataDirectories(environment.filter { !$0.value.isEmpty })
        let existing = directories.filter(SmallFile.exists)
        guard existing.count < 2 else {
            throw Configuration.Faults(lines: [
                "there are data in \(existing.joined(separator: " and in ")): set TOKEN_BROKER_DATA_DIR to the directory that is meant"
            ])
        }
        guard let directory = existing.first ?? (command == .examineInstallation ? directories.last : nil) else {
            throw Configuration.Faults(lines: [
                "there are no data in \(directories.joined(separator: " and in ")): set TOKEN_BROKER_DATA_DIR"
            ])
        }
        self.environment["TOKEN_BROKER_DATA_DIR"] = directory
        note = "TOKEN_BROKER_DATA_DIR is not set; looking at \(directory)"
    }
}
