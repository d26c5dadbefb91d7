package import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
package import HTTPServer
import OAuth
import Reactor

/// Finds the caller of a request by its bearer token (RFC 6750 §2.1), which is an API key or a workload's token, or, without an
/// Authorization field, by the certificate that its connection's client has shown.
package struct CallerAuthenticator: Sendable {
    /// The result of a look-up in memory.
    enum Finding {
        case admin(AdminName, AdminRole)
        case key(CallerKey)
        /// The key is not in memory, so it must be read from the store.
        case unknown
        case expired
    }

    /// Why a request has no caller.
    enum Refusal {
        case noKey, unknownKey
        /// No API key has one of the identities of the client's certificate.
        case unknownIdentity
        /// The API key of a name that counts before the others in the client's certificate is gone.
        case endedIdentity
        /// No API key has the identity that the workload's token proves.
        case unknownWorkload
        case expiredCertificate

        var error: BrokerError {
            switch self {
            case .noKey: BrokerError(.unauthorized, "Send one Authorization field with `Bearer` and an API key.")
            case .unknownIdentity:
                BrokerError(
                    .unauthorized,
                    "No API key that has not expired has an identity that the client's certificate proves: send one Authorization "
                        + "field with `Bearer` and an API key, or create an API key with that identity.")
            case .endedIdentity:
                BrokerError(
                    .unauthorized,
                    "The API key of a name in the client's certificate was deleted or has expired, and the certificate stands for "
                        + "no other key: create an API key with that identity, or use a certificate without that name.")
            case .unknownWorkload:
                BrokerError(
                    .unauthorized,
                    "No API key that has not expired has the identity that the token proves: create an API key with jwt:, the "
                        + "token's iss, # and its sub as its identity.")
            case .expiredCertificate:
                BrokerError(
                    .unauthorized,
                    "The client's certificate has expired since the connection was made: connect again, with another one."
                )
            case .unknownKey: BrokerError(.unauthorized, "The API key is unknown or has expired.")
            }
        }
    }

    private let adminKeys: AdminKeys?
    private let keys: CallerKeyDirectory
    private let workloads: WorkloadTokens?
    private let time: any Time

    /// - Parameter workloads: nil where no tokens of workloads are accepted.
    package init(adminKeys: AdminKeys?, keys: CallerKeyDirectory, workloads: WorkloadTokens?, time: any Time) {
        self.adminKeys = adminKeys
        self.keys = keys
        self.workloads = workloads
        self.time = time
    }

    /// Finds the caller of a request. Suspends only if the key is not in memory.
    /// - Throws: `unauthorized` if the request has no key, more than one key, or a key that is unknown or expired, and no
    ///   certificate that stands for one.
    package func caller(of request: Request) async throws(BrokerError) -> Caller {
        if let peer = request.peer, request.fields["Authorization"] == nil {
            return .key(try await inTenant(try await key(of: peer), request))
        }
        guard let token = token(request.fields.lines.span, request.fields.bytes.span) else { throw Refusal.noKey.error }
        let text = request.fields.bytes[token]
        let digest = SHA256.words(text.span)
        switch find(digest, at: time.clocks) {
        case .admin(let name, let role): return .admin(name, role)
        case .key(let key): return .key(try await inTenant(key, request))
        case .expired: throw Refusal.unknownKey.error
        case .unknown: return .key(try await inTenant(try await key(of: WireText(Array(text)), digest), request))
        }
    }

    /// The key in the tenant that the request names, where it is one of several tenants. It is without a tenant where the request
    /// names none of them.
    private func inTenant(_ key: CallerKey, _ request: Request) async throws(BrokerError) -> CallerKey {
        if key.tenants == nil { return key }
        let named = request.fields.values("X-Tenant")
        if named.count == 1, let tenant = TenantName(named[0]), let share = try await keys.key(key, in: tenant) {
            return share
        }
        guard try await keys.hasTenants(key) else { throw Refusal.unknownKey.error }
        return key
    }

    /// The API key of a bearer token, which is a workload's token or the secret of the key.
    private func key(of token: WireText, _ digest: SHA256.Words) async throws(BrokerError) -> CallerKey {
        if let workloads, let proof = try await workloads.proof(of: token, digest: digest) {
            guard let key = try await keys.key(digest: proof.identity), !key.hasExpired(at: time.now) else {
                throw Refusal.unknownWorkload.error
            }
            workloads.keep(proof, of: digest)
            return key
        }
        guard token.count <= BearerToken.longest, let key = try await keys.key(digest: digest),
            !key.hasExpired(at: time.now)
        else { throw Refusal.unknownKey.error }
        return key
    }

    /// The API key of the client with that certificate: that of the first of its identities which has or had one. If that key is
    /// gone, no other identity counts: the deletion of a key shuts out the certificates that it was for, and does not let them in
    /// as another caller.
    private func key(of peer: PeerIdentity) async throws(BrokerError) -> CallerKey {
        guard Self.isValid(peer, at: time.now) else { throw Refusal.expiredCertificate.error }
        if let chosen = peer.chosen {
            guard let key = try await keys.key(digest: SHA256.Words(chosen)), !key.hasExpired(at: time.now) else {
                throw peer.digests.count > 1 ? Refusal.endedIdentity.error : Refusal.unknownIdentity.error
            }
            return key
        }
        for (index, digest) in peer.digests.enumerated() {
            guard let key = try await keys.key(digest: SHA256.Words(digest)) else { continue }
            if try await keys.areKnown(peer.digests.prefix(index).map { SHA256.Words($0) }) {
                throw Refusal.endedIdentity.error
            }
            guard !key.hasExpired(at: time.now) else {
                throw peer.digests.count > 1 ? Refusal.endedIdentity.error : Refusal.unknownIdentity.error
            }
            peer.choose(index)
            return key
        }
        throw Refusal.unknownIdentity.error
    }

    /// Whether the client's certificate has not expired since the handshake.
    static func isValid(_ peer: PeerIdentity, at now: Timestamp) -> Bool { now.seconds < peer.expirySeconds }

    /// The digest by which the client with that certificate was found; nil for one that is still to be found, or whose
    /// certificate has expired.
    static func digest(_ peer: PeerIdentity?, at now: Timestamp) -> SHA256.Words? {
        guard let peer, let chosen = peer.chosen, isValid(peer, at: now) else { return nil }
        return SHA256.Words(chosen)
    }

    /// The digest of the request's bearer token; nil if it has none or more than one.
    /// - Parameters:
    ///   - lines: the request's field lines.
    ///   - bytes: the bytes that the ranges of `lines` refer to.
    func digest(_ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> SHA256.Words? {
        token(lines, bytes).map { SHA256.words(bytes.extracting($0)) }
    }

    private func token(_ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> Range<Int>? {
        var value: Range<Int>?
        for index in lines.indices {
            guard case .authorization = lines[index].known else { continue }
            if value != nil { return nil }
            value = lines[index].value
        }
        guard let value else { return nil }
        return BearerToken.find(
            bytes, value, longest: workloads == nil ? BearerToken.longest : WorkloadTokens.longest)
    }

    /// Finds the caller in memory.
    func find(_ digest: SHA256.Words, at clocks: (now: Timestamp, monotonic: MonotonicInstant)) -> Finding {
        if let (name, role) = adminKeys?.find(digest: digest) { return .admin(name, role) }
        var key = keys.inMemory(digest: digest, now: clocks.monotonic)
        if key == nil, let workloads, let proof = workloads.known(digest, at: clocks.now) {
            key = keys.inMemory(digest: proof.identity, now: clocks.monotonic)
        }
        guard let key else { return .unknown }
        return key.hasExpired(at: clocks.now) ? .expired : .key(key)
    }
}
