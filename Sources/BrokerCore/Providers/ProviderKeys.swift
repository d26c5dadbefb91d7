import Containers
import ExternalText
import HTTPCodec
import HTTPSClient
package import JOSE
import OAuth
import Reactor
import Synchronization
import Waiting

/// The keys that providers sign tokens with. Each set is fetched once for all tenants of its address, and kept.
///
/// Keys are believed for as long as the provider's answer says, which is at most an hour, and are then confirmed or fetched
/// again. Where the address does not answer, they are used on for a day. A token that none of them verifies makes one more
/// request, at most every 30 seconds for each address: a provider may have a new key, or have replaced one under its name.
package final class ProviderKeys: Sendable {
    /// Why a token was not verified.
    package enum Failure: Error, Equatable, Sendable {
        /// Whether the token is good cannot be told now: the keys are not there, or may have been replaced meanwhile.
        /// Retrying later helps.
        case unavailable(BrokerError)
        /// The token is not believed. Retrying cannot help.
        case refused(JWSError)
    }

    private struct Held {
        var keys: JSONWebKeySet
        var freshness: KeyFreshness
        /// When the provider said last that these are its keys.
        var confirmed: MonotonicInstant
        /// The same by the wall clock, with which the time of a token's signature is compared.
        var confirmedAt: Timestamp

        /// When they are to be confirmed or fetched again.
        var end: MonotonicInstant { confirmed.advanced(by: freshness.lifetime) }
        /// When they are not used any more, even if the address does not answer.
        var lastUse: MonotonicInstant { confirmed.advanced(by: ProviderKeys.longestUse) }
    }

    private struct Known {
        var held: Held?
        /// The address is not asked before.
        var nextRequest: MonotonicInstant
        /// Why the last request brought nothing; nil when it brought keys.
        var failure: BrokerError?
        /// The keys, by identifier, that a token named which came before the last request, and that the answer did not have.
        var absent: Set<WireText?> = []
    }

    /// How long keys are used that the address does not confirm. Providers publish new keys a day before they sign with
    /// them, so that older ones would verify little.
    private static let longestUse: Duration = .seconds(86_400)
    /// The most keys of one address that are remembered as absent.
    private static let mostAbsent = 16
    /// The shortest time between two requests of one address.
    private static let interval: Duration = .seconds(30)
    /// The same where no keys are known, so that each token waits for them.
    private static let intervalWithoutKeys: Duration = .seconds(ProviderResource.retryAfter)

    private let transport: any ProviderTransport
    private let instruments: Instruments
    private let time: any Time
    private let log: Log
    /// Of 1024 addresses at most. Beyond them, the address is forgotten whose last request ended the longest time ago.
    private let known = Mutex(BoundedTable<ProviderSource, Known>(capacity: 1024))
    private let requests: SingleFlight<ProviderSource, Result<Held, BrokerError>>

    package init(transport: any ProviderTransport, instruments: Instruments) {
        self.transport = transport
        self.instruments = instruments
        (time, log) = (instruments.time, instruments.log)
        requests = SingleFlight(on: transport.executor)
    }

    /// Gives up the requests that are under way.
    package func cancelAll() {
        requests.cancelAll()
    }

    /// Verifies a token with the provider's keys. Does not suspend while keys that fit are known and believed; otherwise
    /// takes no longer than one request, which is 5 seconds.
    /// - Parameters:
    ///   - address: the provider's JWK set.
    ///   - configuration: of a tenant of this provider, which says how the address is called.
    package func verified(
        _ token: CompactJWS, at address: String, for configuration: TenantConfiguration
    ) async throws(Failure) -> VerifiedJWS {
        let source = ProviderSource(address, for: configuration)
        let (before, now) = (known.withLock { $0[source] }, time.monotonic)
        if let held = before?.held, now < held.end {
            do throws(JWSError) {
                return try token.verified(with: held.keys)
            } catch {
                guard error.concernsKey else { throw .refused(error) }
            }
        }
        if let before, now < before.nextRequest { return try Self.verified(token, without: before, now: now) }

        let run = await requests.run(source, within: nil) { await self.renew(source, for: configuration) }
        guard let run else {
            throw .unavailable(BrokerError(.retryableError, "The request ended before the provider's keys were there."))
        }
        let held: Held
        do throws(BrokerError) {
            held = try run.value.get()
        } catch {
            throw .unavailable(error)
        }
        do throws(JWSError) {
            return try token.verified(with: held.keys)
        } catch {
            // Only a set that was asked for after the token had come can say that its key does not exist.
            if error.concernsKey, !run.isOwn || held.confirmed < now {
                throw .unavailable(Self.later(Self.interval))
            }
            if error.concernsKey { noteAbsent(token, source) }
            throw .refused(error)
        }
    }

    /// The provider signs with a key that it does not publish. Until its keys may be asked for again, `verifiedAtOnce` refuses
    /// further tokens of that key; a login's token waits.
    private func noteAbsent(_ token: CompactJWS, _ source: ProviderSource) {
        known.withLock { known in
            guard var entry = known[source], entry.absent.count < Self.mostAbsent else { return }
            entry.absent.insert(token.header.keyID)
            known[source] = entry
        }
    }

    /// Verifies a token with the keys that are known and believed, without a request.
    /// - Throws: `.unavailable` where only a request could tell.
    package func verifiedAtOnce(
        _ token: CompactJWS, at address: String, for configuration: TenantConfiguration
    ) throws(Failure) -> VerifiedJWS {
        let source = ProviderSource(address, for: configuration)
        let now = time.monotonic
        guard let entry = known.withLock({ $0[source] }), let held = entry.held, now < held.end else {
            throw .unavailable(Self.later(.seconds(1)))
        }
        do throws(JWSError) {
            return try token.verified(with: held.keys)
        } catch {
            // A key that has its name may have taken another one's place since the keys were fetched.
            let mayBeReplaced =
                error != .unknownKey && token.header.keyID != nil && Self.mayBeNewer(token, than: held, error)
            let isAbsent = now < entry.nextRequest && entry.absent.contains(token.header.keyID) && !mayBeReplaced
            throw error.concernsKey && !isAbsent ? .unavailable(Self.later(.seconds(1))) : .refused(error)
        }
    }

    /// Verifies a token with what is known, since the address may not be asked yet.
    private static func verified(
        _ token: CompactJWS, without known: Known, now: MonotonicInstant
    ) throws(Failure) -> VerifiedJWS {
        let rest = now.duration(to: known.nextRequest)
        guard let held = known.held, now < held.lastUse else { throw .unavailable(known.failure ?? later(rest)) }
        do throws(JWSError) {
            return try token.verified(with: held.keys)
        } catch {
            guard error.concernsKey, mayBeNewer(token, than: held, error) else { throw .refused(error) }
            throw .unavailable(known.failure ?? later(rest))
        }
    }

    /// Whether the key of a token may have been published after the keys that do not verify it. It may where they have no key of
    /// its name. Where they have one, it may have been replaced, but not before they were fetched: the provider has said then
    /// that the key of this name is another one than a token of an earlier time is signed with.
    private static func mayBeNewer(_ token: CompactJWS, than held: Held, _ error: JWSError) -> Bool {
        guard error != .unknownKey, token.header.keyID != nil else { return true }
        guard let issued = (try? ClaimsSet(parsing: token.unverifiedPayload))?.issuedAt else { return false }
        return issued.sinceEpoch > .milliseconds(held.confirmedAt.milliseconds)
    }

    private static func later(_ wait: Duration) -> BrokerError {
        BrokerError(
            .networkError, "The provider's keys do not have the key of the token yet.",
            retryAfter: max(1, Int(wait.components.seconds)))
    }

    // MARK: Requests

    /// Asks for the keys, and keeps them. Where that fails, the keys of before are used on, unless they are too old.
    private func renew(_ source: ProviderSource, for configuration: TenantConfiguration) async -> Result<
        Held, BrokerError
    > {
        let begun = time.monotonic
        let standing = known.withLock { $0[source] }
        // Another request may have ended since the caller looked.
        if let standing, begun < standing.nextRequest {
            if let held = standing.held { return .success(held) }
            if let failure = standing.failure { return .failure(failure) }
        }
        let before = standing?.held
        do throws(BrokerError) {
            let held = try await request(source, before, begun: begun, for: configuration)
            keep(Known(held: held, nextRequest: begun.advanced(by: Self.interval)), of: source)
            return .success(held)
        } catch {
            let now = time.monotonic
            let usable = before.flatMap { now < $0.lastUse ? $0 : nil }
            let interval = usable == nil ? Self.intervalWithoutKeys : Self.interval
            keep(Known(held: usable, nextRequest: now.advanced(by: interval), failure: error), of: source)
            return usable.map { .success($0) } ?? .failure(error)
        }
    }

    private func keep(_ value: Known, of source: ProviderSource) {
        known.withLock { _ = $0.setNewest(value, forKey: source) }
    }

    private func request(
        _ source: ProviderSource, _ before: Held?, begun: MonotonicInstant, for configuration: TenantConfiguration
    ) async throws(BrokerError) -> Held {
        let asked = time.now
        var fields: Fields = ["Accept": "application/jwk-set+json, application/json"]
        before?.freshness.addConditions(to: &fields)
        let response = try await ProviderResource.keys.get(
            source.address, fields, for: configuration, over: transport, instruments)
        if response.status == .notModified, let before {
            return Held(
                keys: before.keys, freshness: before.freshness.confirmed(by: response.fields), confirmed: begun,
                confirmedAt: asked)
        }
        guard response.status == .ok else {
            log.warning("keys_missing", [.provider(configuration.preset), .status(response.status)])
            throw unusable(response, at: source.address, for: configuration)
        }
        do throws(JSONWebKeySet.Fault) {
            // To make a key of its numbers takes longer than to read them.
            let keys = try await InputReading.runOnGlobalPool { () throws(JSONWebKeySet.Fault) in
                try JSONWebKeySet(parsing: response.body)
            }
            report(keys.passedOver, at: source.address, for: configuration)
            return Held(
                keys: keys, freshness: KeyFreshness(response.fields), confirmed: begun, confirmedAt: asked)
        } catch {
            log.warning("keys_refused", [.provider(configuration.preset), .reason(Self.reason(error))])
            throw unusable(response, at: source.address, for: configuration)
        }
    }

    /// Names the keys that cannot be used because something is wrong with them. Keys of other kinds are not named: many sets
    /// have some.
    private func report(
        _ passedOver: [JSONWebKeySet.PassedOver], at address: String, for configuration: TenantConfiguration
    ) {
        for key in passedOver.prefix(Self.mostReported) where !key.isOfOtherKind {
            log.warning(
                "key_passed_over",
                [.provider(configuration.preset), .endpoint(address), .keyID(key.keyID), .keyFault(key.reason)])
        }
    }

    /// The most keys of a set that are named.
    private static let mostReported = 8

    /// An answer without keys counts as none: the token waits for a better one.
    private func unusable(
        _ response: ClientResponse, at address: String, for configuration: TenantConfiguration
    ) -> BrokerError {
        let words = ReceivedAnswer.words(
            response, to: configuration.client, lacking: "has no keys: it must be a JWK set (RFC 7517)")
        return BrokerError(
            .networkError, "The provider's keys are not at \(address), which \(words).",
            retryAfter: ProviderResource.retryAfter)
    }

    private static func reason(_ fault: JSONWebKeySet.Fault) -> StaticString {
        switch fault {
        case .tooLarge: "too_large"
        case .notJSON: "not_json"
        case .malformed: "no_key_set"
        case .tooManyKeys: "too_many_keys"
        }
    }
}
