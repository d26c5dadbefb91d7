import CredentialStore
import Cryptography
package import ExternalText
package import OAuth

/// A new login after the end of a session, by an address that callers get with the news of the end, and hand to the user.
///
/// The address says itself for which credentials and until when it is good, and has the broker's authentication code. So it
/// stores nothing before a browser opens it. It only begins a login, as `start` does, and only while no user has logged in
/// since the end that it is about.
extension LoginFlow {
    /// For how long an address is good.
    package static let reconnectValidity: Duration = .seconds(86_400)
    private static let label = "reconnect"
    private static let codeBytes = 16
    /// Two times in milliseconds, before the storage key.
    private static let timeBytes = 16

    /// Where the user of an ended session logs in again; nil where a login needs no browser, or where the storage key is made of
    /// one user's identifier, whose login an app begins.
    package func reconnectURI(of id: CredentialsID, _ tenant: Tenant, after session: EndedSession) -> String? {
        if tenant.configuration.preset.accounts != nil || id.storageKey.isOfUser { return nil }
        let expires = time.now.advanced(by: Self.reconnectValidity)
        let message = Self.bytes(of: expires) + Self.bytes(of: session.time) + Array(id.storageKey.description.utf8)
        let code = vault.authenticationCode(
            of: Self.authenticated(message, tenant.name), label: Self.label, count: Self.codeBytes)
        return "\(publicBaseURL)/login/reconnect/\(tenant.name)/\(Base64URL.encode(message + code))"
    }

    private static func bytes(of time: Timestamp) -> [UInt8] {
        stride(from: 56, through: 0, by: -8).map { UInt8(truncatingIfNeeded: time.milliseconds >> Int64($0)) }
    }

    private static func authenticated(_ message: [UInt8], _ tenant: TenantName) -> [UInt8] {
        Array("\(tenant) ".utf8) + message
    }

    /// A browser has opened such an address: begins a login that is bound to that browser. It counts among `StrangersLogins`, so that
    /// who has an address cannot use up the tenant's own pending logins.
    /// - Throws: `gone` for an address that is wrong or too old, and where a user has logged in or out since.
    package func reconnect(
        _ link: WireText, of tenant: Tenant, from browser: Browser
    ) async throws(BrokerError) -> Start {
        guard let (storageKey, ended) = read(link, of: tenant.name) else { throw Self.unknownLink }
        let id = CredentialsID(tenant: tenant.name, storageKey: storageKey)
        let last: EndedSession?
        do throws(StoreError) {
            last = try await redemption.endedSession(of: id)
        } catch {
            throw BrokerError(error)
        }
        guard last?.time == ended else { throw LoginRedemption.overtakenByUser }
        var parameters = Parameters(storageKey: storageKey)
        parameters.reconnection = Reconnection(source: browser.source, end: ended)
        let begun: Begun
        do throws(BrokerError) {
            begun = try await begin(parameters, of: tenant)
        } catch {
            throw Self.failure(error)
        }
        return try await start(tenant: tenant.name, loginID: begun.loginID, cookies: browser.cookies, takesOver: false)
    }

    /// What a user is told for whom no login can begin.
    static func failure(_ error: BrokerError) -> BrokerError {
        switch error.code {
        case .retryableError, .networkError, .storageUnavailable, .internalError: error
        case .tooManyRequests: BrokerError(.retryableError, error.detail, retryAfter: error.retryAfter)
        case .notFound: unknownLink
        default: BrokerError(.illegalConfiguration, error.detail, errorCode: error.errorCode)
        }
    }

    private func read(_ link: WireText, of tenant: TenantName) -> (storageKey: StorageKey, ended: Timestamp)? {
        guard link.count <= 1024, let bytes = Base64URL.decode(link.text),
            bytes.count > Self.timeBytes + Self.codeBytes
        else { return nil }
        let message = Array(bytes.dropLast(Self.codeBytes))
        guard
            vault.isAuthentic(
                Array(bytes.suffix(Self.codeBytes)), of: Self.authenticated(message, tenant), label: Self.label)
        else { return nil }
        func milliseconds(_ range: Range<Int>) -> Timestamp {
            Timestamp(milliseconds: message[range].reduce(Int64(0)) { $0 << 8 | Int64($1) })
        }
        guard milliseconds(0..<8) > time.now,
            let storageKey = StorageKey(String(decoding: message.dropFirst(Self.timeBytes), as: UTF8.self))
        else { return nil }
        return (storageKey, milliseconds(8..<16))
    }

    private static let unknownLink = BrokerError(
        .gone, "This address is not valid any more. Ask for a new one where you got it.")
}
