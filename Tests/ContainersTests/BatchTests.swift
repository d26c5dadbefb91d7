import Containers
import Testing

@Suite struct `Batches` {
    /// How many elements there are, and the sizes of their batches of three.
    @Test(arguments: [(0, []), (1, [1]), (2, [2]), (3, [3]), (4, [3, 1]), (6, [3, 3]), (7, [3, 3, 1])])
    func `have all elements once and in their order`(count: Int, sizes: [Int]) {
        let batches = Array(0..<count).inBatches(of: 3)
        #expect(batches.map(\.count) == sizes)
        #expect(batches.flatMap { $0 } == Array(0..<count))
    }
}
