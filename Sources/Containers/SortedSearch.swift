extension RandomAccessCollection {
    /// The first index whose element `isBehind` is true for, found by halving; `endIndex` where there is none.
    /// - Parameter isBehind: true for every element behind the first one that it is true for.
    @inlinable
    package func partitioningIndex(where isBehind: (Element) -> Bool) -> Index {
        var (low, count) = (startIndex, count)
        while count > 0 {
            let half = count / 2
            let middle = index(low, offsetBy: half)
            if isBehind(self[middle]) {
                count = half
            } else {
                low = index(after: middle)
                count -= half + 1
            }
        }
        return low
    }
}
