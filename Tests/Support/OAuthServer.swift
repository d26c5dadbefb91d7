import ExternalText
import JSON

/// A running authorization server of another project, on a free loopback port, with one user and one confidential client
/// whose secret has reserved characters (`servers/server.py`).
package final class OAuthServer: Sendable {
    /// What each is as it comes, as seen on the wire:
    package enum Kind: String, Sendable, CaseIterable {
        /// django-oauth-toolkit 3.4, below `/o`. Its OpenID Connect document names no revocation endpoint. A refresh replaces
        /// the refresh token and ends the access token before it.
        case django
        /// Authlib 1.6 in Flask. Its metadata (RFC 8414) are the test's.
        case authlib
        /// The MCP SDK 2.3. Its issuer has a slash at its end. It announces both methods, and takes the client by the one only
        /// that it is registered for, here HTTP Basic; the form must have the `client_id`, too, and that of a revocation a
        /// `client_secret`. Clients may register themselves there (RFC 7591), and an MCP server of the SDK takes the tokens.
        case mcp
        /// Doorkeeper 5.5 with its OpenID Connect extension. HTTP Basic is not decoded as a form.
        case doorkeeper
        /// LemonLDAP::NG 2.16. HTTP Basic is read up to the first character of Base 64 that is no letter and no digit. A dead
        /// refresh token is `invalid_request`; there is no revocation endpoint.
        case lemonldap
    }

    /// A request to the server's token endpoint, or to its revocation endpoint.
    package struct Request: Sendable, Equatable {
        /// `grant_type`; `revocation` for a revocation.
        package let grant: String
        /// How it shows the client: `basic`, `post` or `none`.
        package let method: String
        package let status: Int64

        package init(grant: String, method: String, status: Int64) {
            self.grant = grant
            self.method = method
            self.status = status
        }
    }

    private let process: ServerProcess
    package let issuer: String
    package let clientID: String
    package let clientSecret: String
    package let revocationEndpoint: String
    /// The MCP server that takes the tokens which are made for it; nil with all kinds but `mcp`.
    package let resource: String?

    /// Starts a server of its own. To be stopped with `stop()`; a server that is let go of stops, too.
    /// - Parameters:
    ///   - redirectURI: the only one of its client.
    ///   - accessTokenLifetime: in seconds, from 1.
    /// - Throws: `ServerFailure`, or `SystemError` where the process cannot even be started.
    package static func start(
        _ kind: Kind, redirectURI: String, accessTokenLifetime: Int = 3600
    ) async throws -> OAuthServer {
        let support = #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast()
        let tools = support.dropLast(2).joined(separator: "/") + "/.build-tools"
        let options = JSONWriter.object { writer in
            writer.member("redirect_uri", redirectURI)
            writer.member("access_token_lifetime", accessTokenLifetime)
            writer.member("tools", tools)
        }
        let process = try ServerProcess(arguments: [
            support.joined(separator: "/") + "/servers/run", tools, kind.rawValue,
            String(decoding: options, as: UTF8.self),
        ])
        // Long enough for the packages to be fetched, where this is the first use in the checkout.
        return try OAuthServer(process, description: await process.readAnswer(within: .seconds(180)))
    }

    private init(_ process: ServerProcess, description: JSONValue) throws {
        func text(_ member: String) throws -> String {
            guard let text = description[WireText(member)]?.text else {
                throw ServerFailure("no \(member) is told of it")
            }
            return text
        }
        self.process = process
        issuer = try text("issuer")
        clientID = try text("client_id")
        clientSecret = try text("client_secret")
        revocationEndpoint = try text("revocation_endpoint")
        resource = description["resource"]?.text
    }

    /// Does what the user's browser does with an authorization URL: opens it, logs in, consents.
    /// - Returns: the redirect to the client, which the caller is to follow.
    /// - Throws: `ServerFailure` where the server shows an error instead of redirecting.
    package func logIn(authorizeURL: String) async throws -> String {
        let answer = try await command("log_in") { $0.member("url", authorizeURL) }
        guard let redirect = answer["redirect"]?.text else { throw ServerFailure("no redirect in its answer") }
        return redirect
    }

    /// Withdraws whatever the server has granted.
    package func endSessions() async throws {
        _ = try await command("end_sessions") { _ in }
    }

    /// How many refresh tokens the server would take, of all its users.
    package func sessions() async throws -> Int {
        let answer = try await command("count_sessions") { _ in }
        guard let count = answer["sessions"]?.integer else { throw ServerFailure("no number in its answer") }
        return Int(count)
    }

    /// Whether the server's own API takes an access token.
    package func takes(_ token: String) async throws -> Bool {
        let answer = try await command("takes") { $0.member("token", token) }
        guard let isTaken = answer["takes"]?.bool else { throw ServerFailure("no decision in its answer") }
        return isTaken
    }

    /// Does to a server of the kind `mcp` what a restart does to one whose data are in memory: it loses clients and tokens.
    package func forgetClients() async throws {
        _ = try await command("forget_clients") { _ in }
    }

    /// What the resource of a server of the kind `mcp` answers to the SDK's own client, which calls a tool with the token.
    /// - Throws: `ServerFailure` where the resource does not take the token.
    package func useTool(token: String) async throws -> String {
        let answer = try await command("use_tool") { $0.member("token", token) }
        guard let text = answer["text"]?.text else { throw ServerFailure("no text in its answer") }
        return text
    }

    /// Every request to the token endpoint and the revocation endpoint so far.
    package func requests() async throws -> [Request] {
        let answer = try await command("requests") { _ in }
        return (answer["requests"]?.array ?? []).compactMap { request in
            guard let grant = request["grant"]?.text, let method = request["method"]?.text,
                let status = request["status"]?.integer
            else { return nil }
            return Request(grant: grant, method: method, status: status)
        }
    }

    /// Ends the server and removes what it wrote.
    package func stop() async {
        await process.end()
    }

    private func command(_ name: String, _ members: (inout JSONWriter) -> Void) async throws -> JSONValue {
        let request = JSONWriter.object { writer in
            writer.member("command", name)
            members(&writer)
        }
        return try await process.exchange(request, within: .seconds(60))
    }
}
