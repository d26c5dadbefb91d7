/// One fault of what was read.
package struct InputFault: Sendable, Equatable {
    /// A JSON pointer into the input, or the name of a query parameter.
    package let pointer: String
    /// Continues a sentence that begins with the name of what is wrong.
    package let detail: String

    package init(_ pointer: String, _ detail: String) {
        self.pointer = pointer
        self.detail = detail
    }
}

/// The faults that were found in one input.
package struct FaultList {
    /// More would make a long answer of any long input.
    private static let mostTold = 100

    /// The first hundred.
    package private(set) var told: [InputFault] = []
    /// How many faults there are, those beyond the first hundred included.
    package private(set) var count = 0

    package init() {}

    package mutating func add(_ fault: InputFault) {
        count += 1
        if told.count < Self.mostTold { told.append(fault) }
    }

    package mutating func add(_ others: FaultList) {
        told += others.told.prefix(Self.mostTold - told.count)
        count += others.count
    }
}
