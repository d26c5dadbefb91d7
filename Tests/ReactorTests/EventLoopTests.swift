import Reactor
import Synchronization
import Testing

/// An actor that lives on a loop, as the users of `ready` do.
actor LoopActor {
    let loop: EventLoop
    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    init(_ loop: EventLoop) { self.loop = loop }

    func run<R>(_ body: (EventLoop) async throws -> sending R) async rethrows -> sending R { try await body(loop) }
}
