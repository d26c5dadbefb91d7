import BrokerCore
import Cryptography
import ExternalText
public import FoundationEssentials
import JOSE
import OAuth

/// Biometric logins (Authgear's design): a key of the device, which signs only after the device has recognised its user, logs that
/// user in without a password, and lets other apps in.
///
/// The provider must be an Authgear server, or a broker as the token endpoint of apps. The keys are in the `DeviceKeyStore` that
/// the instance was made with. `logout` leaves the key in place, so that the user can log in by it again.
extension AuthClient {
    /// Whether a key is set up by which the user can log in. Does not ask the device for it.
    public func isBiometricEnabled() async throws(AuthError) -> Bool {
        try await run { opened, tenant throws(BrokerError) in
            try await opened.broker.biometrics.activeKey(of: self.id(of: tenant)) != nil
        }
    }

    /// Makes a key of the device and has the provider know it for the user who is logged in. A key that was set up before is
    /// removed from the device after that. If the process ends meanwhile, the next call removes what it left on the device.
    /// - Throws: `unauthenticated` if no user is logged in; `biometricRefused` and `biometricUnavailable` for the device;
    ///   `unexpectedError` if the provider refuses; `networkError` and `retryableError` if it does not answer now.
    public func enableBiometric(options: BiometricOptions) async throws(AuthError) {
        let store = try deviceKeyStore()
        let spare = try await run { opened, tenant throws(BrokerError) in
            try await opened.broker.biometrics.spareKeys(of: self.id(of: tenant))
        }
        try await remove(spare, from: store)
        let name = try await run { opened, tenant throws(BrokerError) in
            try await opened.broker.biometrics.beginSetUp(self.id(of: tenant))
        }
        let replaced: String?
        do throws(AuthError) {
            let key = try await using(store) { store throws(DeviceKeyError) in
                try await store.makeKey(named: name, options: options)
            }
            let proof = try await proof(of: key, named: name, for: .setUp, options)
            replaced = try await run { opened, tenant throws(BrokerError) in
                try await opened.broker.biometrics.setUp(name, proof: proof, self.id(of: tenant), of: tenant)
            }
        } catch {
            await removeLater([name], from: store)
            throw error
        }
        if let replaced { await removeLater([replaced], from: store) }
    }

    /// Removes the key from the device, so that the user cannot log in by it any more. The provider is not informed; it keeps the
    /// public key. Does nothing if no key is set up.
    /// - Throws: `biometricUnavailable` if the device does not remove the key; a retry may help.
    public func disableBiometric() async throws(AuthError) {
        let store = try deviceKeyStore()
        let names = try await run { opened, tenant throws(BrokerError) in
            let (biometrics, id) = (opened.broker.biometrics, self.id(of: tenant))
            return try await biometrics.spareKeys(of: id) + [try await biometrics.activeKey(of: id)].compactMap(\.self)
        }
        try await remove(names, from: store)
    }

    /// Logs the key's user in, and stores the credentials in place of any others. The session that the key began before ends at
    /// the provider.
    /// - Throws: `biometricNotEnabled` if no key is set up, or if the device or the provider does not know it any more; after
    ///   that no key is set up. `biometricRefused` and `biometricUnavailable` for the device; `unexpectedError` if the provider
    ///   refuses for another reason; `tokenResponseError`; `networkError` and `retryableError` if it does not answer now.
    public func authenticateBiometric(options: BiometricOptions) async throws(AuthError) {
        let ended = try await logIn(for: .authenticate, lettingIn: nil, options)
        if let refusal = ended.refusal { throw AuthError(refusal) }
    }

    /// Lets the other app in by a biometric login: logs the key's user in as `authenticateBiometric` does, gets a code for the
    /// other app with that, and opens the other app with it. The session needs no device key.
    ///
    /// Needed where the provider has `x_app2app_biometric_protection_required` for this client.
    /// - Parameters:
    ///   - options: those that `enableBiometric` was called with.
    ///   - open: as for `approveApp2AppAuthenticationRequest`.
    /// - Throws: as `authenticateBiometric`; `authorizationError` if the provider refuses, after the other app was told;
    ///   `linkNotOpened` if `open` returns false, after which this app's user is logged in all the same.
    public func approveApp2AppBiometricAuthenticationRequest(
        _ request: App2AppAuthenticateRequest, options: BiometricOptions, open: @Sendable (URL) async -> Bool
    ) async throws(AuthError) {
        guard let parsed = AppToAppRequest(link: WireText(request.url.absoluteString)) else {
            throw AuthError(.illegalArgument, message: "The link is no app2app request.")
        }
        let ended = try await logIn(for: .authenticateAppToApp(parsed.clientID), lettingIn: parsed, options)
        if let answer = ended.answer { try await Self.follow(answer.redirectURI, open) }
        if ended.isUnknownKey { throw Self.unknownKey }
        if let refusal = ended.refusal {
            throw AuthError(
                .authorizationError, message: "The provider did not let the other app in.",
                providerErrorCode: refusal.errorCode)
        }
    }

    // MARK: Steps

    private func logIn(
        for action: BiometricProof.Action, lettingIn target: AppToAppRequest?, _ options: BiometricOptions
    ) async throws(AuthError) -> BiometricLogins.Ended {
        let store = try deviceKeyStore()
        let name = try await run { opened, tenant throws(BrokerError) in
            try await opened.broker.biometrics.activeKey(of: self.id(of: tenant))
        }
        guard let name else {
            throw AuthError(.biometricNotEnabled, message: "No biometric key is set up. Call enableBiometric.")
        }
        let proof: WireText
        do throws(AuthError) {
            let key = try await using(store) { store throws(DeviceKeyError) in
                guard let key = try await store.key(named: name, options: options) else {
                    throw DeviceKeyError.keyInvalidated
                }
                return key
            }
            proof = try await self.proof(of: key, named: name, for: action, options)
        } catch {
            if error.code == .biometricNotEnabled { await removeLater([name], from: store) }
            throw error
        }
        let ended = try await run { opened, tenant throws(BrokerError) in
            try await opened.broker.biometrics.logIn(by: proof, self.id(of: tenant), of: tenant, lettingIn: target)
        }
        if ended.isUnknownKey {
            try await remove([name], from: store)
            if target == nil { throw Self.unknownKey }
        }
        return ended
    }

    /// The environment is not in use while the user is asked, so that it can be closed meanwhile.
    private func proof(
        of key: any DeviceKey, named name: String, for action: BiometricProof.Action, _ options: BiometricOptions
    ) async throws(AuthError) -> WireText {
        let material = try await run { opened, tenant throws(BrokerError) in
            try await opened.broker.biometrics.material(keyID: name, of: tenant)
        }
        let unsigned: BiometricProof
        do throws(KeyError) {
            unsigned = try BiometricProof(
                of: PublicKey(subjectPublicKeyInfo: key.publicKey), key.algorithm.signatureAlgorithm,
                keyID: WireText(name), for: action, challenge: material.challenge,
                deviceInfo: options.deviceInfo.map { (name: $0.key, value: $0.value) },
                by: material.rules, at: material.now)
        } catch {
            throw AuthError(.biometricUnavailable, message: "The device's key cannot be used: \(error)")
        }
        let signature = try await using(key) { key throws(DeviceKeyError) in
            try await key.signature(of: unsigned.signingInput)
        }
        guard let proof = unsigned.signed(by: signature) else {
            throw AuthError(
                .biometricUnavailable,
                message: "The device's key store has made no signature of its key by \(key.algorithm.rawValue).")
        }
        return proof
    }

    private func deviceKeyStore() throws(AuthError) -> any DeviceKeyStore {
        guard let deviceKeys else {
            throw AuthError(
                .illegalArgument, message: "Biometric logins need the parameter deviceKeys of the AuthClient.")
        }
        return deviceKeys
    }

    /// Removes keys from the device, and then remembers that.
    private func remove(_ names: [String], from store: any DeviceKeyStore) async throws(AuthError) {
        if names.isEmpty { return }
        for name in names {
            try await using(store) { store throws(DeviceKeyError) in try await store.removeKey(named: name) }
        }
        try await run { opened, tenant throws(BrokerError) in
            try await opened.broker.biometrics.forget(names, of: self.id(of: tenant))
        }
    }

    /// Removes keys from the device if it answers now. Otherwise their names stay stored, and the next call of `enableBiometric` or
    /// `disableBiometric` removes them, so that a failure changes nothing of what the caller is told.
    private func removeLater(_ names: [String], from store: any DeviceKeyStore) async {
        try? await remove(names, from: store)
    }

    private func using<Subject: Sendable, R: Sendable>(
        _ subject: Subject, _ body: (Subject) async throws(DeviceKeyError) -> R
    ) async throws(AuthError) -> R {
        do throws(DeviceKeyError) {
            return try await body(subject)
        } catch {
            throw AuthError(error)
        }
    }

    private static let unknownKey = AuthError(
        .biometricNotEnabled, message: "The provider does not know the biometric key. Log in, and set up another one.",
        providerErrorCode: "invalid_grant")
}

extension DeviceKeyAlgorithm {
    fileprivate var signatureAlgorithm: SignatureAlgorithm {
        switch self {
        case .es256: .es256
        case .rs256: .rs256
        case .ps256: .ps256
        case .edDSA: .edDSA
        }
    }
}

extension AuthError {
    fileprivate init(_ error: DeviceKeyError) {
        switch error {
        case .refusedByUser: self.init(.biometricRefused, message: "The user has cancelled or was not recognised.")
        case .keyInvalidated:
            self.init(.biometricNotEnabled, message: "The device does not have the key any more. Set up another one.")
        case .unavailable(let reason):
            self.init(.biometricUnavailable, message: "The device's key store has failed: \(reason)")
        }
    }
}
