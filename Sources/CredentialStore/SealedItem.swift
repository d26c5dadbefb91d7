/// A record or an entry of the log, with its content sealed.
package enum SealedItem: Sendable, Equatable {
    case record(StoredRecord)
    case entry(PlacedLogEntry)

    package var sealed: [UInt8] {
        switch self {
        case .record(let record): record.sealed
        case .entry(let placed): placed.entry.sealed
        }
    }
}

/// Other octets for a sealed content: the same content, sealed under another key.
package struct Reseal: Sendable, Equatable {
    /// As it was read.
    package let item: SealedItem
    package let sealed: [UInt8]

    package init(_ item: SealedItem, sealed: [UInt8]) {
        self.item = item
        self.sealed = sealed
    }
}
