import BrokerCore
import CommandLineClient
import CredentialStore
import Reactor

/// Why the program cannot do what it was started for, in one sentence for the operator.
struct CommandFailure: Error {
    let text: String
    /// Whether another program listens at the address already.
    var isAddressTaken = false
}

extension CommandFailure {
    init(_ error: StoreError) {
        text =
            switch error {
            case .conflict: "another process changes the same records; try again"
            case .unavailable: "the store does not answer; try again"
            case .damaged(let what): "the store is damaged: \(what)"
            }
    }
}

/// Runs a command that ends by itself, and exits: with the status that the command returns, with 1 when it fails, or with
/// 130 at a signal, which ends the process at once.
func runCommand(_ body: @escaping @Sendable () async throws(CommandFailure) -> Int32) -> Never {
    TerminationSignal.block()
    Task {
        do throws(CommandFailure) {
            endCommand(try await body())
        } catch {
            Console.printError("token-broker: \(error.text)")
            Console.exit(1)
        }
    }
    TerminationSignal.wait()
    Console.exit(ExitStatus.interrupted.rawValue)
}

/// Exits with the status of a command that has done its work; where standard output did not take all that it has printed, says so
/// and exits with the status of that.
func endCommand(_ status: Int32) -> Never {
    let terminal = SystemTerminal()
    Console.exit(terminal.outputError.map { CommandProgram.report($0, terminal).rawValue } ?? status)
}

/// The configured store, opened for a command. The schema of a database stays as it is.
struct CommandStore {
    let store: BrokerStore
    let time = SystemTime()
    private let log: Log
    /// For as long as the store is open, its connections need the loop.
    private let loop: EventLoop
    private let output: LineWriter

    init(_ configuration: Configuration) async throws(CommandFailure) {
        (output, loop) = try RunningService.makeOutputAndLoop()
        let writer = output
        log = Log(threshold: .error, time: time) { writer.write($0) }
        var configuration = configuration
        configuration.database.migrates = false
        store = try await RunningService.openStore(configuration, loop: loop, log: log, time: time)
    }

    /// The tombstones of the store.
    var tombstones: Tombstones {
        Tombstones(
            vault: store.vault, bus: EventBus(cacheValidity: CacheValidity(lifetime: .zero)),
            instruments: Instruments(time: time, log: log, metrics: Metrics()))
    }

    func close() async {
        await store.vault.close()
        output.close(within: .seconds(1))
    }
}
