package import OAuth

/// A record whose due mark has passed.
package struct DueRecord: Sendable, Equatable {
    package let id: RecordID
    package let version: Int64
    /// The due mark that the record had when it was read.
    package let mark: Timestamp?
    /// Nil when the record does not open: it was altered, moved or replaced by an earlier version, or its key is not
    /// configured. Retrying cannot help: an operator must look, or another replica has the key. The mark can be settled
    /// without opening the record.
    package let record: OpenRecord?
}
