internal import Glibc
internal import Synchronization

/// Writes lines to a descriptor from its own thread, so that a full or stalled pipe does not block the caller. A line
/// that does not fit into the bounded queue is dropped.
package final class LineWriter: Sendable {
    private struct State {
        var pending: [UInt8] = []
        var isClosed = false
        var isIdle = true
    }

    private let descriptor: CInt
    private let capacity: Int
    private let state = Mutex(State())
    private let wakeUp = Semaphore()
    private let drained = Semaphore()

    /// - Parameters:
    ///   - descriptor: is borrowed and stays open.
    ///   - capacity: the most bytes that may wait to be written.
    package init(descriptor: CInt, capacity: Int = 1 << 20) throws(SystemError) {
        self.descriptor = descriptor
        self.capacity = capacity
        try Thread.start(name: "log") { self.run() }.detach()
    }

    /// Queues a line and adds its newline. Never blocks.
    package func write(_ line: [UInt8]) {
        let mustSignal = state.withLock { state in
            if state.isClosed || state.pending.count + line.count + 1 > capacity { return false }
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
        wakeUp.signal()
        drained.wait(for: limit)
    }

    private func run() {
        while true {
            wakeUp.wait()
            while true {
                let batch = state.withLock { state in
                    let batch = state.pending
                    state.pending = []
                    if batch.isEmpty { state.isIdle = true }
                    return batch
                }
                if batch.isEmpty { break }
                writeAll(batch)
            }
            if state.withLock({ $0.isClosed && $0.pending.isEmpty }) { return drained.signal() }
        }
    }

    private func writeAll(_ bytes: [UInt8]) {
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
                // The pipe is closed or broken, so the failure cannot be logged either.
                return
            }
        }
    }
}
