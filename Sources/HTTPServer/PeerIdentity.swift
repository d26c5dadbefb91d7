import Synchronization

/// Who the client of a connection is by its certificate, as the handler knows it: made once, at the handshake, and used by
/// every request of the connection.
package final class PeerIdentity: Sendable {
    /// What `RequestHandler.identities` has made of the certificate, those that count first first.
    package let digests: [SIMD4<UInt64>]
    /// When the certificate expires, in seconds since 1970.
    package let expirySeconds: Int64
    private let choice = Atomic<Int>(-1)

    package init(_ digests: [SIMD4<UInt64>], expirySeconds: Int64) {
        self.digests = digests
        self.expirySeconds = expirySeconds
    }

    /// The digest by which the handler has found the client; nil until it has.
    package var chosen: SIMD4<UInt64>? {
        let index = choice.load(ordering: .relaxed)
        return index < 0 ? nil : digests[index]
    }

    /// Has `chosen` be this one of the digests.
    package func choose(_ index: Int) {
        precondition(digests.indices.contains(index))
        choice.store(index, ordering: .relaxed)
    }
}
