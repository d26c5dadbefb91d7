package import Cryptography
package import ExternalText
import HTTPCodec
package import JOSE
import JSON
package import OAuth
import Testing

/// A key of an app, which signs proofs as the SDKs of Authgear do.
package struct AppKey: Sendable {
    package let signer: TokenSigner

    package init(
        _ kind: PrivateKey.Kind = .elliptic(.p256), _ algorithm: SignatureAlgorithm = .es256,
        keyID: WireText? = "0123456789abcdef"
    ) throws {
        let key = PrivateJSONWebKey(try PrivateKey.generate(kind), keyID: keyID)
        signer = try TokenSigner(key, algorithm: algorithm)
    }

    package var thumbprint: String { Base64URL.encode(signer.key.publicJWK.thumbprint) }

    /// A proof with this challenge.
    /// - Parameters:
    ///   - claims: JSON text of members that are added; nil in place of a default member leaves it out.
    ///   - embedsKey: whether the header has the key.
    package func proof(
        _ challenge: String, now: Timestamp, type: WireText = "vnd.authgear.app2app-request", action: String? = "setup",
        claims: [String: String] = [:], embedsKey: Bool = true
    ) throws -> String {
        var members = [
            "challenge": "\"\(challenge)\"", "iat": "\(now.milliseconds / 1000)",
            "exp": "\(now.milliseconds / 1000 + 60)",
        ]
        if let action { members["action"] = "\"\(action)\"" }
        for (name, value) in claims { members[name] = value.isEmpty ? nil : value }
        let text =
            "{" + members.sorted { $0.key < $1.key }.map { "\"\($0.key)\":\($0.value)" }.joined(separator: ",") + "}"
        return try signer.sign(Array(text.utf8), type: type, embedsKey: embedsKey).text
    }
}

extension BrokerHarness {
    /// A challenge. Fails the test when there is none.
    package func challenge(_ purpose: String = "app2app_request") async -> String {
        let answer = await call(.post, "/oauth2/challenge", key: nil, body: "{\"purpose\": \"\(purpose)\"}")
        guard let token = answer.json["result"]?["token"]?.text else {
            Issue.record("no challenge: \(answer.text)")
            return ""
        }
        return token
    }

    /// The session of an app with this device key.
    package func appSession(client: String = "app", with key: AppKey) async throws -> String {
        let proof = try key.proof(await challenge(), now: time.now)
        let answer = await exchange(
            await appCode(client: client), client: client, ["x_app2app_device_key_jwt": proof])
        return try #require(answer.json["refresh_token"]?.text, "no session: \(answer.text)")
    }

    /// The grant app2app. A change to nil leaves a parameter out.
    package func approve(
        _ refreshToken: String, _ jwt: String, target: String = "other", _ changes: [String: String?] = [:]
    ) async -> Answer {
        var parameters: [String: String?] = [
            "grant_type": "urn:authgear:params:oauth:grant-type:app2app-request", "client_id": target,
            "refresh_token": refreshToken, "jwt": jwt, "redirect_uri": Self.appRedirect,
            "code_challenge": Self.appChallenge, "code_challenge_method": "S256",
        ]
        for (name, value) in changes { parameters.updateValue(value, forKey: name) }
        return await app("/oauth2/token", parameters.compactMap { name, value in value.map { (name, $0) } })
    }

    /// The biometric grant.
    package func biometric(
        _ jwt: String, client: String = "app", bearer: String? = nil, _ changes: [String: String?] = [:]
    ) async -> Answer {
        var parameters: [String: String?] = [
            "grant_type": "urn:authgear:params:oauth:grant-type:biometric-request", "client_id": client, "jwt": jwt,
        ]
        for (name, value) in changes { parameters.updateValue(value, forKey: name) }
        return await app(
            "/oauth2/token", parameters.compactMap { name, value in value.map { (name, $0) } },
            authorization: bearer.map { "Bearer " + $0 })
    }
}
