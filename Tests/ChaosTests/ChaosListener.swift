import BrokerTesting
import FoundationEssentials
import Reactor
import Synchronization

/// Listens to the events of all tenants: at one replica after the other, from where the stream before it broke off.
final class ChaosListener: Sendable {
    private let number: Int
    private let ports: [UInt16]
    private let records: ChaosRecords
    private let isClosed = Mutex(false)
    private let lastID = Mutex<String?>(nil)

    /// - Parameters:
    ///   - number: tells listeners apart, and names the replica that is listened to first.
    ///   - ports: of the replicas.
    init(_ number: Int, ports: [UInt16], records: ChaosRecords) {
        self.number = number
        self.ports = ports
        self.records = records
        records.add(listener: number)
    }

    /// The next stream that ends is the last one.
    func close() { isClosed.withLock { $0 = true } }

    /// - Parameter begun: called once the first stream has begun.
    func run(_ begun: @Sendable () -> Void) async {
        var replica = number
        while !isClosed.withLock({ $0 }) {
            do {
                try await listen(at: ports[replica % ports.count], begun)
            } catch {
                // The replica is not there, or its stream has ended.
                try? await Task.sleep(for: .milliseconds(50))
            }
            replica += 1
        }
    }

    private func listen(at port: UInt16, _ begun: @Sendable () -> Void) async throws {
        let stream = try await SSEClient(
            SocketAddress(ip: .v4([127, 0, 0, 1]), port: port), lastID: lastID.withLock { $0 })
        begun()
        var taken = 0
        while true {
            let events = try await stream.events(taken + 1)
            guard events.count > taken else { break }
            for event in events[taken...] {
                if let id = event.id { lastID.withLock { $0 = id } }
                let isTelling =
                    event.name.hasPrefix("credentials.") || event.name == "stream.reset"
                    || event.name == "session.ended"
                records.add(
                    Heard(
                        listener: number, at: rightNow(), id: event.id ?? "", name: event.name,
                        data: isTelling ? event.data : nil))
            }
            taken = events.count
        }
        await stream.close()
    }
}
