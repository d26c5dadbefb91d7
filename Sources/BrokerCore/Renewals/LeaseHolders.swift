internal import CredentialStore
internal import ExternalText
internal import OAuth
internal import Renewal
internal import Synchronization

/// The names under which this process holds leases, and what it knows of the holders that it reads in the store.
///
/// A name begins with a lineage: the identity of the journal's directory where there is one, which one process at a time
/// has, otherwise one of this process alone. So a process knows of every name of its lineage that no attempt of its own
/// has: nothing comes of that holder any more.
final class LeaseHolders: Sendable {
    private struct State {
        var prefix: [UInt8]
        var active: Set<WireText> = []
    }

    /// Whether no other process writes to the store.
    private let isOnlyWriter: Bool
    private let state: Mutex<State>

    init(isOnlyWriter: Bool) {
        self.isOnlyWriter = isOnlyWriter
        state = Mutex(State(prefix: Self.prefix(of: RefreshID().text)))
    }

    /// Takes the journal's identity on. Before the first lease.
    func adopt(lineage: String) {
        state.withLock { $0.prefix = Self.prefix(of: lineage) }
    }

    /// The name of a new attempt, which is active until `end`.
    func begin(_ refreshID: RefreshID) -> String {
        state.withLock { state in
            let name = String(decoding: state.prefix, as: UTF8.self) + refreshID.text
            state.active.insert(WireText(name))
            return name
        }
    }

    /// Keeps a name active that an earlier process left in the journal.
    func resume(_ name: String) {
        state.withLock { _ = $0.active.insert(WireText(name)) }
    }

    /// The attempt is over, and has nothing to store any more.
    func end(_ name: String) {
        state.withLock { _ = $0.active.remove(WireText(name)) }
    }

    /// Whether the name is one of this process, or of an earlier one that had its journal.
    func isOwn(_ name: String) -> Bool { state.withLock { name.utf8.starts(with: $0.prefix) } }

    /// Whether this process knows that nothing comes of that holder any more.
    func isGone(_ name: String) -> Bool {
        state.withLock { state in
            if state.active.contains(WireText(name)) { return false }
            return isOnlyWriter || name.utf8.starts(with: state.prefix)
        }
    }

    /// A lease that was read, as an attempt of this process sees it.
    func standing(_ lease: Lease) -> StandingLease {
        StandingLease(
            holder: lease.holder, remaining: lease.remaining, sinceFirstUse: lease.sinceFirstUse,
            isGivenUp: lease.wasGivenUp, isHolderGone: isGone(lease.holder), isOpen: lease.isOpen)
    }

    private static func prefix(of lineage: String) -> [UInt8] { Array("\(lineage).".utf8) }
}
