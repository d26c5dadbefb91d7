package import OAuth

/// A record whose due mark has come.
package struct DueRecord: Sendable, Equatable {
    package let id: RecordID
    package let version: Int64
    /// The mark that it had when it was read.
    package let mark: Timestamp?
    /// Nil when it does not open: it was altered, moved or put back, or its key is not configured. Retrying cannot help;
    /// an operator must look, or another replica has the key. Its mark can be settled all the same.
    package let record: OpenRecord?

    package init(id: RecordID, version: Int64, mark: Timestamp?, record: OpenRecord?) {
        self.id = id
        self.version = version
        self.mark = mark
        self.record = record
    }
}
