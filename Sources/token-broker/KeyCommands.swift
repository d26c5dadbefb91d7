import BrokerCore
import CommandLineClient
import CredentialStore
import Reactor

/// Runs a command on the master keys of the store, and exits. A signal ends the process at once: what a reseal has done is in
/// the store.
func runKeyCommand(_ command: Command) -> Never {
    let configuration = loadConfiguration(for: command)
    runCommand { () async throws(CommandFailure) in
        let opened = try await CommandStore(configuration)
        let status = try await KeyCommands(store: opened.store, time: opened.time).run(command)
        await opened.close()
        return status.rawValue
    }
}

/// The commands on the master keys, on the open store.
private struct KeyCommands {
    let store: BrokerStore
    let time: SystemTime

    func run(_ command: Command) async throws(CommandFailure) -> ExitStatus {
        switch command {
        case .reseal(let perSecond): try await reseal(perSecond)
        case .retireKey(let id): try await retire(id)
        default: return try await printStatus()
        }
        return .done
    }

    /// - Returns: `damaged` where something is encrypted with another key than the configured ones.
    private func printStatus() async throws(CommandFailure) -> ExitStatus {
        let uses: [KeyUse]
        do throws(StoreError) {
            uses = try await store.vault.keyUses()
        } catch {
            throw CommandFailure(error)
        }
        for use in uses { Console.print(Self.text(use)) }
        let unopened = uses.filter { $0.id == nil }
        if unopened.isEmpty { return .done }
        let (records, events) = (unopened.reduce(0) { $0 + $1.records }, unopened.reduce(0) { $0 + $1.entries })
        Console.printError(
            "token-broker: \(records) records and \(events) events cannot be decrypted with the configured master keys")
        return .damaged
    }

    private func reseal(_ perSecond: Int) async throws(CommandFailure) {
        try await unlock()
        let id = store.vault.keyring.primaryID
        let terminal = SystemTerminal()
        let bar = ProgressBar(terminal)
        var reported = time.monotonic
        let progress: Resealing.Progress
        do throws(StoreError) {
            defer { bar.clear() }
            progress = try await Resealing(store.vault, time: time, perSecond: perSecond).run { progress in
                bar.advance(to: progress.read)
                if terminal.showsProgress { return }
                if reported.duration(to: time.monotonic) < .seconds(2) { return }
                reported = time.monotonic
                Console.print("\(progress.read) read, \(progress.resealed) encrypted with \(id)")
            }
        } catch {
            throw CommandFailure(error)
        }
        Console.print("done: \(progress.read) read, \(progress.resealed) encrypted with \(id)")
        guard progress.unopened == 0 else {
            for example in progress.examples { Console.printError("token-broker: \(example)") }
            throw CommandFailure(
                text: "\(progress.unopened) records or events cannot be decrypted and stay as they are")
        }
    }

    private func retire(_ id: String) async throws(CommandFailure) {
        try await unlock()
        do throws(RetirementRefusal) {
            try await store.vault.retireKey(id: id)
        } catch {
            let text =
                switch error {
                case .isPrimary: "it is the first of the master keys, with which new records are encrypted"
                case .unknown: "the master keys have no key with this id; keep the key in the list until it is retired"
                case .inUse(let use): "\(use.counts) are encrypted with it; run token-broker keys reseal"
                case .store(let error): CommandFailure(error).text
                }
            throw CommandFailure(text: "the key '\(id)' is not retired: \(text)")
        }
        Console.print("The key '\(id)' is retired. Remove it from the master keys of all replicas.")
    }

    /// Checks the keys, and notes the first one in the store, so that no replica starts without it from now on.
    private func unlock() async throws(CommandFailure) {
        do throws(VaultError) {
            try await store.vault.unlock()
        } catch {
            throw CommandFailure(text: "\(error)")
        }
    }

    private static func text(_ use: KeyUse) -> String {
        guard let identity = use.identity else { return "\(use.counts) are damaged: they name no key" }
        guard let id = use.id else {
            return "\(use.counts) are encrypted with a key that is not configured (\(identity))"
        }
        return "\(id) (\(identity)): \(use.counts)" + (use.isPrimary ? "; encrypts what is written" : "")
    }
}

extension KeyUse {
    /// What the key encrypts, for the operator.
    var counts: String { "\(records) records and \(entries) events" }
}
