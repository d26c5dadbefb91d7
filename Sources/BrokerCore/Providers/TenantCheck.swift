import ExternalText
import HTTPCodec
package import HTTPSClient
import JOSE
import JSON
import OAuth
import Reactor

/// Checks a tenant's configuration as far as that is possible without a user, by calls that change nothing at the provider.
package struct TenantCheck: Sendable {
    package enum Name: String, Sendable, CaseIterable {
        /// Whether the provider's hosts have addresses that may be called and that accept connections.
        case address
        case tls
        case pins
        case metadata
        case jwks
        case clientAuthentication = "client_authentication"
        /// Whether the provider gives challenges, for a tenant that takes part in logins between apps.
        case challenge
    }

    package struct Outcome: Sendable, Equatable {
        package let name: Name
        /// Whether the check found no fault.
        package let isWell: Bool
        /// What was found, and what to change. Contains no secret.
        package let detail: String

        init(_ name: Name, _ isWell: Bool, _ detail: String) {
            self.name = name
            self.isWell = isWell
            self.detail = detail
        }

        func adding(_ sentence: String?) -> Outcome { Outcome(name, isWell, detail.followed(by: sentence)) }
    }

    /// How far a connection to a host came.
    private enum Reach {
        case answered
        /// No connection was made.
        case noConnection(String)
        case noTLS(String)
        case noPin(String)
    }

    /// A call that takes this long is reported although it succeeds: by default, callers whose token is still valid wait no
    /// longer than this for a renewal.
    private static let slowCall: Duration = .seconds(2)

    private let providers: ProviderAccess
    private let transport: any ProviderTransport
    private let time: any Time

    init(providers: ProviderAccess, transport: any ProviderTransport, time: any Time) {
        self.providers = providers
        self.transport = transport
        self.time = time
    }

    /// One outcome for each name, in the order of `Name.allCases`, without those that the tenant has no use for. Takes as long as
    /// the fetch of the metadata and, after it, two calls at most.
    package func outcomes(of tenant: Tenant) async -> [Outcome] {
        let configuration = tenant.configuration
        let needsMetadata = configuration.configuredServer == nil
        let fetched = needsMetadata ? await providers.servers.fetchAnew(for: tenant) : nil
        let metadata = try? fetched?.get()
        let server = metadata.map { configuration.server(completedBy: $0) } ?? configuration.configuredServer
        let keys = configuration.configuredKeys ?? metadata?.jwksURI
        let origins = Self.origins(of: configuration, server, keys, hasFetched: needsMetadata)

        async let reached = reach(origins, configuration)
        async let jwks = self.jwks(at: keys, configuration, isUnknown: needsMetadata && metadata == nil)
        async let client = self.client(of: tenant, at: server, grantTypes: metadata?.grantTypes)
        async let challenge = self.challenge(of: tenant, at: server)
        let checked = Self.noting(await client, certificateOf: configuration, at: time.now)
        return await Self.connections(reached, configuration) + [Self.outcome(of: fetched), jwks, checked]
            + [challenge].compactMap(\.self)
    }

    // MARK: Connections

    private static func origins(
        of configuration: TenantConfiguration, _ server: AuthorizationServer?, _ keys: String?, hasFetched: Bool
    ) -> [URLTarget.Origin] {
        let called = [
            hasFetched ? configuration.effectiveIssuer : nil, server?.tokenEndpoint ?? configuration.endpoints.token,
            keys,
            server?.revocationEndpoint, server?.deviceAuthorizationEndpoint,
            configuration.provesDeviceKeys ? server?.challengeEndpoint : nil,
        ]
        var origins: [URLTarget.Origin] = []
        for origin in called.compactMap({ $0.flatMap(URLTarget.init)?.origin }) where !origins.contains(origin) {
            origins.append(origin)
        }
        return origins
    }

    private func reach(
        _ origins: [URLTarget.Origin], _ configuration: TenantConfiguration
    ) async -> [(origin: URLTarget.Origin, reach: Reach)] {
        await withTaskGroup(of: (Int, Reach).self) { group in
            for (index, origin) in origins.enumerated() {
                group.addTask { (index, await self.reach(origin, configuration)) }
            }
            var found: [Int: Reach] = [:]
            for await (index, reach) in group { found[index] = reach }
            return origins.enumerated().compactMap { index, origin in found[index].map { (origin, $0) } }
        }
    }

    private func reach(_ origin: URLTarget.Origin, _ configuration: TenantConfiguration) async -> Reach {
        guard let url = URLTarget("\(origin.scheme.rawValue)://\(origin.authority)/") else {
            return .noConnection("The address is not a usable URL.")
        }
        let request: ClientRequest
        do throws(BrokerError) {
            request = try ClientRequest(get: url, [:], for: configuration, timeLimit: providers.callLimit)
        } catch {
            return .noPin(error.detail)
        }
        do throws(TransportError) {
            _ = try await transport.send(request)
            return .answered
        } catch {
            return Self.reach(error, origin)
        }
    }

    /// How far a failed request came. A request that was sent has shown that the connection works.
    private static func reach(_ error: TransportError, _ origin: URLTarget.Origin) -> Reach {
        let words = words(error)
        return switch error {
        case .invalidURL, .invalidRequest, .insecureTarget, .certificateWithoutTLS, .forbiddenAddress, .nameNotFound,
            .nameResolutionFailed, .connectFailed, .proxyRefused, .timedOut(.connectionSlot, _),
            .timedOut(.nameResolution, _),
            .timedOut(.connect, _),
            .cancelled:
            .noConnection("\(origin.authority): \(words)")
        case .untrusted(.pin): .noPin("\(origin.authority): \(words)")
        case .untrusted, .tlsFailed, .timedOut(.tlsHandshake, _): .noTLS("\(origin.authority): \(words)")
        case .timedOut(_, let requestSent), .connectionLost(let requestSent):
            requestSent ? .answered : .noConnection("\(origin.authority): \(words)")
        case .malformedResponse, .responseTooLarge: .answered
        }
    }

    private static func connections(
        _ reached: [(origin: URLTarget.Origin, reach: Reach)], _ configuration: TenantConfiguration
    ) -> [Outcome] {
        if reached.isEmpty {
            return [Name.address, .tls, .pins].map {
                Outcome($0, false, "Not tried: no address of the provider is known.")
            }
        }
        let hosts = reached.map(\.origin.authority).joined(separator: ", ")
        let notConnected = reached.compactMap { if case .noConnection(let words) = $0.reach { words } else { nil } }
        let notTLS = reached.compactMap { if case .noTLS(let words) = $0.reach { words } else { nil } }
        let notPinned = reached.compactMap { if case .noPin(let words) = $0.reach { words } else { nil } }
        let secure = reached.filter { $0.origin.scheme == .https }
        let isConnected = secure.contains { if case .noConnection = $0.reach { false } else { true } }
        let hasTLS = secure.contains {
            switch $0.reach {
            case .answered, .noPin: true
            case .noConnection, .noTLS: false
            }
        }
        func outcome(_ name: Name, _ faults: [String], _ isTried: Bool, _ well: String) -> Outcome {
            if !faults.isEmpty { return Outcome(name, false, faults.joined(separator: " ")) }
            return isTried ? Outcome(name, true, well) : Outcome(name, false, "Not tried: no connection came as far.")
        }
        let pins = configuration.effectivePins
        return [
            outcome(.address, notConnected, true, "A connection was made to \(hosts)."),
            secure.isEmpty
                ? Outcome(.tls, true, "Not checked: the provider is called over http://.")
                : outcome(
                    .tls, notTLS, isConnected, "The certificates are valid for the hosts, and TLS is recent enough."),
            pins.isEmpty || secure.isEmpty
                ? Outcome(.pins, true, "Not checked. No certificate is pinned.")
                : outcome(
                    .pins, notPinned, hasTLS,
                    pins.count == 1
                        ? "The pinned key is in each chain." : "One of the \(pins.count) pinned keys is in each chain."),
        ]
    }

    /// Why a request failed, and what to change.
    package static func words(_ error: TransportError) -> String {
        switch error {
        case .insecureTarget, .forbiddenAddress: "The address may not be called: " + TargetPolicy.remedy
        case .certificateWithoutTLS: TargetPolicy.certificateRemedy
        case .proxyRefused(let status):
            "The proxy that outbound_proxy or HTTPS_PROXY names opens no connection to the host: it answered \(status.code)."
        case .cancelled: "The check was broken off."
        default: error.sentence(roots: "TOKEN_BROKER_TRUSTED_CA_FILE")
        }
    }

    // MARK: Documents

    private static func outcome(of fetched: Result<ProviderMetadata, BrokerError>?) -> Outcome {
        switch fetched {
        case nil: Outcome(.metadata, true, "Not checked: every address that is needed is configured.")
        case .failure(let error)?: Outcome(.metadata, false, error.detail)
        case .success(let metadata)?:
            Outcome(.metadata, true, "The metadata of \(metadata.issuer) is at \(metadata.address ?? metadata.issuer).")
        }
    }

    private func jwks(at address: String?, _ configuration: TenantConfiguration, isUnknown: Bool) async -> Outcome {
        guard let address else {
            return isUnknown
                ? Outcome(.jwks, false, "Not tried: the metadata would name the address.")
                : Outcome(.jwks, true, "Not checked: the provider names no address of keys.")
        }
        guard let url = URLTarget(address) else { return Outcome(.jwks, false, "The address is not a usable URL.") }
        let response: ClientResponse
        let start = time.monotonic
        do {
            let request = try ClientRequest(
                get: url, ["Accept": "application/json"], for: configuration, timeLimit: providers.callLimit)
            response = try await transport.send(request)
        } catch let error as TransportError {
            return Outcome(.jwks, false, unanswered(address, error, since: start))
        } catch {
            return Outcome(.jwks, false, "The configured pinned_certificates are not usable.")
        }
        let words = ReceivedAnswer.words(
            response, to: configuration.client, lacking: "has no keys: it must be a JWK set (RFC 7517)")
        if response.status != .ok { return Outcome(.jwks, false, "\(address) \(words).") }
        // On the global pool whatever the size, as in `ProviderKeys`.
        let set = await InputReading.run(bytes: InputReading.largestInPlace + 1) {
            Result { () throws(JSONWebKeySet.Fault) in try JSONWebKeySet(parsing: response.body) }
        }
        switch set {
        case .failure(let fault) where fault.isAboutSize: return Outcome(.jwks, false, fault.description)
        case .failure: return Outcome(.jwks, false, "\(address) \(words).")
        case .success(let set): return Self.outcome(of: set, at: address, isNeeded: configuration.verifiesTokens)
        }
    }

    /// - Parameter isNeeded: whether tokens of the tenant are verified with the keys.
    private static func outcome(of set: JSONWebKeySet, at address: String, isNeeded: Bool) -> Outcome {
        let others =
            set.skipped == 0 ? "" : " The broker does not use \(set.skipped) more, of other kinds or for other uses."
        return switch set.keys.count {
        case 0 where set.skipped > 0:
            Outcome(
                .jwks, !isNeeded,
                "\(address) has no key that the broker can use, for ES256, ES384, RS256, PS256 or EdDSA:"
                    + " \(set.skipped) of other kinds or for other uses.")
        case 0:
            Outcome(
                .jwks, !isNeeded,
                "The JWK set at \(address) is empty: "
                    + (isNeeded ? "no token can be verified." : "the provider signs nothing."))
        case 1: Outcome(.jwks, true, "One key is at \(address).\(others)")
        case let count: Outcome(.jwks, true, "\(count) keys are at \(address).\(others)")
        }
    }

    // MARK: Challenges

    /// Asks for a challenge, which is not used. Nil for a tenant that takes no part in logins between apps.
    private func challenge(of tenant: Tenant, at server: AuthorizationServer?) async -> Outcome? {
        guard tenant.configuration.provesDeviceKeys else { return nil }
        guard let server, let address = server.challengeEndpoint, let rules = server.preset.appToApp else {
            return Outcome(.challenge, false, "Not tried: no challenge endpoint is known.")
        }
        let start = time.monotonic
        let answer: Result<ClientResponse, TransportError>
        do throws(BrokerError) {
            answer = try await providers.endpoint.tryChallenge(rules, address, at: server, within: providers.callLimit)
        } catch {
            return Outcome(.challenge, false, error.detail)
        }
        switch answer {
        case .failure(let error): return Outcome(.challenge, false, unanswered(address, error, since: start))
        case .success(let response) where (200..<300).contains(response.status.code):
            return await TokenEndpoint.challenge(in: response) != nil
                ? Outcome(.challenge, true, "\(address) gave a challenge, which was dropped.")
                : Outcome(.challenge, false, "\(address) answered with no usable challenge.")
        case .success(let response):
            let isBusy = response.status.code == 429 || response.status.code >= 500
            return Outcome(
                .challenge, false,
                "\(address) answered with status \(response.status.code)."
                    .followed(
                        by: isBusy
                            ? "Try again later."
                            : "Check the issuer, or endpoints.challenge, and whether the provider has app2app enabled.")
            )
        }
    }

    // MARK: The client

    /// Tries the client with client credentials or, where it has none, with a made-up code: a provider authenticates the client
    /// before it checks the code (RFC 6749 §4.1.3), and a made-up code does no harm.
    private func client(
        of tenant: Tenant, at server: AuthorizationServer?, grantTypes: [WireText]?
    ) async -> Outcome {
        guard let server else {
            return Outcome(.clientAuthentication, false, "Not tried: the token endpoint is not known.")
        }
        do throws(BrokerError) {
            var missingGrant: String?
            if tenant.terms.canObtainClientCredentials, grantTypes?.contains("client_credentials") ?? true {
                switch try await attempt(.clientCredentials, for: tenant, at: server) {
                case .unanswered(let words): return Outcome(.clientAuthentication, false, words)
                case .answered(let answer, let slowness):
                    if let outcome = Self.outcome(ofCredentials: answer) {
                        return outcome.adding(outcome.isWell ? nil : RefusalAdvice.assertion(at: server))
                            .adding(slowness)
                    }
                    missingGrant = "It may not have client credentials: \(RefusalAdvice.clientCredentials)"
                }
            }
            switch try await attempt(try providers.trials.madeUpCode(of: tenant), for: tenant, at: server) {
            case .unanswered(let words): return Outcome(.clientAuthentication, false, words)
            case .answered(let answer, let slowness):
                let outcome = Self.outcome(ofCode: answer)
                return outcome.adding(outcome.isWell ? missingGrant : RefusalAdvice.assertion(at: server))
                    .adding(slowness)
            }
        } catch {
            return Outcome(.clientAuthentication, false, error.detail)
        }
    }

    /// The outcome with what is wrong with the tenant's certificate. A provider's answer to it need not name that.
    private static func noting(
        _ outcome: Outcome, certificateOf configuration: TenantConfiguration, at now: Timestamp
    ) -> Outcome {
        guard let pem = configuration.client.material?.certificate,
            let expiry = ClientCertificate(pem: pem).expirySeconds.map({ Timestamp(seconds: $0) }), expiry <= now
        else { return outcome }
        return Outcome(
            outcome.name, false,
            "The client_certificate has expired at \(expiry): replace it.".followed(by: outcome.detail))
    }

    private enum Attempt {
        /// - Parameter slowness: a sentence on the time that the answer took; nil where that was short.
        case answered(TokenEndpoint.Answered, slowness: String?)
        /// - Parameter words: why there was no answer.
        case unanswered(words: String)
    }

    /// Makes one call to the token endpoint.
    private func attempt(
        _ request: TokenRequest, for tenant: Tenant, at server: AuthorizationServer
    ) async throws(BrokerError) -> Attempt {
        let start = time.monotonic
        var server = server
        try server.makeProofKey(for: tenant.configuration)
        let trial = try await providers.endpoint.tryClient(
            by: request, for: tenant.configuration.client, of: tenant.name, at: server, within: providers.callLimit)
        switch trial {
        case .unanswered(let error):
            return .unanswered(words: unanswered("The token endpoint", error, since: start))
        case .answered(let answer):
            let duration = start.duration(to: time.monotonic)
            let slowness =
                "The token endpoint answered only after \(Self.seconds(duration)); a call may take "
                + "\(Self.seconds(providers.callLimit)) (TOKEN_BROKER_PROVIDER_TIMEOUT)."
            return .answered(answer, slowness: duration < Self.slowCall ? nil : slowness)
        }
    }

    /// Why there is no answer.
    /// - Parameter start: when the call began.
    private func unanswered(_ receiver: String, _ error: TransportError, since start: MonotonicInstant) -> String {
        switch error {
        case .timedOut(_, requestSent: true): break
        case .malformedResponse, .responseTooLarge: return "\(receiver) cannot be used. \(Self.words(error))"
        default: return "\(receiver) could not be reached. \(Self.words(error))"
        }
        return
            "\(receiver) did not answer within \(Self.seconds(start.duration(to: time.monotonic))), and a call may take "
            + "\(Self.seconds(providers.callLimit)) (TOKEN_BROKER_PROVIDER_TIMEOUT)."
    }

    /// In tenths of a second, rounded down.
    private static func seconds(_ duration: Duration) -> String {
        let tenths = duration.milliseconds / 100
        return tenths % 10 == 0 ? "\(tenths / 10) s" : "\(tenths / 10).\(tenths % 10) s"
    }

    /// Nil where the client may not have client credentials, which is not a fault.
    private static func outcome(ofCredentials answer: TokenEndpoint.Answered) -> Outcome? {
        switch answer {
        case .granted:
            return Outcome(.clientAuthentication, true, "The provider granted client credentials, which were dropped.")
        case .refused(_, let answer, _) where answer.namesMissingGrant: return nil
        case .refused(let status, let answer, _):
            return refused(
                "The provider refused client credentials", status, answer,
                RefusalAdvice.sentence(of: answer, status: status, grant: .clientCredentials))
        case .unusable:
            return Outcome(.clientAuthentication, false, "The provider answered without a usable token.")
        }
    }

    private static func outcome(ofCode answer: TokenEndpoint.Answered) -> Outcome {
        switch answer {
        case .refused(let status, let answer, _) where ClientVerdict(ofMadeUpCode: answer, status: status) == .accepted:
            let name = answer.errorCode.map { " (\($0))" } ?? ""
            return Outcome(
                .clientAuthentication, true,
                "A made-up code was sent: the provider refused the code\(name), and not the client.")
        case .refused(let status, let answer, _):
            return refused(
                "A made-up code was sent, and the provider refused more than the code", status, answer,
                RefusalAdvice.sentence(of: answer, status: status, grant: .authorizationCode))
        case .granted, .unusable:
            return Outcome(
                .clientAuthentication, false,
                "A made-up code was sent, and the provider did not refuse it: this is no token endpoint.")
        }
    }

    private static func refused(
        _ beginning: String, _ status: Int, _ answer: TokenErrorResponse, _ advice: String?
    ) -> Outcome {
        let name = answer.errorCode.map { " and the error \($0)" } ?? ""
        let isBusy = status == 429 || status >= 500
        return Outcome(
            .clientAuthentication, false,
            "\(beginning), with status \(status)\(name).".followed(by: isBusy ? "Try again later." : advice))
    }
}
