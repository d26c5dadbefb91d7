internal import Dispatch
internal import Glibc

/// SIGTERM and SIGINT, taken from their default action.
struct TerminationSignals {
    private let arrivals: AsyncStream<Void>
    private let sources: [any DispatchSourceSignal]

    /// From here on the signals are noticed, and end nothing by themselves.
    init() {
        let (arrivals, arrival) = AsyncStream.makeStream(of: Void.self, bufferingPolicy: .bufferingOldest(1))
        self.arrivals = arrivals
        sources = [SIGTERM, SIGINT].map { number in
            // Dispatch watches a signal beside its disposition, which would still end the process.
            signal(number, SIG_IGN)
            let source = DispatchSource.makeSignalSource(signal: number, queue: .global())
            source.setEventHandler { arrival.yield() }
            source.activate()
            return source
        }
    }

    /// Returns once one of them has come, which may have been before.
    func wait() async {
        for await _ in arrivals { return }
    }
}
