package import JSON

/// The totals of the ledger, for when the ledger is too long to read.
package struct LedgerSummary: Sendable, Equatable {
    package internal(set) var users = 0
    package internal(set) var families = 0
    package internal(set) var familiesAlive = 0
    package internal(set) var refreshTokens = 0
    /// How often the remembered refresh tokens were presented in total.
    package internal(set) var presentations = 0
    /// Refresh tokens that were presented more than once.
    package internal(set) var presentedAgain = 0
    package internal(set) var rotations = 0
    package internal(set) var graceReplays = 0
    package internal(set) var reuseDetections = 0

    package func write(to writer: inout JSONWriter) {
        writer.object { writer in
            writer.member("users", users)
            writer.member("families", families)
            writer.member("families_alive", familiesAlive)
            writer.member("refresh_tokens", refreshTokens)
            writer.member("presentations", presentations)
            writer.member("presented_again", presentedAgain)
            writer.member("rotations", rotations)
            writer.member("grace_replays", graceReplays)
            writer.member("reuse_detections", reuseDetections)
        }
    }
}
