package import CredentialStore
import Reactor

/// Seals everything in a store under the first key of its keyring, while other processes use the store.
///
/// Contents and versions stay, so no other process notices. What is done is in the store: a run that ended early is gone on
/// with by another run, which only reads what is done. Two runs at the same time do no harm.
package struct Resealing: Sendable {
    package struct Progress: Sendable, Equatable {
        /// How many records and entries of the log were read.
        package var read = 0
        /// How many of them were sealed again.
        package var resealed = 0
        /// What does not open: how many, and a phrase for each of the first ten.
        package var unopened = 0
        package var examples: [String] = []
    }

    private let vault: Vault
    private let time: any Time
    private let perSecond: Int?

    private static let pageCount = 100
    private static let exampleCount = 10
    /// How often a store that does not answer is asked again, every second.
    private static let patience = 60

    /// - Parameter perSecond: how many records and entries are sealed again in a second at most, from 1; nil for no limit.
    package init(_ vault: Vault, time: any Time, perSecond: Int?) {
        self.vault = vault
        self.time = time
        self.perSecond = perSecond
    }

    /// - Parameter report: called after each page.
    /// - Throws: `.unavailable` when the store has not answered for a minute, and when the task is cancelled.
    package func run(_ report: (Progress) -> Void = { _ in }) async throws(StoreError) -> Progress {
        var progress = Progress()
        var walk = SealedWalk()
        var failures = 0
        while true {
            let place = walk
            let began = time.monotonic
            let resealed: Int
            do throws(StoreError) {
                guard let page = try await vault.next(&walk, limit: min(Self.pageCount, perSecond ?? .max)) else {
                    return progress
                }
                let (count, unopened) = try await vault.reseal(page)
                progress.read += page.count
                progress.resealed += count
                progress.unopened += unopened.count
                progress.examples += unopened.prefix(Self.exampleCount - progress.examples.count)
                (resealed, failures) = (count, 0)
            } catch {
                failures += 1
                guard error == .unavailable, failures <= Self.patience else { throw error }
                walk = place
                try await wait(.seconds(1))
                continue
            }
            report(progress)
            if let perSecond, resealed > 0 {
                let end = began.advanced(by: .seconds(1) * resealed / perSecond)
                let rest = time.monotonic.duration(to: end)
                if rest > .zero { try await wait(rest) }
            }
        }
    }

    private func wait(_ duration: Duration) async throws(StoreError) {
        do throws(CancellationError) {
            try await time.sleep(for: duration)
        } catch {
            throw .unavailable
        }
    }
}
