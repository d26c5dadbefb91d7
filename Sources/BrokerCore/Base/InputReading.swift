import Synchronization
import Waiting

/// Where input from outside is read.
///
/// Small input is read where it has arrived: that takes less than a switch of threads. Large input would hold up the
/// event loop that other requests and other tenants share, so it is read on Swift's global pool, and so are the records
/// of a long list.
package enum InputReading {
    /// Input of more bytes is read on the global pool. 16 KiB.
    package static let largestInPlace = 16_384

    /// How many inputs are read on the global pool at once; the others wait in the order in which they came. What waits
    /// is bounded by the server's limit on contents, and by the number of connections to providers.
    private static let places = ReadingPlaces(count: 2)

    /// Runs `read`, which reads `count` bytes of input and takes time in proportion to them.
    package static func run<Value: Sendable, Failure: Error>(
        bytes count: Int, _ read: @Sendable () throws(Failure) -> Value
    ) async throws(Failure) -> Value {
        if count <= largestInPlace { return try read() }
        return try await runOnGlobalPool(read)
    }

    /// Runs `read` on the global pool however small its input is, because it takes longer than reading does.
    package static func runOnGlobalPool<Value: Sendable, Failure: Error>(
        _ read: @Sendable () throws(Failure) -> Value
    ) async throws(Failure) -> Value {
        await places.take()
        defer { places.leave() }
        return try await onGlobalPool(read)
    }

    @concurrent
    private static func onGlobalPool<Value: Sendable, Failure: Error>(
        _ read: @Sendable () throws(Failure) -> Value
    ) async throws(Failure) -> Value {
        // A task that prefers an event loop would run `@concurrent` functions there, too.
        let result: Result<Value, Failure> = await withTaskExecutorPreference(globalConcurrentExecutor) {
            await Self.result(of: read)
        }
        return try result.get()
    }

    @concurrent
    private static func result<Value: Sendable, Failure: Error>(
        of read: @Sendable () throws(Failure) -> Value
    ) async -> Result<Value, Failure> {
        do throws(Failure) {
            return .success(try read())
        } catch {
            return .failure(error)
        }
    }
}

/// Places for work that ends by itself within milliseconds. A wait for one therefore needs no cancellation.
private final class ReadingPlaces: Sendable {
    private struct State {
        var free: Int
        var waiters = WaitList<Void, Void>()
    }

    private let state: Mutex<State>

    init(count: Int) {
        state = Mutex(State(free: count))
    }

    func take() async {
        let waiter = state.withLock { state -> Waiter<Void>? in
            if state.free == 0 { return state.waiters.enter() }
            state.free -= 1
            return nil
        }
        await waiter?.value()
    }

    func leave() {
        let next = state.withLock { state -> Waiter<Void>? in
            if let next = state.waiters.popFirst() { return next.waiter }
            state.free += 1
            return nil
        }
        next?.resume()
    }
}
