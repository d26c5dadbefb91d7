import Containers
package import Cryptography
package import ExternalText
import HTTPCodec
import HTTPSClient
import JOSE
import JSON
package import OAuth
import Reactor
import Synchronization
import Waiting

/// Who signs tokens that say who a workload is, such as the API server of a Kubernetes cluster.
package struct WorkloadIssuer: Sendable, Equatable {
    /// `iss`, compared byte by byte: an address without a query and a fragment.
    package let issuer: WireText
    /// What `aud` must name, alone or with others.
    package let audience: WireText
    /// The address of the issuer's keys; nil for the one in its metadata (OpenID Connect Discovery §4).
    package let keys: String?

    package init(issuer: WireText, audience: WireText, keys: String? = nil) {
        (self.issuer, self.audience, self.keys) = (issuer, audience, keys)
    }
}

/// Verifies the tokens by which workloads say who they are (RFC 7519), such as those of Kubernetes' service accounts.
///
/// A token that was verified is known by its digest until it expires, so that it is verified once. The keys are fetched and kept
/// by `ProviderKeys`, as those of providers.
package final class WorkloadTokens: Sendable {
    /// The longest token, in bytes. Longer ones are not read.
    package static let longest = 8192
    /// The most issuers.
    package static let mostIssuers = 16
    /// For how long a verified token is accepted without another verification, also if its issuer has withdrawn the key.
    package static let longestKnown: Duration = .seconds(3600)
    /// How many tokens are known. Beyond it, the one that was verified first is verified again when it comes.
    private static let mostKnown = 16_384
    /// For how long the address of keys from an issuer's metadata is used before it is asked for again.
    private static let addressValidity: Duration = .seconds(3600)
    /// The shortest time between two requests for the metadata of one issuer.
    private static let interval: Duration = .seconds(5)
    private static let longestRequest: Duration = .seconds(5)

    /// What a verified token proves, and until when.
    package struct Proof: Sendable {
        /// The digest of the identity.
        package let identity: SHA256.Words
        fileprivate let end: Timestamp
    }

    /// Where the keys of an issuer are, by its metadata.
    private struct Place {
        /// Nil while none was ever found.
        var address: String?
        /// The metadata is not asked for before.
        var next: MonotonicInstant
    }

    private let issuers: [WireText: WorkloadIssuer]
    private let keys: ProviderKeys
    private let transport: any ProviderTransport
    private let instruments: Instruments
    private let known = Mutex(BoundedTable<SHA256.Words, Proof>(capacity: mostKnown))
    /// Of the configured issuers.
    private let places = Mutex<[WireText: Place]>([:])
    private let requests: SingleFlight<WireText, Result<String, BrokerError>>
    /// How the issuers are called: without pins and further header fields.
    private let configuration = TenantConfiguration(
        preset: .shipped("oidc"),
        client: ClientConfiguration(
            clientID: "token-broker", clientSecret: nil, clientUniqueKey: nil, scopes: .empty))

    /// - Parameters:
    ///   - issuers: with different names, at most `mostIssuers`.
    ///   - keys: they may be those of providers, too.
    package init(
        _ issuers: [WorkloadIssuer], keys: ProviderKeys, transport: any ProviderTransport, instruments: Instruments
    ) {
        self.issuers = Dictionary(issuers.map { ($0.issuer, $0) }) { first, _ in first }
        self.keys = keys
        self.transport = transport
        self.instruments = instruments
        requests = SingleFlight(on: transport.executor)
    }

    /// What a token proves that was kept and has not expired since; nil for others.
    /// - Parameter token: the token's digest.
    package func known(_ token: SHA256.Words, at now: Timestamp) -> Proof? {
        known.withLock { known in known[token].flatMap { now < $0.end ? $0 : nil } }
    }

    /// Keeps what a token proves, so that it is not verified again. To be called for tokens of callers that have an API key: an
    /// issuer may give tokens to anyone, and those of others would displace them.
    /// - Parameter token: the token's digest.
    package func keep(_ proof: Proof, of token: SHA256.Words) {
        known.withLock { _ = $0.setNewest(proof, forKey: token) }
    }

    /// Gives up the requests that are under way.
    package func cancelAll() { requests.cancelAll() }

    /// Verifies a token, unless it is known. Does not suspend while the issuer's keys are known; otherwise takes no longer than
    /// two requests, which is 10 seconds.
    /// - Parameters:
    ///   - token: of any length.
    ///   - digest: of the token.
    /// - Returns: nil for what is no token of one of the issuers.
    /// - Throws: `unauthorized` for a token that is not accepted, `retryable_error` where that cannot be told now.
    package func proof(of token: WireText, digest: SHA256.Words) async throws(BrokerError) -> Proof? {
        if let known = known(digest, at: instruments.time.now) { return known }
        guard token.count <= Self.longest, let payload = JSONWebToken.payload(of: token),
            let issuer = payload["iss"]?.string.flatMap({ issuers[$0] })
        else { return nil }
        // An expired token is refused also while it cannot be verified.
        if let expiry = payload["exp"].flatMap({ NumericDate($0) }), Self.end(expiry) <= instruments.time.now {
            throw Self.refused(issuer, ClaimsRejection.expired.description)
        }
        let unverified: CompactJWS
        do throws(JWSError) {
            unverified = try CompactJWS(
                parsing: token, policy: JWSPolicy(algorithms: Set(SignatureAlgorithm.allCases)))
        } catch {
            throw Self.refused(issuer, error.description)
        }
        let address = try await address(of: issuer)
        let verified: VerifiedJWS
        do throws(ProviderKeys.Failure) {
            verified = try await keys.verified(unverified, at: address, for: configuration)
        } catch {
            switch error {
            case .refused(let reason): throw Self.refused(issuer, reason.description)
            case .unavailable(let error): throw Self.unavailable(issuer, retryAfter: error.retryAfter)
            }
        }
        // The time now: the keys may have been waited for.
        return try Self.proof(verified, of: issuer, at: instruments.time.now)
    }

    /// Compares the claims of a verified token.
    private static func proof(
        _ token: VerifiedJWS, of issuer: WorkloadIssuer, at now: Timestamp
    ) throws(BrokerError) -> Proof {
        let expectations = TokenExpectations(
            issuer: issuer.issuer, audience: issuer.audience, required: [.sub], leeway: TokenVerification.usualLeeway)
        let claims: ClaimsSet
        do throws(ClaimsRejection) {
            claims = try expectations.check(
                token, now: NumericDate(sinceEpoch: .milliseconds(now.milliseconds)))
        } catch {
            throw refused(issuer, error.description)
        }
        guard let subject = claims.subject, let expiry = claims.expiry,
            let identity = CallerIdentity(issuer: issuer.issuer, subject: subject)
        else { throw refused(issuer, ClaimsRejection.malformedSubject.description) }
        return Proof(identity: identity.digest, end: min(end(expiry), now.advanced(by: longestKnown)))
    }

    /// When a token with that `exp` ends.
    private static func end(_ expiry: NumericDate) -> Timestamp {
        Timestamp(seconds: 0).advanced(by: expiry.sinceEpoch + TokenVerification.usualLeeway)
    }

    private static func refused(_ issuer: WorkloadIssuer, _ reason: String) -> BrokerError {
        BrokerError(.unauthorized, "The token that names the issuer \(issuer.issuer) is not accepted: \(reason)")
    }

    private static func unavailable(_ issuer: WorkloadIssuer, retryAfter: Int?) -> BrokerError {
        BrokerError(
            .retryableError,
            "The broker has no key of the issuer \(issuer.issuer) that fits the caller's token, so that it cannot verify the token "
                + "now. Retry later.",
            retryAfter: retryAfter ?? ProviderResource.retryAfter)
    }

    // MARK: The address of the keys

    private func address(of issuer: WorkloadIssuer) async throws(BrokerError) -> String {
        if let keys = issuer.keys { return keys }
        if let address = try known(of: issuer) { return address }
        let run = await requests.run(issuer.issuer, within: nil) { await self.renew(issuer) }
        guard let run else { throw Self.unavailable(issuer, retryAfter: nil) }
        return try run.value.get()
    }

    /// The address that was found last; nil where it is to be asked for.
    /// - Throws: `retryable_error` where none was found, and it is too early to ask again.
    private func known(of issuer: WorkloadIssuer) throws(BrokerError) -> String? {
        let now = instruments.time.monotonic
        guard let place = places.withLock({ $0[issuer.issuer] }), now < place.next else { return nil }
        guard let address = place.address else { throw Self.unavailable(issuer, retryAfter: nil) }
        return address
    }

    /// Asks for the address, and keeps it. Where that fails, that of before is used on.
    private func renew(_ issuer: WorkloadIssuer) async -> Result<String, BrokerError> {
        do throws(BrokerError) {
            // Another request may have ended since the caller looked.
            if let address = try known(of: issuer) { return .success(address) }
        } catch {
            return .failure(error)
        }
        let before = places.withLock { $0[issuer.issuer]?.address }
        let found = await request(issuer)
        let pause = found == nil ? Self.interval : Self.addressValidity
        let place = Place(address: found ?? before, next: instruments.time.monotonic.advanced(by: pause))
        places.withLock { $0[issuer.issuer] = place }
        return place.address.map { .success($0) } ?? .failure(Self.unavailable(issuer, retryAfter: nil))
    }

    /// What the issuer's metadata says; nil where there is none that can be used. An issuer of workloads need not have the
    /// endpoints of an authorization server.
    private func request(_ issuer: WorkloadIssuer) async -> String? {
        let name = issuer.issuer
        let base = name.ends(with: "/") ? String(name.text.dropLast()) : name.text
        let fields = [LogField.issuer(name.text)]
        guard let url = URLTarget(base + "/.well-known/openid-configuration") else { return nil }
        let start = instruments.time.monotonic
        func count(_ code: String) {
            instruments.metrics.providerAnswered(
                provider: configuration.preset.name, endpoint: .metadata, code: code,
                took: start.duration(to: instruments.time.monotonic))
        }
        let response: ClientResponse
        do {
            response = try await transport.send(
                ClientRequest(
                    get: url, ["Accept": "application/json"], for: configuration, timeLimit: Self.longestRequest))
        } catch {
            count("error")
            let reason = (error as? TransportError).map { [LogField.transport($0)] } ?? []
            instruments.log.warning("workload_issuer_unreachable", fields + reason)
            return nil
        }
        count(String(response.status.code))
        guard response.status == .ok else {
            instruments.log.warning("workload_issuer_unusable", fields + [.status(response.status)])
            return nil
        }
        let json = await InputReading.run(bytes: response.body.count) { try? JSONValue(parsing: response.body) }
        guard let json, json["issuer"]?.string == name, let address = json["jwks_uri"]?.string?.text,
            URLTarget(address) != nil
        else {
            instruments.log.warning(
                "workload_issuer_unusable", fields + [.reason("its metadata names another issuer or no keys")])
            return nil
        }
        return address
    }
}
