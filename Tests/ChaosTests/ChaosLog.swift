import FoundationEssentials

/// What the brokers wrote, all processes of each replica in a row.
struct ChaosLog {
    /// By replica, with the times at which they came to the test, whatever the replica's clock said.
    let lines: [[(at: Moment, text: String)]]

    /// What stories are made of, by the digest of the storage key, and by the renewal where a line has no digest.
    private let byDigest: [String: [(at: Moment, text: String)]]
    private let withoutDigest: [String: [(at: Moment, text: String)]]

    init(_ cluster: ChaosCluster) async {
        var lines: [[(at: Moment, text: String)]] = []
        for replica in cluster.replicas { lines.append(await replica.lines) }
        self.lines = lines
        var byDigest: [String: [(at: Moment, text: String)]] = [:]
        var withoutDigest: [String: [(at: Moment, text: String)]] = [:]
        for (replica, lines) in lines.enumerated() {
            for (at, line) in lines where !line.contains(#""event":"request""#) {
                let told = (at, "log of replica \(replica): \(line)")
                if let digest = Self.member("storage_key_digest", of: line) {
                    byDigest[digest, default: []].append(told)
                } else if let renewal = Self.member("refresh_id", of: line) {
                    withoutDigest[renewal, default: []].append(told)
                }
            }
        }
        self.byDigest = byDigest
        self.withoutDigest = withoutDigest
    }

    /// When brokers said that they try a refresh token again without knowing what became of the first try, by the digest
    /// of the storage key.
    var unknownOutcomes: [String: [Moment]] {
        var times: [String: [Moment]] = [:]
        for (at, line) in lines.joined() where line.contains(#""event":"refresh_outcome_unknown""#) {
            if let digest = Self.member("storage_key_digest", of: line) { times[digest, default: []].append(at) }
        }
        return times
    }

    /// Warnings and errors by event.
    var troubles: [(event: String, count: Int)] {
        var counts: [String: Int] = [:]
        for (_, line) in lines.joined()
        where line.contains(#""level":"warning""#) || line.contains(#""level":"error""#) {
            counts[Self.member("event", of: line) ?? "?", default: 0] += 1
        }
        return counts.sorted { $0.key < $1.key }.map { ($0.key, $0.value) }
    }

    /// Lines that bear the digest, or a renewal's identifier that stands beside it elsewhere.
    func story(of digest: String) -> [(at: Moment, text: String)] {
        let own = byDigest[digest] ?? []
        let renewals = Set(own.compactMap { Self.member("refresh_id", of: $0.text) })
        return own + renewals.flatMap { withoutDigest[$0] ?? [] }
    }

    /// A member whose value is a text without escapes: log lines are many, and hold nothing else in these places.
    static func member(_ name: String, of line: String) -> String? {
        guard let start = line.firstRange(of: "\"\(name)\":\"") else { return nil }
        return String(line[start.upperBound...].prefix { $0 != "\"" })
    }
}
