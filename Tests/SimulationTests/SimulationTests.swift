import BrokerTesting
import Testing

/// The program that simulates replicas: that what it says can be repeated, and that it finds what is wrong.
@Suite(.timeLimit(.minutes(5))) struct `Simulated replicas` {
    /// What a run has printed to its end.
    private func run(_ arguments: String...) async throws -> [String] {
        let process = try await TestProcess.start([BrokerProcess.program("simulation")] + arguments)
        _ = try await process.line { $0.contains(" worlds from seed ") }
        // Whether it failed stands in the line behind.
        _ = await process.exitStatus()
        return process.lines
    }

    private func timeline(_ lines: [String], seed: Int) -> String? {
        guard let start = lines.firstIndex(where: { $0.hasPrefix("seed \(seed): ") }) else { return nil }
        return lines[start...].first { $0.contains("  timeline ") }
    }

    @Test(arguments: [1, 2, 3])
    func `go the same way for the same seed`(seed: Int) async throws {
        let first = try await run("--seed", "\(seed)", "--users", "6", "--seconds", "30")
        let second = try await run("--seed", "\(seed)", "--users", "6", "--seconds", "30")
        let way = try #require(timeline(first, seed: seed))
        #expect(way == timeline(second, seed: seed))
    }

    @Test func `go another way for another seed`() async throws {
        let first = try await run("--seed", "1", "--users", "6", "--seconds", "30")
        let second = try await run("--seed", "2", "--users", "6", "--seconds", "30")
        let words = [timeline(first, seed: 1), timeline(second, seed: 2)]
        #expect(words[0] != nil && words[1] != nil && words[0] != words[1])
    }

    @Test func `go the same way whatever world was run before, and with the timeline printed`() async throws {
        let alone = try await run("--seed", "3", "--users", "6", "--seconds", "30", "--timeline")
        let third = try await run(
            "--seed", "1", "--worlds", "3", "--users", "6", "--seconds", "30", "--keep-going")
        let way = try #require(timeline(alone, seed: 3))
        #expect(way == timeline(third, seed: 3))
    }

    @Test func `keep every promise where nothing goes wrong`() async throws {
        let lines = try await run("--worlds", "4", "--faults", "none", "--users", "6", "--seconds", "30")
        #expect(!lines.contains { $0.contains("FAIL") }, "\(lines.joined(separator: "\n"))")
        #expect(lines.contains { $0.hasPrefix("4 worlds from seed 1 on: ") })
    }

    @Test(arguments: [("leases", "lost"), ("events", "event")])
    func `find what a broken store does`(broken: String, promise: String) async throws {
        let lines = try await run(
            "--break", broken, "--faults", "none", "--replicas", "3", "--grace", "0", "--users", "10", "--seconds", "60"
        )
        #expect(lines.contains { $0.hasPrefix("seed 1 FAILS: ") })
        #expect(lines.contains { $0.contains(" s: user ") && $0.contains(": \(promise): ") })
    }
}
