import Glibc

/// What other users than the process's own may do with a file.
///
/// Root may read and write every file, so it does not count as another user.
package struct FileAccess: Sendable, Equatable {
    /// Whether the owner is neither the process's user nor root.
    package let belongsToAnother: Bool
    /// Whether the file's group or all users may write to it.
    package let isWritableByOthers: Bool
    /// Whether the file's group or all users may read it. A file of root's does not count when only its group may read
    /// it and the process belongs to that group: orchestrators mount secrets that way for a process that does not run
    /// as root.
    package let isReadableByOthers: Bool

    /// - Parameter descriptor: the open file.
    package init(of descriptor: CInt) throws(SystemError) {
        var status = stat()
        try retryingInterrupts("fstat") { unsafe fstat(descriptor, &status) }
        self.init(
            owner: status.st_uid, group: status.st_gid, mode: status.st_mode, user: geteuid(), groups: Self.groups())
    }

    /// - Parameters:
    ///   - mode: the file's mode; only its permission bits are used.
    ///   - user: the user of the process.
    ///   - groups: the groups of the process.
    init(owner: uid_t, group: gid_t, mode: mode_t, user: uid_t, groups: [gid_t]) {
        belongsToAnother = owner != user && owner != 0
        isWritableByOthers = mode & 0o022 != 0
        let isGivenByRoot = owner == 0 && user != 0 && groups.contains(group)
        isReadableByOthers = mode & (isGivenByRoot ? 0o004 : 0o044) != 0
    }

    private static func groups() -> [gid_t] {
        var groups = [gid_t](repeating: 0, count: 65_536)
        let count = unsafe getgroups(CInt(groups.count), &groups)
        return [getegid()] + groups.prefix(Int(max(0, count)))
    }
}
