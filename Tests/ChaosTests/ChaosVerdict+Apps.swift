import BrokerTesting

/// What apps say.
extension ChaosVerdict {
    /// Sessions end when their user logs out, and when the provider ends the user's session for good.
    mutating func checkApps() {
        for use in state.uses {
            if let fault = use.fault { report(.appAnswer, use, fault) }
            // A store that has lost the first answer's commit knows of no first answer.
            let hasLost = state.failovers.contains { $0.cutOff < use.ended && $0.ended > use.presented }
            if use.isOther, !hasLost {
                report(
                    .appAnswer, use,
                    "a request that was repeated after \(use.begun - use.presented) ms got another answer")
            }
            guard case .refused(let status, let error) = use.outcome else { continue }
            let isOver = losses.contains { $0.user == use.user && $0.at <= use.ended }
            if error == "invalid_grant", isOver { continue }
            report(
                .appLost, use,
                "\(status) \(error), \(use.begun - use.presented) ms after the refresh token was presented first")
        }
        for event in state.heard where event.name == "session.ended" && event.listener == state.listeners.first {
            let cause = event.data.flatMap { ChaosLog.member("cause", of: $0) } ?? "no cause"
            if ["logout", "revoked"].contains(cause) { continue }
            let key = event.data.flatMap { ChaosLog.member("storage_key", of: $0) } ?? ""
            violations.append(
                Violation(
                    rule: .appLost, user: ChaosCluster.user(ofStorageKey: key) ?? 0, at: event.at,
                    text: "event \(event.id) names the cause \(cause)"))
        }
    }

    private mutating func report(_ rule: Rule, _ use: AppUse, _ text: String) {
        violations.append(
            Violation(rule: rule, user: use.user, at: use.begun, text: "replica \(use.replica): \(text)"))
    }
}

extension ChaosRecords.State {
    /// Gives the answers to apps, which tell no version, that of the same token in the answers to readers: the latest, since a
    /// token that is stored again after a failover has another one.
    mutating func nameVersionsOfApps() {
        var versions: [Int: Int64] = [:]
        for read in reads where read.hasVersion && read.outcome == .user {
            versions[read.token] = max(read.version, versions[read.token] ?? 0)
        }
        for place in reads.indices where reads[place].isByApp && reads[place].outcome == .user {
            reads[place].version = versions[reads[place].token] ?? 0
        }
    }
}
