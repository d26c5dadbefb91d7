import ExternalText
package import JSON

/// A running Glewlwyd 2.7, an OAuth 2.0 and OpenID Connect server from outside this project, on a free loopback port,
/// with one user and one confidential client. It is unpacked from Debian's package where that was not done yet.
///
/// Where it is its own server, as seen on the wire:
///
/// * The redirect is `redirect_uri?iss=…&state=…&code=…`. `iss` (RFC 9207) is there, although the discovery document
///   does not announce `authorization_response_iss_parameter_supported`; with `sendsIssuer: false` it is not.
/// * An authorization request with the scope `openid` is refused without a `nonce`
///   (`error=invalid_request&error_description=nonce required`). One with `music` alone is plain OAuth 2.0.
/// * A token answer is 200
///   `{"token_type":"bearer","access_token":…,"refresh_token":…,"iat":…,"expires_in":3600,"scope":"music"}`: the type
///   in lower case, the access token a JWT (`at+jwt`, RS256, with `iss`, `sub`, `exp`, `scope`), the refresh token 128
///   letters and digits. With `openid` an `id_token` comes along.
/// * A wrong verifier, and a code used twice, is 403 `{"error":"invalid_code"}`, a status and an error that RFC 6749
///   does not know. The second use also kills the tokens of the first (RFC 6749 §4.1.2). A wrong verifier leaves the
///   code usable.
/// * A refresh answer has no `refresh_token`: the old one stays good. With `rotatesRefreshTokens` it has a new one, the
///   old one dies at once, and its second use kills its successors as well.
/// * A dead or unknown refresh token is 400 **without a body**, not the `invalid_grant` of RFC 6749 §5.2. So is an
///   unknown grant type, and a wrong client secret in a refresh.
/// * `client_credentials` is 200 `{"access_token":…,"token_type":"bearer","expires_in":3600,"scope":"music"}`. Without
///   a `scope` it is 403 without a body; with a scope that is not the client's own 400 `{"error":"scope_invalid"}`.
/// * Revocation is 200 without a body, for an unknown token too (RFC 7009 §2.2). Discovery names `client_secret_basic`
///   only for it, yet a secret in the body is taken as well.
/// * With `pushedRequests`, the address of the login has `client_id` and `request_uri`. A proof at that endpoint must have the nonce
///   of `withNonce`, too, and its refusal, 403 `invalid_dpop_proof`, does not tell it: only those of the token endpoint do.
/// * With `clientKey` and `signsWithSecret`, `aud` of the client's JWT must be the very address that the request goes to, at the endpoints for pushed
///   requests and for revocations, too; neither the issuer nor a list is taken. The JWT must name the key by its `kid`. A JWT that
///   is refused is 403 at the token endpoint and 401 elsewhere, without a body. Discovery names `client_secret_basic` only for
///   revocations all the same, which such a client may not use.
/// * With `proofs`, a token of the type `DPoP` is refused as `Bearer`. A proof without the nonce of `withNonce` is 400
///   `use_dpop_nonce` at the token endpoint, and 401 with `WWW-Authenticate` at the userinfo endpoint.
/// * The device authorization answer has `verification_uri_complete`; a poll gets `authorization_pending`, `slow_down`
///   within the interval, the tokens once, and then `access_denied`; always 400 but for the tokens.
package final class GlewlwydServer: Sendable {
    private let process: ServerProcess

    /// `http://127.0.0.1:port`, or https, without a slash at the end.
    package let baseURL: String
    /// The certificate of the authority that signed the server's, as a PEM file; gone after `stop()`. Empty without TLS.
    package let certificateAuthorityFile: String
    /// Discovery is at `issuer` + `/.well-known/openid-configuration`.
    package let issuer: String
    package let authorizationEndpoint: String
    package let tokenEndpoint: String
    package let deviceAuthorizationEndpoint: String
    package let revocationEndpoint: String
    package let jwksURI: String
    /// Where its own API takes access tokens, by a GET.
    package let userinfoEndpoint: String

    package let clientID: String
    package let clientSecret: String
    /// What the client may ask for, of its own or for the user.
    package let scopes: [String]
    package let username: String
    package let password: String

    /// The body of `PUT /tenants/{tenant}` for its client.
    package var tenant: String {
        #"""
        {"provider": "oidc", "issuer": "\#(issuer)", "client_id": "\#(clientID)", "client_secret": "\#(clientSecret)",
         "scopes": ["music"]}
        """#
    }

    package enum PushedRequests: String, Sendable {
        case none
        case allowed
        case required
    }

    package enum Proofs: String, Sendable {
        case none
        case withoutNonce = "without_nonce"
        /// Each nonce is good for two requests of the client.
        case withNonce = "with_nonce"
    }

    /// How the server is set up.
    package struct Options: Sendable {
        /// The client's; an authorization request with another one is refused (403, no redirect).
        package var redirectURIs: [String]
        /// In seconds, from 1.
        package var accessTokenDuration = 3600
        /// In seconds, from 1.
        package var refreshTokenDuration = 1_209_600
        package var rotatesRefreshTokens = false
        /// Whether the redirect bears `iss` (RFC 9207).
        package var sendsIssuer = true
        /// Between two polls of a device login, in seconds.
        package var deviceInterval = 5
        /// Whether it is reached by https, with a certificate for 127.0.0.1 and localhost from an authority of its own.
        package var speaksTLS = false
        /// Whether tokens are signed by ES256, and not by RS256.
        package var signsWithECDSA = false
        /// Whether clients can have, or must have, the parameters of their logins pushed (RFC 9126).
        package var pushedRequests = PushedRequests.none
        /// Whether tokens are bound to the keys of clients that prove one (RFC 9449).
        package var proofs = Proofs.none
        /// The public JWK with a `kid` by which the client is known (`private_key_jwt`); nil for its secret.
        package var clientKey: JSONValue?
        /// Whether the client is known by JWTs that its secret signs (`client_secret_jwt`), and by nothing else.
        package var signsWithSecret = false

        package init(redirectURIs: [String]) {
            self.redirectURIs = redirectURIs
        }
    }

    /// Starts and configures a server of its own. To be stopped with `stop()`; a server that is let go of stops, too.
    /// - Throws: `ServerFailure`, or `SystemError` where the process cannot even be started.
    package static func start(_ options: Options) async throws -> GlewlwydServer {
        let support = #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast()
        let checkout = support.dropLast(2)
        let process = try ServerProcess(arguments: [
            "/usr/bin/python3", support.joined(separator: "/") + "/glewlwyd/glewlwyd.py",
            checkout.joined(separator: "/") + "/.build-tools/glewlwyd",
            String(decoding: options.encoded, as: UTF8.self),
        ])
        // Long enough for the packages to be fetched, where this is the first use in the checkout.
        return try GlewlwydServer(process, description: await process.readAnswer(within: .seconds(180)))
    }

    private init(_ process: ServerProcess, description: JSONValue) throws {
        func text(_ member: String) throws -> String {
            guard let text = description[member]?.text else { throw ServerFailure("no \(member) is told of it") }
            return text
        }
        self.process = process
        baseURL = try text("base_url")
        certificateAuthorityFile = try text("ca_file")
        issuer = try text("issuer")
        authorizationEndpoint = try text("authorization_endpoint")
        tokenEndpoint = try text("token_endpoint")
        deviceAuthorizationEndpoint = try text("device_authorization_endpoint")
        revocationEndpoint = try text("revocation_endpoint")
        jwksURI = try text("jwks_uri")
        userinfoEndpoint = try text("userinfo_endpoint")
        clientID = try text("client_id")
        clientSecret = try text("client_secret")
        scopes = (description["scopes"]?.array ?? []).compactMap(\.text)
        username = try text("username")
        password = try text("password")
    }

    /// Does what the user's browser does with an authorization URL: opens it, signs in, consents, and follows the
    /// redirects for as long as they stay on the server.
    /// - Returns: the redirect to the client, with `code` and `state` or with `error`; the caller is to follow it.
    /// - Throws: `ServerFailure` where the server shows an error instead of redirecting.
    package func logIn(authorizeURL: String) async throws -> String {
        try await redirect("log_in", "url", authorizeURL)
    }

    /// Enters a user code at the verification URI, signs in and consents.
    /// - Throws: `ServerFailure` where the code is not accepted.
    package func approveDevice(userCode: String) async throws {
        _ = try await redirect("approve_device", "user_code", userCode)
    }

    /// Ends the server and removes what it wrote. Later connections to it are refused.
    package func stop() async {
        await process.end()
    }

    /// Withdraws, as the user, every session that a client holds: its refresh tokens are dead from then on.
    /// - Returns: how many there were. More than a hundred are not all seen.
    @discardableResult
    package func revokeRefreshTokens() async throws -> Int {
        let answer = try await command("revoke_refresh_tokens") { _ in }
        guard let count = answer["revoked"]?.integer else { throw ServerFailure("no number in its answer") }
        return Int(count)
    }

    /// How many sessions the user's clients hold there. More than a hundred are not all seen.
    package func sessions() async throws -> Int {
        let answer = try await command("count_sessions") { _ in }
        guard let count = answer["sessions"]?.integer else { throw ServerFailure("no number in its answer") }
        return Int(count)
    }

    /// Signs with a new key from now on, and publishes it in place of the one before.
    package func rotateKey() async throws {
        let answer = try await command("rotate_key") { _ in }
        guard answer["rotated"]?.bool == true else { throw ServerFailure("no new key") }
    }

    /// Sends a form to one of the server's endpoints, as a client that is not under test.
    package func post(_ form: [String: String], to url: String) async throws -> (status: Int, body: JSONValue?) {
        let answer = try await command("post") { writer in
            writer.member("url", url)
            writer.member(
                "form",
                .object(
                    Dictionary(
                        uniqueKeysWithValues: form.map { (WireText($0.key), JSONValue.string(WireText($0.value))) })))
        }
        guard let status = answer["status"]?.integer, let body = answer["body"]?.text else {
            throw ServerFailure("no status or body in its answer")
        }
        return (Int(status), body.isEmpty ? nil : try JSONValue(parsing: Array(body.utf8)))
    }

    private func redirect(_ name: String, _ member: String, _ value: String) async throws -> String {
        let answer = try await command(name) { $0.member(member, value) }
        guard let redirect = answer["redirect"]?.text else { throw ServerFailure("no redirect in its answer") }
        return redirect
    }

    private func command(_ name: String, _ members: (inout JSONWriter) -> Void) async throws -> JSONValue {
        let request = JSONWriter.object { writer in
            writer.member("command", name)
            members(&writer)
        }
        return try await process.exchange(request, within: .seconds(60))
    }
}

extension GlewlwydServer.Options {
    fileprivate var encoded: [UInt8] {
        JSONWriter.object { writer in
            writer.member("redirect_uris", redirectURIs)
            writer.member("access_token_duration", accessTokenDuration)
            writer.member("refresh_token_duration", refreshTokenDuration)
            writer.member("rotates_refresh_tokens", rotatesRefreshTokens)
            writer.member("sends_issuer", sendsIssuer)
            writer.member("device_interval", deviceInterval)
            writer.member("speaks_tls", speaksTLS)
            writer.member("signs_with_ecdsa", signsWithECDSA)
            writer.member("pushed_requests", pushedRequests.rawValue)
            writer.member("proofs", proofs.rawValue)
            writer.member("signs_with_secret", signsWithSecret)
            if let clientKey { writer.member("client_key", clientKey) }
        }
    }
}
