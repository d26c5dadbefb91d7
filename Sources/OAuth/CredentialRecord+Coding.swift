internal import Cryptography
internal import ExternalText
internal import JSON

/// The sealed content of a credentials record, as JSON. A reader accepts the records of earlier builds, so a member
/// that is added later must have a meaning when it is absent.
extension CredentialRecord {
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            if let held {
                json.name("held")
                held.encode(to: &json)
            }
            json.memberIfPresent("ended", ended.map(Base64URL.encode))
            json.memberIfPresent("session_ended", session?.time.milliseconds)
            json.memberIfPresent("session_end", session?.cause.rawValue)
            if let renewed { json.member("renewed", renewed.milliseconds) }
            json.memberIfPresent("exchanged", exchanged.map(Base64URL.encode))
        }
    }

    /// Nil when `bytes` are not such a record.
    ///
    /// Earlier builds kept quarantined credentials in this record, as `quarantined`. Only the digest of their refresh
    /// token is read, as `ended`.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), json.object != nil else { return nil }
        self.init(held: nil)
        if let member = json["held"] {
            guard let held = HeldCredentials(json: member) else { return nil }
            self.held = held
        }
        if let member = json["ended"] {
            guard let digest = Self.digest(member) else { return nil }
            ended = digest
        } else {
            ended = json["quarantined"]?["credentials"].flatMap(HeldCredentials.init(json:))?.refreshTokenDigest
        }
        session = EndedSession(in: json)
        if let member = json["renewed"] {
            guard let milliseconds = member.integer else { return nil }
            renewed = Timestamp(milliseconds: milliseconds)
        }
        if let member = json["exchanged"] {
            guard let digest = Self.digest(member) else { return nil }
            exchanged = digest
        }
    }

    private static func digest(_ member: JSONValue) -> [UInt8]? {
        let digest = (member.string?.text).flatMap(Base64URL.decode)
        return digest?.count == SHA256.digestCount ? digest : nil
    }
}

extension EndedSession {
    /// Nil for a cause that only a newer build knows.
    fileprivate init?(in json: JSONValue) {
        guard let time = json["session_ended"]?.integer, let cause = json["session_end"]?.string.flatMap(Cause.init)
        else { return nil }
        self.init(cause, at: Timestamp(milliseconds: time))
    }
}

/// The sealed content of a record of quarantined credentials, as JSON.
extension QuarantinedCredentials {
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("until", until.milliseconds)
            json.memberIfPresent("session_ended", session?.time.milliseconds)
            json.memberIfPresent("session_end", session?.cause.rawValue)
            json.name("credentials")
            credentials.encode(to: &json)
        }
    }

    /// Nil when `bytes` are not such a record.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let until = json["until"]?.integer,
            let credentials = json["credentials"].flatMap(HeldCredentials.init(json:))
        else { return nil }
        self.init(credentials: credentials, until: Timestamp(milliseconds: until))
        session = EndedSession(in: json)
    }
}

extension HeldCredentials {
    func encode(to json: inout JSONWriter) {
        json.object { json in
            json.member("level", level.rawValue)
            json.member("access_token", accessToken.revealedText)
            json.memberIfPresent("refresh_token", refreshToken?.revealedText)
            // Earlier builds read only this time, so a token without an expiry gets the latest time.
            json.member("expires", min(expires, .latest).milliseconds)
            if expires == .never { json.member("never_expires", true) }
            json.member("granted_scopes", grantedScopes.values)
            json.memberIfPresent("user_id", userID?.text)
            json.memberIfPresent("told_user_id", identity.userID?.text)
            json.memberIfPresent("told_subject", identity.subject?.text)
            json.member("client_id", obtainedWith.clientID.text)
            json.member("requested_scopes", obtainedWith.scopes.values)
            json.memberIfPresent("client_unique_key", obtainedWith.clientUniqueKey?.text)
            json.memberIfPresent("client_secret_digest", obtainedWith.clientSecretDigest.map(Base64URL.encode))
            json.memberIfPresent("issuer", grantedBy?.issuer?.text)
            json.memberIfPresent("token_endpoint", grantedBy?.tokenEndpoint?.text)
            if let refreshableFrom { json.member("refreshable_from", refreshableFrom.milliseconds) }
        }
    }

    init?(json: JSONValue) {
        guard let level = json["level"]?.string.flatMap(CredentialsLevel.init), level != .basic,
            let accessToken = json["access_token"]?.string,
            let expires = json["expires"]?.integer,
            let granted = Self.scopes(json["granted_scopes"]),
            let clientID = json["client_id"]?.string,
            let requested = Self.scopes(json["requested_scopes"])
        else { return nil }
        // A member of another type was not written by an earlier build. Ignoring it could silently lose a refresh token
        // or the provider that granted it.
        let optional: [WireText] = [
            "refresh_token", "user_id", "told_user_id", "told_subject", "client_unique_key", "client_secret_digest",
            "issuer", "token_endpoint",
        ]
        for name in optional {
            if let member = json[name], member.string == nil { return nil }
        }
        if let member = json["refreshable_from"], member.integer == nil { return nil }
        var digest: [UInt8]?
        if let text = json["client_secret_digest"]?.string {
            guard let bytes = Base64URL.decode(text.text) else { return nil }
            digest = bytes
        }
        self.init(
            level: level, accessToken: SecretBytes(utf8: accessToken.text),
            refreshToken: (json["refresh_token"]?.string?.text).map(SecretBytes.init(utf8:)),
            expires: json["never_expires"]?.bool == true ? .never : Timestamp(milliseconds: expires),
            grantedScopes: granted, userID: json["user_id"]?.string,
            obtainedWith: ClientFingerprint(
                clientID: clientID, scopes: requested, clientUniqueKey: json["client_unique_key"]?.string,
                clientSecretDigest: digest),
            grantedBy: GrantingProvider(issuer: json["issuer"]?.string, tokenEndpoint: json["token_endpoint"]?.string),
            refreshableFrom: (json["refreshable_from"]?.integer).map(Timestamp.init(milliseconds:)))
        identity = UserIdentity(userID: json["told_user_id"]?.string, subject: json["told_subject"]?.string)
    }

    private static func scopes(_ json: JSONValue?) -> ScopeSet? {
        guard let elements = json?.array else { return nil }
        let tokens = elements.compactMap(\.string)
        return tokens.count == elements.count ? ScopeSet(tokens) : nil
    }
}
