internal import Containers
internal import Testing

@Suite struct `Bounded table` {
    @Test(arguments: [2, 3, 4])
    func `an entry beyond the capacity replaces the oldest one`(count: Int) {
        var table = BoundedTable<Int, String>(capacity: 3)
        for key in 1...count { table[key] = String(key) }
        #expect(table.count == min(count, 3))
        #expect(table[1] == (count > 3 ? nil : "1"))
        #expect(table[count] == String(count))
        #expect(table.all.map(\.key) == Array(max(1, count - 2)...count))
    }

    @Test func `a replaced value keeps its age and a value that is inserted again does not`() {
        var table = BoundedTable<String, Int>(capacity: 2)
        table["a"] = 1
        table["b"] = 1
        table["a"] = 2
        table["c"] = 1
        #expect(table["a"] == nil)
        table["b"] = nil
        table["b"] = 3
        table["d"] = 1
        #expect(table["c"] == nil)
        #expect(table["b"] == 3)
    }

    @Test func `many removals and insertions leave the right entries`() {
        var table = BoundedTable<Int, Int>(capacity: 10)
        for key in 0..<999 {
            table[key] = key
            if key % 3 == 0 { table[key] = nil }
        }
        #expect(table.all.map(\.key) == (0..<999).filter { $0 % 3 != 0 }.suffix(10).map { $0 })
        table.updateAll { $0 += 1 }
        #expect(table[998] == 999)
    }
}
