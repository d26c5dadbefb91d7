import Glibc
package import Reactor
import Synchronization

/// A look-up for `NameResolver` that blocks its thread, as getaddrinfo(3) does, for every name but those that are given, until
/// the test lets it go on.
package final class HangingLookUp: Sendable {
    private let prompt: @Sendable (String) -> Bool
    private let begunNames = Mutex<[String]>([])
    /// Look-ups that hang read from the one end. The other end is closed to let them go on.
    private let gate: CInt
    private let holder: Mutex<CInt?>

    /// - Parameter prompt: whether a name is found at once, at 127.0.0.1.
    package init(prompt: @escaping @Sendable (String) -> Bool = { _ in false }) {
        self.prompt = prompt
        var ends: [CInt] = [-1, -1]
        precondition(unsafe pipe(&ends) == 0, "no pipe for a test")
        gate = ends[0]
        holder = Mutex(ends[1])
    }

    deinit {
        release()
        close(gate)
    }

    /// The names whose look-ups have begun, in order.
    package var begun: [String] { begunNames.withLock { $0 } }

    /// Ends the look-ups that hang, without an answer, and lets none hang from now on.
    package func release() {
        holder.withLock { holder in
            if let open = holder { close(open) }
            holder = nil
        }
    }

    package func addresses(of host: String) throws(ResolutionError) -> [SocketAddress.IP] {
        begunNames.withLock { $0.append(host) }
        if prompt(host) { return [.v4([127, 0, 0, 1])] }
        // What blocks is the resolver's thread, which is there for that.
        var byte: UInt8 = 0
        while unsafe read(gate, &byte, 1) < 0, errno == EINTR {}
        throw .temporary
    }
}
