public import Auth

/// A dictionary behind the interface of a keychain, for tests of a program that brings its own storage, and an example of a
/// `CredentialsStorage`.
///
/// On Apple's systems, the two methods are `SecItemCopyMatching`, and `SecItemUpdate` or `SecItemAdd` of an item with
/// `kSecAttrAccessibleAfterFirstUnlock`, in an actor: `SecItemAdd` refuses an item that is there already. A keychain compares no
/// values, so only one process may use the item, or processes that share a lock.
public actor KeychainStandIn: CredentialsStorage {
    /// What it throws while it is locked.
    public struct Locked: Error, Equatable {
        /// Makes the error.
        public init() {}
    }

    private var items: [String: [UInt8]]
    private var isLocked = false

    /// - Parameter items: what it has at first. Default: nothing.
    public init(items: [String: [UInt8]] = [:]) {
        self.items = items
    }

    /// Its keys, sorted.
    public var keys: [String] { items.keys.sorted() }

    /// While it is locked, each call throws `Locked`, as before the first unlock of a device.
    public func setLocked(_ isLocked: Bool) { self.isLocked = isLocked }

    /// Removes an item, as a user can in the keychain's own app.
    public func removeItem(forKey key: String) { items[key] = nil }

    /// - Throws: `Locked`.
    public func value(forKey key: String) throws -> [UInt8]? {
        if isLocked { throw Locked() }
        return items[key]
    }

    /// - Throws: `Locked`.
    public func set(_ value: [UInt8], forKey key: String, replacing current: [UInt8]?) throws -> Bool {
        if isLocked { throw Locked() }
        guard items[key] == current else { return false }
        items[key] = value
        return true
    }
}
