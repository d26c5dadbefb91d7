import ExternalText
import OAuth

/// When refused refreshes of a tenant count as a wave: as a fault at the provider that concerns many users, and not as the end of
/// each of their sessions. The member `wave` of a tenant.
package struct WaveSettings: Sendable, Equatable {
    /// How many users must be refused within the window, 0 to 100. With 0 there is no wave. As many sets that were granted before a
    /// wave must be refreshed in it to end it.
    package var users = 5
    /// Which part of the refreshes within the window, at all replicas, must be refused, above 0 and up to 1. A wave also ends when
    /// the held sets are a smaller part of themselves and of the sets that were granted before it and refreshed in it.
    package var share = 0.5
    /// 1 to 3,600 s. Refreshes of other sets end a wave after so long at the earliest.
    package var window: Duration = .seconds(60)
    /// How long after a trial the next one is made, 1 to 3,600 s.
    package var trial: Duration = .seconds(10)

    package init() {}

    static let members: [Member<WaveSettings, TenantConfiguration.Reading>] = [
        .always("users", \.users, .integer(in: 0...100)),
        .always("share", \.share, .number(in: 0.01...1)),
        .always("window", \.window, .seconds(in: 1...3600)),
        .always("trial", \.trial, .seconds(in: 1...3600)),
    ]

    /// Whether refusals may be a wave at all.
    package var isOn: Bool { users > 0 }

    /// Whether the refreshes within the window are a wave.
    /// - Parameters:
    ///   - refused: how many users were refused.
    ///   - renewed: how many refreshes succeeded.
    package func isWave(refused: Int, renewed: Int) -> Bool {
        isOn && refused >= users && Double(refused) >= share * Double(refused + renewed)
    }
}
