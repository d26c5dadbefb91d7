import ExternalText
package import OAuth

/// The subject of a record. The raw value is part of keys, file names and associated data: never change one.
package enum RecordKind: String, Sendable, CaseIterable, Hashable {
    /// The configuration of a tenant; the key is empty.
    case tenant
    /// That an API key has or had an identity of certificates. Under the tenant `.broker`; the key is the identity's digest.
    case callerIdentity = "caller-identity"
    /// A secret of an API key of a caller: the newest one, or the one before it while that is still accepted. The record's
    /// key is the identifier of the API key, for the earlier secret with a suffix. The look-up digest is the digest of the
    /// secret.
    case apiKey = "api-key"
    /// The credentials of a user, or the empty record that a logout left; the key is the storage key.
    case credentials
    /// Shows at start whether the configured keys are the keys that sealed this store. Under the tenant `.broker`; the
    /// key contains the identity of the sealing key.
    case keyCheck = "key-check"
    /// A pending login, later its outcome. The key is the login's identifier; the look-up digest is the digest of its
    /// `state`.
    case login
    /// A pending device login, later its outcome. The key is the login's identifier; the look-up digest is the digest
    /// of its handle.
    case device
    /// Credentials that a provider ended, kept until they expire; the key is the storage key.
    case quarantine
    /// A refresh token that the provider has given in exchange for that of an import's line, and that is not stored under the line's
    /// storage key; kept until it expires. The key begins with a digest of the storage key, and ends with that of the line's token.
    case aside
    /// Credentials of a user who has logged out and whose session at the provider is still to be ended. The key is an
    /// identifier of the logout.
    case revocation
    /// The last error of renewals; the key is the storage key, or empty for an error that affects all users of a
    /// tenant.
    case trouble
    /// Credentials that a provider granted and that are not in the shared store yet. In the journal of a process only;
    /// the key is the storage key.
    case unpublished
    /// Under the tenant `.broker`. In a journal, its identity; the key is empty. In a shared store, what a replica tells of the
    /// requests of apps that it could not answer; the key is an identifier of its process.
    case process
    /// What a replica has registered of its journal, for a shared store that loses its last commits. Under the tenant
    /// `.broker`; the key is the journal's identity.
    case journal
    /// What this process stored or removed recently, for a shared store that loses its last commits. In the journal of a process
    /// only. For credentials, the key is the storage key; for another record, it is under the tenant `.broker`, and the key is a
    /// digest of that record's kind, tenant and key.
    case recent = "granted"
    /// The history of commits that the shared store showed last; see `StoreLineage`. Under the tenant `.broker`.
    case lineage
    /// An app that logs its users in through the broker. The key is the client identifier; the look-up digest is its
    /// digest, so that it is unique in the broker.
    case client
    /// What an app holds in place of a provider's refresh token. The key begins with the digest of the storage key.
    case session
    /// That a session of an app has ended, for some minutes: no replica may store it again. The key begins with that of the
    /// session.
    case endedSession = "ended-session"
    /// A session of an app that a process began or ended recently. Written by earlier builds only, in the journal of a process;
    /// the key is that of the session.
    case keptSession = "kept-session"
    /// An authorization code for an app, unused or used. The key is the code's digest.
    case code
    /// Which session an access token was given to last. Written by earlier builds only. The key begins with the token's digest.
    case sessionToken = "session-token"
    /// A challenge for a proof of possession of a key, which was used. Under the tenant `.broker`; the key is its digest.
    case usedChallenge = "used-challenge"
    /// A key that a device guards by biometrics, by which an app's user logs in. The key begins with the digest of the
    /// storage key and ends with the key's identifier; the look-up digest is that of tenant and identifier.
    case biometricKey = "biometric-key"
    /// Which keys of a device the library logs a user in by, at a provider. The key is the storage key.
    case biometricLogin = "biometric-login"
    /// A private key that the library keeps in place of a device's own store of keys. Under the tenant `.broker`; the key is
    /// the name of the private key.
    case softwareKey = "software-key"
    /// How many requests of one source or of one user the replicas have counted in a minute. Under the tenant
    /// `.broker`; the key is a digest of both.
    case requestCount = "request-count"
    /// Sessions that are to be ended. The key is the storage key or the client identifier, with a prefix.
    case sessionEnding = "session-ending"
    /// An outage of a tenant's provider of which listeners were told. The key is a digest of the client and its token endpoint.
    case outage
    /// That a tenant's provider refuses the refresh tokens of many users at once; the key is empty. With the key `refusals`, which
    /// users it has refused lately; with the key `question`, that replicas are to say how many refreshes have succeeded; with a key
    /// that begins with `renewed-`, what one replica says; with one that begins with `freed-`, a wave that is over and whose users are
    /// still to be told.
    case wave
    /// That a user's credentials are held during a wave; the key is the storage key.
    case held
    /// Up to which version a record has ended, so that an earlier one shows that is put back into the database: this record's own
    /// version. The key is a digest of the identity of the record that has ended. Builds before this form had one record with an
    /// empty key in each tenant, which said what versions its pages had.
    case tombstone = "tombstone-mark"
    /// A page of tombstones of earlier builds, which is only read. The key is its number, with two hexadecimal digits.
    case tombstones
    /// A provider's profile that an operator has put. Under the tenant `.broker`; the key is the profile's name.
    case provider
}

/// The identity of a record.
package struct RecordID: Hashable, Sendable, Comparable {
    package let kind: RecordKind
    package let tenant: TenantName
    /// 0 to 200 characters of `[A-Za-z0-9._~:@-]`.
    package let key: String

    package init(_ kind: RecordKind, _ tenant: TenantName, key: String = "") {
        self.kind = kind
        self.tenant = tenant
        self.key = key
    }

    package static func < (left: RecordID, right: RecordID) -> Bool {
        if left.kind != right.kind { return left.kind.rawValue < right.kind.rawValue }
        if left.tenant != right.tenant { return left.tenant < right.tenant }
        return left.key.utf8.lexicographicallyPrecedes(right.key.utf8)
    }

    // A key can come from a caller or from the database, so its bytes are compared, and not its characters.

    package static func == (left: RecordID, right: RecordID) -> Bool {
        left.kind == right.kind && left.tenant == right.tenant && WireText(left.key) == WireText(right.key)
    }

    package func hash(into hasher: inout Hasher) {
        hasher.combine(kind)
        hasher.combine(tenant)
        hasher.combine(WireText(key))
    }

    /// A phrase for operators.
    var text: String {
        key.isEmpty ? "the \(kind.rawValue) record of \(tenant)" : "the \(kind.rawValue) record '\(key)' of \(tenant)"
    }
}

/// An API key has a record for its newest secret and, after a rotation, one for the secret before it.
extension RecordID {
    private static let earlierSecretSuffix: WireText = ".earlier"

    /// The record of the API key's newest secret.
    package static func apiKey(_ id: String, of tenant: TenantName) -> RecordID { RecordID(.apiKey, tenant, key: id) }

    /// The record of the secret that the API key had before its last rotation.
    package static func earlierSecret(ofAPIKey id: String, of tenant: TenantName) -> RecordID {
        RecordID(.apiKey, tenant, key: id + earlierSecretSuffix.text)
    }

    package var isOfEarlierSecret: Bool { kind == .apiKey && WireText(key).ends(with: Self.earlierSecretSuffix) }

    /// The identifier of the API key that the record belongs to.
    package var apiKeyID: String {
        isOfEarlierSecret ? WireText(key.utf8.dropLast(Self.earlierSecretSuffix.count)).text : key
    }
}

extension TenantName {
    /// Reads the description of a name, including `.broker`, which no caller's tenant can have.
    init?(stored name: String) {
        if WireText(name) == WireText(TenantName.broker.description) {
            self = .broker
        } else {
            self.init(name)
        }
    }
}
