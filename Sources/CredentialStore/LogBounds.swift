/// How far the log reaches.
package struct LogBounds: Sendable, Equatable {
    /// The highest sequence that trimming has removed; 0 when it has removed none. A reader who stands before it may
    /// have missed entries.
    package var trimmed: Int64
    /// The highest sequence given out; 0 when there is none.
    package var last: Int64

    package init(trimmed: Int64 = 0, last: Int64 = 0) {
        self.trimmed = trimmed
        self.last = last
    }

    /// The highest sequence that is beyond the newest `count`.
    func floor(keeping count: Int) -> Int64 { last - Int64(max(0, count)) }
}
