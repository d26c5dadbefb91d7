import Glibc
import Reactor

/// An actor on a loop, like the callers of `ready`.
actor LoopActor {
    let loop: EventLoop
    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    init(_ loop: EventLoop) { self.loop = loop }

    /// Runs `body` on the loop's thread.
    @discardableResult
    func run<R: Sendable>(_ body: (EventLoop) async throws -> R) async rethrows -> R { try await body(loop) }

    /// The error that `body` throws on the loop's thread. The macros of Swift Testing would run `body` on another
    /// thread.
    func failure(_ body: (EventLoop) async throws -> Void) async -> (any Error)? {
        do {
            try await body(loop)
            return nil
        } catch {
            return error
        }
    }

    /// Runs `body` on the loop's thread without a suspension.
    func runAtOnce<R: Sendable>(_ body: @Sendable (EventLoop) throws -> R) rethrows -> R { try body(loop) }
}

/// Runs `body` with a loop and shuts the loop down afterwards.
/// - Parameter clock: what the loop reads the time from; nil for the machine's clock.
@discardableResult
func withLoop<R: Sendable>(
    clock: (any LoopClock)? = nil, _ body: (LoopActor) async throws -> R
) async throws -> R {
    let loop = try EventLoop(name: "test-loop", clock: clock)
    let actor = LoopActor(loop)
    let result: Result<R, any Error>
    do {
        result = .success(try await body(actor))
    } catch {
        result = .failure(error)
    }
    loop.shutDown()
    return try result.get()
}

/// Two connected non-blocking stream sockets.
final class SocketPair: Sendable {
    let near: CInt
    let far: CInt

    init() throws {
        var ends: [CInt] = [-1, -1]
        let type = CInt(SOCK_STREAM.rawValue) | CInt(SOCK_NONBLOCK.rawValue) | CInt(SOCK_CLOEXEC.rawValue)
        try retryingInterrupts("socketpair") { unsafe socketpair(AF_UNIX, type, 0, &ends) }
        (near, far) = (ends[0], ends[1])
    }

    deinit {
        close(near)
        close(far)
    }

    /// Makes `near` readable.
    func sendByte() {
        var byte: UInt8 = 1
        _ = unsafe send(far, &byte, 1, CInt(MSG_NOSIGNAL))
    }

    /// Reads and discards what was written to `near`.
    func drain() {
        var bytes = [UInt8](repeating: 0, count: 64)
        _ = unsafe recv(near, &bytes, bytes.count, 0)
    }
}
