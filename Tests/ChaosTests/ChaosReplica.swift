import BrokerTesting
import FoundationEssentials
import HTTPCodec
import Reactor

/// One broker process and those that take its place, on one port and with one journal directory.
actor ChaosReplica {
    nonisolated let index: Int
    nonisolated let port: UInt16
    /// Carries calls to it; a replica that is down refuses them.
    nonisolated let client: BrokerClient
    /// Nil for the machine's own.
    nonisolated let clock: ChaosClock?
    private var environment: [String: String]
    private var process: TestProcess?
    private var finished: [(at: Moment, text: String)] = []
    private(set) var isPaused = false

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    /// - Parameter variables: without their prefix.
    init(index: Int, port: UInt16, variables: [String: String], clock: ChaosClock?) throws {
        self.index = index
        self.port = port
        self.clock = clock
        client = try BrokerClient(port: port)
        var environment = clock?.environment ?? [:]
        for (name, value) in variables { environment["TOKEN_BROKER_\(name)"] = value }
        self.environment = environment
        try clock?.set(step: 0)
    }

    /// Changes a variable, without its prefix, for the processes that start from now on.
    func set(_ name: String, _ value: String) { environment["TOKEN_BROKER_\(name)"] = value }

    /// Starts the program and returns when it listens. A start that fails, as it may while the database is away, is
    /// tried again, as an orchestrator would.
    func start() async throws {
        let deadline = MonotonicInstant.after(.seconds(60))
        while MonotonicInstant.now < deadline {
            // A write beyond the limit of `fillDisk` is an error to the program, and not its end.
            let process = try await TestProcess.start(
                ["/bin/sh", "-c", #"trap '' XFSZ; exec "$0""#, ChaosSettings.program], environment: environment)
            self.process = process
            do {
                _ = try await process.line { $0.contains(#""event":"listening""#) }
                return
            } catch {
                finished += process.timedLines
                self.process = nil
                try await Task.sleep(for: .milliseconds(300))
            }
        }
        throw Failure(
            description: "replica \(index) does not start: " + finished.suffix(5).map(\.text).joined(separator: " / "))
    }

    func kill() async {
        await process?.kill()
        retire()
    }

    @discardableResult
    func terminate() async -> Int32? {
        let status = await process?.terminate()
        retire()
        return status
    }

    func pause() {
        isPaused = true
        process?.pause()
    }

    func resume() {
        isPaused = false
        process?.resume()
    }

    /// Whether nothing can be written to files any more, as on a full disk.
    func fillDisk(_ isFull: Bool) throws { try process?.limitFiles(toBytes: isFull ? 0 : nil) }

    /// Everything that it and its predecessors wrote, with the time at which it came here.
    var lines: [(at: Moment, text: String)] { finished + (process?.timedLines ?? []) }

    func isReady() async -> Bool {
        do {
            return try await client.call(.get, "/readyz", key: nil).status == 200
        } catch {
            return false
        }
    }

    func close() async {
        resume()
        await kill()
        await client.close()
    }

    private func retire() {
        if let process { finished += process.timedLines }
        process = nil
    }
}
