/// A record whose due mark has come.
package struct DueRecord: Sendable, Equatable {
    package let id: RecordID
    package let version: Int64
    /// Nil when it does not open: it was altered, moved or put back, or its key is not configured. Retrying cannot help;
    /// an operator must look. Its mark can be settled all the same.
    package let record: OpenRecord?

    package init(id: RecordID, version: Int64, record: OpenRecord?) {
        self.id = id
        self.version = version
        self.record = record
    }
}
