/// The faults that were found in one input.
package struct FaultList {
    /// More would make a long answer of any long input.
    private static let mostTold = 100

    /// The first hundred.
    private var told: [BrokerError.Fault] = []
    /// How many faults there are, those beyond the first hundred included.
    private(set) var count = 0

    package init() {}

    package mutating func add(_ fault: BrokerError.Fault) {
        count += 1
        if told.count < Self.mostTold { told.append(fault) }
    }

    package mutating func add(_ others: FaultList) {
        told += others.told.prefix(Self.mostTold - told.count)
        count += others.count
    }

    /// Throws `invalid_request` with the faults, unless there are none.
    /// - Parameters:
    ///   - input: what they were found in, as the beginning of a sentence.
    ///   - subject: what a single fault is about, as the beginning of a sentence.
    package func check(in input: String, about subject: (BrokerError.Fault) -> String) throws(BrokerError) {
        guard let first = told.first else { return }
        throw BrokerError(
            .invalidRequest,
            count == 1 ? "\(subject(first)) \(first.detail)." : "\(input) has \(count) faults; see errors.",
            faults: told)
    }
}
