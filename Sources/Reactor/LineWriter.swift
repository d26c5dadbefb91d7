import Glibc
import Synchronization

/// Writes lines to a descriptor from its own thread, so that a full or stalled pipe does not block the caller. A line
/// that does not fit into the bounded queue, or that the descriptor does not take, is dropped. The lines that were dropped are
/// counted, and a line tells how many they were once the descriptor takes lines again.
package final class LineWriter: Sendable {
    private struct State {
        var pending: [UInt8] = []
        var dropped = 0
        var isClosed = false
        var isIdle = true
    }

    private let descriptor: CInt
    private let capacity: Int
    private let pause: Duration
    private let notice: @Sendable (_ count: Int) -> [UInt8]
    private let state = Mutex(State())
    private let wakeUp = Semaphore()
    private let closed = Semaphore()
    private let drained = Semaphore()

    /// - Parameters:
    ///   - descriptor: is borrowed and stays open.
    ///   - capacity: the most bytes that may wait to be written.
    ///   - pause: how long a line waits for others, which are then written with it. The thread is woken once for all of them,
    ///     and not for each of thousands of lines a second.
    ///   - notice: the line that tells how many lines were dropped.
    package init(
        descriptor: CInt, capacity: Int = 1 << 20, pause: Duration = .milliseconds(1),
        notice: @escaping @Sendable (_ count: Int) -> [UInt8]
    ) throws(SystemError) {
        self.descriptor = descriptor
        self.capacity = capacity
        self.pause = pause
        self.notice = notice
        try Thread.start(name: "log") { self.run() }.detach()
    }

    /// Queues a line and adds its newline. Never blocks.
    package func write(_ line: [UInt8]) {
        let mustSignal = state.withLock { state in
            if state.isClosed { return false }
            guard state.pending.count + line.count + 1 <= capacity else {
                state.dropped += 1
                return false
            }
            state.pending.append(contentsOf: line)
            state.pending.append(UInt8(ascii: "\n"))
            defer { state.isIdle = false }
            return state.isIdle
        }
        if mustSignal { wakeUp.signal() }
    }

    /// Waits at most `limit` for the queued lines to be written, and drops every later line.
    package func close(within limit: Duration) {
        let wasClosed = state.withLock { state in
            defer { state.isClosed = true }
            return state.isClosed
        }
        if wasClosed { return }
        closed.signal()
        wakeUp.signal()
        drained.wait(for: limit)
    }

    private func run() {
        // Whether the last octet that was written is not the end of a line.
        var isInLine = false
        while true {
            wakeUp.wait()
            closed.wait(for: pause)
            while true {
                let batch = state.withLock { state in
                    let batch = state.pending
                    state.pending = []
                    if batch.isEmpty { state.isIdle = true }
                    return batch
                }
                if batch.isEmpty { break }
                if isInLine {
                    // What is left of a line must not be joined to the next one.
                    guard writeAll([Self.newline]) == 1 else {
                        drop(batch[...])
                        continue
                    }
                    isInLine = false
                }
                let written = writeAll(batch)
                if written > 0 { isInLine = batch[written - 1] != Self.newline }
                if written < batch.count {
                    drop(batch[written...])
                } else {
                    isInLine = !tellOfDropped()
                }
            }
            if state.withLock({ $0.isClosed && $0.pending.isEmpty }) { return drained.signal() }
        }
    }

    private static let newline = UInt8(ascii: "\n")

    private func drop(_ bytes: ArraySlice<UInt8>) {
        let lines = bytes.count { $0 == Self.newline }
        state.withLock { $0.dropped += lines }
    }

    /// Writes the line that tells how many lines were dropped, if there were any.
    /// - Returns: whether what was written last is the end of a line.
    private func tellOfDropped() -> Bool {
        let count = state.withLock { $0.dropped }
        guard count > 0 else { return true }
        let line = notice(count) + [Self.newline]
        let written = writeAll(line)
        if written == line.count { state.withLock { $0.dropped -= count } }
        return written == 0 || written == line.count
    }

    /// Returns how many of the octets were written: fewer than all where the descriptor does not take more.
    private func writeAll(_ bytes: [UInt8]) -> Int {
        var offset = 0
        while offset < bytes.count {
            let written = unsafe bytes.withUnsafeBytes { buffer in
                unsafe Glibc.write(descriptor, buffer.baseAddress! + offset, buffer.count - offset)
            }
            if written > 0 {
                offset += written
                continue
            }
            switch errno {
            case EINTR: continue
            case EAGAIN:
                // Another process has made the pipe non-blocking.
                var watched = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
                _ = unsafe poll(&watched, 1, 1000)
            default:
                // The disk is full, or the pipe is closed or broken, so the failure cannot be logged either.
                return offset
            }
        }
        return offset
    }
}
