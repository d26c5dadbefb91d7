internal import Containers
internal import Cryptography
internal import ExternalText
package import OAuth
package import Reactor
internal import Synchronization

/// The pauses that providers have asked for (RFC 6585 §4).
///
/// Many providers count the requests of each user, others those of the client, and the answer does not say which. So the first
/// answer of this kind pauses its own user for as long as it says, and all others for `longestForOthers` at most. If another
/// user's call is answered likewise while the first pause lasts, the provider counts the client's requests, and all are paused
/// for as long as it says.
///
/// The exchange of a code pauses nothing: strangers can bring made-up codes, and would have all users' refreshes wait. A provider
/// that counts the client's requests says so to the next refresh, too.
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

    /// One user of a client.
    package struct User: Hashable {
        let client: Key
        /// Nil for a call that belongs to no stored credentials, such as an app's request for another app. Such calls pause one
        /// another, and no user's.
        let id: CredentialsID?

        package init(_ id: CredentialsID?, of client: Key) {
            self.client = client
            self.id = id
        }
    }

    private struct ClientPause {
        /// Until when no user's call is made.
        var end: MonotonicInstant
        /// The user whose call was answered last, and until when that user's pause lasts.
        var user: CredentialsID?
        var userEnd: MonotonicInstant
    }

    private struct State {
        /// Of the newest 16,384: clients that are never asked for again leave their pauses behind.
        var clients = BoundedTable<Key, ClientPause>(capacity: 16_384)
        /// Likewise.
        var users = BoundedTable<User, MonotonicInstant>(capacity: 16_384)
    }

    /// For how long one user's answer pauses the other users of the client.
    package static let longestForOthers: Duration = .seconds(5)

    private let state = Mutex(State())

    package init() {}

    /// A call of that user was answered that way.
    package func pause(_ user: User, for duration: Duration, now: MonotonicInstant) {
        let end = now.advanced(by: duration)
        state.withLock { state in
            _ = state.users.setNewest(max(end, state.users[user] ?? end), forKey: user)
            if user.id == nil { return }
            let known = state.clients[user.client]
            var isClients = false
            if let known, known.userEnd > now { isClients = known.user != user.id }
            let others = isClients ? end : now.advanced(by: min(duration, Self.longestForOthers))
            let pause = ClientPause(
                end: max(others, known?.end ?? others), user: user.id, userEnd: max(end, known?.userEnd ?? end))
            state.clients.setNewest(pause, forKey: user.client)
        }
    }

    /// The provider has failed, and has named a time that concerns all users.
    func pauseAll(_ client: Key, for duration: Duration, now: MonotonicInstant) {
        let end = now.advanced(by: duration)
        state.withLock { state in
            var pause = state.clients[client] ?? ClientPause(end: end, user: nil, userEnd: now)
            pause.end = max(pause.end, end)
            state.clients.setNewest(pause, forKey: client)
        }
    }

    /// The provider did not answer a call of that user and has named a time.
    func pauseAlone(_ user: User, for duration: Duration, now: MonotonicInstant) {
        if user.id == nil { return }
        let end = now.advanced(by: duration)
        state.withLock { state in
            _ = state.users.setNewest(max(end, state.users[user] ?? end), forKey: user)
        }
    }

    /// Ends the pauses of that client and of its users, if there are any.
    package func lift(_ client: Key) {
        state.withLock { state in
            state.clients[client] = nil
            for (user, _) in state.users.all where user.client == client { state.users[user] = nil }
        }
    }

    /// Ends the pause of that user, if there is one.
    func lift(_ user: User) { state.withLock { $0.users[user] = nil } }

    /// For how long the pause of that user still lasts; nil where there is none. Removes a pause that has ended.
    package func remaining(_ user: User, now: MonotonicInstant) -> Duration? {
        state.withLock { state in
            if let pause = state.clients[user.client], max(pause.end, pause.userEnd) <= now {
                state.clients[user.client] = nil
            }
            if let end = state.users[user], end <= now { state.users[user] = nil }
            let end = [state.clients[user.client]?.end, state.users[user]].compactMap(\.self).max()
            return end.flatMap { $0 > now ? now.duration(to: $0) : nil }
        }
    }
}
