import CredentialStore
import Cryptography
import ExternalText
package import JSON
import OAuth

/// An entry of the log in the form in which listeners get it (WHATWG HTML, "Server-sent events"): encoded once for all listeners.
final class EventEntry: Sendable {
    struct Event: Sendable {
        let kind: BrokerEvent.Kind
        let index: Int
        let bytes: [UInt8]
    }

    let sequence: Int64
    let tenant: TenantName
    let storageKey: WireText
    let events: [Event]
    /// Whether it has no events, and says that older events of its tenant are gone.
    let isMarker: Bool

    /// Nil for an entry that cannot be opened.
    init?(_ entry: VaultLogEntry) {
        guard let content = entry.content else { return nil }
        sequence = entry.sequence
        tenant = entry.tenant
        storageKey = WireText(entry.key)
        isMarker = entry.isMarker
        var events: [Event] = []
        for (index, event) in BrokerEvent.events(in: content.revealedBytes).enumerated() {
            guard let event else { continue }
            let position = EventPosition(sequence: entry.sequence, index: index)
            events.append(Event(kind: event.kind, index: index, bytes: Self.encode(event, position)))
        }
        self.events = events
    }

    /// One event in the stream's format. The data is one line, since a writer of JSON escapes line ends.
    static func encode(_ event: BrokerEvent, _ position: EventPosition) -> [UInt8] {
        var bytes = Array("id: \(position.description)\nevent: \(event.kind.rawValue)\ndata: ".utf8)
        bytes += event.data
        bytes += [UInt8(ascii: "\n"), UInt8(ascii: "\n")]
        return bytes
    }
}

extension EventListener.Piece {
    /// The events in it, in order, with their data, for a listener in this process.
    package var events: [(kind: BrokerEvent.Kind, data: JSONValue)] {
        let field = Array("data: ".utf8)
        let lines = bytes.split(separator: UInt8(ascii: "\n")).filter { $0.starts(with: field) }
        return zip(kinds, lines).compactMap { kind, line in
            (try? JSONValue(parsing: Array(line.dropFirst(field.count)))).map { (kind, $0) }
        }
    }
}
