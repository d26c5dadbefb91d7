package import CredentialStore

extension BrokerError {
    /// What a store's failure means to a caller. A conflict that reaches this point has outlasted the retries of the
    /// one who saw it.
    package init(_ error: StoreError) {
        switch error {
        case .unavailable:
            self.init(
                .storageUnavailable,
                "The credential store did not answer, or refused. A change that was asked for may have been made or not; "
                    + "asking again is safe.",
                retryAfter: 1)
        case .conflict:
            self.init(
                .storageUnavailable, "The record kept changing while the request was served. Try again.",
                retryAfter: 1)
        case .damaged:
            self.init(
                .internalError,
                "A stored record cannot be opened. An operator must look at the broker's log and its master keys.")
        }
        storeError = error
    }

    /// What callers get who wait for credentials that a provider has granted and the store does not take.
    static let grantNotStored: BrokerError = {
        var error = BrokerError(
            .storageUnavailable,
            "The provider has granted new credentials, and the credential store does not take them yet. They are kept, and "
                + "stored as soon as it does.", retryAfter: 1)
        error.storeError = .unavailable
        return error
    }()
}
