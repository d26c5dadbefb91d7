import BrokerCore
import Reactor
import Testing

/// The rules of one circuit, without calls.
@Suite struct `Provider circuit` {
    private static let start = MonotonicInstant(nanoseconds: 1)

    private static func at(_ milliseconds: Int64) -> MonotonicInstant {
        start.advanced(by: .milliseconds(milliseconds))
    }

    /// A circuit after so many calls without an answer, all at the beginning.
    private static func failing(_ count: Int) -> ProviderCircuit {
        var circuit = ProviderCircuit()
        for _ in 0..<count { _ = circuit.fail(.unreachable, at: start) }
        return circuit
    }

    private static func admit(
        _ circuit: inout ProviderCircuit, at milliseconds: Int64, _ jitter: Int64 = 0
    ) -> ProviderCircuit.Admission {
        circuit.admit(at: at(milliseconds), jitter: .milliseconds(jitter))
    }

    private func expect(
        _ found: ProviderCircuit.Admission, _ wanted: ProviderCircuit.Admission,
        at location: SourceLocation = #_sourceLocation
    ) {
        #expect(found == wanted, sourceLocation: location)
    }

    @Test(arguments: [(0, false), (1, false), (19, false), (20, true), (21, true), (1000, true)])
    func `opens at the twentieth call in a row that is not answered`(count: Int, isOpen: Bool) {
        var circuit = Self.failing(count)
        #expect(circuit.isOpen == isOpen)
        #expect(circuit.failures == min(count, 20))
        #expect((circuit.refusal(at: Self.start) != nil) == isOpen)
        expect(Self.admit(&circuit, at: 0), (isOpen ? .refused(.unreachable) : .free))
    }

    @Test func `says once that it opens`() {
        var circuit = ProviderCircuit()
        let openings = (1...60).filter { _ in circuit.fail(.serverError, at: Self.start) }
        #expect(openings == [20])
    }

    @Test func `refuses with what the last call met`() {
        var circuit = Self.failing(20)
        _ = circuit.fail(.serverError, at: Self.at(10))
        #expect(circuit.refusal(at: Self.at(10)) == .serverError)
    }

    @Test(arguments: [(999, false), (1000, true), (1001, true)] as [(Int64, Bool)])
    func `lets the first trial through after a second`(time: Int64, isTrial: Bool) {
        var circuit = Self.failing(20)
        expect(Self.admit(&circuit, at: time), (isTrial ? .trial : .refused(.unreachable)))
        #expect(circuit.isTrying == isTrial)
    }

    @Test func `lets one trial through at a time`() {
        var circuit = Self.failing(20)
        expect(Self.admit(&circuit, at: 1000), .trial)
        expect(Self.admit(&circuit, at: 1000), .refused(.unreachable))
    }

    /// A trial may hang at a provider that has recovered.
    @Test(arguments: [(0, 1500), (1, 1499), (250, 1250)] as [(Int64, Int64)], [true, false])
    func `lets the next one through at most a second and a half later`(pair: (Int64, Int64), isAnswered: Bool) {
        var circuit = Self.failing(20)
        var last: Int64 = 1000
        for _ in 0..<10 {
            expect(Self.admit(&circuit, at: last, pair.0), .trial)
            if isAnswered { _ = circuit.fail(.unreachable, at: Self.at(last)) }
            #expect(circuit.refusal(at: Self.at(last + pair.1 - 1)) == .unreachable)
            last += pair.1
            #expect(circuit.refusal(at: Self.at(last)) == nil)
        }
    }

    @Test func `has pauses between a second and a second and a half`() {
        #expect(ProviderCircuit.longestPause - ProviderCircuit.jitter >= ProviderCircuit.firstPause)
        #expect(ProviderCircuit.longestPause == .milliseconds(1500))
    }

    @Test func `does not wait longer because of calls that it has not let through`() {
        var circuit = Self.failing(20)
        for time in stride(from: Int64(0), to: 1000, by: 100) { _ = circuit.fail(.unreachable, at: Self.at(time)) }
        expect(Self.admit(&circuit, at: 1000), .trial)
    }

    @Test func `lets another call through in place of a trial that is given back`() {
        var circuit = Self.failing(20)
        expect(Self.admit(&circuit, at: 1000), .trial)
        circuit.giveBack(at: Self.at(1001))
        #expect(!circuit.isTrying)
        expect(Self.admit(&circuit, at: 1001), .trial)
        // One that has failed is not given back.
        _ = circuit.fail(.unreachable, at: Self.at(1001))
        circuit.giveBack(at: Self.at(1001))
        #expect(circuit.refusal(at: Self.at(1001)) == .unreachable)
    }
}
