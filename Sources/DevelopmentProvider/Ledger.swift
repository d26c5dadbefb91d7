package import JSON

/// What a control call can make expire.
package enum Expirable: String, Sendable, CaseIterable {
    case accessTokens = "access_tokens"
    case refreshTokens = "refresh_tokens"
    case authorizationCodes = "authorization_codes"
    case deviceCodes = "device_codes"
}

/// Every login that the provider remembers and the history of its refresh tokens, which shows what a broker did.
package struct Ledger: Sendable {
    package struct UserEntry: Sendable {
        package let user: ProviderUser
        /// Oldest first.
        package internal(set) var families: [FamilyEntry]
    }

    package struct FamilyEntry: Sendable {
        package let family: Family
        /// Oldest first.
        package let refreshTokens: [RefreshTokenRecord]
    }

    package let users: [UserEntry]
    package let codeReuses: Int
    package let reuseDetections: Int
    package let graceReplays: Int
    package let familiesRevoked: Int

    init(users: [UserEntry], events: TokenIssuer.Events) {
        self.users = users
        codeReuses = events.codeReuses
        reuseDetections = events.reuseDetections
        graceReplays = events.graceReplays
        familiesRevoked = events.familiesRevoked
    }

    /// The families of one user, oldest first.
    package func families(userID: Int64) -> [FamilyEntry] {
        users.first { $0.user.id == userID }?.families ?? []
    }

    package func write(to writer: inout JSONWriter) {
        writer.object { writer in
            writer.member("code_reuses", codeReuses)
            writer.member("reuse_detections", reuseDetections)
            writer.member("grace_replays", graceReplays)
            writer.member("families_revoked", familiesRevoked)
            writer.name("users")
            writer.array { writer in
                for entry in users {
                    writer.object { writer in
                        writer.member("user_id", entry.user.id)
                        writer.member("user", entry.user.name)
                        writer.name("families")
                        writer.array { writer in for family in entry.families { family.write(to: &writer) } }
                    }
                }
            }
        }
    }
}

extension Ledger.FamilyEntry {
    fileprivate func write(to writer: inout JSONWriter) {
        writer.object { writer in
            writer.member("family", family.id)
            writer.member("client_id", family.clientID)
            writer.member("origin", family.origin.rawValue)
            writer.member("created_at_ms", family.createdAt)
            writer.member("alive", family.revocation == nil)
            writer.memberIfPresent("revoked_at_ms", family.revocation?.at)
            writer.memberIfPresent("revoked_because", family.revocation?.cause.rawValue)
            writer.member("last_generation", family.lastGeneration)
            writer.member("reuses_detected_at_ms", times: family.reusesDetectedAt)
            writer.name("refresh_tokens")
            writer.array { writer in for token in refreshTokens { token.write(to: &writer) } }
        }
    }
}

extension RefreshTokenRecord {
    fileprivate func write(to writer: inout JSONWriter) {
        writer.object { writer in
            writer.member("generation", generation)
            writer.memberIfPresent("predecessor", predecessor.map(Int64.init))
            writer.member("digest", digest)
            writer.member("client_id", clientID)
            writer.member("issued_at_ms", issuedAt)
            writer.memberIfPresent("expires_at_ms", expiresAt)
            writer.memberIfPresent("superseded_at_ms", supersededAt)
            writer.member("presentations", presentations)
            writer.member("presented_at_ms", times: presentedAt)
        }
    }
}

extension JSONWriter {
    fileprivate mutating func member(_ name: String, times: [Int64]) {
        self.name(name)
        array { writer in for time in times { writer.integer(time) } }
    }
}
