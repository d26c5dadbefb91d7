extension Array {
    /// The elements in pieces of `size`, of which the last one may be shorter, in their order.
    /// - Precondition: `size` is positive.
    package func inBatches(of size: Int) -> [ArraySlice<Element>] {
        stride(from: 0, to: count, by: size).map { self[$0..<Swift.min($0 + size, count)] }
    }
}
