/// A doubly linked list in one array: elements in the order of their appending, each of which can be removed by its place.
///
/// Every operation takes constant time, `append` on average as with an array. A place belongs to its element until the
/// element is removed; a later element may get the same place.
package struct LinkedList<Element> {
    fileprivate struct Node {
        /// Nil in a free node.
        var element: Element?
        var previous: Int32
        /// In a free node the next free node.
        var next: Int32
    }

    /// The place of no node.
    private static var none: Int32 { -1 }
    /// An empty list keeps memory for so many elements.
    private static var nodesKept: Int { 64 }

    private var nodes: [Node] = []
    private var head = none
    private var tail = none
    /// The first free node.
    private var free = none
    package private(set) var count = 0

    package init() {}

    package var isEmpty: Bool { count == 0 }

    /// The place that the next call of `append` gives.
    package var nextPlace: Int { free == Self.none ? nodes.count : Int(free) }

    /// Adds an element at the end. Returns its place.
    @discardableResult
    package mutating func append(_ element: Element) -> Int {
        let place = nextPlace
        let node = Node(element: element, previous: tail, next: Self.none)
        if free == Self.none {
            nodes.append(node)
        } else {
            free = nodes[place].next
            nodes[place] = node
        }
        if tail == Self.none { head = Int32(place) } else { nodes[Int(tail)].next = Int32(place) }
        tail = Int32(place)
        count += 1
        return place
    }

    /// The element at a place; nil where there is none.
    package subscript(_ place: Int) -> Element? { nodes.indices.contains(place) ? nodes[place].element : nil }

    /// Puts another element in the place of one.
    /// - Precondition: there is an element at the place.
    package mutating func replace(at place: Int, with element: Element) {
        precondition(nodes[place].element != nil, "no element is at this place")
        nodes[place].element = element
    }

    /// Removes the element at a place. Returns nil where there is none.
    @discardableResult
    package mutating func remove(at place: Int) -> Element? {
        guard let element = self[place] else { return nil }
        let (previous, next) = (nodes[place].previous, nodes[place].next)
        if previous == Self.none { head = next } else { nodes[Int(previous)].next = next }
        if next == Self.none { tail = previous } else { nodes[Int(next)].previous = previous }
        nodes[place] = Node(element: nil, previous: Self.none, next: free)
        free = Int32(place)
        count -= 1
        if count == 0 { removeAll() }
        return element
    }

    package var first: Element? { self[Int(head)] }

    /// Removes and returns the first element.
    package mutating func popFirst() -> Element? { remove(at: Int(head)) }

    package mutating func removeAll() {
        nodes.removeAll(keepingCapacity: nodes.count <= Self.nodesKept)
        (head, tail, free, count) = (Self.none, Self.none, Self.none, 0)
    }
}

extension LinkedList: Sendable where Element: Sendable {}
extension LinkedList.Node: Sendable where Element: Sendable {}

extension LinkedList: Sequence {
    package struct Iterator: IteratorProtocol {
        fileprivate let list: LinkedList
        fileprivate var place: Int

        package mutating func next() -> (place: Int, element: Element)? {
            guard let element = list[place] else { return nil }
            defer { place = Int(list.nodes[place].next) }
            return (place, element)
        }
    }

    /// The elements with their places, from the first to the last.
    package func makeIterator() -> Iterator { Iterator(list: self, place: Int(head)) }
}
