import ExternalText
import JSON

extension TokenFileFormat {
    /// A file of `~/.aws/sso/cache`, as the AWS CLI and botocore write it. After a refresh its times end in `UTC`, and the refresh
    /// token is missing where the answer had none.
    static let awsSSO = TokenFileFormat(
        name: "aws-sso", help: "a session of ~/.aws/sso/cache",
        read: { bytes throws(TokenFileFault) in
            let root = try TokenFileJSON.object(bytes)
            guard root["accessToken"] != nil || root["refreshToken"] != nil else {
                throw TokenFileFault(
                    root["clientSecret"] != nil
                        ? "is the registration of a client, which has no tokens: name the file beside it that has an accessToken"
                        : "has no accessToken: it is no session of AWS SSO")
            }
            var entry = TokenFileEntry("the session", group: "aws-sso")
            if let url = entry.text("startUrl", of: root) { entry.name = url }
            entry.accessToken = entry.text("accessToken", of: root)
            entry.refreshToken = entry.text("refreshToken", of: root)
            entry.clientID = entry.text("clientId", of: root)
            entry.expires = entry.time("expiresAt", of: root)
            if let end = entry.time("registrationExpiresAt", of: root) {
                entry.notes.append("its client's registration ends at \(end), and the refresh token with it")
            }
            return [entry]
        })
}
