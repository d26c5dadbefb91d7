package import OAuth

extension FaultList {
    /// Throws `invalid_request` with the faults, unless there are none.
    /// - Parameters:
    ///   - input: what they were found in, as the beginning of a sentence.
    ///   - subject: what a single fault is about, as the beginning of a sentence.
    package func check(in input: String, about subject: (InputFault) -> String) throws(BrokerError) {
        guard let first = told.first else { return }
        throw BrokerError(
            .invalidRequest,
            count == 1 ? "\(subject(first)) \(first.detail)." : "\(input) has \(count) faults; see errors.",
            faults: told)
    }
}

extension ObjectReader {
    /// Throws `invalid_request` with every fault found, unknown members among them.
    package mutating func finish() throws(BrokerError) {
        refuseUnknown()
        try faults.check(in: "The body") { $0.pointer.isEmpty ? "The body" : $0.pointer }
    }
}
