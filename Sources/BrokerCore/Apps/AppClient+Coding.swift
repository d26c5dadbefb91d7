package import CredentialStore
import Cryptography
import ExternalText
package import JSON
import OAuth

extension AppClient.Settings {
    /// The days of `session_days` and `session_idle_days`.
    private static let days: ClosedRange<Int64> = 1...3650
    private static let mostApps = 20

    /// Reads the content of `PUT /tenants/{tenant}/clients/{client_id}`.
    /// - Throws: `invalid_request` with all faults.
    package init(_ json: JSONValue) throws(BrokerError) {
        var reader = ObjectReader(json)
        name = reader.string("name", limit: 100)?.text
        let secret = reader.string("client_secret")
        if let secret, secret.count < AppClient.shortestSecret {
            reader.note(
                "client_secret", "must not be shorter than \(AppClient.shortestSecret) bytes: choose it at random")
        }
        secretDigest = secret.map { SHA256.digest(Array($0.utf8)) }
        keepsSecret = secret == nil && !reader.isNull("client_secret")
        redirectURIs =
            reader.requiredStrings("redirect_uris", check: RedirectURI.registrationFault)?.map(\.text) ?? []
        storageKey = reader.value("storage_key", rule: StorageKey.inputRule) { StorageKey($0) }
        rotatesRefreshTokens = reader.bool("refresh_token_rotation") ?? true
        sessionDays = reader.integer("session_days", in: Self.days) ?? 365
        idleDays = reader.integer("session_idle_days", in: Self.days) ?? 30
        allowsAppToApp = reader.bool("x_app2app_enabled") ?? false
        bindsInsecurely = reader.bool("x_app2app_insecure_device_key_binding_enabled") ?? false
        requiresBiometricProtection = reader.bool("x_app2app_biometric_protection_required") ?? false
        allowsBiometrics = reader.bool("biometric_enabled") ?? false
        androidApps = reader.objects("android_apps", atMost: Self.mostApps, Self.androidApp) ?? []
        appleApps =
            reader.strings("apple_apps", atMost: Self.mostApps) {
                Self.isAppleApp($0) ? nil : "must be a team's prefix, a dot and a bundle identifier"
            }?.map(\.text) ?? []
        try reader.finish()
    }

    private static func androidApp(_ reader: inout ObjectReader) -> AppClient.AndroidApp? {
        let name = reader.requiredString("package_name", limit: 255)
        if let name, !isPackageName(name) {
            reader.note("package_name", "must be a package name such as com.example.app")
        }
        let fingerprints = reader.requiredStrings("sha256_cert_fingerprints") {
            fingerprint($0) == nil ? "must be 32 pairs of hexadecimal digits with colons between them" : nil
        }
        guard let name, let fingerprints else { return nil }
        return .init(packageName: name.text, fingerprints: fingerprints.compactMap(fingerprint))
    }

    /// Whether a text is at least two names of letters, digits and underscores, with dots between them.
    private static func isPackageName(_ text: WireText) -> Bool {
        let names = text.split(at: ".")
        return names.count > 1
            && names.allSatisfy { name in
                name.utf8.first.map { $0.isLowercaseLetter || $0.isUppercaseLetter } ?? false
                    && name.utf8.allSatisfy {
                        $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || $0 == UInt8(ascii: "_")
                    }
            }
    }

    /// A certificate's digest in upper case.
    private static func fingerprint(_ text: WireText) -> String? {
        let pairs = text.split(at: ":", limit: 33)
        guard pairs.count == 32, pairs.allSatisfy({ $0.count == 2 && Hex.decode($0.lowercased.text) != nil }) else {
            return nil
        }
        return String(
            decoding: text.utf8.map { $0.isLowercaseLetter ? $0 - 0x20 : $0 }, as: UTF8.self)
    }

    private static func isAppleApp(_ text: WireText) -> Bool {
        let parts = text.split(at: ".", limit: 2)
        return text.count <= 255 && parts.count == 2 && parts[0].count == 10
            && parts[0].utf8.allSatisfy { $0.isUppercaseLetter || $0.isDigit } && !parts[1].isEmpty
            && parts[1].utf8.allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || ".-".utf8.contains($0)
            }
    }

    /// Writes the members of an answer, which has not the secret.
    package func encode(to json: inout JSONWriter) {
        json.memberIfPresent("name", name)
        json.member("client_secret_set", secretDigest != nil)
        encodeRest(to: &json)
    }

    private func encodeRest(to json: inout JSONWriter) {
        json.member("redirect_uris", redirectURIs)
        json.memberIfPresent("storage_key", storageKey?.description)
        json.member("refresh_token_rotation", rotatesRefreshTokens)
        json.member("session_days", sessionDays)
        json.member("session_idle_days", idleDays)
        json.member("x_app2app_enabled", allowsAppToApp)
        json.member("x_app2app_insecure_device_key_binding_enabled", bindsInsecurely)
        json.member("x_app2app_biometric_protection_required", requiresBiometricProtection)
        json.member("biometric_enabled", allowsBiometrics)
        json.name("android_apps")
        json.array { json in
            for app in androidApps {
                json.object { json in
                    json.member("package_name", app.packageName)
                    json.member("sha256_cert_fingerprints", app.fingerprints)
                }
            }
        }
        json.member("apple_apps", appleApps)
    }

    /// Writes the members of a record.
    fileprivate func encodeStored(to json: inout JSONWriter) {
        json.memberIfPresent("name", name)
        json.memberIfPresent("client_secret_digest", secretDigest.map { Base64URL.encode($0) })
        encodeRest(to: &json)
    }

    /// Reads a record; nil where this build cannot read it.
    fileprivate init?(stored json: JSONValue) {
        guard let uris = json["redirect_uris"]?.array,
            let rotates = json["refresh_token_rotation"]?.bool, let sessionDays = json["session_days"]?.integer,
            let idleDays = json["session_idle_days"]?.integer
        else { return nil }
        name = json["name"]?.string?.text
        if let digest = json["client_secret_digest"] {
            guard let digest = digest.string.flatMap({ Base64URL.decode($0.text) }) else { return nil }
            secretDigest = digest
        }
        redirectURIs = uris.compactMap { $0.string?.text }
        storageKey = json["storage_key"]?.string.flatMap { StorageKey($0) }
        rotatesRefreshTokens = rotates
        self.sessionDays = sessionDays
        self.idleDays = idleDays
        allowsAppToApp = json["x_app2app_enabled"]?.bool ?? false
        bindsInsecurely = json["x_app2app_insecure_device_key_binding_enabled"]?.bool ?? false
        requiresBiometricProtection = json["x_app2app_biometric_protection_required"]?.bool ?? false
        allowsBiometrics = json["biometric_enabled"]?.bool ?? false
        androidApps = (json["android_apps"]?.array ?? []).compactMap { app in
            guard let name = app["package_name"]?.string?.text else { return nil }
            let fingerprints = app["sha256_cert_fingerprints"]?.array?.compactMap { $0.string?.text } ?? []
            return .init(packageName: name, fingerprints: fingerprints)
        }
        appleApps = json["apple_apps"]?.array?.compactMap { $0.string?.text } ?? []
    }
}

extension AppClient {
    var record: OpenRecord {
        OpenRecord(
            id: recordID, version: version, content: SecretBytes(encoded), lookup: Self.lookup(clientID))
    }

    /// The sealed content of the record, as JSON.
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("created", created.milliseconds)
            settings.encodeStored(to: &json)
        }
    }

    /// Throws `.damaged` where this build cannot read the record.
    package convenience init(_ record: OpenRecord) throws(StoreError) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes), let created = json["created"]?.integer,
            let settings = Settings(stored: json)
        else {
            throw .damaged("client \(record.id.key) of tenant \(record.id.tenant) cannot be read by this version")
        }
        self.init(
            tenant: record.id.tenant, clientID: record.id.key, version: record.version,
            created: Timestamp(milliseconds: created), settings: settings)
    }
}

extension StorageKey {
    fileprivate static let inputRule = "must be 1 to 200 characters of A-Z a-z 0-9 . _ ~ : @ -"
}
