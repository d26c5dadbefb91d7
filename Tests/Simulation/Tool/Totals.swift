import Reactor

/// What worlds came to together.
struct Totals {
    /// By name: the sums.
    private var sums: [String: Int] = [:]
    private(set) var failed: [UInt64] = []
    private(set) var slowestRecovery: Int64 = 0

    private static let lostPrefix = "lost-at-grace-"
    private static let brokenPrefix = "broken-"
    private static let faultPrefix = "fault-"

    var grants: Int { sums["grants"] ?? 0 }
    var worlds: Int { sums["worlds"] ?? 0 }

    mutating func add(_ world: World) {
        func add(_ name: String, _ count: Int) { if count > 0 { sums[name, default: 0] += count } }
        add("worlds", 1)
        add("grants", world.provider.grants)
        add("calls", world.calls)
        add("commits", world.judge.commits)
        add("jobs", world.executor.jobs)
        add(Self.lostPrefix + "\(world.grace.milliseconds / 1000)", world.judge.excused.count)
        for (episode, count) in world.faults.counts { add(Self.faultPrefix + episode.rawValue, count) }
        for (message, count) in world.faults.messages {
            add(Self.faultPrefix + message.replacing(" ", with: "_"), count)
        }
        for (kind, count) in world.judge.broken { add(Self.brokenPrefix + kind.rawValue, count) }
        slowestRecovery = max(slowestRecovery, world.slowestRecovery)
        if world.hasFailed { failed.append(world.seed) }
    }

    mutating func add(_ others: Totals) {
        sums.merge(others.sums) { $0 + $1 }
        failed += others.failed
        slowestRecovery = max(slowestRecovery, others.slowestRecovery)
    }

    // MARK: As text, on the way from one process to another

    var text: String {
        (sums.map { "\($0.key) \($0.value)" } + failed.map { "failed \($0)" } + ["slowest \(slowestRecovery)"])
            .joined(separator: "\n")
    }

    init() {}

    init(text: String) {
        for line in text.split(separator: "\n") {
            let words = line.split(separator: " ")
            guard words.count == 2 else { continue }
            switch words[0] {
            case "failed": if let seed = UInt64(words[1]) { failed.append(seed) }
            case "slowest": slowestRecovery = Int64(words[1]) ?? 0
            default: sums[String(words[0])] = Int(words[1])
            }
        }
    }

    // MARK: For people

    func lines(from seed: UInt64, seconds: Double) -> [String] {
        func those(with prefix: String) -> String {
            let found = sums.filter { $0.key.hasPrefix(prefix) }.sorted { $0.key < $1.key }
            return found.map { "\($0.value) \($0.key.dropFirst(prefix.count))" }.joined(separator: ", ")
        }
        let lost = sums.filter { $0.key.hasPrefix(Self.lostPrefix) }.sorted { $0.key < $1.key }
            .map { "\($0.value) at a grace of \($0.key.dropFirst(Self.lostPrefix.count)) s" }.joined(separator: ", ")
        var lines = [
            "\(worlds) worlds from seed \(seed) on: \(grants) refreshes, \(sums["calls"] ?? 0) calls, "
                + "\(sums["commits"] ?? 0) commits, \(sums["jobs"] ?? 0) jobs in \(seconds) s "
                + "(\(Int(Double(grants) / max(seconds, 0.001))) refreshes a second)",
            "sessions lost that could not be kept: \(lost.isEmpty ? "none" : lost); "
                + "slowest recovery \(Judge.text(slowestRecovery))",
        ]
        let faults = those(with: Self.faultPrefix)
        if !faults.isEmpty { lines.append("faults: \(faults.replacing("_", with: " "))") }
        let broken = those(with: Self.brokenPrefix)
        if !broken.isEmpty { lines.append("broken promises: \(broken)") }
        if !failed.isEmpty {
            let seeds = failed.sorted().prefix(40).map(String.init).joined(separator: " ")
            lines.append("FAILED: \(failed.count) seeds: \(seeds)\(failed.count > 40 ? " ..." : "")")
        }
        return lines
    }
}
