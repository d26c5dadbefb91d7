import BrokerTesting
import DevelopmentProvider
import FoundationEssentials

/// What is printed of a run and kept in `.build-artefacts/`: the figures, the story of each user who was lost, and that
/// of one user for each kind of violation.
struct ChaosReport {
    let cluster: ChaosCluster
    let verdict: ChaosVerdict
    let log: ChaosLog
    private let start: Moment
    private let reads: [Int: [Read]]
    /// By storage key.
    private let heard: [String: [Heard]]

    private static let directory = ".build-artefacts"
    /// Begins the line of a story that tells of the violation.
    private static let mark = ">>> "

    init(_ cluster: ChaosCluster, _ verdict: ChaosVerdict, _ log: ChaosLog) {
        self.cluster = cluster
        self.verdict = verdict
        self.log = log
        start = verdict.state.writes.first?.begun ?? 0
        reads = Dictionary(grouping: verdict.state.reads, by: \.user)
        heard = Dictionary(grouping: verdict.state.heard.filter { $0.data != nil }) { event in
            ChaosLog.member("storage_key", of: event.data ?? "") ?? ""
        }
    }

    /// Prints the table, writes the files, and gives what a failed expectation says.
    func publish(_ name: String) throws -> String {
        let stem = "\(Self.directory)/\(name)-\(cluster.settings.seed)"
        try FileManager.default.createDirectory(atPath: Self.directory, withIntermediateDirectories: true)
        let table = table(name)
        print(table)
        try Data(table.utf8).write(to: URL(filePath: stem + ".txt"))
        var told: [String] = []
        if !verdict.losses.isEmpty {
            let file = "\(stem)-losses.txt"
            try Data(verdict.losses.map(story(of:)).joined(separator: "\n\n").utf8).write(to: URL(filePath: file))
            let avoidable = verdict.losses.filter(\.isAvoidable)
            if !avoidable.isEmpty {
                told.append(
                    "\(avoidable.count) users were lost who need not have been (all in \(file)):\n"
                        + avoidable.map { "user \($0.user): \($0.text)" }.joined(separator: "\n"))
            }
        }
        for rule in ChaosVerdict.Rule.allCases {
            let violations = verdict.violations.filter { $0.rule == rule }
            guard let first = violations.first else { continue }
            let story = story(of: first)
            let file = "\(stem)-\(rule).txt"
            try Data(story.utf8).write(to: URL(filePath: file))
            told.append(
                "\(rule.rawValue), \(violations.count) times; the first (all of it in \(file)):\n\(excerpt(story))")
        }
        for (index, lines) in log.lines.enumerated() where !told.isEmpty || !verdict.losses.isEmpty {
            try Data(lines.map(\.text).joined(separator: "\n").utf8).write(
                to: URL(filePath: "\(stem)-replica-\(index).log"))
        }
        return told.joined(separator: "\n\n")
    }

    // MARK: The table

    private func table(_ name: String) -> String {
        let state = verdict.state
        var rows: [(String, String)] = [
            ("seed", "\(cluster.settings.seed)"), ("seconds", "\(cluster.settings.seconds)"),
            ("users", "\(cluster.settings.users)"), ("replicas", "\(cluster.replicas.count)"),
            ("grace of the provider", "\(cluster.settings.graceSeconds) s"),
            ("replicas behind PgBouncer", cluster.settings.pooling.rawValue),
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
        rows.append(("refreshes by apps", "\(state.uses.count)"))
        for (outcome, uses) in Dictionary(grouping: state.uses, by: \.outcome).sorted(by: {
            $0.value.count > $1.value.count
        }) {
            rows.append(("  \(outcome)", "\(uses.count), \(uses.count(where: \.isRepeated)) of them repeated"))
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
        for listener in state.listeners {
            rows.append(
                ("events heard by listener \(listener)", "\(state.heard.count { $0.listener == listener })"))
        }
        rows += recoveries
        rows.append(("lost", "\(verdict.losses.count)"))
        rows.append(("  avoidable", "\(verdict.losses.count { $0.isAvoidable })"))
        for rule in ChaosVerdict.Rule.allCases {
            let count = verdict.violations.count { $0.rule == rule }
            if count > 0 { rows.append(("! " + rule.rawValue, "\(count)")) }
        }
        let width = rows.map(\.0.count).max() ?? 0
        return rows.reduce("== \(name)\n") { text, row in
            text + row.0 + String(repeating: " ", count: width + 2 - row.0.count) + row.1 + "\n"
        }
    }

    /// Until the slowest user had a token again, by what had happened.
    private var recoveries: [(String, String)] {
        let late = verdict.slowRecoveries
        func name(_ recovery: Recovery) -> String { recovery.kinds.map(\.rawValue).sorted().joined(separator: "+") }
        return Dictionary(grouping: verdict.state.recoveries, by: name).sorted { $0.key < $1.key }.map { kinds, all in
            let times = all.map { $0.took ?? 20_000 }.sorted()
            let count = late.count { name($0) == kinds }
            return (
                "tokens again after \(kinds)",
                "\(times[times.count / 2]) ms in the middle, \(times[times.count - 1]) ms at most of \(times.count)"
                    + (count > 0 ? ", \(count) too late" : "")
            )
        }
    }

    // MARK: A story

    private func story(of loss: Loss) -> String {
        let kind = loss.isAvoidable ? "lost, avoidable" : "lost, not avoidable"
        return "== user \(loss.user): \(kind)\n"
            + story(of: loss.user, at: loss.at, "\(kind): \(loss.text)")
    }

    private func excerpt(_ story: String) -> String {
        let lines = story.split(separator: "\n", omittingEmptySubsequences: false)
        guard let place = lines.firstIndex(where: { $0.hasPrefix(Self.mark) }) else { return story }
        return lines[max(0, place - 25)..<min(lines.count, place + 12)].joined(separator: "\n")
    }

    private func story(of violation: ChaosVerdict.Violation) -> String {
        story(of: violation.user, at: violation.at, "\(violation.rule.rawValue): \(violation.text)")
    }

    /// Everything that is known of the user around that time, in the order of time.
    private func story(of user: Int, at moment: Moment, _ text: String) -> String {
        let state = verdict.state
        let window = (moment - 60_000 - verdict.grace)...(moment + 15_000)
        var entries: [(at: Moment, text: String)] = [(moment, Self.mark + text)]
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
        for use in state.uses where use.user == user {
            entries.append(
                (
                    use.begun,
                    "app refreshes at replica \(use.replica): \(use.outcome), took \(use.ended - use.begun) ms"
                        + (use.isRepeated ? ", first presented \(use.begun - use.presented) ms before" : "")
                ))
        }
        for event in heard[ChaosCluster.storageKey(user)] ?? [] {
            let text = "\(event.id) \(event.name) \(event.data ?? "")"
            entries.append((event.at, "heard by listener \(event.listener): \(text)"))
        }
        for read in reads[user] ?? [] {
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
