import Glibc
import Reactor

/// Disk space that is kept for commits which add next to nothing, such as logouts and renewals: a file whose blocks are
/// reserved, and which is removed when the disk is full. Until it is whole again, no other commit takes place, so that
/// nothing else uses up what was given up for these.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class RoomReserve {
    static let name = "reserve"
    /// Enough for the events and the entries of the audit log of some hundred commits.
    private static let count = 1 << 20

    private let directory: StoreDirectory
    private(set) var isWhole = false

    init(_ directory: StoreDirectory) {
        self.directory = directory
    }

    /// Reserves the space again. Does nothing where none can be reserved for another reason than a full disk: there is
    /// nothing to give up then.
    /// - Throws: with `ENOSPC` or `EDQUOT` when there is not enough.
    func fill() throws(SystemError) {
        if isWhole { return }
        do throws(SystemError) {
            try directory.reserve(Self.name, upTo: Self.count)
        } catch {
            // The part that was reserved is of use to the commits that it is for.
            _ = try? directory.remove(Self.name)
            if error.number == ENOSPC || error.number == EDQUOT { throw error }
        }
        isWhole = true
    }

    /// Gives the space up. Returns whether there was any.
    func giveUp() -> Bool {
        if !isWhole { return false }
        isWhole = false
        return (try? directory.remove(Self.name)) ?? false
    }
}
