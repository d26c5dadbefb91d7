import Cryptography
import ExternalText
import JSON

/// How a token is written.
package enum TokenFormat: String, Sendable, CaseIterable {
    /// The token alone.
    case bearer
    /// The broker's answer.
    case json
    /// Lines that a shell reads.
    case env
    /// `client.authentication.k8s.io`, for kubectl and other clients of Kubernetes.
    case execCredential = "exec-credential"
    /// A credential helper, gitcredentials(7).
    case git
    /// `credential_process` of the AWS CLI and SDKs.
    case awsProcess = "aws-process"
    /// Executable-sourced credentials of Google's libraries.
    case googleExecutable = "google-executable"
    /// A credential helper of Docker.
    case docker

    /// Whether the tool adds a word that says what to do, and writes to standard input what it is about.
    var hasActions: Bool { self == .git || self == .docker }

    /// Whether the tool can use a token that needs a proof beside it: only where people take it from here themselves.
    var allowsBound: Bool { [.bearer, .json, .env].contains(self) }
}

/// What tools read, as they read it.
package enum TokenFormats {
    /// `export NAME='…'` lines for a POSIX shell.
    package static func env(_ token: String, names: [String]) -> String {
        names.map { "export \($0)=\(ShellWord.inQuotes(token))\n" }.joined()
    }

    /// Whether a text can be the name of a variable in a shell.
    package static func isVariableName(_ text: String) -> Bool {
        guard let first = text.utf8.first, !(0x30...0x39).contains(first) else { return false }
        return text.utf8.allSatisfy {
            (0x30...0x39).contains($0) || (0x41...0x5a).contains($0) || (0x61...0x7a).contains($0) || $0 == 0x5f
        }
    }

    /// An `ExecCredential` of the version that the client asks for.
    /// - Parameter information: `KUBERNETES_EXEC_INFO`; nil where it is not set: version v1 then.
    /// - Throws: `configuration` for a version that there is no longer, and for what is no `ExecCredential`.
    package static func execCredential(
        _ token: String, expires: String?, information: String?
    ) throws(CommandError) -> [UInt8] {
        let versions = ["v1", "v1beta1"].map { "client.authentication.k8s.io/" + $0 }
        var version = versions[0]
        if let information {
            guard let asked = (try? JSONValue(parsing: Array(information.utf8)))?["apiVersion"]?.string?.text,
                versions.contains(asked)
            else {
                throw CommandError(
                    .configuration, "KUBERNETES_EXEC_INFO asks for none of \(versions.joined(separator: ", "))",
                    next: "kubectl config set-credentials USER --exec-api-version=\(versions[0]) --exec-command=…")
            }
            version = asked
        }
        return JSONWriter.object { writer in
            writer.member("apiVersion", version)
            writer.member("kind", "ExecCredential")
            writer.name("status")
            writer.object { writer in
                writer.memberIfPresent("expirationTimestamp", expires)
                writer.member("token", token)
            }
        }
    }

    /// The answer to Google's libraries. They take the ID token, or an access token that is a JWT.
    /// - Parameter asked: `GOOGLE_EXTERNAL_ACCOUNT_TOKEN_TYPE`; nil where it is not set: what there is then.
    /// - Throws: `refused` where there is no such token.
    package static func googleExecutable(_ answer: TokenAnswer, asked: String?) throws(CommandError) -> [UInt8] {
        let prefix = "urn:ietf:params:oauth:token-type:"
        let kind = asked ?? prefix + "jwt"
        guard kind == prefix + "jwt" || kind == prefix + "id_token" else {
            throw CommandError(.refused, "\(TextTable.shown(kind)) is not a kind of token that the broker has")
        }
        guard let token = answer.extra?["id_token"]?.string?.text ?? answer.token, isJWT(token) else {
            throw CommandError(
                .refused,
                "the token is no JWT, and Google's libraries exchange JSON Web Tokens only (subject_token_type)")
        }
        return JSONWriter.object { writer in
            writer.member("version", 1)
            writer.member("success", true)
            writer.member("token_type", kind)
            writer.member("id_token", token)
            writer.memberIfPresent("expiration_time", answer.expiry)
        }
    }

    /// Why there is no token, for Google's libraries.
    package static func googleFailure(_ error: CommandError) -> [UInt8] {
        JSONWriter.object { writer in
            writer.member("version", 1)
            writer.member("success", false)
            writer.member("code", "\(error.status)")
            writer.member("message", error.text + (error.next.map { ". Try: \($0)" } ?? ""))
        }
    }

    /// Whether a text is three parts of base64url, of which the first is a JWT's header.
    package static func isJWT(_ text: String) -> Bool {
        let parts = text.split(separator: ".", omittingEmptySubsequences: false)
        guard parts.count == 3, parts.allSatisfy({ !$0.isEmpty }), let header = Base64URL.decode(String(parts[0]))
        else {
            return false
        }
        return (try? JSONValue(parsing: header))?["alg"]?.string != nil
    }

    /// The answer of a credential helper of Docker.
    package static func docker(_ token: String, server: String, username: String) -> [UInt8] {
        JSONWriter.object { writer in
            writer.member("ServerURL", server)
            writer.member("Username", username)
            writer.member("Secret", token)
        }
    }

    /// The host, with the port if there is one, of a registry as Docker writes it: `ghcr.io`, `https://index.docker.io/v1/`.
    package static func host(ofServer server: String) -> String {
        var text = server[...]
        if let range = text.firstRange(of: "://") { text = text[range.upperBound...] }
        return String(text.prefix { $0 != "/" }).lowercased()
    }
}
