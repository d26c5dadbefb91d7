import Glibc

/// A small file that counts only while the process that has written it holds it. The kernel ends the hold when the process ends in
/// any way, so that a reader tells what a killed process has left behind from what is so now. Only this user may read it. The calls
/// block.
package final class HeldFile: Sendable {
    private let path: String
    private let file: DraftFile

    /// Replaces the file at the path, which is held from its first moment there.
    package init(_ path: String, _ bytes: [UInt8]) throws(SystemError) {
        self.path = path
        file = try DraftFile(for: path)
        try file.append(bytes)
        try file.hold()
        try file.complete(replaces: true)
    }

    deinit { file.release() }

    /// Ends the hold, and removes the file. No other process may have replaced it.
    package func remove() {
        SmallFile.remove(path)
        file.release()
    }

    /// What the file says, if a process holds it; nil for a file that is missing, that none holds, or that other users can write.
    /// - Throws: where it cannot be known: `EACCES` for a directory of another user, and `EFBIG` for more bytes than the limit.
    package static func read(_ path: String, limit: Int) throws(SystemError) -> [UInt8]? {
        let file: OwnedDescriptor
        do throws(SystemError) {
            file = try SmallFile.openWithoutWaiting(path)
        } catch {
            if error.isNoSuchFile || error.number == ENOTDIR { return nil }
            throw error
        }
        if try FileAccess(of: file.rawValue).isWritableByOthers { return nil }
        let number = file.rawValue
        do throws(SystemError) {
            // A shared lock, so that two readers do not take each other for the holder. It ends with the descriptor.
            try retryingInterrupts("flock") { flock(number, LOCK_SH | LOCK_NB) }
        } catch {
            guard error.number == EWOULDBLOCK else { throw error }
            return try SmallFile.read(file, limit)
        }
        return nil
    }
}

/// Where the addresses of a process lead: `127.0.0.1` is another machine's in a container, and on the other side of a file system
/// that two machines share.
package enum NetworkPlace {
    /// The same text for two processes whose loopback addresses are the same: the start of the machine, and the network
    /// namespace. What the system does not tell is left out.
    package static var current: String {
        let start = (try? SmallFile.read("/proc/sys/kernel/random/boot_id", limit: 256)) ?? []
        let namespace = (try? FilePlace.target(ofLink: "/proc/self/ns/net")) ?? []
        return String(decoding: start.prefix { $0 != 0x0a } + [0x20] + namespace, as: UTF8.self)
    }
}
