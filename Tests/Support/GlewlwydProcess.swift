internal import Glibc
internal import JSON
internal import Reactor

/// The Python process that runs Glewlwyd and plays its user's browser (`glewlwyd/glewlwyd.py`), spoken to in lines of
/// JSON over one socket.
///
/// Its calls block, so it lives on a thread of its own. The process ends when the socket closes: with `end()`, when
/// the actor is let go of, and when the test process dies in whatever way.
actor GlewlwydProcess {
    private nonisolated let thread: BlockingThread
    private let processID: pid_t
    private var socket: OwnedDescriptor?
    private var unread: [UInt8] = []

    /// An answer is a few URLs and perhaps the end of a log; more than this is no answer.
    private static let maximumLineBytes = 1 << 16

    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    /// Starts the process; nothing has been read from it yet.
    init(arguments: [String]) throws {
        var pair: [CInt] = [-1, -1]
        // Close-on-exec from the start: a copy of our end in another child would keep this one alive.
        let type = CInt(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
        try retryingInterrupts("socketpair") { unsafe socketpair(AF_UNIX, type, 0, &pair) }
        let ours = OwnedDescriptor(adopting: pair[0])
        let theirs = OwnedDescriptor(adopting: pair[1])
        processID = try Self.spawn(arguments, standardInputAndOutput: theirs.rawValue)
        thread = try BlockingThread(name: "glewlwyd")
        socket = consume ours
    }

    deinit {
        if socket != nil {
            socket = nil
            Self.reap(processID)
        }
        thread.shutDown()
    }

    /// Has the server stopped and its directory removed, and returns when that is done.
    func end() {
        guard socket != nil else { return }
        socket = nil
        Self.reap(processID)
    }

    /// Sends one line and returns the answer to it.
    func exchange(_ line: [UInt8], within limit: Duration) throws -> JSONValue {
        try send(line + [UInt8(ascii: "\n")])
        return try readAnswer(within: limit)
    }

    /// The next answer. One that tells of an error is thrown as such.
    func readAnswer(within limit: Duration) throws -> JSONValue {
        let deadline = MonotonicInstant.after(limit)
        while true {
            if let end = unread.firstIndex(of: UInt8(ascii: "\n")) {
                let line = Array(unread[..<end])
                unread.removeSubrange(...end)
                let answer = try JSONValue(parsing: line)
                if let error = answer["error"]?.string { throw GlewlwydFailure(error) }
                return answer
            }
            guard unread.count < Self.maximumLineBytes else { throw GlewlwydFailure("its answer has no end") }
            try receive(until: deadline)
        }
    }

    // MARK: The socket

    private func send(_ bytes: [UInt8]) throws {
        let descriptor = try openDescriptor()
        var sent = 0
        while sent < bytes.count {
            let rest = bytes[sent...]
            sent += try retryingInterrupts("send") {
                unsafe rest.withUnsafeBytes {
                    unsafe Glibc.send(descriptor, $0.baseAddress, $0.count, CInt(MSG_NOSIGNAL))
                }
            }
        }
    }

    private func receive(until deadline: MonotonicInstant) throws {
        let descriptor = try openDescriptor()
        let remaining = CInt(clamping: MonotonicInstant.now.duration(to: deadline).milliseconds)
        var interest = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        let ready = try retryingInterrupts("poll") { unsafe poll(&interest, 1, max(0, remaining)) }
        guard ready > 0 else { throw GlewlwydFailure("no answer in time") }
        var buffer = [UInt8](repeating: 0, count: 4096)
        let count = try retryingInterrupts("read") { unsafe read(descriptor, &buffer, buffer.count) }
        guard count > 0 else { throw GlewlwydFailure("the process ended; see standard error") }
        unread += buffer[..<count]
    }

    private func openDescriptor() throws -> CInt {
        guard let number = socket?.rawValue else { throw GlewlwydFailure("used after it was stopped") }
        return number
    }

    // MARK: The process

    private static func spawn(_ arguments: [String], standardInputAndOutput: CInt) throws -> pid_t {
        var actions = unsafe posix_spawn_file_actions_t()
        unsafe posix_spawn_file_actions_init(&actions)
        defer { unsafe posix_spawn_file_actions_destroy(&actions) }
        // A duplicate does not inherit close-on-exec.
        unsafe posix_spawn_file_actions_adddup2(&actions, standardInputAndOutput, STDIN_FILENO)
        unsafe posix_spawn_file_actions_adddup2(&actions, standardInputAndOutput, STDOUT_FILENO)

        // A blocked signal stays blocked in a child; there it would make a request to terminate go unheard.
        var attributes = posix_spawnattr_t()
        unsafe posix_spawnattr_init(&attributes)
        defer { unsafe posix_spawnattr_destroy(&attributes) }
        var none = sigset_t()
        var all = sigset_t()
        unsafe sigemptyset(&none)
        unsafe sigfillset(&all)
        unsafe posix_spawnattr_setsigmask(&attributes, &none)
        unsafe posix_spawnattr_setsigdefault(&attributes, &all)
        unsafe posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF))

        var strings: [UnsafeMutablePointer<CChar>?] = unsafe arguments.map { unsafe strdup($0) } + [nil]
        defer { for index in unsafe strings.indices { unsafe free(strings[index]) } }
        var child = pid_t()
        let result = unsafe posix_spawn(&child, arguments[0], &actions, &attributes, &strings, environ)
        if result != 0 { throw SystemError("posix_spawn \(arguments[0])", number: result) }
        return child
    }

    private static func reap(_ processID: pid_t) {
        while waitpid(processID, nil, 0) == -1 && errno == EINTR {}
    }
}
