import BrokerTesting
import HTTPCodec
import Reactor
import Testing

/// What hundreds of slow peers do to those that are not slow. The peers are `slowhttptest`'s (Debian).
@Suite(.timeLimit(.minutes(3))) struct `Slow peers` {
    /// How a peer is slow.
    enum Way: String, Sendable, CaseIterable {
        /// It never ends the head of its request.
        case head = "-H"
        /// It never ends the content of its request.
        case content = "-B"
        /// It asks for many overlapping ranges.
        case ranges = "-R"
        /// It takes the answers from a small window, a few octets at a time.
        case reading = "-X"

        var path: String {
            switch self {
            case .head: "/healthz"
            // Open to all, and reads a form.
            case .content: "/oauth2/token"
            // Long answers.
            case .ranges, .reading: "/openapi.yaml"
            }
        }

        var options: [String] {
            switch self {
            case .head, .ranges: []
            case .content: ["-s", "8192", "-x", "10"]
            case .reading: ["-w", "10", "-y", "20", "-n", "2", "-z", "5", "-k", "3"]
            }
        }
    }

    private static let count = 300

    // H010
    @Test(arguments: Way.allCases) func `do not keep others from being answered`(way: Way) async throws {
        let directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        let broker = try await BrokerProcess.start(port: port, ["DATA_DIR": directory.path])
        let arguments = [
            "/usr/bin/slowhttptest", way.rawValue, "-c", "\(Self.count)", "-r", "\(Self.count)", "-i", "2", "-l", "12",
            "-p", "5",
            "-u", "http://127.0.0.1:\(port)\(way.path)",
        ]
        let peers = try await TestProcess.start(arguments + way.options)
        let others = Task {
            let client = try BrokerClient(port: port)
            var longest = Duration.zero
            while !Task.isCancelled {
                let start = ContinuousClock.now
                do {
                    let response = try await client.call(.get, "/healthz", key: nil)
                    #expect(response.status == 200)
                } catch {
                    // The last request, when the peers have ended.
                    if Task.isCancelled { break }
                    throw error
                }
                longest = max(longest, start.duration(to: .now))
                // Many short looks, and not a load of its own.
                try? await Task.sleep(for: .milliseconds(50))
            }
            return longest
        }
        #expect(await peers.exitStatus() == 0)
        others.cancel()
        let longest = try await others.value
        // Milliseconds, and more on a busy machine. A request that the peers hold up waits until they end, after 12 s.
        #expect(longest < .seconds(8))
        // Its own probe, once in each status; the digits and words have colours.
        let availability = peers.lines.filter { $0.contains("service available:") }
        #expect(!availability.isEmpty && availability.allSatisfy { $0.contains("YES") }, "\(peers.lines)")
        // The peers were there, and not refused. Those that ask for ranges have their answers before the first status.
        #expect(!peers.lines.contains { $0.contains("refused") })
        if way != .ranges {
            #expect(
                peers.lines.contains { $0.contains("connected:") && $0.contains("\(Self.count)") }, "\(peers.lines)")
        }
        #expect(await broker.terminate() == 0)
    }
}
