internal import ExternalText
internal import HTTPCodec
package import JSON

/// Keys of AWS, and the answer of a `credential_process` that has them.
package struct AWSCredentials: Sendable, Equatable {
    package let accessKeyID: String
    package let secretAccessKey: String
    package let sessionToken: String?
    /// RFC 3339; nil for keys that do not expire.
    package let expiration: String?

    /// Those that a token is, as JSON, or that the provider has told beside it. A token of OAuth has none.
    /// - Throws: `refused`, and says what would have them.
    package init(_ answer: TokenAnswer) throws(CommandError) {
        let inToken = answer.token.flatMap { try? JSONValue(parsing: Array($0.utf8)) }
        guard
            let members = [inToken, answer.extra].compactMap(\.self).first(where: { $0["AccessKeyId"]?.string != nil }),
            let identifier = members["AccessKeyId"]?.string?.text,
            let secret = members["SecretAccessKey"]?.string?.text
        else {
            throw CommandError(
                .refused,
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
        expiration = members["expiration"]?.integer.flatMap { $0 > 0 ? Self.time($0 / 1000) : nil }
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

    /// RFC 3339 of seconds since 1970.
    static func time(_ seconds: Int64) -> String {
        let (days, rest) = GregorianDate.floorDivide(seconds, by: 86_400)
        let date = GregorianDate(daysSince1970: days)
        func digits(_ number: Int64, _ count: Int = 2) -> String {
            let text = String(number)
            return String(repeating: "0", count: max(0, count - text.count)) + text
        }
        return "\(digits(date.year, 4))-\(digits(date.month))-\(digits(date.day))T"
            + "\(digits(rest / 3600)):\(digits(rest / 60 % 60)):\(digits(rest % 60))Z"
    }
}
