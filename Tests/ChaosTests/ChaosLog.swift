import FoundationEssentials
import JSON

/// What the brokers wrote, all processes of each replica in a row.
struct ChaosLog {
    /// By replica.
    let lines: [[String]]
    /// Minutes that a replica's clock is off.
    private let offsets: [Int: Int]

    init(_ cluster: ChaosCluster) async {
        var lines: [[String]] = []
        for replica in cluster.replicas { lines.append(await replica.lines) }
        self.lines = lines
        offsets = cluster.offsets
    }

    /// When brokers said that they try a refresh token again without knowing what became of the first try, by the digest
    /// of the storage key.
    var unknownOutcomes: [String: [Moment]] {
        var times: [String: [Moment]] = [:]
        for (replica, lines) in lines.enumerated() {
            for line in lines where line.contains(#""event":"refresh_outcome_unknown""#) {
                if let digest = Self.member("storage_key_digest", of: line) {
                    times[digest, default: []].append(time(of: line, replica))
                }
            }
        }
        return times
    }

    /// Warnings and errors by event.
    var troubles: [(event: String, count: Int)] {
        var counts: [String: Int] = [:]
        for line in lines.joined() where line.contains(#""level":"warning""#) || line.contains(#""level":"error""#) {
            counts[Self.member("event", of: line) ?? "?", default: 0] += 1
        }
        return counts.sorted { $0.key < $1.key }.map { ($0.key, $0.value) }
    }

    /// Lines that bear the digest, or a renewal's identifier that stands beside it elsewhere.
    func story(of digest: String) -> [(at: Moment, text: String)] {
        var found: [(Moment, String)] = []
        for (replica, lines) in lines.enumerated() {
            let own = lines.filter { $0.contains(digest) }
            let identifiers = Set(own.compactMap { Self.member("refresh_id", of: $0) })
            for line in lines where !line.contains(#""event":"request""#) {
                let isOfRenewal = Self.member("refresh_id", of: line).map(identifiers.contains) ?? false
                if isOfRenewal || line.contains(digest) {
                    found.append((time(of: line, replica), "log of replica \(replica): \(line)"))
                }
            }
        }
        return found
    }

    /// A member whose value is a text without escapes: log lines are many, and hold nothing else in these places.
    private static func member(_ name: String, of line: String) -> String? {
        guard let start = line.firstRange(of: "\"\(name)\":\"") else { return nil }
        return String(line[start.upperBound...].prefix { $0 != "\"" })
    }

    /// By the tests' clock, and at the start of the second: logs tell no more.
    private func time(of line: String, _ replica: Int) -> Moment {
        guard let text = Self.member("time", of: line),
            let date = try? Date(text, strategy: .iso8601)
        else { return 0 }
        return Moment(date.timeIntervalSince1970 * 1000) - Moment(offsets[replica] ?? 0) * 60_000
    }
}
