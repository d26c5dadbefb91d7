internal import BrokerTesting
internal import Testing

@Suite(.timeLimit(.minutes(1))) struct `Time that a test moves` {
    @Test func `a wait for sleepers ends with its task`() async {
        let time = ManualTime(skipsSleeps: false)
        let waiting = Task { await time.sleepers(atLeast: 1) }
        waiting.cancel()
        await waiting.value
        let other = Task { await time.sleepers(atLeast: 1) }
        let sleeper = Task { try? await time.sleep(for: .seconds(1)) }
        await other.value
        time.advance(by: .seconds(1))
        await sleeper.value
    }
}
