package import CredentialStore
import Cryptography
package import ExternalText
package import OAuth

/// An app that logs its users in through the broker: an OAuth client of the broker (RFC 6749 §2). Immutable.
package final class AppClient: RecordValue, Equatable {
    /// An app for Android that opens links of the broker's host.
    package struct AndroidApp: Sendable, Equatable {
        package let packageName: String
        /// SHA-256 digests of its certificates: 32 pairs of upper-case hexadecimal digits with colons between them.
        package let fingerprints: [String]

        package init(packageName: String, fingerprints: [String]) {
            self.packageName = packageName
            self.fingerprints = fingerprints
        }
    }

    /// The checked content of `PUT /tenants/{tenant}/clients/{client_id}`.
    package struct Settings: Sendable, Equatable {
        /// For people; nil for the identifier.
        package var name: String?
        /// SHA-256 of the secret; nil for a public client (RFC 6749 §2.1).
        package var secretDigest: [UInt8]?
        /// Whether the secret of the registration before stays, because the request has none.
        package var keepsSecret = false
        /// Compared as they are (RFC 9700 §2.1), but for the port of a loopback address (RFC 8252 §7.3). At least one.
        package var redirectURIs: [String] = []
        /// Where the users' credentials are stored; nil for a storage key for each user, made of the user's identifier.
        package var storageKey: StorageKey?
        /// Whether each refresh replaces the refresh token (RFC 9700 §4.14.2). Default true.
        package var rotatesRefreshTokens = true
        /// How long a session lasts at most, 1 to 3650 days. Default 365.
        package var sessionDays: Int64 = 365
        /// After how long without a refresh a session ends, 1 to 3650 days. Default 30.
        package var idleDays: Int64 = 30
        /// Whether sessions of this client can let other apps in.
        package var allowsAppToApp = false
        /// Whether a session without a device key is bound to the first one that it shows.
        package var bindsInsecurely = false
        /// Whether only a biometric key lets other apps in.
        package var requiresBiometricProtection = false
        /// Whether sessions of this client can set up biometric keys. Default false.
        package var allowsBiometrics = false
        package var androidApps: [AndroidApp] = []
        /// Application identifiers with their team's prefix.
        package var appleApps: [String] = []

        package init() {}

        /// The settings as they take the place of those of an earlier registration.
        func replacing(_ earlier: Settings?) -> Settings {
            var settings = self
            if keepsSecret { settings.secretDigest = earlier?.secretDigest }
            settings.keepsSecret = false
            return settings
        }
    }

    package let tenant: TenantName
    /// 1 to 200 characters of `[A-Za-z0-9._~-]`; unique in the broker.
    package let clientID: String
    package let version: Int64
    /// When the identifier was registered. What was issued before that was issued to another client of the same identifier.
    package let created: Timestamp
    package let settings: Settings

    package init(tenant: TenantName, clientID: String, version: Int64, created: Timestamp, settings: Settings) {
        self.created = created
        self.tenant = tenant
        self.clientID = clientID
        self.version = version
        self.settings = settings
    }

    package static func == (left: AppClient, right: AppClient) -> Bool {
        left.tenant == right.tenant && WireText(left.clientID) == WireText(right.clientID)
            && left.version == right.version && left.created == right.created && left.settings == right.settings
    }

    package var recordID: RecordID { Self.recordID(tenant, clientID) }

    /// Whether the client has no secret (RFC 6749 §2.1).
    package var isPublic: Bool { settings.secretDigest == nil }

    /// The name for people.
    package var title: String { settings.name ?? clientID }

    static func recordID(_ tenant: TenantName, _ clientID: String) -> RecordID {
        RecordID(.client, tenant, key: clientID)
    }

    /// What makes the identifier unique in the broker.
    static func lookup(_ clientID: String) -> [UInt8] { SHA256.digest(Array(clientID.utf8)) }

    /// The longest identifier, in bytes.
    package static let longestID = 200

    /// Whether a text can be a client's identifier.
    package static func isID(_ text: WireText) -> Bool {
        (1...longestID).contains(text.count)
            && text.utf8.allSatisfy { byte in
                byte.isDigit || byte.isLowercaseLetter || byte.isUppercaseLetter
                    || [UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "~"), UInt8(ascii: "-")].contains(byte)
            }
    }

    /// The fewest bytes of a secret: 128 bits, if it is random (RFC 6749 §10.10).
    package static let shortestSecret = 16

    /// Whether the secret is the client's. Takes the same time for every wrong secret.
    package func hasSecret(_ secret: WireText) -> Bool {
        settings.secretDigest.map { ConstantTime.equal($0, SHA256.digest(Array(secret.utf8))) } ?? false
    }

    /// The redirect URI of a request: the given one, if it is listed, or the only one where the request has none (RFC 6749
    /// §3.1.2.3). Nil where it is not listed.
    package func redirectURI(_ given: WireText?) -> String? {
        guard let given else { return settings.redirectURIs.count == 1 ? settings.redirectURIs[0] : nil }
        for listed in settings.redirectURIs where RedirectURI.matches(given, listed: WireText(listed)) {
            return given.text
        }
        return nil
    }

    /// When a session that began and was used then ends unless it is used: the nearer of its two ends.
    func sessionEnd(created: Timestamp, lastUsed: Timestamp) -> Timestamp {
        min(
            created.advanced(by: .seconds(settings.sessionDays * 86_400)),
            lastUsed.advanced(by: .seconds(settings.idleDays * 86_400)))
    }
}

extension LogField {
    /// The client, and the tenant that has it.
    package static func client(_ client: AppClient) -> [LogField] {
        [.tenant(client.tenant), .registeredClient(client.clientID)]
    }
}
