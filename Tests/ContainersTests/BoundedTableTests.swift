import Containers
import Testing

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

    @Test(arguments: [1, 2, 3])
    func `an insertion says which entry it has removed`(capacity: Int) {
        var table = BoundedTable<Int, String>(capacity: capacity)
        for key in 1...capacity { #expect(table.setNewest(String(key), forKey: key) == nil) }
        let removed = table.setNewest("new", forKey: capacity + 1)
        #expect(removed?.key == 1)
        #expect(removed?.value == "1")
        #expect(table.count == capacity)
    }

    @Test func `a value that is set as the newest loses its age and removes no other`() {
        var table = BoundedTable<String, Int>(capacity: 2)
        table.setNewest(1, forKey: "a")
        table.setNewest(1, forKey: "b")
        #expect(table.setNewest(2, forKey: "a") == nil)
        #expect(table.all.map(\.key) == ["b", "a"])
        #expect(table.setNewest(1, forKey: "c")?.key == "b")
        #expect(table["a"] == 2)
    }

    @Test func `a removed entry makes room for one`() {
        var table = BoundedTable<Int, Int>(capacity: 2)
        for key in 1...2 { table[key] = key }
        #expect(table.removeValue(forKey: 1) == 1)
        #expect(table.removeValue(forKey: 1) == nil)
        #expect(table.setNewest(3, forKey: 3) == nil)
        #expect(table.setNewest(4, forKey: 4)?.key == 2)
        table.removeAll()
        #expect(table.count == 0)
        #expect(table[3] == nil)
        #expect(table.all.isEmpty)
    }
}
