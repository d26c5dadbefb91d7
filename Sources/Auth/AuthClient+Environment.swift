import BrokerCore
import CredentialStore
import Cryptography
import OAuth
import Synchronization

extension AuthClient {
    // MARK: Access to the environment

    /// Runs `body` with the open environment, after storing this instance's configuration if it has changed.
    func run<R: Sendable>(
        _ body: (AuthEnvironment.Opened, Tenant) async throws(BrokerError) -> R
    ) async throws(AuthError) -> R {
        for (number, opening) in state.withLock({ $0.openings }) {
            _ = await opening.value
            state.withLock { _ = $0.openings.removeValue(forKey: number) }
        }
        return try await runWithoutWaiting(body)
    }

    private func runWithoutWaiting<R: Sendable>(
        _ body: (AuthEnvironment.Opened, Tenant) async throws(BrokerError) -> R
    ) async throws(AuthError) -> R {
        let configuration = try configuration.checked(for: environment.providerTargets)
        let opened = try await environment.enter()
        defer { environment.leave() }
        do throws(BrokerError) {
            return try await body(opened, try await tenant(for: configuration, in: opened))
        } catch {
            throw AuthError(error)
        }
    }

    private func tenant(
        for configuration: TenantConfiguration, in opened: AuthEnvironment.Opened
    ) async throws(BrokerError) -> Tenant {
        let tenants = opened.broker.tenants
        if let tenant = try await tenants.tenant(name), tenant.configuration == configuration { return tenant }
        return try await tenants.put(name, configuration).tenant
    }

    /// A storage key may be any text, a tenant name may not. The name is therefore derived from a digest.
    private var name: TenantName {
        let digest = SHA256.digest(Array(configuration.credentialsStorageKey.utf8))
        guard let name = TenantName("k" + Hex.encode(Array(digest.prefix(24)))) else {
            preconditionFailure("hexadecimal digits are a tenant's name")
        }
        return name
    }

    func id(of tenant: Tenant) -> CredentialsID {
        CredentialsID(tenant: tenant.name, storageKey: .default)
    }

    // MARK: Events

    /// A stream of what `elements` makes of the events of this storage key, from now on. It buffers the newest 1000
    /// elements.
    func stream<Element: Sendable>(
        _ elements: @escaping @Sendable (EventListener.Piece, Listener) async -> [Element]
    ) -> AsyncStream<Element> {
        let (stream, continuation) = AsyncStream.makeStream(of: Element.self, bufferingPolicy: .bufferingNewest(1000))
        feed(continuation, elements, ended: {})
        return stream
    }

    /// Feeds a stream until it ends. An operation that begins after this call is reported in it.
    /// - Parameter ended: is called once, when the stream has ended.
    func feed<Element: Sendable>(
        _ continuation: AsyncStream<Element>.Continuation,
        _ elements: @escaping @Sendable (EventListener.Piece, Listener) async -> [Element],
        ended: @escaping @Sendable () -> Void
    ) {
        let opening = Task { await self.beginListening() }
        state.withLock { state in
            state.lastOpening += 1
            state.openings[state.lastOpening] = opening
        }
        let task = Task {
            if let listener = await opening.value {
                await listener.events.run(
                    while: { true },
                    send: { piece in
                        for element in await elements(piece, listener) { continuation.yield(element) }
                        return true
                    })
                self.environment.leave()
            }
            ended()
            continuation.finish()
        }
        continuation.onTermination = { _ in task.cancel() }
    }

    /// A listener keeps the environment open. Its owner must call `leave` in the end.
    struct Listener: Sendable {
        let events: EventListener
        let opened: AuthEnvironment.Opened
        let tenant: Tenant
    }

    private func beginListening() async -> Listener? {
        guard (try? await environment.enter()) != nil else { return nil }
        let listener = try? await runWithoutWaiting { opened, tenant throws(BrokerError) in
            Listener(
                events: try await opened.broker.events.listener(
                    .init(tenant: tenant.name, storageKeys: nil), after: nil),
                opened: opened, tenant: tenant)
        }
        if listener == nil { environment.leave() }
        return listener
    }

    /// The stored record. While the store does not answer, this repeats the request; nil when the record cannot be
    /// decrypted.
    func stored(for listener: Listener) async -> CredentialsSnapshot? {
        let broker = listener.opened.broker
        while true {
            do throws(BrokerError) {
                return try await broker.credentials.stored(id(of: listener.tenant))
            } catch {
                guard error.code == .storageUnavailable, !environment.isClosed else { return nil }
            }
            do {
                try await broker.time.sleep(for: .seconds(1))
            } catch {
                return nil
            }
        }
    }
}
