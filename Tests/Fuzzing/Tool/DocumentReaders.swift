import BrokerCore
import Cryptography
import ExternalText
import HTTPSClient
import JSON
import OAuth

/// What is read of JSON documents.
enum DocumentReaders {
    /// A value is the same after it was written and read again.
    static func readJSON(_ bytes: [UInt8]) {
        guard let value = try? JSONValue(parsing: bytes) else { return }
        var writer = JSONWriter()
        writer.value(value)
        let again = try? JSONValue(parsing: writer.bytes)
        require(again == value, "\(value) became \(String(describing: again))")
        do throws(JSONValue.Fault) {
            let limited = try JSONValue(parsing: bytes, longestName: 8)
            require(limited == value, "with a limit for names it is \(limited)")
        } catch {
            guard case .nameTooLong = error else { fail("with a limit for names: \(error)") }
        }
    }

    static func readAnswer(_ bytes: [UInt8]) {
        let now = Timestamp(seconds: 1_700_000_000)
        let sent = SentSecrets([Array("a-secret-of-the-request".utf8)])
        for name in ["oidc", "duckduckgo", "slack", "github", "instagram"] as [WireText] {
            let profile = ProviderPreset.shipped(name)
            _ = profile.answers.meaning(ofAnswer: bytes, status: 200)
            guard let answer = TokenResponse(body: bytes, askedAt: now, from: profile, isForm: name == "github") else {
                continue
            }
            require(!answer.accessToken.revealedBytes.isEmpty, "an access token is empty")
            require(
                answer.expires.map { $0 <= .latest } ?? true, "a token expires at \(String(describing: answer.expires))"
            )
        }
        let refusal = TokenErrorResponse(body: bytes, answering: sent)
        require(refusal.errorCode?.utf8.contains(where: { $0 < 0x20 }) != true, "an error code has control characters")
        if let answer = DeviceAuthorizationResponse(body: bytes) {
            require(
                answer.expiresIn >= .seconds(1) && answer.expiresIn <= .seconds(86_400), "it lasts \(answer.expiresIn)")
            require(answer.interval >= .seconds(1) && answer.interval <= .seconds(600), "it waits \(answer.interval)")
        }
        guard let value = try? JSONValue(parsing: bytes) else { return }
        if let links = AndroidAppLinks(value) {
            require(!links.include(package: "", certificate: []), "an app without a certificate is included")
        }
        if let links = AppleAppLinks(value) {
            for path: WireText in ["/", "/a/b/c/d", WireText("/" + String(repeating: "ab", count: 100))] {
                _ = links.allow(app: "T.a", path: path, query: "a=b&c=d")
            }
        }
    }

    /// A configuration is the same after it was stored and read again.
    static func readTenant(_ bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes) else { return }
        for rules in [TargetPolicy.everything, TargetPolicy()] {
            guard let configuration = try? TenantConfiguration(json, rules: rules) else { continue }
            let again = TenantConfiguration(decoding: configuration.encoded)
            require(again == configuration, "a configuration became \(String(describing: again))")
        }
    }
}
