public import Auth
import BrokerCore
public import FoundationEssentials
package import OAuth
package import Reactor
import Synchronization

/// A clock that a test moves, for `AuthEnvironment.scripted`. What sleeps on it sleeps until the test has moved it far
/// enough.
///
/// Any task may use it.
public final class ManualClock: Sendable {
    private struct Sleeper {
        let due: Duration
        let length: Duration
        let continuation: CheckedContinuation<Bool, Never>
    }

    private struct State {
        var elapsed: Duration = .zero
        var sleepers: [UInt64: Sleeper] = [:]
        var cancelled: Set<UInt64> = []
        var lastSleeper: UInt64 = 0
        var watchers: [UInt64: Watcher] = [:]
        var lastWatcher: UInt64 = 0
    }

    /// A wait for a sleep to begin.
    private struct Watcher {
        let length: Duration
        let continuation: CheckedContinuation<Void, Never>
    }

    private let beginning: Timestamp
    private let state = Mutex(State())

    /// - Parameter beginning: the time that it shows at first, in whole seconds. Default: the present time.
    public init(_ beginning: Date = Date()) {
        self.beginning = Timestamp(seconds: Int64(beginning.timeIntervalSince1970.rounded(.down)))
    }

    /// The time that it shows.
    public var date: Date { Date(timeIntervalSince1970: Double(now.milliseconds) / 1000) }

    /// Moves it forward, and wakes what has slept until then.
    public func advance(by duration: Duration) {
        let due = state.withLock { state in
            state.elapsed += max(duration, .zero)
            let due = state.sleepers.filter { $0.value.due <= state.elapsed }
            for number in due.keys { state.sleepers[number] = nil }
            return due.sorted { $0.value.due < $1.value.due }.map(\.value)
        }
        for sleeper in due { sleeper.continuation.resume(returning: true) }
    }

    /// Suspends until something sleeps on this clock for that long, or until the task is cancelled. The pause before a
    /// request is repeated for the first time is 0.5 s. The library's work in the background sleeps as well, for a second
    /// and longer, so that a longer sleep may be another one than the test means.
    public func waitForSleep(of length: Duration) async {
        let number = state.withLock { state in
            state.lastWatcher += 1
            return state.lastWatcher
        }
        await withTaskCancellationHandler {
            await withCheckedContinuation { (continuation: CheckedContinuation<Void, Never>) in
                let isOver = state.withLock { state in
                    if Task.isCancelled || state.sleepers.values.contains(where: { $0.length == length }) {
                        return true
                    }
                    state.watchers[number] = Watcher(length: length, continuation: continuation)
                    return false
                }
                if isOver { continuation.resume() }
            }
        } onCancel: {
            state.withLock { $0.watchers.removeValue(forKey: number) }?.continuation.resume()
        }
    }
}

extension ManualClock: Time {
    package var now: Timestamp { beginning.advanced(by: state.withLock { $0.elapsed }) }

    package var monotonic: MonotonicInstant {
        MonotonicInstant(nanoseconds: 1).advanced(by: state.withLock { $0.elapsed })
    }

    package func sleep(for duration: Duration) async throws(CancellationError) {
        let number = state.withLock { state in
            state.lastSleeper += 1
            return state.lastSleeper
        }
        let isOver = await withTaskCancellationHandler {
            await withCheckedContinuation { (continuation: CheckedContinuation<Bool, Never>) in
                let (outcome, watchers) = state.withLock { state -> (Bool?, [Watcher]) in
                    if state.cancelled.remove(number) != nil { return (false, []) }
                    if duration <= .zero { return (true, []) }
                    state.sleepers[number] = Sleeper(
                        due: state.elapsed + duration, length: duration, continuation: continuation)
                    let watchers = state.watchers.filter { $0.value.length == duration }
                    for number in watchers.keys { state.watchers[number] = nil }
                    return (nil, Array(watchers.values))
                }
                if let outcome { continuation.resume(returning: outcome) }
                for watcher in watchers { watcher.continuation.resume() }
            }
        } onCancel: {
            let sleeper = state.withLock { state in
                let sleeper = state.sleepers.removeValue(forKey: number)
                if sleeper == nil { state.cancelled.insert(number) }
                return sleeper
            }
            sleeper?.continuation.resume(returning: false)
        }
        if !isOver { throw CancellationError() }
    }
}

extension AuthEnvironment {
    /// An environment whose provider is a script, and which uses no network. Provider addresses are taken as they are, `http://`
    /// and private ones too.
    /// - Parameters:
    ///   - transport: gets every request to providers.
    ///   - storage: default: in memory.
    ///   - clock: default: the system's clocks.
    ///   - requestInterceptor: sees each request before the script does. Default: none.
    public static func scripted(
        _ transport: ScriptedTransport, storage: Storage = .memory, clock: ManualClock? = nil,
        requestInterceptor: RequestInterceptor? = nil
    ) -> AuthEnvironment {
        AuthEnvironment(
            storage: storage, allowsInsecureProviders: true, time: clock ?? SystemTime(), transport: transport,
            requestInterceptor: requestInterceptor)
    }
}
