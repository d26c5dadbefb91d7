import CFuzzing

/// What reading an input may cost of the processor. Other load on the machine is not in it, but for what it does to the caches;
/// so a cost counts only when it is too high each time.
struct CostOracle {
    /// Nanoseconds for each input, whatever its size: for keys of RSA, and for files that are synchronized.
    static let base: Int64 = 150_000_000
    /// Nanoseconds for each octet. Builds for debugging are not optimised.
    #if DEBUG
        static let perByte: Int64 = 20_000
        /// What is cheaper is not measured for how it grows.
        static let cheapPerByte: Int64 = 1000
    #else
        static let perByte: Int64 = 5000
        static let cheapPerByte: Int64 = 200
    #endif
    /// What four times the size may cost, as a multiple: more than linear growth makes of it, less than quadratic growth does.
    static let growth: Int64 = 8
    private static let tries = 5
    /// What costs more than so many times its limit costs too much without another try.
    private static let certainty: Int64 = 4

    /// Nanoseconds of the processor.
    static func time(_ read: () -> Void) -> Int64 {
        let start = cfuzzing_processor_time()
        read()
        return cfuzzing_processor_time() - start
    }

    /// A text that says what is wrong; nil where the cost is in order.
    static func fault(of count: Int, first: Int64, _ read: () -> Void) -> String? {
        let limit = base + perByte * Int64(count)
        var least = first
        for _ in 1..<tries where least > limit && least < certainty * limit { least = min(least, time(read)) }
        return least > limit ? "\(count) octets cost \(least / 1000) µs, more than \(limit / 1000)" : nil
    }

    /// The same for two inputs of which the second is four times as long as the first.
    static func growthFault(_ small: [UInt8], _ large: [UInt8], _ read: ([UInt8]) -> Void) -> String? {
        var costOfLarge = time { read(large) }
        if costOfLarge <= cheapPerByte * Int64(large.count) { return nil }
        if let fault = fault(of: large.count, first: costOfLarge, { read(large) }) { return fault }
        var costOfSmall = Int64.max
        for _ in 0..<tries {
            costOfSmall = min(costOfSmall, time { read(small) })
            if costOfLarge <= growth * max(costOfSmall, 1) { return nil }
            costOfLarge = min(costOfLarge, time { read(large) })
        }
        // The least of several is compared, so a small input that was disturbed does not hide what grows.
        if costOfLarge <= growth * costOfSmall || costOfLarge <= cheapPerByte * Int64(large.count) { return nil }
        return "\(small.count) octets cost \(costOfSmall / 1000) µs, and \(large.count) octets \(costOfLarge / 1000) µs"
    }
}

/// A way in which an input is made long: a part of it is repeated.
struct Growth {
    private let repeated: Range<Int>

    /// - Parameter number: another part for each number. Number 0 repeats the whole input.
    init(of bytes: [UInt8], number: UInt64) {
        guard number > 0, bytes.count > 1 else {
            repeated = bytes.indices
            return
        }
        var generator = SplitMix64(seed: number)
        for byte in bytes { generator = SplitMix64(seed: generator.next() ^ UInt64(byte)) }
        // Short parts are repeated most often, so most numbers give one.
        let most = number.isMultiple(of: 3) ? bytes.count : min(bytes.count, 16)
        let length = Int.random(in: 1...most, using: &generator)
        let start = Int.random(in: 0...bytes.count - length, using: &generator)
        repeated = start..<start + length
    }

    /// The input with as many repetitions as `count` octets hold, at least one.
    func grown(_ bytes: [UInt8], to count: Int) -> [UInt8] {
        if repeated.isEmpty { return bytes }
        var grown = Array(bytes[..<repeated.lowerBound])
        grown.reserveCapacity(max(count, bytes.count))
        let times = max(1, (count - (bytes.count - repeated.count)) / repeated.count)
        for _ in 0..<times { grown += bytes[repeated] }
        return grown + bytes[repeated.upperBound...]
    }
}
