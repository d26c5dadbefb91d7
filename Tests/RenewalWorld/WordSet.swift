/// A set of hashes, 8 bytes each, in a table that is at most three quarters full.
struct WordSet {
    private var table: [UInt64]
    private var mask: Int
    private(set) var count = 0

    init() {
        mask = 1 << 16 - 1
        table = Array(repeating: 0, count: mask + 1)
    }

    /// - Parameter hash: well mixed; zero stands for one.
    /// - Returns: whether it was not there.
    mutating func insert(_ hash: UInt64) -> Bool {
        let word = hash == 0 ? 1 : hash
        var index = Int(truncatingIfNeeded: word) & mask
        while table[index] != 0 {
            if table[index] == word { return false }
            index = (index + 1) & mask
        }
        table[index] = word
        count += 1
        if count * 4 > (mask + 1) * 3 { grow() }
        return true
    }

    private mutating func grow() {
        let old = table
        mask = 2 * mask + 1
        table = Array(repeating: 0, count: mask + 1)
        for word in old where word != 0 {
            var index = Int(truncatingIfNeeded: word) & mask
            while table[index] != 0 { index = (index + 1) & mask }
            table[index] = word
        }
    }
}
