import CredentialStore
package import JSON
package import OAuth

/// When a user's credentials end by what is known of the provider and of the login, if nothing is done.
package struct ForeseenEnd: Sendable, Equatable {
    package enum Reason: String, Sendable, CaseIterable {
        /// The refresh token ends at a time that a refresh does not move.
        case refreshToken = "refresh_token"
        /// The refresh token ends when it is not used. A refresh before moves the time.
        case idle
        /// What the user has consented to ends, whatever is refreshed.
        case consent
        /// The access token ends, and nothing can renew it.
        case token
    }

    package let at: Timestamp
    package let why: Reason

    /// Writes the member `ends`; null where no end is known.
    package static func encode(_ end: ForeseenEnd?, to json: inout JSONWriter) {
        json.name("ends")
        guard let end else { return json.null() }
        json.object { json in
            json.member("at", end.at.description)
            json.member("why", end.why.rawValue)
        }
    }
}

extension TenantConfiguration {
    /// The next end of stored credentials; nil where none is known.
    package func end(of record: CredentialRecord) -> ForeseenEnd? {
        guard let held = record.held, held.level == .user, !record.isOver else { return nil }
        guard held.refreshToken != nil else { return held.expiry.map { ForeseenEnd(at: $0, why: .token) } }
        if held.isRefreshedByAccessToken { return held.expiry.map { ForeseenEnd(at: $0, why: .idle) } }
        let login = held.grantBegan
        var ends: [ForeseenEnd] = []
        if let told = held.terms?.consentEnds {
            ends.append(ForeseenEnd(at: told, why: .consent))
        } else if let consent = consentLifetime ?? preset.lives.consent, let login {
            ends.append(ForeseenEnd(at: login.advanced(by: consent), why: .consent))
        }
        let (idle, isFixed) = (idleLife, preset.lives.isFixed)
        if let told = held.terms?.refreshTokenEnds {
            ends.append(ForeseenEnd(at: told, why: idle == nil ? .refreshToken : .idle))
        } else if isFixed, let lifetime = refreshTokenLifetime ?? preset.lives.refreshToken, let login {
            ends.append(ForeseenEnd(at: login.advanced(by: lifetime), why: .refreshToken))
        }
        if held.terms?.refreshTokenEnds == nil, let idle, let start = record.renewed ?? login {
            ends.append(ForeseenEnd(at: start.advanced(by: idle), why: .idle))
        }
        return ends.min { $0.at < $1.at }
    }
}
