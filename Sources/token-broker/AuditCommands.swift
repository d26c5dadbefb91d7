import BrokerCore
import CommandLineClient
import CredentialStore
import Cryptography
import JSON
import OAuth
import Postgres
import Reactor

/// A command about the audit log.
enum AuditCommand: Equatable {
    /// Prints lines of JSON, or lines for persons.
    case verify(isJSON: Bool)
    case export(AuditExport)
    case remove(before: Timestamp)

    /// - Throws: `usage` for a name that no tenant can have, and for what is no time.
    static func export(_ invocation: Invocation) throws(CommandError) -> AuditCommand {
        var export = AuditExport()
        if let tenant = invocation["tenant"] {
            guard let name = TenantName(tenant) else { throw invocation.wrong("no tenant can be called \(tenant)") }
            export.tenant = name
        }
        if let from = try invocation.time("from") { export.from = from }
        if let to = try invocation.time("to") { export.to = to }
        return .export(export)
    }

    /// - Throws: `usage` for what is no time.
    static func remove(_ invocation: Invocation) throws(CommandError) -> AuditCommand {
        guard let before = try invocation.time("before") else { throw invocation.wrong("--before is missing: a time") }
        return .remove(before: before)
    }
}

/// Runs a command about the audit log and exits, with `damaged` when the log has a fault.
func runAudit(_ command: AuditCommand) -> Never {
    let configuration = loadConfiguration(for: .audit(command))
    runCommand { () async throws(CommandFailure) in
        try await AuditTool(configuration).run(command) ? 0 : ExitStatus.damaged.rawValue
    }
}

private struct AuditTool {
    /// The least age of what may be removed; see `AuditLog.remove`.
    private static let leastAge: Duration = .seconds(7 * 86_400)

    private let configuration: Configuration

    init(_ configuration: Configuration) {
        self.configuration = configuration
    }

    /// - Returns: whether nothing is wrong with the log.
    func run(_ command: AuditCommand) async throws(CommandFailure) -> Bool {
        switch command {
        case .verify(let isJSON): return try await verify(isJSON: isJSON)
        case .export(let export): return try await self.export(export)
        case .remove(let time):
            try await remove(before: time)
            return true
        }
    }

    private func verify(isJSON: Bool) async throws(CommandFailure) -> Bool {
        let (log, keys) = try await open()
        guard let keys else { throw CommandFailure(text: "the master keys are missing") }
        let keyring = try Self.keyring(keys)
        let bar = ProgressBar(SystemTerminal())
        let summary: AuditExamination.Summary
        do throws(StoreError) {
            defer { bar.clear() }
            let examination = AuditExamination(log, keyring: keyring) { fault in
                bar.clear()
                Self.print(isJSON ? Self.line { $0.member("fault", fault) } : "fault  \(fault)")
            } progress: { entries in
                bar.advance(to: entries)
            }
            summary = try await examination.run()
        } catch {
            return try Self.report(error)
        }
        Console.print(isJSON ? Self.json(summary) : Self.text(summary))
        return summary.faults == 0
    }

    /// One line of many. Ends the command where standard output does not take it.
    private static func print(_ line: String) {
        Console.print(line)
        if TerminalDevice.outputFault != nil { endCommand(1) }
    }

    private static func text(_ summary: AuditExamination.Summary) -> String {
        "\(summary.chains) chains with \(summary.entries) entries: \(summary.faults) faults; \(summary.unsigned) entries "
            + "are not signed yet; \(summary.witnessed) entries are signed only by another process than the one that wrote them; "
            + "\(summary.open) chains have no end, because their process runs or was killed"
    }

    private static func json(_ summary: AuditExamination.Summary) -> String {
        line { json in
            json.member("chains", summary.chains)
            json.member("entries", summary.entries)
            json.member("faults", summary.faults)
            json.member("unsigned", summary.unsigned)
            json.member("witnessed", summary.witnessed)
            json.member("open", summary.open)
        }
    }

    private static func line(_ write: (inout JSONWriter) -> Void) -> String {
        String(decoding: JSONWriter.object(write), as: UTF8.self)
    }

    private func export(_ export: AuditExport) async throws(CommandFailure) -> Bool {
        let (log, _) = try await open()
        do throws(StoreError) {
            let unreadable = try await export.run(log) { line in
                Self.print(String(decoding: line.dropLast(), as: UTF8.self))
            }
            if unreadable != (0, 0) {
                Console.printError(
                    "token-broker: \(unreadable.entries) entries cannot be read and \(unreadable.chains) chains are damaged; "
                        + "see token-broker audit verify")
            }
            return unreadable == (0, 0)
        } catch {
            return try Self.report(error)
        }
    }

    private func remove(before time: Timestamp) async throws(CommandFailure) {
        let now = SystemTime().now
        guard time <= now.advanced(by: .zero - Self.leastAge) else {
            throw CommandFailure(
                text: "--before must be a week ago or more: later entries are needed to verify the log")
        }
        let opened = try await CommandStore(configuration)
        do throws(StoreError) {
            let removed = try await AuditLog(vault: opened.store.vault) { SystemTime().now }.remove(before: time)
            for chain in removed.left { Console.print("left  \(chain.text)") }
            Console.print("\(removed.count) chains were removed")
        } catch {
            await opened.close()
            throw CommandFailure(text: "the audit log cannot be changed: \(CommandFailure(error).text)")
        }
        await opened.close()
    }

    /// Reports a log that cannot be read.
    /// - Returns: false, where it is damaged.
    private static func report(_ error: StoreError) throws(CommandFailure) -> Bool {
        guard case .damaged(let text) = error else {
            throw CommandFailure(error)
        }
        Console.printError("token-broker: \(text)")
        return false
    }

    private static func keyring(_ text: String) throws(CommandFailure) -> Keyring {
        do throws(KeyringError) {
            return try Keyring(parsing: text)
        } catch {
            throw CommandFailure(text: "the master keys: \(error)")
        }
    }

    /// The log, and the text of the master keys, if there are any.
    private func open() async throws(CommandFailure) -> (any AuditReading, keys: String?) {
        switch configuration.store {
        case .postgres(let database): return (try await connect(database), configuration.masterKeys?.revealedText)
        case .files(let directory):
            do throws(FileStoreError) {
                let log = try AuditDirectory(directory)
                if let keys = configuration.masterKeys { return (log, keys.revealedText) }
                return (log, configuration.leavesMasterKeysToStore ? try log.secret(.masterKeys) : nil)
            } catch {
                throw CommandFailure(text: "\(error)")
            }
        }
    }

    private func connect(
        _ database: PostgresConfiguration
    ) async throws(CommandFailure) -> PostgresRecordStore {
        do {
            return try await PostgresRecordStore.open(
                database, on: try EventLoop(name: "database"),
                resolver: try NameResolver(name: "db-resolver", limits: .database), migrates: false, listening: .off
            ) { Console.printError("token-broker: PostgreSQL: \($0)") }
        } catch {
            throw CommandFailure(text: "the database cannot be used: \(error)")
        }
    }
}
