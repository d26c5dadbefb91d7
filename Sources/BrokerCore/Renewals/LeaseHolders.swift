import CredentialStore
import ExternalText
import OAuth
import Renewal
import Synchronization

/// The names under which this process holds leases, and which holders of leases in the store have ended.
///
/// A name begins with a lineage: the identity of the journal's directory, which one process at a time has, or, without a
/// journal, an identity of this process. So a holder of this process's lineage that is none of its running attempts has
/// ended, and will store nothing any more.
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

    /// Takes on the journal's identity. To be called before the first lease is taken.
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

    /// Whether the holder is an attempt of this process that has not ended.
    func isActive(_ name: String) -> Bool { state.withLock { $0.active.contains(WireText(name)) } }

    /// Makes a name active again that an earlier process left in the journal.
    func resume(_ name: String) {
        state.withLock { _ = $0.active.insert(WireText(name)) }
    }

    /// The attempt has ended, and has nothing left to store.
    func end(_ name: String) {
        state.withLock { _ = $0.active.remove(WireText(name)) }
    }

    /// Whether the name is one of this process, or of an earlier process with the same journal.
    func isOwn(_ name: String) -> Bool { state.withLock { name.utf8.starts(with: $0.prefix) } }

    /// Whether this process knows that the holder has ended and will store nothing any more.
    func isGone(_ name: String) -> Bool {
        state.withLock { state in
            if state.active.contains(WireText(name)) { return false }
            return isOnlyWriter || name.utf8.starts(with: state.prefix)
        }
    }

    /// A lease that was read from the store, in the form that `RenewalAttempt` takes.
    func standing(_ lease: Lease) -> StandingLease {
        StandingLease(
            holder: lease.holder, remaining: lease.remaining, sinceFirstUse: lease.sinceFirstUse,
            isGivenUp: lease.wasGivenUp, isHolderGone: isGone(lease.holder), isOpen: lease.isOpen)
    }

    private static func prefix(of lineage: String) -> [UInt8] { Array("\(lineage).".utf8) }
}
