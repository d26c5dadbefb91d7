import BrokerTesting

/// How long a renewal waits between its calls of the token endpoint.
enum RenewalWaits {
    static let design: [Duration] = [
        .milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8),
    ]
    /// Where the refresh token may be spent, the last call comes within the grace that is assumed of a provider. From a third
    /// of it on, each wait is a third of what is left, and other replicas have the lease. A wait for another replica is one
    /// for a second at most, and a look.
    static let betweenCalls: [[Duration]] = [
        [.milliseconds(500)], [.seconds(1)], [.seconds(2)], [.seconds(1), .milliseconds(833)],
        [.seconds(1), .milliseconds(222)],
    ]
    static let withinGrace = betweenCalls.flatMap(\.self)
}

extension BrokerHarness {
    /// A broker with the tenant `t1`, whose user's token has expired and can be refreshed.
    static func expired(_ tenant: String = #"{"client_id": "c1"}"#) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        return broker
    }
}
