package import Glibc
import Reactor
import Synchronization

/// A program that a test has started. It is killed when its last reference is released, and when the test process dies.
///
/// What it writes to standard output is collected, line by line; standard error is the tests' own.
package final class TestProcess: Sendable {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    /// The process's number, for what the kernel shows of it under /proc.
    package let identifier: pid_t
    private let output: TestProcessOutput

    /// - Parameters:
    ///   - arguments: the program's path and what follows it.
    ///   - environment: all of it; nothing is inherited but a PATH.
    package static func start(_ arguments: [String], environment: [String: String] = [:]) async throws -> TestProcess {
        try await TestProcessSpawner.shared.start(arguments, environment)
    }

    fileprivate init(_ identifier: pid_t, _ descriptor: consuming OwnedDescriptor) throws {
        self.identifier = identifier
        let descriptor = descriptor.relinquish()
        let output = TestProcessOutput()
        self.output = output
        try Thread.start(name: "test-output") { output.collect(descriptor, until: identifier) }.detach()
    }

    deinit {
        output.signal(SIGKILL, to: identifier)
    }

    /// The lines written so far.
    package var lines: [String] { output.lines.map(\.text) }

    /// The lines written so far, each with the time at which it was read here: milliseconds since 1970.
    package var timedLines: [(at: Int64, text: String)] { output.lines }

    /// The first line, past or future, that fits.
    /// - Throws: when the program ends without one.
    package func line(where fits: @escaping @Sendable (String) -> Bool) async throws -> String {
        if let line = await output.line(where: fits) { return line }
        throw Failure(description: "the program ended; it wrote:\n" + lines.joined(separator: "\n"))
    }

    /// SIGTERM. Returns the exit status, or 128 and the number of the signal that ended the program.
    @discardableResult
    package func terminate() async -> Int32 {
        output.signal(SIGTERM, to: identifier)
        return await output.exitStatus()
    }

    /// SIGABRT, as after a crash. Returns the exit status, or 128 and the number of the signal that ended the program.
    package func abort() async -> Int32 {
        output.signal(SIGABRT, to: identifier)
        return await output.exitStatus()
    }

    /// SIGKILL: the program has no say in it. Returns when it is gone.
    package func kill() async {
        output.signal(SIGKILL, to: identifier)
        _ = await output.exitStatus()
    }

    /// SIGHUP: the program reads again what it reads then.
    package func hangUp() {
        output.signal(SIGHUP, to: identifier)
    }

    /// SIGSTOP: the program stands still, and what is sent to it waits. It may be killed in this state.
    package func pause() {
        output.signal(SIGSTOP, to: identifier)
    }

    /// SIGCONT, after `pause`.
    package func resume() {
        output.signal(SIGCONT, to: identifier)
    }

    /// Bounds the size of each file that the program writes from now on (RLIMIT_FSIZE); nil lifts the bound. A write
    /// beyond it fails with EFBIG, where the program ignores SIGXFSZ, and ends the program otherwise.
    package func limitFiles(toBytes bytes: UInt64?) throws {
        try output.limitFiles(toBytes: bytes, of: identifier)
    }

    /// Waits for the program to end by itself.
    package func exitStatus() async -> Int32 { await output.exitStatus() }
}

/// What a child has written, and how it ended.
private final class TestProcessOutput: Sendable {
    private struct State {
        var lines: [(at: Int64, text: String)] = []
        var exitStatus: CInt?
        var waiters: [CheckedContinuation<Void, Never>] = []
    }

    private let state = Mutex(State())

    var lines: [(at: Int64, text: String)] { state.withLock { $0.lines } }

    /// Reads to the end of the output, then takes the exit status. Blocks its thread.
    func collect(_ descriptor: CInt, until identifier: pid_t) {
        var unfinished: [UInt8] = []
        var buffer = [UInt8](repeating: 0, count: 65_536)
        while true {
            let count = unsafe read(descriptor, &buffer, buffer.count)
            if count == -1, errno == EINTR { continue }
            if count <= 0 { break }
            unfinished += buffer[..<count]
            while let end = unfinished.firstIndex(of: UInt8(ascii: "\n")) {
                let line = String(decoding: unfinished[..<end], as: UTF8.self)
                unfinished.removeSubrange(...end)
                let now = WallClock.milliseconds
                change { $0.lines.append((now, line)) }
            }
        }
        close(descriptor)
        // The status is taken while the state is locked: a signal is never sent to a number that is free again.
        var hasEnded = unsafe siginfo_t()
        while unsafe waitid(P_PID, id_t(identifier), &hasEnded, WEXITED | WNOWAIT) == -1, errno == EINTR {}
        change { state in
            state.exitStatus = ChildProgram.exitStatus(of: identifier)
        }
    }

    func signal(_ number: CInt, to identifier: pid_t) {
        state.withLock { state in
            if state.exitStatus == nil { _ = Glibc.kill(identifier, number) }
        }
    }

    func limitFiles(toBytes bytes: UInt64?, of identifier: pid_t) throws {
        try state.withLock { state in
            if state.exitStatus != nil { return }
            let limit = bytes.map { "\($0)" } ?? "unlimited"
            // prlimit(2) is not among what Swift sees of glibc.
            let program = try ChildProgram.start(["/usr/bin/prlimit", "--pid", "\(identifier)", "--fsize=\(limit):"])
            let status = ChildProgram.exitStatus(of: program)
            if status != 0 { throw TestProcess.Failure(description: "prlimit ended with \(status)") }
        }
    }

    func line(where fits: (String) -> Bool) async -> String? {
        var seen = 0
        while true {
            let (found, isOver) = state.withLock { state in
                defer { seen = state.lines.count }
                return (state.lines[seen...].first { fits($0.text) }?.text, state.exitStatus != nil)
            }
            if found != nil || isOver { return found }
            await changed(from: seen)
        }
    }

    func exitStatus() async -> CInt {
        while true {
            if let status = state.withLock({ $0.exitStatus }) { return status }
            await changed(from: nil)
        }
    }

    /// Suspends until something is new; at once when more lines than `count` are there.
    private func changed(from count: Int?) async {
        await withCheckedContinuation { continuation in
            let isNew = state.withLock { state in
                if state.exitStatus != nil || count.map({ state.lines.count > $0 }) ?? false { return true }
                state.waiters.append(continuation)
                return false
            }
            if isNew { continuation.resume() }
        }
    }

    private func change(_ body: (inout State) -> Void) {
        let waiters = state.withLock { state in
            body(&state)
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter.resume() }
    }
}

/// Starts all programs from one thread that never ends: the kernel's death signal to a child is sent when the thread
/// that started it ends.
private actor TestProcessSpawner {
    static let shared = TestProcessSpawner()

    private nonisolated let thread: BlockingThread

    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    private init() {
        do {
            thread = try BlockingThread(name: "test-spawner")
        } catch {
            preconditionFailure("the tests cannot run: \(error)")
        }
    }

    func start(_ arguments: [String], _ environment: [String: String]) throws -> TestProcess {
        let pair = try ChildProgram.SocketPair()
        let child = try ChildProgram.start(
            ["/usr/bin/setpriv", "--pdeathsig", "KILL", "--"] + arguments,
            environment: environment.merging(["PATH": "/usr/sbin:/usr/bin:/sbin:/bin"]) { given, _ in given },
            output: .descriptor(pair.theirs.rawValue))
        return try TestProcess(child, pair.takeOurs())
    }
}
