internal import Containers
package import Cryptography
package import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JOSE
internal import JSON
package import OAuth
internal import Reactor
internal import Synchronization
internal import Waiting

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
    /// For how long a token is believed without another verification: with keys that the issuer has taken back, there is none.
    package static let longestKnown: Duration = .seconds(3600)
    /// How many tokens are known. Beyond it, the one that was verified first is verified again when it comes.
    private static let mostKnown = 16_384
    /// For how long the address of keys from an issuer's metadata is used before it is asked for again.
    private static let addressValidity: Duration = .seconds(3600)
    /// The shortest time between two requests for the metadata of one issuer.
    private static let interval: Duration = .seconds(5)
    private static let longestRequest: Duration = .seconds(5)

    /// What a verified token stands for.
    private struct Known {
        let identity: SHA256.Words
        let end: Timestamp
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
    private let known = Mutex(BoundedTable<SHA256.Words, Known>(capacity: mostKnown))
    /// Of the configured issuers.
    private let places = Mutex<[WireText: Place]>([:])
    private let requests: SingleFlight<WireText, Result<String, BrokerError>>
    /// How the issuers are called: without pins and further header fields.
    private let configuration = TenantConfiguration(
        preset: .oidc,
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
        self.transport = TracingTransport(transport)
        self.instruments = instruments
        requests = SingleFlight(on: transport.executor)
    }

    /// The digest of the identity that a token proves, if the token was verified and has not expired since; nil for others.
    /// - Parameter token: the token's digest.
    package func known(_ token: SHA256.Words, at now: Timestamp) -> SHA256.Words? {
        known.withLock { known in known[token].flatMap { now < $0.end ? $0.identity : nil } }
    }

    /// Verifies a token, unless it is known. Does not suspend while the issuer's keys are known; otherwise takes no longer than
    /// two requests, which is 10 seconds.
    /// - Parameters:
    ///   - token: of any length.
    ///   - digest: of the token.
    /// - Returns: the digest of the identity that the token proves; nil for what is no token of one of the issuers.
    /// - Throws: `unauthorized` for a token that is not believed, `retryable_error` where that cannot be told now.
    package func identity(_ token: WireText, digest: SHA256.Words) async throws(BrokerError) -> SHA256.Words? {
        if let known = known(digest, at: instruments.time.now) { return known }
        guard token.count <= Self.longest, let issuer = issuer(of: token) else { return nil }
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
        return try remember(digest, verified, of: issuer, at: instruments.time.now)
    }

    /// The issuer that an unverified token names; nil for one that is not configured, and for what is no JWT.
    private func issuer(of token: WireText) -> WorkloadIssuer? {
        JSONWebToken.payload(of: token)?["iss"]?.string.flatMap { issuers[$0] }
    }

    /// Compares the claims of a verified token, and keeps what they say.
    private func remember(
        _ digest: SHA256.Words, _ token: VerifiedJWS, of issuer: WorkloadIssuer, at now: Timestamp
    ) throws(BrokerError) -> SHA256.Words {
        let leeway = TokenVerification.usualLeeway
        let expectations = TokenExpectations(
            issuer: issuer.issuer, audience: issuer.audience, required: [.sub], leeway: leeway)
        let claims: ClaimsSet
        do throws(ClaimsRejection) {
            claims = try expectations.check(
                token, now: NumericDate(sinceEpoch: .milliseconds(now.milliseconds)))
        } catch {
            throw Self.refused(issuer, error.description)
        }
        guard let subject = claims.subject, let expiry = claims.expiry,
            let identity = CallerIdentity(issuer: issuer.issuer, subject: subject)
        else { throw Self.refused(issuer, ClaimsRejection.malformedSubject.description) }
        let expires = Timestamp(seconds: 0).advanced(by: expiry.sinceEpoch + leeway)
        let end = min(expires, now.advanced(by: Self.longestKnown))
        known.withLock { _ = $0.setNewest(Known(identity: identity.digest, end: end), forKey: digest) }
        return identity.digest
    }

    private static func refused(_ issuer: WorkloadIssuer, _ reason: String) -> BrokerError {
        BrokerError(.unauthorized, "The token of the issuer \(issuer.issuer) is not accepted: \(reason)")
    }

    private static func unavailable(_ issuer: WorkloadIssuer, retryAfter: Int?) -> BrokerError {
        BrokerError(
            .retryableError,
            "The keys of the issuer \(issuer.issuer) are not there, so that the caller's token cannot be verified now. Retry later.",
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
        let next = instruments.time.monotonic.advanced(by: pause)
        guard let address = found ?? before else {
            places.withLock { $0[issuer.issuer] = Place(address: nil, next: next) }
            return .failure(Self.unavailable(issuer, retryAfter: nil))
        }
        places.withLock { $0[issuer.issuer] = Place(address: address, next: next) }
        return .success(address)
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
