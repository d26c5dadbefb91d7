import Containers

/// Which host names are being looked up, which wait for a thread, and what earlier look-ups have shown about a name.
/// This type only decides: it has no threads and no clock.
///
/// A name is slow when its last look-up was slow, prompt when an earlier look-up found it promptly, and otherwise
/// unproven, as every name is at first. Slow names together may use `slowThreads` threads, slow and unproven names
/// together `unprovenThreads`, and all names together `threads`. So names whose servers do not answer cannot occupy all
/// threads, and once they are known to be slow they occupy few. Within these bounds names are looked up in the order of
/// their requests.
struct LookUpQueue {
    private enum HostClass {
        case unproven
        case prompt
        case slow
    }

    private struct History {
        var hostClass = HostClass.unproven
        var failure: ResolutionError?
        /// Until this time callers get the failure without a new look-up.
        var failureEnd: MonotonicInstant?
    }

    private let limits: NameResolver.Limits
    /// In the order of their requests.
    private var waiting: [String] = []
    private var running: [String: HostClass] = [:]
    /// Of the names that were looked up last. Each takes a few hundred bytes. A name that is forgotten counts as new.
    private var histories = BoundedTable<String, History>(capacity: 1024)

    init(limits: NameResolver.Limits) {
        self.limits = limits
    }

    /// Why the last look-up of the name failed; nil when it did not fail or the failure is no longer remembered.
    func failure(of host: String, now: MonotonicInstant) -> ResolutionError? {
        guard let history = histories[host], let end = history.failureEnd, end > now else { return nil }
        return history.failure
    }

    /// Adds a name to those that wait.
    /// - Precondition: the name neither waits nor is being looked up.
    /// - Returns: false when too many names wait already.
    mutating func append(_ host: String) -> Bool {
        if waiting.count >= limits.waitingNames { return false }
        waiting.append(host)
        return true
    }

    /// Removes a waiting name. Returns false when the name does not wait.
    mutating func remove(_ host: String) -> Bool {
        guard let index = waiting.firstIndex(of: host) else { return false }
        waiting.remove(at: index)
        return true
    }

    /// Whether a thread may look up one of the waiting names now.
    var hasNext: Bool { nextIndex != nil }

    /// Removes and returns the name to look up next.
    mutating func takeNext() -> String? {
        guard let index = nextIndex else { return nil }
        let host = waiting.remove(at: index)
        running[host] = hostClass(of: host)
        return host
    }

    /// Records the outcome of a look-up.
    mutating func finish(
        _ host: String, answer: Result<[SocketAddress.IP], ResolutionError>, duration: Duration,
        now: MonotonicInstant
    ) {
        running[host] = nil
        var history = histories[host] ?? History()
        switch answer {
        case .success:
            (history.failure, history.failureEnd) = (nil, nil)
            history.hostClass = .prompt
        case .failure(let failure):
            (history.failure, history.failureEnd) = (failure, now.advanced(by: limits.failureMemory))
            // A name server that refuses promptly occupies no thread, but it may not be the server that was slow
            // before.
            if history.hostClass == .slow { history.hostClass = .unproven }
        }
        if duration > limits.slowAfter { history.hostClass = .slow }
        histories.setNewest(history, forKey: host)
    }

    private var nextIndex: Int? {
        guard running.count < max(1, limits.threads) else { return nil }
        let slow = running.values.count { $0 == .slow }
        let unproven = running.values.count { $0 == .unproven }
        let hasUnprovenThread = slow + unproven < max(1, limits.unprovenThreads)
        let hasSlowThread = hasUnprovenThread && slow < max(1, limits.slowThreads)
        return waiting.firstIndex { host in
            switch hostClass(of: host) {
            case .prompt: true
            case .unproven: hasUnprovenThread
            case .slow: hasSlowThread
            }
        }
    }

    private func hostClass(of host: String) -> HostClass { histories[host]?.hostClass ?? .unproven }
}
