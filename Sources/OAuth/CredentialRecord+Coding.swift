import Cryptography
import ExternalText
import JSON

/// The sealed content of a credentials record, as JSON. A reader accepts the records of earlier builds, so a member
/// that is added later must have a meaning when it is absent.
extension CredentialRecord {
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            if let granted {
                json.name("held")
                granted.encode(to: &json)
            }
            if let waiting {
                json.name("waiting")
                waiting.encode(to: &json)
            }
            json.memberIfPresent("ended", ended.map(Base64URL.encode))
            session?.encode(to: &json)
            if let renewed { json.member("renewed", renewed.milliseconds) }
            json.memberIfPresent("exchanged", exchanged.map(Base64URL.encode))
            json.memberIfPresent("held_since", heldSince)
            if keepsRefreshToken { json.member("keeps_refresh_token", true) }
            json.memberIfPresent("ended_before", endedBefore.map(Base64URL.encode))
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
            granted = held
        }
        if let member = json["waiting"] {
            guard granted != nil, let waiting = WaitingVerification(json: member) else { return nil }
            self.waiting = waiting
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
        if let member = json["held_since"] {
            guard let version = member.integer else { return nil }
            heldSince = version
        }
        keepsRefreshToken = json["keeps_refresh_token"]?.bool ?? false
        if let member = json["ended_before"] {
            guard let digest = Self.digest(member) else { return nil }
            endedBefore = digest
        }
    }

    fileprivate static func digest(_ member: JSONValue) -> [UInt8]? {
        let digest = (member.string?.text).flatMap(Base64URL.decode)
        return digest?.count == SHA256.digestCount ? digest : nil
    }
}

extension WaitingVerification {
    fileprivate func encode(to json: inout JSONWriter) {
        json.object { json in
            json.member("origin", origin.rawValue)
            if let earlier {
                json.name("earlier")
                earlier.encode(to: &json)
            }
            json.memberIfPresent("id_token", idToken?.revealedText)
            json.memberIfPresent("nonce", nonce?.text)
            json.memberIfPresent("login", login)
            json.member("granted", granted.milliseconds)
        }
    }

    fileprivate convenience init?(json: JSONValue) {
        guard let origin = json["origin"]?.string.flatMap(Origin.init), let granted = json["granted"]?.integer else {
            return nil
        }
        for name: WireText in ["id_token", "nonce", "login"] {
            if let member = json[name], member.string == nil { return nil }
        }
        var earlier: HeldCredentials?
        if let member = json["earlier"] {
            guard let held = HeldCredentials(json: member) else { return nil }
            earlier = held
        }
        self.init(
            origin: origin, replacing: earlier,
            idToken: (json["id_token"]?.string?.text).map(SecretBytes.init(utf8:)), nonce: json["nonce"]?.string,
            login: json["login"]?.string?.text, granted: Timestamp(milliseconds: granted))
    }
}

extension EndedSession {
    /// Writes the members of a session that has ended, among those of a record.
    fileprivate func encode(to json: inout JSONWriter) {
        json.member("session_ended", time.milliseconds)
        json.member("session_end", cause.rawValue)
        json.memberIfPresent("session_error", code)
        json.memberIfPresent("session_error_code", errorCode)
    }

    /// Nil for a cause that only a newer build knows.
    fileprivate init?(in json: JSONValue) {
        guard let time = json["session_ended"]?.integer, let cause = json["session_end"]?.string.flatMap(Cause.init)
        else { return nil }
        self.init(
            cause, at: Timestamp(milliseconds: time), code: json["session_error"]?.string?.text,
            errorCode: json["session_error_code"]?.string?.text)
    }
}

/// The sealed content of a record of quarantined credentials, as JSON.
extension QuarantinedCredentials {
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("until", until.milliseconds)
            session?.encode(to: &json)
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
            if loggedInSince != Self.unknownLogin { json.member("logged_in_since", loggedInSince.milliseconds) }
            if proof.accessToken { json.member("verified_access_token", true) }
            if proof.refreshToken { json.member("verified_refresh_token", true) }
            json.memberIfPresent("verified_id_token", proof.idToken?.revealedText)
            terms?.encode(to: &json)
            if let extra {
                json.name("extra")
                extra.encode(to: &json)
            }
            if let proofKey {
                json.member("dpop_key", proofKey.pem.revealedText)
                if proofKey.bindsToken { json.member("dpop_token", true) }
                json.memberIfPresent("dpop_refresh_key", proofKey.refreshPEM?.revealedText)
            }
            if let imported {
                json.member("imported", Base64URL.encode(imported.digest))
                if let granted = imported.granted { json.member("imported_granted", granted.milliseconds) }
            }
            if let asked {
                json.name("asked")
                asked.encode(to: &json)
            }
            if let deviceKey {
                json.member("device_key", deviceKey.pem.revealedText)
                if !deviceKey.isBound { json.member("device_key_is_candidate", true) }
            }
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
            "issuer", "token_endpoint", "verified_id_token", "device_key", "dpop_key", "dpop_refresh_key",
        ]
        for name in optional {
            if let member = json[name], member.string == nil { return nil }
        }
        for name in ["refreshable_from", "logged_in_since"] as [WireText] {
            if let member = json[name], member.integer == nil { return nil }
        }
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
        proof = TokenProof(
            accessToken: json["verified_access_token"]?.bool ?? false,
            refreshToken: json["verified_refresh_token"]?.bool ?? false,
            idToken: (json["verified_id_token"]?.string?.text).map(SecretBytes.init(utf8:)))
        extra = ExtraFacts(nil, json["extra"]?.object ?? [:])
        asked = json["asked"].flatMap { AskedGrant($0) }
        terms = GrantTerms(json: json)
        if let since = json["logged_in_since"]?.integer { loggedInSince = Timestamp(milliseconds: since) }
        proofKey = (json["dpop_key"]?.string?.text).map { pem in
            DPoPKey(
                pem: SecretBytes(utf8: pem), bindsToken: json["dpop_token"]?.bool ?? false,
                refreshPEM: (json["dpop_refresh_key"]?.string?.text).map(SecretBytes.init(utf8:)))
        }
        if let member = json["imported"] {
            guard let digest = CredentialRecord.digest(member) else { return nil }
            imported = ImportedGrant(
                digest: digest, granted: (json["imported_granted"]?.integer).map(Timestamp.init(milliseconds:)))
        }
        deviceKey = (json["device_key"]?.string?.text).map { pem in
            DeviceKey(pem: SecretBytes(utf8: pem), isBound: json["device_key_is_candidate"]?.bool != true)
        }
    }

    private static func scopes(_ json: JSONValue?) -> ScopeSet? {
        guard let elements = json?.array else { return nil }
        let tokens = elements.compactMap(\.string)
        return tokens.count == elements.count ? ScopeSet(tokens) : nil
    }
}
