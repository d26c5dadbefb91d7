package import OAuth

extension BrokerError {
    /// For a call that would store something under a storage key that only a login may make.
    package static let storageKeyOfUser = BrokerError(
        .illegalArgument,
        "A storage key of u- and 43 characters of base64url belongs to the user that the broker has made it of: an app's login "
            + "stores credentials under it, and callers can read and remove them. Choose another storage_key.")
}

extension StorageKey {
    /// This storage key, where a caller may store something under it.
    package func writable() throws(BrokerError) -> StorageKey {
        if isOfUser { throw BrokerError.storageKeyOfUser }
        return self
    }
}
