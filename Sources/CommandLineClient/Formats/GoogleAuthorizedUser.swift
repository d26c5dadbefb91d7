import ExternalText
import JSON

extension TokenFileFormat {
    /// google-auth's `Credentials.to_json()`, and the `application_default_credentials.json` of gcloud, which has no access token.
    static let googleAuthorizedUser = TokenFileFormat(
        name: "google-authorized-user", help: "an authorized user of google-auth or gcloud",
        read: { bytes throws(TokenFileFault) in
            let root = try TokenFileJSON.object(bytes)
            if let type = root["type"]?.string, type != "authorized_user" {
                throw TokenFileFault(
                    "is of the type \(TextTable.shown(type.prefix(64).text)), which has no refresh token of a user")
            }
            guard root["token"] != nil || root["refresh_token"] != nil else {
                throw TokenFileFault("has neither a token nor a refresh_token")
            }
            var entry = TokenFileEntry("the user", group: "google")
            if let account = entry.text("account", of: root) {
                (entry.name, entry.storageKey) = (account, account)
            }
            entry.accessToken = entry.text("token", of: root)
            entry.refreshToken = entry.text("refresh_token", of: root)
            entry.clientID = entry.text("client_id", of: root)
            // Without an offset it is UTC.
            entry.expires = entry.time("expiry", of: root)
            entry.takeScopes(root["scopes"])
            return [entry]
        })
}
