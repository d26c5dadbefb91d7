internal import BrokerCore
internal import Cryptography
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
        var body = try call.body()
        let storageKey = body.storageKey()
        let redirectURI = body.string("redirect_uri")
        let returnTo = body.string("return_to")
        let login = body.object("login_config") { body in
            (
                language: body.string("language", limit: 64), email: body.string("email", limit: 254),
                custom: body.stringMap("custom_parameters")
            )
        }
        try body.finish()
        let tenant = try await broker.tenant(of: call)
        try call.authorize(storageKey)
        let begun = try await broker.logins.begin(
            .init(
                storageKey: storageKey, redirectURI: redirectURI, returnTo: returnTo, language: login?.language,
                email: login?.email, customParameters: login?.custom ?? [:]), of: tenant)
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
            let started = try await broker.logins.start(tenant: name, loginID: id)
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
        try await finish(call, query: call.request.query ?? "")
    }

    /// response_mode=form_post. A cross-site POST brings no SameSite=Lax cookie, so a bound login takes one more turn:
    /// the browser is sent to the same address with GET, and brings the cookie.
    private func formPost(_ call: Call) async throws(BrokerError) -> Response {
        try ContentType.form.check(call.request.fields)
        guard let text = String(validating: call.request.body, as: UTF8.self) else { throw ContentType.noForm }
        do throws(BrokerError) {
            if try await broker.logins.isBound(try Self.response(text)) {
                return LoginPage.redirect(to: broker.logins.callbackURI + "?" + Self.protocolParameters(of: text))
            }
        } catch {
            return Self.failed(error, call)
        }
        return try await finish(call, query: text)
    }

    /// A form holds what no address has room for; what the callback does not read stays behind.
    private static func protocolParameters(of form: String) -> String {
        let names = ["code", "error", "iss", "state"]
        let pairs = (try? FormEncoding.decode(form)) ?? []
        return FormEncoding.encode(pairs.filter { names.contains($0.name) })
    }

    private func finish(_ call: Call, query: String) async throws(BrokerError) -> Response {
        let wantsJSON = Accept.prefersJSON(call.request.fields)
        let ended: LoginFlow.Ended
        do throws(BrokerError) {
            ended = try await broker.logins.finish(
                try Self.response(query), by: .browser(cookies: Self.cookies(call.request.fields)))
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
        var body = try call.body()
        let query = body.requiredString("login_response_query", limit: 65_536)
        try body.finish()
        let tenant = try await broker.tenant(of: call)
        let ended = try await broker.logins.finish(
            try Self.response(query ?? ""), by: .caller(tenant.name, storageKeys: call.narrowedStorageKeys))
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
                tenant: tenant.name, loginID: id, storageKeys: call.narrowedStorageKeys, wait: wait)
        else { throw BrokerError(.notFound, "The tenant has no login of that id.") }
        return .progress(progress)
    }

    private static let unknown = BrokerError(.gone, "The login is unknown or has expired.")

    private static func isLoginID(_ text: String) -> Bool {
        text.utf8.count == 22 && Base64URL.decode(text) != nil
    }

    private static func response(_ query: String) throws(BrokerError) -> AuthorizationResponse {
        do throws(AuthorizationResponse.Fault) {
            return try AuthorizationResponse(query: query)
        } catch {
            switch error {
            case .malformed: throw BrokerError(.invalidRequest, "The response's query is not well-formed.")
            case .repeatedParameter(let name):
                throw BrokerError(.invalidRequest, "The response has the parameter \(name) more than once.")
            }
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
        let separator = uri.contains("?") ? (uri.hasSuffix("?") ? "" : "&") : "?"
        return uri + separator + FormEncoding.encode(pairs)
    }

    /// RFC 6265 §4.2.1. The first of a name counts: a browser sends the most specific first.
    private static func cookies(_ fields: Fields) -> [String: String] {
        var cookies: [String: String] = [:]
        for pair in fields.values("Cookie").flatMap({ $0.split(separator: ";") }) {
            let halves = pair.drop { $0 == " " }.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            guard halves.count == 2 else { continue }
            let name = String(halves[0])
            if cookies[name] == nil { cookies[name] = String(halves[1]) }
        }
        return cookies
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
