package import CredentialStore

extension BrokerError {
    /// What a store's failure means to a caller. A conflict that reaches this point has outlasted the retries of the
    /// one who saw it.
    package init(_ error: StoreError) {
        switch error {
        case .unavailable:
            self.init(
                .storageUnavailable,
                "The credential store did not answer. A change that was asked for may have been made or not; asking "
                    + "again is safe.",
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
}
