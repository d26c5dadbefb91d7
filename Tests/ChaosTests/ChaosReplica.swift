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
    private let environment: [String: String]
    private var process: TestProcess?
    private var finished: [[String]] = []
    private(set) var isPaused = false

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    /// - Parameter variables: without their prefix.
    init(index: Int, port: UInt16, variables: [String: String], preload: [String: String]) throws {
        self.index = index
        self.port = port
        client = try BrokerClient(port: port)
        var environment = preload
        for (name, value) in variables { environment["TOKEN_BROKER_\(name)"] = value }
        self.environment = environment
    }

    /// Starts the program and returns when it listens. A start that fails, as it may while the database is away, is
    /// tried again, as an orchestrator would.
    func start() async throws {
        let deadline = MonotonicInstant.after(.seconds(60))
        while MonotonicInstant.now < deadline {
            let process = try await TestProcess.start(
                [ChaosSettings.program], environment: environment)
            self.process = process
            do {
                _ = try await process.line { $0.contains(#""event":"listening""#) }
                return
            } catch {
                finished.append(process.lines)
                self.process = nil
                try await Task.sleep(for: .milliseconds(300))
            }
        }
        throw Failure(
            description: "replica \(index) does not start: " + (finished.last ?? []).suffix(5).joined(separator: " / "))
    }

    func kill() async {
        await process?.kill()
        retire()
    }

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

    /// Everything that it and its predecessors wrote.
    var lines: [String] { finished.flatMap { $0 } + (process?.lines ?? []) }

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
        if let process { finished.append(process.lines) }
        process = nil
    }
}
