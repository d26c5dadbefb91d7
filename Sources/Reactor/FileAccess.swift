internal import Glibc

/// What users other than this process's may do with a file.
///
/// Root may do anything with every file, and does not count as another user.
package struct FileAccess: Sendable, Equatable {
    /// Whether the file belongs to a user who is neither this process's nor root.
    package let belongsToAnother: Bool
    /// Whether its group or everyone may write to it.
    package let isWritableByOthers: Bool
    /// Whether its group or everyone may read it. A file of root's that can be read by a group of this process, and not by
    /// everyone, does not count: that is how an orchestrator gives a secret to a process that does not run as root.
    package let isReadableByOthers: Bool

    /// - Parameter descriptor: of the open file.
    package init(of descriptor: CInt) throws(SystemError) {
        var status = stat()
        try retryingInterrupts("fstat") { unsafe fstat(descriptor, &status) }
        self.init(
            owner: status.st_uid, group: status.st_gid, mode: status.st_mode, user: geteuid(), groups: Self.groups())
    }

    /// - Parameters:
    ///   - mode: the permission bits; others are left out of account.
    ///   - user: of the process.
    ///   - groups: of the process.
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
