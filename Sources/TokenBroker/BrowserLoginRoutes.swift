import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// The addresses of a login that the user's browser opens: its start, the callback and the confirmation.
struct BrowserLoginRoutes {
    private let broker: Broker
    private let ends: EndedLoginRoutes

    init(_ broker: Broker) {
        self.broker = broker
        ends = EndedLoginRoutes(broker)
    }

    var all: [Route] {
        [
            // HEAD is safe by definition, and a GET that redeems a code is not. So HEAD is not answered like GET here.
            Route(.get, "/login/callback", .open, allowsHead: false, varying(callback)),
            Route(.post, "/login/callback", .open, varying(formPost)),
            Route(.get, "/login/callback/{tenant}", .open, allowsHead: false, varying(callback)),
            Route(.post, "/login/callback/{tenant}", .open, varying(formPost)),
            Route(.get, "/login/start/{tenant}/{login_id}", .open, allowsHead: false, start),
            Route(.post, "/login/start/{tenant}/{login_id}", .open, takeOver),
            Route(.get, "/login/reconnect/{tenant}/{link}", .open, allowsHead: false, reconnect),
            Route(.get, "/login/confirm/{tenant}/{login_id}", .open, confirmPage),
            Route(.post, "/login/confirm/{tenant}/{login_id}", .open, varying(confirm)),
        ]
    }

    /// Adds `Vary: Accept` to the answers of a handler (RFC 9110 §12.5.5).
    private func varying(
        _ handle: @escaping @Sendable (Call) async throws(BrokerError) -> Response
    ) -> @Sendable (Call) async throws(BrokerError) -> Response {
        { call throws(BrokerError) in try await handle(call).varyingByAccept }
    }

    // MARK: The start

    private func start(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refuseQuery()
            try call.refusePrefetch()
            switch try await begin(call, takesOver: false) {
            case .goOn(let loginURI, let cookie):
                return setting(cookie, LoginPage.redirect(to: loginURI))
            case .mustConfirm(let login):
                guard call.reader != .program else {
                    throw BrokerError(
                        .forbidden, "This login was opened in another browser: its user must confirm it in a browser.")
                }
                return LoginPage.confirmStart(
                    login, action: broker.logins.publicURI(path: call.request.path), LoginPage.Context(login, call))
            }
        } catch {
            return failed(error, call)
        }
    }

    /// The user of an ended session logs in again.
    private func reconnect(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            // Mail services add parameters to addresses.
            try call.refusePrefetch()
            guard let name = TenantName(call.parameters["tenant"] ?? ""), let link = call.parameters["link"],
                let tenant = try await broker.core.tenants.currentTenant(name)
            else { throw BrokerError.unknownLogin }
            switch try await broker.logins.reconnect(
                link, of: tenant,
                from: LoginFlow.Browser(
                    cookies: call.cookies, callback: .tenant(name), canConfirm: true, source: call.request.source))
            {
            case .goOn(let loginURI, let cookie): return setting(cookie, LoginPage.redirect(to: loginURI))
            case .mustConfirm: throw BrokerError(.internalError, "A login that has just begun asks for confirmation.")
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
            // The page has only this button.
            _ = try call.decision(among: [.continue])
            switch try await begin(call, takesOver: true) {
            case .goOn(let loginURI, let cookie):
                // The page must not contain the state, so it leads back to the start address, where this browser is
                // bound now.
                let response =
                    call.reader == .browser
                    ? LoginPage.goOn(to: broker.logins.publicURI(path: call.request.path), LoginPage.Context(nil, call))
                    : LoginPage.redirect(to: loginURI)
                return setting(cookie, response)
            case .mustConfirm: throw BrokerError(.internalError, "A confirmed login asks for confirmation.")
            }
        } catch {
            return failed(error, call)
        }
    }

    private func begin(_ call: Call, takesOver: Bool) async throws(BrokerError) -> LoginFlow.Start {
        let (tenant, id) = try call.login()
        return try await broker.logins.start(
            tenant: tenant, loginID: id, cookies: call.cookies, takesOver: takesOver)
    }

    // MARK: The callback

    private func callback(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refusePrefetch()
        } catch {
            return failed(error, call)
        }
        return await finish(call) { () throws(BrokerError) in
            try AuthorizationResponse(reading: WireText(call.request.query ?? ""))
        }
    }

    /// Handles `response_mode=form_post`. A browser sends no SameSite=Lax cookie with a cross-site POST. So, for a
    /// login that is bound to a browser, the answer redirects to the same address with GET, and the browser then sends
    /// the cookie.
    private func formPost(_ call: Call) async throws(BrokerError) -> Response {
        try ContentType.form.check(call.request.fields)
        guard call.request.body.count <= Self.longestForm else {
            throw BrokerError(.payloadTooLarge, "A form must not be longer than \(Self.longestForm) bytes.")
        }
        guard let text = WireText(validating: call.request.body.span) else { throw ContentType.noForm }
        var response: AuthorizationResponse?
        do throws(BrokerError) {
            let pairs = try Self.form(text)
            let parsed = try AuthorizationResponse(reading: pairs)
            response = parsed
            if try await broker.logins.isBound(parsed) {
                let address = broker.logins.publicURI(path: call.request.path)
                return LoginPage.redirect(to: address + "?" + Self.parameters(of: pairs))
            }
            return await finish(call) { parsed }
        } catch {
            return await refused(error, call, response)
        }
    }

    /// The longest form, in bytes. Login services send a few hundred.
    private static let longestForm = 65_536

    private static func form(_ text: WireText) throws(BrokerError) -> [FormEncoding.Pair] {
        do throws(FormEncoding.Fault) {
            return try FormEncoding.decode(text)
        } catch {
            throw BrokerError(error, in: "form")
        }
    }

    /// The parameters of a form for the address of the callback: all, or where they are too long for an address, those that
    /// the protocol defines.
    private static func parameters(of form: [FormEncoding.Pair]) -> String {
        let names: [WireText] = ["code", "error", "iss", "state"]
        let all = FormEncoding.encode(form)
        return all.utf8.count <= longestQuery ? all : FormEncoding.encode(form.filter { names.contains($0.name) })
    }

    /// Of a form that is turned into an address, in bytes.
    private static let longestQuery = 6144

    /// - Parameter read: reads the login service's response.
    private func finish(
        _ call: Call, _ read: () throws(BrokerError) -> AuthorizationResponse
    ) async -> Response {
        let callback: LoginFlow.Callback =
            call.parameters["tenant"].map { .tenant(TenantName($0)) } ?? .shared
        let reader = call.reader
        var response: AuthorizationResponse?
        do throws(BrokerError) {
            let parsed = try read()
            response = parsed
            let browser = LoginFlow.Browser(
                cookies: call.cookies, callback: callback, canConfirm: reader != .program, source: call.request.source)
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

    /// - Parameter isForm: whether the request is a form from one of the broker's own pages.
    private func outcome(_ ended: LoginFlow.Ended, _ call: Call, isForm: Bool = false) -> Response {
        let reader = call.reader
        let context = LoginPage.Context(ended.login, call)
        if let app = ended.appReturn {
            return answer(app, ended.loginID, context, isForm: isForm && reader == .browser)
        }
        if reader == .program {
            switch ended.result {
            case .success(let held): return Response.summary(of: ended, held)
            case .failure(let error): return error.response
            }
        }
        if let returnTo = ended.returnTo {
            let pairs: [FormEncoding.Pair] =
                switch ended.result {
                case .success: [.init("login", "completed")]
                case .failure(let error): [.init("login", "failed"), .init("error", error.code.rawValue)]
                }
            let address = RedirectURI.adding(pairs, to: returnTo)
            return isForm && reader == .browser
                ? LoginPage.goOn(to: address, context) : LoginPage.redirect(to: address)
        }
        if reader == .browser { return LoginPage.redirect(to: ends.uri(of: ended.login)) }
        switch ended.result {
        case .success: return LoginPage.completed(context)
        case .failure(let error): return LoginPage.failed(error, context)
        }
    }

    /// Leads the browser to the app.
    private func answer(
        _ app: AppLogin.Return, _ loginID: String, _ context: LoginPage.Context, isForm: Bool
    ) -> Response {
        let address = app.uri(issuer: broker.logins.publicBaseURL)
        let page = isForm ? LoginPage.goOn(to: address, context) : LoginPage.redirect(to: address)
        // It is long, and would be sent with each request to this host.
        return LoginCookies(broker.logins).removing(broker.logins.cookieName(of: loginID), page)
    }

    /// The answer to a browser that has finished an app's login already; nil where there is none.
    private func appReturn(
        _ tenant: TenantName, _ loginID: String, _ call: Call, isForm: Bool = false
    ) async -> Response? {
        await broker.logins.appReturn(tenant, loginID, cookies: call.cookies).map {
            answer($0, loginID, LoginPage.Context(nil, call), isForm: isForm)
        }
    }

    /// The answer to a login service's response that does not finish its login.
    private func refused(
        _ error: BrokerError, _ call: Call, _ response: AuthorizationResponse?
    ) async -> Response {
        let reader = call.reader
        var login: LoginDescription?
        if reader != .program, let response { login = await broker.logins.description(of: response) }
        if error.code == .conflict, let login, let answer = await appReturn(login.tenant, login.loginID, call) {
            return answer
        }
        broker.log.info("login_response_refused", [.request(RequestID(call.request.id)), .code(error.code)])
        if reader == .program { return error.response }
        if reader == .other { return LoginPage.failed(error, LoginPage.Context(login, call)) }
        return LoginPage.redirect(to: ends.uri(of: login, error, call))
    }

    // MARK: The confirmation

    private func confirmPage(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refuseQuery()
            let (tenant, id) = try call.login()
            return confirmation(
                of: try await broker.logins.confirmation(
                    tenant: tenant, loginID: id, cookies: call.cookies), call)
        } catch {
            return failed(error, call)
        }
    }

    private func confirmation(of login: LoginDescription, _ call: Call) -> Response {
        LoginPage.confirmLogin(login, action: confirmURI(of: login), LoginPage.Context(login, call))
    }

    /// The user has pressed a button of the page that asks for confirmation.
    private func confirm(_ call: Call) async throws(BrokerError) -> Response {
        do throws(BrokerError) {
            try call.refuseQuery()
            try refuseOtherOrigins(call)
            let decision = try call.decision(among: LoginPage.Decision.allCases)
            let (tenant, id) = try call.login()
            let ended: LoginFlow.Ended
            do throws(BrokerError) {
                ended = try await broker.logins.confirm(
                    tenant: tenant, loginID: id, cookies: call.cookies,
                    isConfirmed: decision == .continue)
            } catch {
                // A user who presses the button twice sends two forms, and the browser shows the answer to the second
                // one.
                guard error.code == .conflict, call.reader == .browser else { throw error }
                return await appReturn(tenant, id, call, isForm: true) ?? LoginPage.redirect(to: ends.uri(tenant, id))
            }
            return outcome(ended, call, isForm: true)
        } catch {
            return failed(error, call)
        }
    }

    private func confirmURI(of login: LoginDescription) -> String {
        broker.logins.publicURI(path: "/login/confirm/\(login.tenant)/\(login.loginID)")
    }

    /// Refuses a form that does not come from one of the broker's own pages. `Sec-Fetch-Site` (Fetch Metadata) decides
    /// where the browser sends it; `Origin` decides where it does not.
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

    // MARK: Answers

    private func failed(_ error: BrokerError, _ call: Call) -> Response {
        call.reader == .program ? error.response : LoginPage.failed(error, LoginPage.Context(nil, call))
    }

    private func setting(_ cookie: LoginFlow.Cookie?, _ response: Response) -> Response {
        cookie.map { LoginCookies(broker.logins).setting($0, response) } ?? response
    }
}
