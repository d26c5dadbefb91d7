import OAuth
import Synchronization

/// Makes versions of records. They rise even if a record is removed and made again, so that no entity tag is used twice and no
/// late compare-and-set finds the version that it started from. An unchanged version means unchanged content.
///
/// A version is the time in microseconds, of which the last three digits are random: so replicas with equal clocks make
/// different versions. Where the replaced version is higher, because of another replica's clock, the new version is the next
/// number. Within one process every version is higher than all earlier ones, whatever its clock does.
final class VersionSource: Sendable {
    private let last = Mutex<Int64>(0)

    /// When a version was made, but for the differences of clocks. Versions of earlier builds are far in the past.
    static func time(of version: Int64) -> Timestamp { Timestamp(milliseconds: version / 1000) }

    /// The version of a record that does not exist yet.
    func first(at now: Timestamp) -> Int64 {
        let candidate = now.milliseconds * 1000 + Int64.random(in: 0..<1000)
        return last.withLock { last in
            last = max(candidate, last + 1)
            return last
        }
    }

    /// The version of a record that replaces `version`. It is as unique as a first version: after a loss of commits, the lost
    /// versions are not given to other contents, and of two contents the later one has the higher version.
    func next(after version: Int64, at now: Timestamp) -> Int64 {
        let candidate = first(at: now)
        return last.withLock { last in
            if candidate > version { return candidate }
            last = max(last + 1, version + 1)
            return last
        }
    }
}
