import ExternalText
package import JSON
import OAuth

/// Keys of AWS, and the answer of a `credential_process` that has them.
package struct AWSCredentials: Sendable, Equatable {
    package let accessKeyID: String
    package let secretAccessKey: String
    package let sessionToken: String?
    /// RFC 3339; nil for keys that do not expire.
    package let expiration: String?

    /// Those that a token is, as JSON, or that the provider has told beside it. A token of OAuth has none.
    /// - Throws: `failed`, and says what would have them.
    package init(_ answer: TokenAnswer) throws(CommandError) {
        let inToken = answer.token.flatMap { try? JSONValue(parsing: Array($0.utf8)) }
        guard
            let members = [inToken, answer.extra].compactMap(\.self).first(where: { $0["AccessKeyId"]?.string != nil }),
            let identifier = members["AccessKeyId"]?.string?.text,
            let secret = members["SecretAccessKey"]?.string?.text
        else {
            throw CommandError(
                .failed,
                "the token has no AccessKeyId and SecretAccessKey, which AWS wants. For a token of IAM Identity Center name "
                    + "--account and --role; other tokens go to AssumeRoleWithWebIdentity: have web_identity_token_file "
                    + "name a file with the output of --format bearer")
        }
        accessKeyID = identifier
        secretAccessKey = secret
        sessionToken = members["SessionToken"]?.string?.text
        expiration = members["Expiration"]?.string?.text ?? answer.expires
    }

    /// An answer of `GetRoleCredentials` of IAM Identity Center.
    package init?(roleCredentials value: JSONValue) {
        guard let members = value["roleCredentials"], let identifier = members["accessKeyId"]?.string?.text,
            let secret = members["secretAccessKey"]?.string?.text
        else { return nil }
        accessKeyID = identifier
        secretAccessKey = secret
        sessionToken = members["sessionToken"]?.string?.text
        expiration = members["expiration"]?.integer.flatMap { $0 > 0 ? Timestamp(seconds: $0 / 1000).description : nil }
    }

    /// Version 1 of the process's answer.
    package var document: [UInt8] {
        JSONWriter.object { writer in
            writer.member("Version", 1)
            writer.member("AccessKeyId", accessKeyID)
            writer.member("SecretAccessKey", secretAccessKey)
            writer.memberIfPresent("SessionToken", sessionToken)
            writer.memberIfPresent("Expiration", expiration)
        }
    }
}
