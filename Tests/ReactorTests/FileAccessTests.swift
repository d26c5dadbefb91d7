import Glibc
import Testing

@testable import Reactor

@Suite struct `File access of other users` {
    struct Case: Sendable {
        var owner: uid_t = 7
        var group: gid_t = 7
        var mode: mode_t
        var user: uid_t = 7
        var isAnothers = false
        var isWritable = false
        var isReadable = false
    }

    @Test(arguments: [
        Case(mode: 0o600), Case(mode: 0o400), Case(mode: 0o700), Case(mode: 0o100_600),
        Case(mode: 0o640, isReadable: true), Case(mode: 0o604, isReadable: true), Case(mode: 0o444, isReadable: true),
        Case(mode: 0o620, isWritable: true), Case(mode: 0o602, isWritable: true),
        Case(mode: 0o666, isWritable: true, isReadable: true), Case(owner: 8, mode: 0o600, isAnothers: true),
        Case(owner: 8, mode: 0o600, user: 0, isAnothers: true), Case(owner: 0, mode: 0o600),
        Case(owner: 0, mode: 0o600, user: 0),
        // Kubernetes mounts a secret with this mode for a group of the process.
        Case(owner: 0, mode: 0o440), Case(owner: 0, group: 9, mode: 0o440),
        Case(owner: 0, mode: 0o444, isReadable: true),
        Case(owner: 0, group: 8, mode: 0o440, isReadable: true), Case(owner: 0, mode: 0o460, isWritable: true),
        Case(owner: 0, mode: 0o440, user: 0, isReadable: true),
    ])
    func `follows from its owner, its group and its mode`(file: Case) {
        let access = FileAccess(owner: file.owner, group: file.group, mode: file.mode, user: file.user, groups: [7, 9])
        #expect(access.belongsToAnother == file.isAnothers)
        #expect(access.isWritableByOthers == file.isWritable)
        #expect(access.isReadableByOthers == file.isReadable)
    }
}
