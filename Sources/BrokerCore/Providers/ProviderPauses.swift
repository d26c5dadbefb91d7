internal import Containers
internal import Cryptography
internal import ExternalText
package import OAuth
package import Reactor
internal import Synchronization

/// The pauses that providers have asked for (RFC 6585 §4).
package final class ProviderPauses: Sendable {
    package struct Key: Hashable {
        private let tokenEndpoint: WireText
        let clientID: WireText

        /// Providers count requests by client.
        package init(_ client: ClientConfiguration, at server: AuthorizationServer) {
            tokenEndpoint = WireText(server.tokenEndpoint)
            clientID = client.clientID
        }

        /// A name for both that shows neither: 128 bits in hexadecimal digits.
        var digest: String {
            Hex.encode(Array(SHA256.digest(Array("\(tokenEndpoint) \(clientID)".utf8)).prefix(16)))
        }
    }

    /// Of the newest 16,384: clients that are never asked for again leave their pauses behind.
    private let pauses = Mutex(BoundedTable<Key, MonotonicInstant>(capacity: 16_384))

    package func pause(_ key: Key, for duration: Duration, now: MonotonicInstant) {
        let end = now.advanced(by: duration)
        pauses.withLock { pauses in
            _ = pauses.setNewest(max(end, pauses[key] ?? end), forKey: key)
        }
    }

    /// Ends the pause, if there is one.
    func lift(_ key: Key) { pauses.withLock { $0[key] = nil } }

    /// For how long the pause still lasts; nil where there is none. Removes a pause that has ended.
    func remaining(_ key: Key, now: MonotonicInstant) -> Duration? {
        pauses.withLock { pauses in
            guard let end = pauses[key] else { return nil }
            if end > now { return now.duration(to: end) }
            pauses[key] = nil
            return nil
        }
    }
}
