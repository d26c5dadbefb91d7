/// Which host names are looked up now, which wait, and what is known of names from earlier look-ups. Decides only: it has
/// no threads and no clock.
///
/// A name has one of three standings: its last look-up was slow; it was found promptly before; or neither, as with every
/// name at first. Slow names together have `slowThreads`, slow and unproven ones together `unprovenThreads`, all names
/// together `threads`. So names that do not answer can neither take all threads nor, once they are known, most of them.
/// Within these bounds names are looked up in the order in which they were asked for.
struct LookUpQueue {
    private enum Standing {
        case unproven
        case prompt
        case slow
    }

    private struct Memory {
        var standing = Standing.unproven
        var failure: ResolutionError?
        /// Until when callers are told of the failure.
        var failureEnd: MonotonicInstant?
    }

    private let limits: NameResolver.Limits
    /// In the order in which they were asked for.
    private var waiting: [String] = []
    private var running: [String: Standing] = [:]
    private var known: [String: Memory] = [:]

    /// Names that are remembered. Each costs a few hundred bytes.
    private static let memoryLimit = 1024

    init(limits: NameResolver.Limits) {
        self.limits = limits
    }

    /// Why the last look-up of the name failed, while that is remembered.
    func failure(of host: String, now: MonotonicInstant) -> ResolutionError? {
        guard let memory = known[host], let end = memory.failureEnd, end > now else { return nil }
        return memory.failure
    }

    /// - Precondition: the name neither waits nor is looked up.
    /// - Returns: false when too many names wait already.
    mutating func append(_ host: String) -> Bool {
        if waiting.count >= limits.waitingNames { return false }
        waiting.append(host)
        return true
    }

    /// Takes a name out of those that wait. False when it does not wait.
    mutating func remove(_ host: String) -> Bool {
        guard let index = waiting.firstIndex(of: host) else { return false }
        waiting.remove(at: index)
        return true
    }

    /// Whether a name may be looked up now.
    var hasNext: Bool { nextIndex != nil }

    /// The name to look up now.
    mutating func takeNext() -> String? {
        guard let index = nextIndex else { return nil }
        let host = waiting.remove(at: index)
        running[host] = standing(of: host)
        return host
    }

    /// Learns from a look-up that has ended.
    mutating func finish(
        _ host: String, _ answer: Result<[SocketAddress.IP], ResolutionError>, took duration: Duration,
        now: MonotonicInstant
    ) {
        running[host] = nil
        var memory = known[host] ?? Memory()
        switch answer {
        case .success:
            (memory.failure, memory.failureEnd) = (nil, nil)
            memory.standing = .prompt
        case .failure(let failure):
            (memory.failure, memory.failureEnd) = (failure, now.advanced(by: limits.failureMemory))
            // A server that refuses promptly takes up no thread. It need not be the one that was found before.
            if memory.standing == .slow { memory.standing = .unproven }
        }
        if duration > limits.slowAfter { memory.standing = .slow }
        if known.count >= Self.memoryLimit, known[host] == nil { forget(now) }
        known[host] = memory
    }

    private var nextIndex: Int? {
        guard running.count < max(1, limits.threads) else { return nil }
        let slow = running.values.count { $0 == .slow }
        let unproven = running.values.count { $0 == .unproven }
        let hasUnprovenThread = slow + unproven < max(1, limits.unprovenThreads)
        let hasSlowThread = hasUnprovenThread && slow < max(1, limits.slowThreads)
        return waiting.firstIndex { host in
            switch standing(of: host) {
            case .prompt: true
            case .unproven: hasUnprovenThread
            case .slow: hasSlowThread
            }
        }
    }

    private func standing(of host: String) -> Standing { known[host]?.standing ?? .unproven }

    /// Makes room for one more name.
    private mutating func forget(_ now: MonotonicInstant) {
        known = known.filter { $0.value.standing != .unproven || ($0.value.failureEnd ?? now) > now }
        // Any of them: its next look-up counts as its first.
        while known.count >= Self.memoryLimit, let other = known.keys.first { known[other] = nil }
    }
}
