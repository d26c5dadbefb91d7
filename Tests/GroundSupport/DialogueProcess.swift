import Glibc
import Reactor
import Synchronization

/// A child process that is spoken to in lines: its standard input and output are the two directions of one local
/// socket.
///
/// It is expected to end when its input does, so it cannot outlive the tests, however they end. Its calls block.
package final class DialogueProcess: Sendable {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    private let identifier: pid_t
    /// Nil once the dialogue is over.
    private let channel: Mutex<OwnedDescriptor?>
    private let unread = Mutex<[UInt8]>([])

    /// More than this is no line.
    private static let maximumLineBytes = 1 << 20

    /// Starts a program, looked for in PATH where it is no path.
    package init(_ arguments: [String]) throws {
        let pair = try ChildProgram.SocketPair()
        let theirs = ChildProgram.Stream.descriptor(pair.theirs.rawValue)
        identifier = try ChildProgram.start(arguments, input: theirs, output: theirs)
        channel = Mutex(pair.takeOurs())
    }

    deinit { end() }

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

    /// Ends the child's input, and returns when the child has ended. A second call does nothing.
    package func end() {
        let isFirst = channel.withLock { channel in
            defer { channel = nil }
            return channel != nil
        }
        if isFirst { _ = ChildProgram.exitStatus(of: identifier) }
    }

    /// Writes one line to the child's input.
    package func write(_ line: String) throws {
        let descriptor = try descriptor()
        let bytes = Array((line + "\n").utf8)
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

    /// Waits for one line of the child's output; nil at its end.
    package func readLine(within limit: Duration = .seconds(30)) throws -> String? {
        let deadline = MonotonicInstant.after(limit)
        return try unread.withLock { unread in
            while true {
                if let end = unread.firstIndex(of: UInt8(ascii: "\n")) {
                    defer { unread.removeSubrange(...end) }
                    return String(decoding: unread[..<end], as: UTF8.self)
                }
                guard unread.count < Self.maximumLineBytes else { throw Failure(description: "a line has no end") }
                let received = try receive(until: deadline)
                if received.isEmpty {
                    defer { unread = [] }
                    return unread.isEmpty ? nil : String(decoding: unread, as: UTF8.self)
                }
                unread += received
            }
        }
    }

    private func receive(until deadline: MonotonicInstant) throws -> [UInt8] {
        let descriptor = try descriptor()
        let remaining = CInt(clamping: MonotonicInstant.now.duration(to: deadline).milliseconds)
        var interest = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        let ready = try retryingInterrupts("poll") { unsafe poll(&interest, 1, max(0, remaining)) }
        guard ready > 0 else { throw Failure(description: "the child says nothing") }
        var buffer = [UInt8](repeating: 0, count: 65_536)
        let count = try retryingInterrupts("read") { unsafe read(descriptor, &buffer, buffer.count) }
        return Array(buffer[..<count])
    }

    private func descriptor() throws -> CInt {
        let number = channel.withLock { channel -> CInt? in
            switch channel {
            case .some(let descriptor): descriptor.rawValue
            case nil: nil
            }
        }
        guard let number else { throw Failure(description: "the dialogue is over") }
        return number
    }
}
