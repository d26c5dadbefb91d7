internal import BrokerCore
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import OAuth

/// `/login/…`.
struct LoginRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.post, "/login/initialize", .tenant(.login), initialize),
            Route(.post, "/login/finalize", .tenant(.login), finalize),
            // A GET that redeems a code is no safe method, and HEAD is one by definition: it is not taken for GET.
            Route(.get, "/login/callback", .open, allowsHead: false, callback),
            Route(.post, "/login/callback", .open, formPost),
            Route(.get, "/login/start/{tenant}/{login_id}", .open, allowsHead: false, start),
            Route(.get, "/login/{login_id}", .tenant(.login), progress),
        ]
    }

    private func initialize(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let parameters = try await call.body { body in
            let storageKey = body.storageKey()
            let redirectURI = body.string("redirect_uri")
            let returnTo = body.string("return_to")
            let login = body.object("login_config") { body in
                (
                    language: body.string("language", limit: 64), email: body.string("email", limit: 254),
                    custom: body.stringMap("custom_parameters")
                )
            }
            return LoginFlow.Parameters(
                storageKey: storageKey, redirectURI: redirectURI, returnTo: returnTo, language: login?.language,
                email: login?.email, customParameters: login?.custom ?? [:])
        }
        let tenant = try await broker.tenant(of: call)
        try call.authorize(parameters.storageKey)
        let begun = try await broker.logins.begin(parameters, of: tenant)
        return .json(.created) { json in
            json.member("login_id", begun.loginID)
            json.member("login_uri", begun.loginURI)
            json.member("start_uri", begun.startURI)
            json.member("expires_in", begun.expiresIn.components.seconds)
        }
    }

    private func start(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refuseQuery()
            let id = call.parameters["login_id"] ?? ""
            guard let name = TenantName(call.parameters["tenant"] ?? ""), Self.isLoginID(id) else { throw Self.unknown }
            let started = try await broker.logins.start(tenant: name, loginID: id.text)
            var response = LoginPage.redirect(to: started.loginURI)
            if let cookie = started.cookie {
                let secure = broker.logins.isSecure ? "; Secure" : ""
                let age = PendingLogin.validity.components.seconds
                response.fields.append(
                    "Set-Cookie",
                    "\(cookie.name)=\(cookie.value.revealedText); Path=/; Max-Age=\(age); HttpOnly; SameSite=Lax\(secure)"
                )
            }
            return response
        } catch {
            return Self.failed(error, call)
        }
    }

    private static func failed(_ error: BrokerError, _ call: Call) -> Response {
        Accept.prefersJSON(call.request.fields) ? error.response : LoginPage.failed(error)
    }

    private func callback(_ call: Call) async throws(BrokerError) -> Response {
        try await finish(call) { () throws(BrokerError) in try Self.response(WireText(call.request.query ?? "")) }
    }

    /// response_mode=form_post. A cross-site POST brings no SameSite=Lax cookie, so a bound login takes one more turn:
    /// the browser is sent to the same address with GET, and brings the cookie.
    private func formPost(_ call: Call) async throws(BrokerError) -> Response {
        guard MediaType(call.request.fields["Content-Type"] ?? "").name == "application/x-www-form-urlencoded" else {
            throw BrokerError(
                .unsupportedMediaType, "Send the response as Content-Type: application/x-www-form-urlencoded.")
        }
        guard call.request.body.count <= Self.longestForm else {
            throw BrokerError(.payloadTooLarge, "A form must not be longer than \(Self.longestForm) bytes.")
        }
        let response: AuthorizationResponse
        do throws(BrokerError) {
            let pairs = try Self.form(call.request.body)
            response = try Self.response(pairs)
            if try await broker.logins.isBound(response) {
                return LoginPage.redirect(to: broker.logins.callbackURI + "?" + Self.protocolParameters(of: pairs))
            }
        } catch {
            return Self.failed(error, call)
        }
        return try await finish(call) { response }
    }

    /// In bytes. Answers of login services are a few hundred.
    private static let longestForm = 65_536

    private static func form(_ body: [UInt8]) throws(BrokerError) -> [FormEncoding.Pair] {
        do throws(FormEncoding.Fault) {
            return try FormEncoding.decode(body.span)
        } catch {
            throw BrokerError(error, in: "form")
        }
    }

    /// A form holds what no address has room for; what the callback does not read stays behind.
    private static func protocolParameters(of form: [FormEncoding.Pair]) -> String {
        let names: [WireText] = ["code", "error", "iss", "state"]
        return FormEncoding.encode(form.filter { names.contains($0.name) })
    }

    /// - Parameter response: reads the login service's response.
    private func finish(
        _ call: Call, _ response: () throws(BrokerError) -> AuthorizationResponse
    ) async throws(BrokerError) -> Response {
        let wantsJSON = Accept.prefersJSON(call.request.fields)
        let ended: LoginFlow.Ended
        do throws(BrokerError) {
            ended = try await broker.logins.finish(
                try response(), by: .browser(cookies: Self.cookies(call.request.fields)))
        } catch {
            return Self.failed(error, call)
        }
        switch ended.result {
        case .success(let held):
            if wantsJSON { return Self.summary(ended, held) }
            guard let returnTo = ended.returnTo else { return LoginPage.completed() }
            return LoginPage.redirect(to: Self.adding([.init("login", "completed")], to: returnTo))
        case .failure(let error):
            if wantsJSON { return error.response }
            guard let returnTo = ended.returnTo else { return LoginPage.failed(error) }
            let pairs: [FormEncoding.Pair] = [.init("login", "failed"), .init("error", error.code.rawValue)]
            return LoginPage.redirect(to: Self.adding(pairs, to: returnTo))
        }
    }

    private func finalize(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let query = try await call.body { $0.requiredString("login_response_query", limit: 65_536) }
        let response = try await InputReading.run(bytes: query?.count ?? 0) { () throws(BrokerError) in
            try Self.response(query ?? "")
        }
        let tenant = try await broker.tenant(of: call)
        let ended = try await broker.logins.finish(
            response, by: .caller(tenant.name, storageKeys: call.narrowedStorageKeys))
        return Self.summary(ended, try ended.result.get())
    }

    private func progress(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let wait = query.wait()
        try query.finish()
        let tenant = try await broker.tenant(of: call)
        let id = call.parameters["login_id"] ?? ""
        guard Self.isLoginID(id),
            let progress = try await broker.logins.progress(
                tenant: tenant.name, loginID: id.text, storageKeys: call.narrowedStorageKeys, wait: wait)
        else { throw BrokerError(.notFound, "The tenant has no login of that id.") }
        return .progress(progress)
    }

    private static let unknown = BrokerError(.gone, "The login is unknown or has expired.")

    private static func isLoginID(_ text: WireText) -> Bool {
        text.count == 22 && Base64URL.decode(text.text) != nil
    }

    private static func response(_ query: WireText) throws(BrokerError) -> AuthorizationResponse {
        do throws(AuthorizationResponse.Fault) {
            return try AuthorizationResponse(query: query)
        } catch {
            throw BrokerError(error)
        }
    }

    private static func response(_ pairs: [FormEncoding.Pair]) throws(BrokerError) -> AuthorizationResponse {
        do throws(AuthorizationResponse.Fault) {
            return try AuthorizationResponse(pairs)
        } catch {
            throw BrokerError(error)
        }
    }

    /// What was obtained, without the token.
    private static func summary(_ ended: LoginFlow.Ended, _ held: HeldCredentials) -> Response {
        .json(.ok) { json in
            json.member("status", "completed")
            json.member("login_id", ended.loginID)
            CredentialsRoutes.encodeSummary(ended.credentialsID.storageKey, held, to: &json)
        }
    }

    private static func adding(_ pairs: [FormEncoding.Pair], to uri: String) -> String {
        let separator = WireText(uri).contains("?") ? (WireText(uri).ends(with: "?") ? "" : "&") : "?"
        return uri + separator + FormEncoding.encode(pairs)
    }

    /// In bytes. No cookie of the broker's has a longer name, and a browser also sends those of other services at the
    /// same host, which must not keep a user from logging in.
    private static let longestCookieName = 128

    /// RFC 6265 §4.2.1. The first of a name counts: a browser sends the most specific first.
    private static func cookies(_ fields: Fields) -> [WireText: WireText] {
        var cookies: [WireText: WireText] = [:]
        for pair in fields.values("Cookie").flatMap({ $0.split(at: ";") }) {
            let halves = pair.trimmed.split(at: "=", limit: 2)
            guard halves.count == 2, halves[0].count <= longestCookieName else { continue }
            if cookies[halves[0]] == nil { cookies[halves[0]] = halves[1] }
        }
        return cookies
    }
}

extension BrokerError {
    fileprivate init(_ fault: AuthorizationResponse.Fault) {
        switch fault {
        case .malformed: self.init(.malformed, in: "response's query")
        case .tooManyParameters(let limit): self.init(.tooManyPairs(limit: limit), in: "response")
        case .nameTooLong(let limit): self.init(.nameTooLong(limit: limit), in: "response")
        case .repeatedParameter(let name):
            self.init(.invalidRequest, "The response has the parameter \(name) more than once.")
        }
    }
}

extension ObjectReader {
    /// `storage_key`, `default` where it is not given.
    mutating func storageKey() -> StorageKey {
        guard let text = string("storage_key", limit: 1024) else { return .default }
        if let key = StorageKey(text) { return key }
        note("storage_key", StorageKey.rule)
        return .default
    }
}
