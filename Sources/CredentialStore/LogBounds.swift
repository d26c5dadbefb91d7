/// The bounds of the log.
package struct LogBounds: Sendable, Equatable {
    /// The highest sequence that trimming has removed because of its age; 0 when it has removed none. A reader that has
    /// read up to a lower one may have missed entries.
    package var trimmed: Int64
    /// The highest sequence that an entry has had; 0 when the log never had one.
    package var last: Int64

    package init(trimmed: Int64 = 0, last: Int64 = 0) {
        self.trimmed = trimmed
        self.last = last
    }
}
