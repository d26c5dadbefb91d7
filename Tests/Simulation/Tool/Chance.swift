import Reactor

/// Numbers drawn from a seed (SplitMix64): the same ones for the same seed, on every machine.
struct Chance: RandomNumberGenerator {
    private var state: UInt64

    init(seed: UInt64) {
        state = seed
    }

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var mixed = state
        mixed = (mixed ^ (mixed >> 30)) &* 0xbf58_476d_1ce4_e5b9
        mixed = (mixed ^ (mixed >> 27)) &* 0x94d0_49bb_1331_11eb
        return mixed ^ (mixed >> 31)
    }

    /// From 0 up to `bound`, which is excluded.
    mutating func below(_ bound: Int) -> Int {
        Int(truncatingIfNeeded: next().multipliedFullWidth(by: UInt64(bound)).high)
    }

    mutating func happens(_ probability: Double) -> Bool {
        Double(next() >> 11) * 0x1p-53 < probability
    }

    mutating func pick<Element>(_ elements: [Element]) -> Element { elements[below(elements.count)] }

    /// A span of time between the two, in nanoseconds.
    mutating func span(_ shortest: Duration, _ longest: Duration) -> Int64 {
        let (low, high) = (shortest.nanoseconds, longest.nanoseconds)
        return low + Int64(below(Int(max(1, high - low))))
    }
}
