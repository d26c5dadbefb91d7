import Containers
import Testing

@Suite struct `Linked list` {
    private static func elements(_ list: LinkedList<Int>) -> [Int] { list.map(\.element) }

    @Test func `elements stand in the order in which they were appended`() {
        var list = LinkedList<Int>()
        #expect(list.isEmpty)
        #expect(list.popFirst() == nil)
        for number in 1...3 { list.append(number) }
        #expect(Self.elements(list) == [1, 2, 3])
        #expect(list.popFirst() == 1)
        #expect(Self.elements(list) == [2, 3])
        #expect(list.count == 2)
    }

    // The first, one between others, the last, and all in either order.
    @Test(arguments: [[0], [1], [2], [0, 1, 2], [2, 1, 0], [1, 0, 2]])
    func `a removed element is gone and the others keep their order`(removed: [Int]) {
        var list = LinkedList<Int>()
        let places = (0..<3).map { list.append($0) }
        for number in removed { #expect(list.remove(at: places[number]) == number) }
        let rest = (0..<3).filter { !removed.contains($0) }
        #expect(Self.elements(list) == rest)
        #expect(list.count == rest.count)
        list.append(7)
        #expect(Self.elements(list) == rest + [7])
    }

    @Test func `a place is given again only after its element was removed`() {
        var list = LinkedList<Int>()
        let first = list.append(1)
        let second = list.append(2)
        #expect(first != second)
        #expect(list.remove(at: first) == 1)
        #expect(list[first] == nil)
        #expect(list.remove(at: first) == nil)
        let announced = list.nextPlace
        #expect(list.append(3) == announced)
        #expect(list[announced] == 3)
        list.replace(at: second, with: 4)
        #expect(Self.elements(list) == [4, 3])
    }

    @Test(arguments: [-1, 0, 1, .max])
    func `a place that never had an element has none`(place: Int) {
        var list = LinkedList<Int>()
        #expect(list[place] == nil)
        #expect(list.remove(at: place) == nil)
        #expect(list.isEmpty)
    }

    // An empty list gives back the memory of more than 64 elements.
    @Test(arguments: [63, 64, 65])
    func `a list that was emptied is as good as new`(count: Int) {
        var list = LinkedList<Int>()
        for _ in 0..<3 {
            for number in 0..<count { list.append(number) }
            #expect(Self.elements(list) == Array(0..<count))
            while list.popFirst() != nil {}
            #expect(list.isEmpty)
            #expect(Self.elements(list).isEmpty)
        }
    }

    @Test func `does what an array does, whatever is appended and removed`() {
        var (list, model, random) = (LinkedList<Int>(), [(place: Int, element: Int)](), UInt64(1))
        for number in 0..<5000 {
            random = random &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            if model.isEmpty || random >> 40 & 3 != 0 {
                model.append((list.append(number), number))
            } else {
                let removed = model.remove(at: Int(random >> 33) % model.count)
                #expect(list.remove(at: removed.place) == removed.element)
            }
        }
        #expect(Self.elements(list) == model.map(\.element))
        #expect(list.count == model.count)
    }
}
