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
            Route(.get, "/login/callback", .open, allowsHead: false, varying(callback)),
            Route(.post, "/login/callback", .open, varying(formPost)),
            Route(.get, "/login/callback/{tenant}", .open, allowsHead: false, varying(callback)),
            Route(.post, "/login/callback/{tenant}", .open, varying(formPost)),
            Route(.get, "/login/start/{tenant}/{login_id}", .open, allowsHead: false, start),
            Route(.post, "/login/start/{tenant}/{login_id}", .open, takeOver),
            Route(.get, "/login/confirm/{tenant}/{login_id}", .open, confirmPage),
            Route(.post, "/login/confirm/{tenant}/{login_id}", .open, varying(confirm)),
            Route(.get, "/login/ended/{code}", .open, refusal),
            Route(.get, "/login/ended/{tenant}/{login_id}", .open, ended),
            Route(.get, "/login/{login_id}", .tenant(.login), progress),
        ]
    }

    /// The answers say that they depend on what their reader takes (RFC 9110 §12.5.5).
    private func varying(
        _ handle: @escaping @Sendable (Call) async throws(BrokerError) -> Response
    ) -> @Sendable (Call) async throws(BrokerError) -> Response {
        { call throws(BrokerError) in try await handle(call).varyingByAccept }
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
        try broker.rateLimits.spend(.logins, call.caller)
        let begun = try await broker.logins.begin(parameters, of: tenant)
        return .json(.created) { json in
            json.member("login_id", begun.loginID)
            json.member("login_uri", begun.loginURI)
            json.member("start_uri", begun.startURI)
            json.member("expires_in", begun.expiresIn.components.seconds)
        }
    }

    // MARK: The start

    private func start(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refuseQuery()
            try Self.refusePrefetch(call)
            switch try await begin(call, takesOver: false) {
            case .goOn(let loginURI, let cookie):
                return setting(cookie, LoginPage.redirect(to: loginURI))
            case .mustConfirm(let login):
                guard Reader(call) != .program else {
                    throw BrokerError(
                        .forbidden, "This login was opened in another browser: its user must confirm it in a browser.")
                }
                return LoginPage.confirmStart(
                    login, action: broker.logins.publicURI(path: call.request.path), context(call, login))
            }
        } catch {
            return failed(error, call)
        }
    }

    /// The user has pressed the button of the page that `start` showed.
    private func takeOver(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refuseQuery()
            try refuseOtherOrigins(call)
            // There is one button, and it says this.
            _ = try Self.decision(call, among: [.continue])
            switch try await begin(call, takesOver: true) {
            case .goOn(let loginURI, let cookie):
                // By way of the start address, which knows this browser now: the page holds no state.
                let response =
                    Reader(call) == .browser
                    ? LoginPage.goOn(to: broker.logins.publicURI(path: call.request.path), context(call, nil))
                    : LoginPage.redirect(to: loginURI)
                return setting(cookie, response)
            case .mustConfirm: throw BrokerError(.internalError, "A confirmed login asks for confirmation.")
            }
        } catch {
            return failed(error, call)
        }
    }

    private func begin(_ call: Call, takesOver: Bool) async throws(BrokerError) -> LoginFlow.Start {
        let (tenant, id) = try Self.login(call)
        return try await broker.logins.start(
            tenant: tenant, loginID: id, cookies: Self.cookies(call.request.fields), takesOver: takesOver)
    }

    /// The login that a path names.
    private static func login(_ call: Call) throws(BrokerError) -> (TenantName, loginID: String) {
        let id = call.parameters["login_id"] ?? ""
        guard let name = TenantName(call.parameters["tenant"] ?? ""), isLoginID(id) else { throw unknown }
        return (name, id.text)
    }

    // MARK: The callback

    private func callback(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try Self.refusePrefetch(call)
        } catch {
            return failed(error, call)
        }
        return await finish(call) { () throws(BrokerError) in try Self.response(WireText(call.request.query ?? "")) }
    }

    /// response_mode=form_post. A cross-site POST brings no SameSite=Lax cookie, so a bound login takes one more turn:
    /// the browser is sent to the same address with GET, and brings the cookie.
    private func formPost(_ call: Call) async throws(BrokerError) -> Response {
        try ContentType.form.check(call.request.fields)
        guard call.request.body.count <= Self.longestForm else {
            throw BrokerError(.payloadTooLarge, "A form must not be longer than \(Self.longestForm) bytes.")
        }
        guard let text = WireText(validating: call.request.body.span) else { throw ContentType.noForm }
        var response: AuthorizationResponse?
        do throws(BrokerError) {
            let pairs = try Self.form(text)
            let parsed = try Self.response(pairs)
            response = parsed
            if try await broker.logins.isBound(parsed) {
                let address = broker.logins.publicURI(path: call.request.path)
                return LoginPage.redirect(to: address + "?" + Self.protocolParameters(of: pairs))
            }
            return await finish(call) { parsed }
        } catch {
            return await refused(error, call, response)
        }
    }

    /// In bytes. Answers of login services are a few hundred.
    private static let longestForm = 65_536

    private static func form(_ text: WireText) throws(BrokerError) -> [FormEncoding.Pair] {
        do throws(FormEncoding.Fault) {
            return try FormEncoding.decode(text)
        } catch {
            throw BrokerError(error, in: "form")
        }
    }

    /// A form holds what no address has room for; what the callback does not read stays behind.
    private static func protocolParameters(of form: [FormEncoding.Pair]) -> String {
        let names: [WireText] = ["code", "error", "iss", "state"]
        return FormEncoding.encode(form.filter { names.contains($0.name) })
    }

    /// - Parameter read: reads the login service's response.
    private func finish(
        _ call: Call, _ read: () throws(BrokerError) -> AuthorizationResponse
    ) async -> Response {
        let callback: LoginFlow.Callback =
            call.parameters["tenant"].map { .tenant(TenantName($0)) } ?? .shared
        let reader = Reader(call)
        var response: AuthorizationResponse?
        do throws(BrokerError) {
            let parsed = try read()
            response = parsed
            let browser = LoginFlow.Browser(
                cookies: Self.cookies(call.request.fields), callback: callback, canConfirm: reader != .program)
            switch try await broker.logins.receive(parsed, from: browser) {
            case .ended(let ended):
                return outcome(ended, call)
            case .mustConfirm(let login, let cookie):
                let page =
                    reader == .browser
                    ? LoginPage.redirect(to: confirmURI(of: login)) : confirmation(of: login, call)
                return setting(cookie, page)
            }
        } catch {
            return await refused(error, call, response)
        }
    }

    /// What the reader of the answer is: a browser's address bar and history keep what is in an address, and the code and
    /// the state are to stay in neither.
    private enum Reader {
        /// Prefers JSON.
        case program
        /// Names HTML among what it takes.
        case browser
        case other

        init(_ call: Call) {
            let fields = call.request.fields
            self = Accept.prefersJSON(fields) ? .program : Accept.namesHTML(fields) ? .browser : .other
        }
    }

    /// - Parameter isForm: the answer is to a form that the broker's own page has sent.
    private func outcome(_ ended: LoginFlow.Ended, _ call: Call, isForm: Bool = false) -> Response {
        let reader = Reader(call)
        let context = context(call, ended.login)
        if reader == .program {
            switch ended.result {
            case .success(let held): return Self.summary(ended, held)
            case .failure(let error): return error.response
            }
        }
        if let returnTo = ended.returnTo {
            let pairs: [FormEncoding.Pair] =
                switch ended.result {
                case .success: [.init("login", "completed")]
                case .failure(let error): [.init("login", "failed"), .init("error", error.code.rawValue)]
                }
            let address = Self.adding(pairs, to: returnTo)
            return isForm && reader == .browser
                ? LoginPage.goOn(to: address, context) : LoginPage.redirect(to: address)
        }
        if reader == .browser { return LoginPage.redirect(to: endedURI(of: ended.login)) }
        switch ended.result {
        case .success: return LoginPage.completed(context)
        case .failure(let error): return LoginPage.failed(error, context)
        }
    }

    /// The answer to a response that does not finish its login.
    private func refused(
        _ error: BrokerError, _ call: Call, _ response: AuthorizationResponse?
    ) async -> Response {
        broker.log.info("login_response_refused", [.request(RequestID(call.request.id)), .code(error.code)])
        let reader = Reader(call)
        if reader == .program { return error.response }
        var login: LoginDescription?
        if let response { login = await broker.logins.description(of: response) }
        if reader == .other { return LoginPage.failed(error, context(call, login)) }
        return LoginPage.redirect(to: endedURI(of: login, error, call))
    }

    // MARK: The confirmation

    private func confirmPage(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refuseQuery()
            let (tenant, id) = try Self.login(call)
            return confirmation(
                of: try await broker.logins.confirmation(
                    tenant: tenant, loginID: id, cookies: Self.cookies(call.request.fields)), call)
        } catch {
            return failed(error, call)
        }
    }

    private func confirmation(of login: LoginDescription, _ call: Call) -> Response {
        LoginPage.confirmLogin(login, action: confirmURI(of: login), context(call, login))
    }

    /// The user has pressed a button of the page that asks for confirmation.
    private func confirm(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refuseQuery()
            try refuseOtherOrigins(call)
            let decision = try Self.decision(call, among: LoginPage.Decision.allCases)
            let (tenant, id) = try Self.login(call)
            let ended: LoginFlow.Ended
            do throws(BrokerError) {
                ended = try await broker.logins.confirm(
                    tenant: tenant, loginID: id, cookies: Self.cookies(call.request.fields),
                    isConfirmed: decision == .continue)
            } catch {
                // A button that is pressed twice sends two forms, and the browser shows the answer to the second.
                guard error.code == .conflict, Reader(call) == .browser else { throw error }
                return LoginPage.redirect(to: endedURI(tenant, id))
            }
            return outcome(ended, call, isForm: true)
        } catch {
            return failed(error, call)
        }
    }

    /// The button that was pressed: the whole content of the form.
    private static func decision(
        _ call: Call, among decisions: [LoginPage.Decision]
    ) throws(BrokerError) -> LoginPage.Decision {
        for decision in decisions where call.request.body.elementsEqual("decision=\(decision.rawValue)".utf8) {
            return decision
        }
        let forms = decisions.map { "decision=\($0.rawValue)" }.joined(separator: " or ")
        throw BrokerError(.invalidRequest, "The form must be \(forms).")
    }

    /// A form of the broker's own page comes from the broker's origin. Where the browser says how the two are related
    /// (Fetch Metadata), that counts.
    private func refuseOtherOrigins(_ call: Call) throws(BrokerError) {
        let sites = call.request.fields.values("Sec-Fetch-Site")
        let origins = call.request.fields.values("Origin")
        let isOwn =
            sites.isEmpty
            ? origins.count == 1 && broker.logins.isOwnOrigin(origins[0])
            : sites.count == 1 && sites[0].equalsIgnoringCase("same-origin")
        guard isOwn else {
            throw BrokerError(.forbidden, "The form does not come from a page of the broker's: send it from there.")
        }
    }

    /// A browser that fetches ahead of its user, and a scanner of links, does not begin or end a login.
    private static func refusePrefetch(_ call: Call) throws(BrokerError) {
        for name in ["Sec-Purpose", "Purpose"] {
            for value in call.request.fields.values(name) where value.starts(with: "prefetch") {
                throw BrokerError(
                    .retryableError, "This address is good once: open it, and do not fetch it ahead.", retryAfter: 1)
            }
        }
    }

    // MARK: The end

    /// The codes that a response to a login can end with.
    private static let endings: [BrokerError.Code] = [
        .authorizationError, .invalidRequest, .forbidden, .conflict, .gone, .illegalConfiguration, .tokenResponseError,
        .unexpectedError, .providerUntrusted, .retryableError, .networkError, .storageUnavailable, .internalError,
    ]

    private func confirmURI(of login: LoginDescription) -> String {
        broker.logins.publicURI(path: "/login/confirm/\(login.tenant)/\(login.loginID)")
    }

    private func endedURI(_ tenant: TenantName, _ loginID: String) -> String {
        broker.logins.publicURI(path: "/login/ended/\(tenant)/\(loginID)")
    }

    private func endedURI(of login: LoginDescription) -> String { endedURI(login.tenant, login.loginID) }

    /// The page of an error that is not a login's outcome.
    private func endedURI(of login: LoginDescription?, _ error: BrokerError, _ call: Call) -> String {
        if let login { return endedURI(of: login) + "?error=\(error.code.rawValue)" }
        let reference = context(call, nil).reference
        return broker.logins.publicURI(path: "/login/ended/\(error.code.rawValue)?reference=\(reference)")
    }

    /// What became of a login.
    private func ended(_ call: Call) async throws(BrokerError) -> Response {
        var login: LoginDescription?
        do throws(BrokerError) {
            var query = try call.query()
            let text = query.string("error")
            let code = text.flatMap(Self.ending)
            if text != nil, code == nil { query.note("error", "is not a code that a login ends with") }
            try query.finish()
            let (tenant, id) = try Self.login(call)
            let (described, progress) = try await broker.logins.outcome(tenant: tenant, loginID: id)
            login = described
            if let code { return LoginPage.failed(Self.told(code), context(call, login)) }
            switch progress {
            case .completed: return LoginPage.completed(context(call, login))
            case .pending: return LoginPage.pending(context(call, login))
            case .expired: throw Self.unknown
            case .failed(let failure): return LoginPage.failed(failure.error, context(call, login))
            }
        } catch {
            return LoginPage.failed(error, context(call, login))
        }
    }

    /// Why a response was refused that belongs to no known login.
    private func refusal(_ call: Call) async throws(BrokerError) -> Response {
        guard let code = Self.ending(call.parameters["code"] ?? "") else {
            throw BrokerError(.notFound, "There is nothing at this path.")
        }
        var reference: WireText?
        do throws(BrokerError) {
            var query = try call.query()
            reference = query.string("reference")
            if let text = reference, !Self.isReference(text) {
                query.note("reference", "must be 1 to 8 letters and digits")
            }
            try query.finish()
        } catch {
            return LoginPage.failed(error, context(call, nil))
        }
        return LoginPage.failed(
            Self.told(code), .init(login: nil, requestID: reference?.text ?? call.request.id))
    }

    /// An error of which its code alone is known. A login can be begun again at once, wherever it could not be ended.
    private static func told(_ code: BrokerError.Code) -> BrokerError {
        BrokerError(code, "", retryAfter: code.status == .serviceUnavailable ? 1 : nil)
    }

    private static func ending(_ text: WireText) -> BrokerError.Code? {
        endings.first { WireText($0.rawValue) == text }
    }

    private static func isReference(_ text: WireText) -> Bool {
        (1...8).contains(text.count)
            && text.utf8.allSatisfy { $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit }
    }

    private func context(_ call: Call, _ login: LoginDescription?) -> LoginPage.Context {
        LoginPage.Context(login: login, requestID: call.request.id)
    }

    private func failed(_ error: BrokerError, _ call: Call) -> Response {
        Reader(call) == .program ? error.response : LoginPage.failed(error, context(call, nil))
    }

    private func setting(_ cookie: LoginFlow.Cookie?, _ response: Response) -> Response {
        guard let cookie else { return response }
        var response = response
        let secure = broker.logins.isSecure ? "; Secure" : ""
        let age = PendingLogin.validity.components.seconds
        response.fields.append(
            "Set-Cookie",
            "\(cookie.name)=\(cookie.value.revealedText); Path=/; Max-Age=\(age); HttpOnly; SameSite=Lax\(secure)")
        return response
    }

    // MARK: Callers

    private func finalize(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let query = try await call.body { $0.requiredString("login_response_query", limit: 65_536) }
        let response = try await InputReading.run(bytes: query?.count ?? 0) { () throws(BrokerError) in
            try Self.response(query ?? "")
        }
        let tenant = try await broker.tenant(of: call)
        let ended = try await broker.logins.finalize(
            response, of: tenant.name, storageKeys: call.narrowedStorageKeys)
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
