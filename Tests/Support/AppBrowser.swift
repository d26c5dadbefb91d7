import DevelopmentProvider
import ExternalText
package import HTTPCodec

/// A browser in which a user logs in to an app through brokers, and which a balancer leads to another replica with each step.
package struct AppBrowser {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    private let brokers: [BrokerClient]
    private let provider: RunningProvider
    /// The replica that the last step was at.
    package private(set) var replica: Int
    private var cookies: [String] = []

    /// - Parameters:
    ///   - brokers: the replicas.
    ///   - replica: the replica of the first step.
    package init(_ brokers: [BrokerClient], first replica: Int = 0, at provider: RunningProvider) {
        self.brokers = brokers
        self.provider = provider
        self.replica = replica + brokers.count - 1
    }

    /// Sends a request to the next replica, with the cookies so far.
    /// - Parameter address: of the broker: a path, or a URL whose origin does not matter.
    package mutating func call(
        _ method: Method, _ address: String, body: String? = nil
    ) async throws -> BrokerHarness.Answer {
        var fields: Fields = ["Accept": BrokerHarness.browserAccept, "Sec-Fetch-Site": "same-origin"]
        if !cookies.isEmpty { fields.append("Cookie", cookies.joined(separator: "; ")) }
        if body != nil { fields.append("Content-Type", "application/x-www-form-urlencoded") }
        replica = (replica + 1) % brokers.count
        let answer = try await brokers[replica].call(
            method, address.hasPrefix("/") ? address : BrokerHarness.path(of: address), key: nil, body: body,
            fields: fields)
        if let cookie = BrokerHarness.cookie(answer) {
            let name = cookie.prefix { $0 != "=" }
            cookies.removeAll { $0.hasPrefix(name + "=") }
            cookies.append(cookie)
        }
        return answer
    }

    private mutating func redirect(_ address: String) async throws -> String {
        let answer = try await call(.get, address)
        guard let location = answer.fields["Location"]?.text else {
            throw Failure(
                description: "no redirect of \(address.prefix(60)): \(answer.status) \(answer.text.prefix(400))")
        }
        return location
    }

    /// Opens an app's authorization request and logs in on the provider's page.
    /// - Returns: the broker's callback with the provider's answer.
    package mutating func begin(app clientID: String, redirectURI: String, as user: String) async throws -> String {
        let query = FormEncoding.encode([
            .init("response_type", "code"), .init("client_id", clientID), .init("redirect_uri", redirectURI),
            .init("state", "s"), .init("code_challenge", ProviderDriver.challenge),
            .init("code_challenge_method", "S256"),
        ])
        let authorization = try await redirect("/oauth2/authorize?" + query)
        // On the straight way to the provider.
        let page = try await brokers[0].call(
            .get, provider.baseURL + BrokerHarness.path(of: authorization), key: nil)
        guard let form = ProviderForm(html: page.text) else { throw Failure(description: page.text) }
        let decision = try await brokers[0].call(
            .post, provider.baseURL + form.action, key: nil,
            body: form.submission([.init("user", user), .init("decision", "approve")]),
            fields: ["Content-Type": "application/x-www-form-urlencoded"])
        guard let callback = decision.fields["Location"]?.text else { throw Failure(description: decision.text) }
        return callback
    }

    /// Brings the provider's answer.
    /// - Returns: the address of the page that asks the user.
    package mutating func bring(_ callback: String) async throws -> String {
        let confirmation = try await redirect(callback)
        guard confirmation.contains("/login/confirm/") else {
            throw Failure(description: "no confirmation: \(confirmation)")
        }
        return confirmation
    }

    /// Presses the button of that page.
    /// - Returns: the code that the app gets.
    package mutating func confirm(_ confirmation: String, redirectURI: String) async throws -> String {
        let page = try await call(.post, confirmation, body: "decision=continue")
        let link = page.text.split(separator: "href=\"").dropFirst().first?.split(separator: "\"").first
        let address = link.map { String($0).replacing("&amp;", with: "&") } ?? ""
        let parameters = BrokerHarness.parameters(of: address)
        guard address.hasPrefix(redirectURI), let code = parameters["code"] else {
            throw Failure(description: "no code: \(page.status) \(parameters["error"] ?? page.text)")
        }
        return code
    }

    /// A whole login.
    /// - Returns: the code that the app gets.
    package mutating func logIn(to clientID: String, redirectURI: String, as user: String) async throws -> String {
        let callback = try await begin(app: clientID, redirectURI: redirectURI, as: user)
        return try await confirm(try await bring(callback), redirectURI: redirectURI)
    }
}

extension BrokerClient {
    /// An app's POST of a form.
    package func app(_ path: String, _ pairs: [(String, String)]) async throws -> BrokerHarness.Answer {
        try await call(
            .post, path, key: nil, body: FormEncoding.encode(pairs.map { .init($0.0, $0.1) }),
            fields: ["Content-Type": "application/x-www-form-urlencoded"])
    }

    /// Exchanges the code of an `AppBrowser`.
    package func exchange(
        _ code: String, of clientID: String, redirectURI: String
    ) async throws -> BrokerHarness.Answer {
        try await app(
            "/oauth2/token",
            [
                ("grant_type", "authorization_code"), ("client_id", clientID), ("code", code),
                ("redirect_uri", redirectURI), ("code_verifier", ProviderDriver.verifier),
            ])
    }

    /// Refreshes as an app.
    package func refresh(_ token: String, of clientID: String) async throws -> BrokerHarness.Answer {
        try await app(
            "/oauth2/token", [("grant_type", "refresh_token"), ("client_id", clientID), ("refresh_token", token)])
    }
}
