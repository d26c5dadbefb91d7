internal import Glibc
internal import Reactor

/// A child process whose standard input and output are the two directions of one local socket.
///
/// It is expected to end when its input does, so it cannot outlive the tests, however they end.
@safe package final class TLSTestProcess: Sendable {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    private let identifier: pid_t
    private let channel: CInt

    /// Starts `executable`, looked for in PATH.
    package init(_ executable: String, _ arguments: [String]) throws {
        var ends: [CInt] = [-1, -1]
        // Close-on-exec from the first moment: a second child that inherited an end would keep it open.
        let type = CInt(SOCK_STREAM.rawValue) | CInt(SOCK_CLOEXEC.rawValue)
        guard unsafe socketpair(AF_UNIX, type, 0, &ends) == 0 else { throw Failure(description: "socketpair") }
        defer { close(ends[1]) }
        var patience = timeval(tv_sec: 30, tv_usec: 0)
        unsafe setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, socklen_t(MemoryLayout<timeval>.size))

        var actions = unsafe posix_spawn_file_actions_t()
        unsafe posix_spawn_file_actions_init(&actions)
        defer { unsafe posix_spawn_file_actions_destroy(&actions) }
        unsafe posix_spawn_file_actions_adddup2(&actions, ends[1], 0)
        unsafe posix_spawn_file_actions_adddup2(&actions, ends[1], 1)
        var pointers: [UnsafeMutablePointer<CChar>?] = unsafe ([executable] + arguments).map { unsafe strdup($0) }
        unsafe pointers.append(nil)
        defer { for index in unsafe pointers.indices { unsafe free(pointers[index]) } }
        var identifier = pid_t()
        let result = unsafe posix_spawnp(&identifier, executable, &actions, nil, pointers, environ)
        guard result == 0 else {
            close(ends[0])
            throw Failure(description: "cannot start \(executable): error \(result)")
        }
        self.identifier = identifier
        channel = ends[0]
    }

    deinit {
        close(channel)
        var status: CInt = 0
        while unsafe waitpid(identifier, &status, 0) == -1, errno == EINTR {}
    }

    /// The system's Python where there is one: version managers put a slow script of the same name before it in PATH.
    package static let python: String = unsafe access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3"

    /// Runs what blocks on a thread of its own: the threads that tasks share are few, and one that waits for a child
    /// could be the one that another test needs to let that child go on.
    package static func blocking<R: Sendable>(_ body: @escaping @Sendable () throws -> R) async throws -> R {
        try await withCheckedThrowingContinuation { continuation in
            do {
                try Thread.start(name: "test-child") { continuation.resume(with: Result { try body() }) }.detach()
            } catch {
                continuation.resume(throwing: error)
            }
        }
    }

    /// Writes one line to the child's input.
    package func write(_ line: String) throws {
        let bytes = Array((line + "\n").utf8)
        guard unsafe send(channel, bytes, bytes.count, CInt(MSG_NOSIGNAL)) == bytes.count else {
            throw Failure(description: "the child has gone")
        }
    }

    /// Waits for one line of the child's output; nil at its end.
    package func readLine() throws -> String? {
        var line: [UInt8] = []
        var byte: UInt8 = 0
        while true {
            let count = unsafe recv(channel, &byte, 1, 0)
            if count < 0 { throw Failure(description: "the child says nothing: errno \(errno)") }
            if count == 0 { return line.isEmpty ? nil : String(decoding: line, as: UTF8.self) }
            if byte == UInt8(ascii: "\n") { return String(decoding: line, as: UTF8.self) }
            line.append(byte)
        }
    }
}
