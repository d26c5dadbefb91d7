import CredentialStore
import Cryptography
import OAuth
import Renewal

/// The presentation of one imported refresh token to the provider, and what is stored then.
final class ImportPresentation {
    private let line: ImportLine
    /// What was stored under the storage key before the presentation.
    private let current: CredentialsSnapshot
    private let tenant: Tenant
    private let renewer: CredentialsRenewer
    private let writer: CredentialsWriter
    private let presentation: TokenPresentation

    init(
        _ line: ImportLine, over current: CredentialsSnapshot, of tenant: Tenant, by renewer: CredentialsRenewer,
        _ writer: CredentialsWriter
    ) {
        self.line = line
        self.current = current
        self.tenant = tenant
        self.renewer = renewer
        self.writer = writer
        presentation = TokenPresentation(
            of: line.held, line.id, of: tenant, by: renewer, again: "import the line again")
    }

    /// - Throws: see `CredentialsImporter.take`.
    func run() async throws(BrokerError) -> ImportLine.Outcome {
        switch try await presentation.run() {
        case .refreshToken(let kept): return try await settle(kept)
        case .tokens(let held, let idToken):
            switch await presentation.verdict(on: held, idToken) {
            case .verified(let verified, let told) where !line.held.isOfOtherUser(than: told):
                return try await settle(verified)
            case .verified, .refused, .unavailable: return try await verifyStored(held, idToken)
            }
        }
    }

    // MARK: What was granted

    /// Stores what is served, or what has nothing that is.
    private func settle(_ held: HeldCredentials) async throws(BrokerError) -> ImportLine.Outcome {
        var line = line
        line.held = held
        return try await told(settle(line, waiting: nil).outcome, of: held)
    }

    /// Stores the line's set. One that the store does not take goes to the journal, if there is one, so that it survives the process.
    private func settle(
        _ line: ImportLine, waiting: ((_ earlier: HeldCredentials?) -> WaitingVerification)?
    ) async throws(BrokerError) -> (outcome: ImportLine.Outcome, snapshot: CredentialsSnapshot?) {
        let now = renewer.time.now
        var record = CredentialRecord(held: line.held.loggedIn(after: current.record.held, at: now), renewed: now)
        if let waiting {
            let earlier = GrantVerification.record(refusing: current.record).held
            record = record.waiting(for: waiting(earlier), since: current.heldVersion)
        }
        let settled = try await writer.settle(line, renewed: now, waiting: waiting) {
            await self.presentation.writeJournal(record, over: self.current.version, by: .set)
        }
        await presentation.leaveJournal(isStored: settled.outcome == .imported)
        return settled
    }

    /// Stores a set that is not known to be the user's, or whose tokens are not known to be good, and then has it judged: whatever
    /// comes of that, its refresh token is not lost.
    private func verifyStored(
        _ granted: HeldCredentials, _ idToken: SecretBytes?
    ) async throws(BrokerError) -> ImportLine.Outcome {
        var line = line
        let (userID, now) = (line.held.userID, renewer.time.now)
        line.held = granted
        line.held.userID = userID ?? granted.userID
        let (outcome, stored) = try await settle(line) { earlier in
            WaitingVerification(origin: .imported, replacing: earlier, idToken: idToken, granted: now)
        }
        guard outcome == .imported, let stored, let waiting = stored.record.waiting else {
            return try await told(outcome, of: line.held.unserved(at: now))
        }
        guard case .failure(let error) = await renewer.verification.verify(line.id, of: tenant, stored),
            error.code == .tokenResponseError
        else { return outcome }
        if error == .importOfOtherUser { throw error }
        throw BrokerError(
            error.code,
            error.detail.followed(
                by: waiting.hasSessionBefore
                    ? "The refresh token that came with it is put aside: import the line again then."
                    : "The refresh token that came with it is kept: the next request for the credentials presents it."),
            errorCode: error.errorCode)
    }

    /// The outcome of storing a set. Where other credentials have come first and stay, the set is put aside.
    private func told(
        _ outcome: ImportLine.Outcome, of held: HeldCredentials
    ) async throws(BrokerError) -> ImportLine.Outcome {
        if case .conflict = outcome { try await writer.putAside(held, line.id, for: renewer.quarantine) }
        return outcome
    }
}
