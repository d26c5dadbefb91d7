import CredentialStore
import OAuth

/// Sets that an import has brought. Such a set takes the place of the one before it and does not renew it: its grant is another one.
/// If it is not believed, the session before it goes on with its own refresh token.
///
/// The provider has spent the refresh token of the import's line in exchange for the set's. So that one is never dropped: it is kept
/// under the storage key where no user is logged in, and else put aside until the line is imported again.
extension GrantVerification {
    /// What is put aside after the set of a record was refused; nil where nothing would be lost.
    static func setAside(refusing record: CredentialRecord) -> HeldCredentials? {
        guard let waiting = record.waiting, waiting.origin == .imported, waiting.hasSessionBefore else { return nil }
        return record.granted
    }

    /// Puts a verified set aside that is of another user than its line says, and has what was before it in place again.
    func putAside(
        _ held: HeldCredentials, _ id: CredentialsID, over snapshot: CredentialsSnapshot, at preset: ProviderPreset
    ) async -> Result<Renewed, BrokerError> {
        records.log.error("subject_changed", LogField.credentials(id) + [.provider(preset)])
        var record = snapshot.record.settled(to: snapshot.record.held)
        (record.heldSince, record.renewed) = (snapshot.record.heldSince, nil)
        let settlement = Settlement(record: record, refusal: .importOfOtherUser, aside: held)
        let stored = await store(settlement, id, over: snapshot) { _ in [] }
        guard case .success(.new) = stored else { return stored }
        // Of several replicas that verify one set, the one counts whose commit is carried out.
        metrics.subjectChanged(provider: preset.name)
        return .failure(.importOfOtherUser)
    }
}

extension CredentialRecord {
    /// Whether a set that an import has brought is of another user than its line says. While it waits, its `userID` is the line's,
    /// of which it is not known what kind of identifier it is.
    /// - Parameter told: what the provider has told of the user.
    func isImportOfOtherUser(than told: UserIdentity) -> Bool {
        guard waiting?.origin == .imported, var brought = granted else { return false }
        brought.identity = UserIdentity()
        return brought.isOfOtherUser(than: told)
    }
}

extension BrokerError {
    /// What a line of an import gets whose refresh token is another user's.
    static let importOfOtherUser = BrokerError(
        .tokenResponseError,
        "The provider says that the imported refresh token is of another user than the line's user_id. Its successor is put "
            + "aside: correct the line and import it again.")
}
