import Containers
import Testing

@Suite struct `Sorted search` {
    @Test(arguments: [
        ([], 3, 0), ([2], 3, 1), ([3], 3, 0), ([4], 3, 0), ([1, 2, 3, 3, 5], 3, 2), ([1, 2, 4, 5, 6, 7], 3, 2),
        ([4, 5, 6], 3, 0), ([0, 1, 2], 3, 3),
    ])
    func `finds the first element that is not less`(elements: [Int], bound: Int, index: Int) {
        #expect(elements.partitioningIndex { $0 >= bound } == index)
        // A slice begins elsewhere.
        let slice = ([-1, -1] + elements)[2...]
        #expect(slice.partitioningIndex { $0 >= bound } == index + 2)
    }

    @Test func `looks at few elements of many`() {
        var looks = 0
        let index = (0..<1_000_000).partitioningIndex {
            looks += 1
            return $0 >= 999_999
        }
        #expect(index == 999_999)
        #expect(looks <= 20)
    }
}
