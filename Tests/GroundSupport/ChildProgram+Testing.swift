import Glibc
package import Reactor

extension ChildProgram {
    /// The two ends of a local socket. Both are close-on-exec from the start: a copy of our end in another child would
    /// keep this one waiting for us when we have gone.
    package struct SocketPair: ~Copyable {
        package let ours: OwnedDescriptor
        package let theirs: OwnedDescriptor

        package init() throws(SystemError) {
            var ends: [CInt] = [-1, -1]
            let type = CInt(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
            try retryingInterrupts("socketpair") { unsafe socketpair(AF_UNIX, type, 0, &ends) }
            ours = OwnedDescriptor(adopting: ends[0])
            theirs = OwnedDescriptor(adopting: ends[1])
        }

        package consuming func takeOurs() -> OwnedDescriptor { ours }
    }

    /// Waits for the end: the exit status, or 128 and the number of the signal that ended the program.
    package static func exitStatus(of child: CInt) -> CInt {
        var status: CInt = 0
        while unsafe waitpid(child, &status, 0) == -1, errno == EINTR {}
        return status & 0x7f == 0 ? (status >> 8) & 0xff : 128 + (status & 0x7f)
    }
}
