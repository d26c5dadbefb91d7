internal import OAuth
internal import Synchronization

/// Versions of records that rise even past a record's deletion and return, so that no entity tag comes back and no late
/// compare-and-set meets the version that it started from. Whoever finds a version unchanged may take the content for
/// unchanged.
///
/// A version is the time in microseconds, of which the thousandths are drawn by lot: that keeps replicas apart whose clocks
/// agree. Where the version that it replaces is higher than that, by another replica's clock, it is the one after. In one process every version is higher than all before it, whatever its clock does.
final class VersionSource: Sendable {
    private let last = Mutex<Int64>(0)

    /// The version of a record that does not exist yet.
    func first(at now: Timestamp) -> Int64 {
        let candidate = now.milliseconds * 1000 + Int64.random(in: 0..<1000)
        return last.withLock { last in
            last = max(candidate, last + 1)
            return last
        }
    }

    /// The version of what replaces `version`. Like a first one, so that it is given once: a store that has lost its last
    /// commits does not give their versions to other contents, and of two contents the later one has the higher version.
    func next(after version: Int64, at now: Timestamp) -> Int64 {
        let candidate = first(at: now)
        return last.withLock { last in
            if candidate > version { return candidate }
            last = max(last + 1, version + 1)
            return last
        }
    }
}
