import Synchronization

/// The keyring that vaults of one store use, which can be replaced while they are in use.
///
/// May be used from any task.
final class CurrentKeyring: Sendable {
    private let state: Mutex<Keyring>

    init(_ keyring: Keyring) { state = Mutex(keyring) }

    var keyring: Keyring { state.withLock { $0 } }

    func replace(with keyring: Keyring) { state.withLock { $0 = keyring } }
}
