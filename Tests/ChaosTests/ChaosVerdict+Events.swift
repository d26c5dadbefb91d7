import BrokerTesting
import DevelopmentProvider
import ExternalText
import JSON

/// What events and probes say.
extension ChaosVerdict {
    /// A version of a user's record.
    private struct Place: Hashable {
        let user: Int
        let version: Int64
    }

    /// An event's identifier: an entry of the log, and a place in it.
    private struct Identifier: Comparable {
        let entry: Int64
        let place: Int

        init?(_ text: String) {
            let parts = text.split(separator: "-").map(String.init)
            guard parts.count == 2, let entry = Int64(parts[0]), let place = Int(parts[1]) else { return nil }
            self.entry = entry
            self.place = place
        }

        static func < (left: Identifier, right: Identifier) -> Bool {
            (left.entry, left.place) < (right.entry, right.place)
        }
    }

    /// Each version that was served has one event in each listener's stream, and each stream is in order.
    mutating func checkEvents() {
        let heard = Dictionary(grouping: state.heard, by: \.listener)
        for listener in state.listeners {
            var identifiers: [Place: String] = [:]
            var newest: [Int: Int64] = [:]
            var told = Told()
            var last: Identifier?
            for event in heard[listener] ?? [] {
                if event.name == "stream.reset" {
                    report(.eventOrder, event, 0, "the stream of listener \(listener) began anew")
                    continue
                }
                guard let identifier = Identifier(event.id) else {
                    report(.eventOrder, event, 0, "an event without a place: '\(event.id)'")
                    continue
                }
                if let last, identifier <= last {
                    report(.eventOrder, event, 0, "listener \(listener): \(event.id) after \(last.entry)-\(last.place)")
                }
                last = identifier
                guard let place = Self.place(event) else { continue }
                told.take(place)
                guard event.name == "credentials.updated" else { continue }
                if let earlier = identifiers.updateValue(event.id, forKey: place), earlier != event.id {
                    // Told again, it is no news.
                    if hasRenumbered(place, from: earlier, to: identifier) { continue }
                    report(
                        .eventTwice, event, place.user,
                        "listener \(listener): version \(place.version) in \(earlier) and \(event.id)")
                }
                if let before = newest[place.user], before > place.version {
                    report(
                        .wentBack, event, place.user,
                        "listener \(listener): an event of version \(place.version) after one of \(before)")
                }
                newest[place.user] = max(newest[place.user] ?? 0, place.version)
            }
            checkServed(identifiers.keys, told, listener)
        }
    }

    private func hasRenumbered(_ place: Place, from earlier: String, to later: Identifier) -> Bool {
        guard let earlier = Identifier(earlier) else { return false }
        return state.failovers.contains { failover in
            failover.hasRenumbered(place.version, of: place.user, from: earlier.entry, to: later.entry)
        }
    }

    /// What one listener was told.
    private struct Told {
        /// By user, the highest version in any event of the user's credentials.
        private var last: [Int: Int64] = [:]

        mutating func take(_ place: Place) { last[place.user] = max(last[place.user] ?? 0, place.version) }

        /// Whether the listener need not have heard of that version: a failover has lost its commit and with it the event,
        /// and the listener has heard of a later version, under which a replica stored again what was lost, or of one that
        /// came after it.
        func isMadeGood(_ place: Place, _ failovers: [Failover]) -> Bool {
            (last[place.user] ?? 0) > place.version
                && failovers.contains { $0.hasLost(place.version, of: place.user) }
        }
    }

    private mutating func checkServed(_ told: Dictionary<Place, String>.Keys, _ all: Told, _ listener: Int) {
        var missing: [Place: Violation] = [:]
        for read in state.reads where read.outcome == .user && read.hasVersion {
            let place = Place(user: read.user, version: read.version)
            if told.contains(place) || missing[place] != nil || all.isMadeGood(place, state.failovers) { continue }
            missing[place] = Violation(
                rule: .eventMissing, user: read.user, at: read.begun,
                text: "replica \(read.replica) served version \(read.version), which listener \(listener) "
                    + "never heard of")
        }
        for write in state.writes where write.kind == .login {
            guard let version = write.version, let done = write.done else { continue }
            let place = Place(user: write.user, version: version)
            if told.contains(place) || missing[place] != nil || all.isMadeGood(place, state.failovers) { continue }
            missing[place] = Violation(
                rule: .eventMissing, user: write.user, at: done,
                text: "a login stored version \(version), which listener \(listener) never heard of")
        }
        violations += missing.values
    }

    /// Whether each version that was served is among the events of each listener, or was lost in a failover and made good.
    static func isCaughtUp(_ state: ChaosRecords.State) -> Bool {
        let served = Set(
            state.reads.filter { $0.outcome == .user && $0.hasVersion }.map {
                Place(user: $0.user, version: $0.version)
            })
        var updates: [Int: Set<Place>] = [:]
        var told: [Int: Told] = [:]
        for event in state.heard {
            guard let place = place(event) else { continue }
            told[event.listener, default: Told()].take(place)
            if event.name == "credentials.updated" { updates[event.listener, default: []].insert(place) }
        }
        return state.listeners.allSatisfy { listener in
            let all = told[listener] ?? Told()
            return served.subtracting(updates[listener] ?? []).allSatisfy { all.isMadeGood($0, state.failovers) }
        }
    }

    private static func place(_ event: Heard) -> Place? {
        guard let data = event.data, let json = try? JSONValue(parsing: Array(data.utf8)),
            let user = (json["storage_key"]?.text).flatMap(ChaosCluster.user(ofStorageKey:)),
            let version = json["version"]?.integer
        else { return nil }
        return Place(user: user, version: version)
    }

    private mutating func report(_ rule: Rule, _ event: Heard, _ user: Int, _ text: String) {
        violations.append(Violation(rule: rule, user: user, at: event.at, text: text))
    }

    // MARK: Recovery

    /// Those that came later than they should, and that nothing but the fault explains.
    var slowRecoveries: [Recovery] {
        state.recoveries.filter { recovery in
            let limit = recovery.kinds.map(\.recoveryLimit).max() ?? 0
            guard recovery.took.map({ $0 > limit }) ?? true else { return false }
            let end = recovery.from + (recovery.took ?? 20_000)
            if losses.contains(where: { $0.user == recovery.user && $0.at < end }) { return false }
            // The provider did not answer, or not well.
            return !presentations.contains { presentation in
                presentation.user == recovery.user && presentation.request.fault != nil
                    && presentation.request.receivedAt < end
                    && presentation.request.finishedAt ?? end > recovery.from - limit
            }
        }
    }

    mutating func checkRecoveries() {
        guard judgesRecovery else { return }
        for recovery in slowRecoveries {
            violations.append(
                Violation(
                    rule: .late, user: recovery.user, at: recovery.from,
                    text: "replica \(recovery.replica) had a token "
                        + (recovery.took.map { "\($0) ms after" } ?? "not within 20 s of")
                        + " the end of: \(recovery.kinds.map(\.rawValue).joined(separator: ", "))"))
        }
    }
}
