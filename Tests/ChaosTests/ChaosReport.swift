import BrokerTesting
import DevelopmentProvider
import FoundationEssentials

/// What is printed of a run and kept in `.build-artefacts/`: the figures, and for each kind of violation a user's story.
struct ChaosReport {
    let cluster: ChaosCluster
    let verdict: ChaosVerdict
    let log: ChaosLog
    private let start: Moment

    private static let directory = ".build-artefacts"
    /// Begins the line of a story that tells of the violation.
    private static let mark = ">>> "

    init(_ cluster: ChaosCluster, _ verdict: ChaosVerdict, _ log: ChaosLog) {
        self.cluster = cluster
        self.verdict = verdict
        self.log = log
        start = verdict.state.writes.first?.begun ?? 0
    }

    /// Prints the table, writes the files, and gives what a failed expectation says.
    func publish(_ name: String) throws -> String {
        let stem = "\(Self.directory)/\(name)-\(cluster.settings.seed)"
        try FileManager.default.createDirectory(atPath: Self.directory, withIntermediateDirectories: true)
        let table = table(name)
        print(table)
        try Data(table.utf8).write(to: URL(filePath: stem + ".txt"))
        var told: [String] = []
        for rule in ChaosVerdict.Rule.allCases {
            let violations = verdict.violations.filter { $0.rule == rule }
            guard let first = violations.first else { continue }
            let story = story(of: first)
            let file = "\(stem)-\(rule).txt"
            try Data(story.utf8).write(to: URL(filePath: file))
            told.append(
                "\(rule.rawValue), \(violations.count) times; the first (all of it in \(file)):\n\(excerpt(story))")
        }
        for (index, lines) in log.lines.enumerated() where !told.isEmpty {
            try Data(lines.joined(separator: "\n").utf8).write(to: URL(filePath: "\(stem)-replica-\(index).log"))
        }
        return told.joined(separator: "\n\n")
    }

    // MARK: The table

    private func table(_ name: String) -> String {
        let state = verdict.state
        var rows: [(String, String)] = [
            ("seed", "\(cluster.settings.seed)"), ("seconds", "\(cluster.settings.seconds)"),
            ("users", "\(cluster.settings.users)"), ("replicas", "\(cluster.replicas.count)"),
        ]
        for (replica, minutes) in cluster.offsets { rows.append(("clock of replica \(replica)", "\(minutes) min")) }
        for replica in cluster.polling { rows.append(("replica \(replica)", "hears of no changes")) }
        var outcomes: [String: Int] = [:]
        for read in state.reads {
            switch read.outcome {
            case .user: outcomes["user", default: 0] += 1
            case .lower: outcomes["nobody logged in", default: 0] += 1
            case .refused(let status, let code): outcomes["\(status) \(code)", default: 0] += 1
            case .unreachable: outcomes["no answer", default: 0] += 1
            }
        }
        rows.append(("reads", "\(state.reads.count)"))
        for (outcome, count) in outcomes.sorted(by: { $0.value > $1.value }) {
            rows.append(("  " + outcome, "\(count)"))
        }
        rows.append(("logins", "\(state.writes.count { $0.kind == .login })"))
        rows.append(("logouts", "\(state.writes.count { $0.kind == .logout })"))
        rows.append(("refresh tokens presented", "\(verdict.presentations.count)"))
        rows.append(("refreshes at the provider", "\(verdict.refreshes)"))
        for (reason, count) in verdict.repeats.sorted(by: { $0.key < $1.key }) {
            rows.append(("  again after \(reason)", "\(count)"))
        }
        let momentary = state.disturbances.filter { FaultKind.momentary.contains($0.kind) }
        rows.append(("faults", "\(momentary.count)"))
        for kind in FaultKind.momentary {
            let count = momentary.count { $0.kind == kind }
            if count > 0 { rows.append(("  " + kind.rawValue, "\(count)")) }
        }
        rows.append(
            ("answers disturbed at random or on purpose", "\(verdict.presentations.count { $0.request.fault != nil })"))
        for (event, count) in log.troubles { rows.append(("log: " + event, "\(count)")) }
        let lost = Set(verdict.violations.filter { $0.rule == .lost || $0.rule == .reuse }.map(\.user)).count
        rows.append(("lost", "\(lost)"))
        rows.append(("  of them after the grace period", "\(verdict.unknowable)"))
        for rule in ChaosVerdict.Rule.allCases {
            let count = verdict.violations.count { $0.rule == rule }
            if count > 0 { rows.append(("! " + rule.rawValue, "\(count)")) }
        }
        let width = rows.map(\.0.count).max() ?? 0
        return rows.reduce("== \(name)\n") { text, row in
            text + row.0 + String(repeating: " ", count: width + 2 - row.0.count) + row.1 + "\n"
        }
    }

    // MARK: A story

    private func excerpt(_ story: String) -> String {
        let lines = story.split(separator: "\n", omittingEmptySubsequences: false)
        guard let place = lines.firstIndex(where: { $0.hasPrefix(Self.mark) }) else { return story }
        return lines[max(0, place - 25)..<min(lines.count, place + 12)].joined(separator: "\n")
    }

    /// Everything that is known of the user around the violation, in the order of time.
    private func story(of violation: ChaosVerdict.Violation) -> String {
        let (user, state) = (violation.user, verdict.state)
        let window = (violation.at - 60_000)...(violation.at + 15_000)
        var entries: [(at: Moment, text: String)] = [
            (violation.at, Self.mark + "\(violation.rule.rawValue): \(violation.text)")
        ]
        for write in state.writes where write.user == user {
            entries.append((write.begun, "\(write.kind.rawValue) begun"))
            if let done = write.done {
                entries.append(
                    (
                        done,
                        "\(write.kind.rawValue) done at replica \(write.replica ?? -1), families \(write.families), "
                            + "version \(write.version ?? 0)"
                    ))
            }
        }
        for presentation in verdict.presentations where presentation.user == user {
            let request = presentation.request
            var text = "provider: family \(presentation.family) generation \(presentation.generation) presented, "
            text += request.refresh?.outcome.rawValue ?? "not looked at"
            if let issued = request.refresh?.issuedGeneration { text += " -> \(issued)" }
            if let fault = request.fault { text += ", fault \(fault.rawValue)" }
            text += ", \(request.outcome)"
            if let finished = request.finishedAt { text += " after \(finished - request.receivedAt) ms" }
            entries.append((request.receivedAt, text))
        }
        for disturbance in state.disturbances {
            let place = disturbance.replica.map { "replica \($0): " } ?? ""
            entries.append((disturbance.begun, "fault: \(place)\(disturbance.text)"))
            entries.append((disturbance.ended, "fault over: \(place)\(disturbance.text)"))
        }
        for read in state.reads where read.user == user {
            entries.append(
                (
                    read.begun,
                    "read at replica \(read.replica): \(read.outcome), version \(read.version), "
                        + "family \(read.family ?? 0), \(read.expiresAt - read.ended) ms left, "
                        + "took \(read.ended - read.begun) ms"
                ))
        }
        entries += log.story(of: ChaosCluster.digest(user)).map { ($0.at, $0.text) }
        return entries.filter { window.contains($0.at) }.sorted { $0.at < $1.at }.map { entry in
            let mark = entry.text.hasPrefix(Self.mark)
            return (mark ? Self.mark : "") + "\(Double(entry.at - start) / 1000) s  "
                + entry.text.dropFirst(mark ? Self.mark.count : 0)
        }.joined(separator: "\n")
    }
}
