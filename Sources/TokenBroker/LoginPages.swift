import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// The pages that a browser shows. They have a few sentences and at most buttons; they run no script and load nothing.
enum LoginPage {
    /// The login and the reference that a page shows.
    struct Context {
        /// The login that the page is about; nil if it is not known.
        let login: LoginDescription?
        /// A few characters by which an operator finds the request in the log, or the login.
        let reference: String

        init(login: LoginDescription?, requestID: String) {
            self.login = login
            // The identifiers of a worker's requests begin alike.
            let characters = login.map { $0.loginID.utf8.prefix(8) } ?? requestID.utf8.suffix(8)
            reference = String(decoding: characters, as: UTF8.self)
        }
    }

    // MARK: Outcomes

    static func completed(_ context: Context) -> Response {
        page(
            .ok, context, title: "You are logged in", text: ["The login is complete. You can close this page."])
    }

    /// The page of a login that has not ended.
    static func pending(_ context: Context) -> Response {
        page(
            .ok, context, title: "The login is not finished yet",
            text: ["Reload this page in a moment to see the result."])
    }

    static func failed(_ error: BrokerError, _ context: Context) -> Response {
        var response =
            if let fault = error.responseFault {
                refusedResponse(fault, reporting: error.errorCode, context)
            } else {
                failed(error.code, reason(of: error), context)
            }
        response.fields.set("Retry-After", error.retryAfter.map { String($0) })
        return response
    }

    /// The error's detail, for the person who has to change a configuration. Nil if the page's own text says what the
    /// user can do, or if only the code is known.
    private static func reason(of error: BrokerError) -> String? {
        switch error.code {
        case .authorizationError, .illegalConfiguration, .tokenResponseError, .unexpectedError, .providerUntrusted,
            .retryableError, .networkError:
            let name = error.code.rawValue + (error.errorCode.map { " (\($0))" } ?? "")
            return error.detail.isEmpty ? name : "\(name): \(error.detail)"
        default: return nil
        }
    }

    private static func failed(_ code: BrokerError.Code, _ reason: String?, _ context: Context) -> Response {
        let (title, text) =
            switch code {
            case .authorizationError:
                ("The login did not succeed", "The login service did not confirm it. You can try again.")
            case .gone:
                ("This login is no longer valid", "It has expired or was never begun. Please begin again.")
            case .conflict:
                ("This login was finished already", "Nothing was changed. You can close this page.")
            case .forbidden:
                (
                    "This login was started in another browser",
                    "Please begin again in the browser in which you started, and stay in it until the login is done."
                )
            case .invalidRequest:
                ("This address is not complete", "Something is missing in it or was changed. Please begin again.")
            case .retryableError, .networkError, .storageUnavailable:
                ("The login could not be finished now", "A service did not answer. Please begin again in a moment.")
            default:
                ("The login could not be finished", "The login service's answer was not usable. Please begin again.")
            }
        return page(code.status, context, title: title, text: [text], reason: reason)
    }

    /// The page of a login service's response that is complete and is not accepted. The login goes on.
    private static func refusedResponse(
        _ fault: BrokerError.ResponseFault, reporting errorCode: String?, _ context: Context
    ) -> Response {
        let text =
            switch fault {
            case .noIssuer:
                "It does not say which login service it comes from (iss), as this login service has announced that its answers do."
            case .otherIssuer: "It comes from another login service than the one where this login was begun."
            case .unexpectedIssuer:
                "It says which login service it comes from (iss), and none is configured here to compare that with."
            case .otherCallback: "It came to another address than the one that this login was begun with."
            case .otherRegistration:
                "The registration at this login service was replaced here after the login was begun."
            case .otherApp: "The app was changed or removed here after the login was begun."
            }
        let reason = BrokerError.response(fault, reported: errorCode)
        return page(
            fault.code.status, context, title: "The login service's answer was not accepted",
            text: [text, "Please begin again. If this page comes again, tell the operator of this service."],
            reason: "\(reason.code.rawValue): \(reason.detail)")
    }

    // MARK: Questions

    /// The page for a second browser that opens the start address of a login.
    /// - Parameter action: the address that the form is sent to.
    static func confirmStart(_ login: LoginDescription, action: String, _ context: Context) -> Response {
        page(
            .ok, context, title: "Continue in this browser?",
            text: [
                "\(emphasized(login.tenantTitle)) asks you to log in at \(emphasized(login.providerTitle)), for the account "
                    + "\(emphasized(login.storageKey.description)).",
                "This login was opened in another browser before. Continue here only if you began it yourself: the "
                    + "other browser cannot finish it then.",
            ], form: form(action, [(.continue, "Continue in this browser")]))
    }

    /// The page that asks the user to confirm the login before the code is redeemed.
    static func confirmLogin(_ login: LoginDescription, action: String, _ context: Context) -> Response {
        let asks =
            if let app = login.appTitle {
                "The app \(emphasized(app)) asks for access to your account at \(emphasized(login.providerTitle)), through "
                    + "\(emphasized(login.tenantTitle))."
            } else {
                "\(emphasized(login.tenantTitle)) asks for access to your account at \(emphasized(login.providerTitle)), and "
                    + "keeps it as the account \(emphasized(login.storageKey.description))."
            }
        return page(
            .ok, context, title: "Did you begin this login?",
            text: [asks, "Continue only if you began this login yourself."],
            form: form(action, [(.continue, "Continue"), (.cancel, "No, cancel")]))
    }

    /// The values of the forms' field `decision`.
    enum Decision: String, CaseIterable {
        case `continue`
        case cancel
    }

    private static func form(_ action: String, _ buttons: [(decision: Decision, label: String)]) -> String {
        let buttons = buttons.enumerated().map { index, button in
            "<button name=\"decision\" value=\"\(button.decision.rawValue)\"\(index == 0 ? " autofocus" : "")>\(button.label)</button>"
        }
        return "<form method=\"post\" action=\"\(escaped(action))\">\n\(buttons.joined(separator: "\n"))\n</form>\n"
    }

    /// The page for an app's request that must not be answered by a redirect (RFC 6749 §4.1.2.1).
    static func refusedApp(_ detail: String, _ context: Context) -> Response {
        page(
            .badRequest, context, title: "This app's link cannot be used",
            text: ["The app that sent you here is not known, or its link is not complete. Go back to the app."],
            reason: detail)
    }

    // MARK: Ways on

    /// Redirects the browser with status 303, so that it continues with GET whatever the method was.
    static func redirect(to location: String) -> Response {
        var response = Response(.seeOther, fields: ["Location": location])
        response.fields.append(contentsOf: headers(hasForm: false))
        return response
    }

    /// Sends the browser on after a form, by a page that reloads itself. Chromium checks each redirect that answers a
    /// form against the `form-action` of the form's page, and the next address has another origin.
    static func goOn(to location: String, _ context: Context) -> Response {
        page(
            .ok, context, title: "One moment",
            text: ["<a href=\"\(escaped(location))\">Continue</a>"],
            head: "<meta http-equiv=\"refresh\" content=\"0; url=\(escaped(location))\">\n")
    }

    // MARK: Markup

    /// A page that is not about a login.
    /// - Parameter text: paragraphs of markup.
    static func plain(title: String, text: [String], footer: String?) -> Response {
        page(.ok, login: nil, title: title, text: text, reason: nil, form: nil, head: "", footer: footer)
    }

    /// - Parameters:
    ///   - text: paragraphs of markup.
    ///   - reason: small text below the paragraphs; nil for none.
    ///   - form: markup below the reason; nil for none.
    ///   - head: more markup for the head.
    private static func page(
        _ status: Status, _ context: Context, title: String, text: [String], reason: String? = nil, form: String? = nil,
        head: String = ""
    ) -> Response {
        page(
            status, login: context.login, title: title, text: text, reason: reason, form: form, head: head,
            footer: "Reference: \(context.reference)")
    }

    /// - Parameter footer: a text.
    private static func page(
        _ status: Status, login described: LoginDescription?, title: String, text: [String], reason: String?,
        form: String?, head: String, footer: String?
    ) -> Response {
        let login = described.map { login in
            "<p class=\"login\">\(isolated(login.tenantTitle)) · \(isolated(login.providerTitle))</p>\n"
        }
        // With the referrer policy no-referrer, a browser sends a page's forms with `Origin: null` (Fetch, "append a
        // request Origin header"). The check of the origin could not tell them from forms of other pages.
        let referrer = form == nil ? "" : "<meta name=\"referrer\" content=\"same-origin\">\n"
        let html = """
            <!DOCTYPE html>
            <html lang="en">
            <head>
            <meta charset="utf-8">
            <meta name="viewport" content="width=device-width, initial-scale=1">
            \(referrer)\(head)<title>\(title)</title>
            <style>\(style)</style>
            </head>
            <body>
            <main>
            \(login ?? "")<h1>\(title)</h1>
            \(text.map { "<p>\($0)</p>\n" }.joined())\(reason.map { "<p class=\"login\">\(escaped($0))</p>\n" } ?? "")\(form ?? "")\(footer.map { "<p class=\"reference\">\(escaped($0))</p>" } ?? "")
            </main>
            </body>
            </html>

            """
        var response = Response(
            status, fields: ["Content-Type": "text/html; charset=utf-8"], body: Array(html.utf8))
        response.fields.append(contentsOf: headers(hasForm: form != nil))
        return response
    }

    /// A name from outside as markup, isolated so that its writing direction does not affect the text around it.
    private static func isolated(_ text: String) -> String { "<bdi>\(escaped(text))</bdi>" }

    private static func emphasized(_ text: String) -> String { "<strong>\(isolated(text))</strong>" }

    /// Text as markup for elements and quoted attributes.
    private static func escaped(_ text: String) -> String {
        var bytes: [UInt8] = []
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "&"): bytes += "&amp;".utf8
            case UInt8(ascii: "<"): bytes += "&lt;".utf8
            case UInt8(ascii: ">"): bytes += "&gt;".utf8
            case UInt8(ascii: "\""): bytes += "&quot;".utf8
            case UInt8(ascii: "'"): bytes += "&#39;".utf8
            default: bytes.append(byte)
            }
        }
        return String(decoding: bytes, as: UTF8.self)
    }

    private static let style = """
        body{margin:0;min-height:100vh;display:grid;place-items:center;font:1.125rem/1.5 system-ui,sans-serif;\
        color:#1a1a1a;background:#fff}main{max-width:32rem;padding:1.5rem;overflow-wrap:anywhere}\
        h1{margin:0 0 .5rem;font-size:1.5rem}p{margin:0 0 .5rem}.login,.reference{font-size:.875rem;color:#595959}\
        .reference{margin-top:1.5rem}form{margin-top:1.25rem;display:flex;flex-wrap:wrap;gap:.75rem}\
        button{font:inherit;padding:.5rem 1.25rem;border:2px solid #1a4fa0;border-radius:.375rem;color:#fff;\
        background:#1a4fa0;cursor:pointer}button+button{color:#1a4fa0;background:none}\
        button:focus-visible{outline:3px solid #e8a33d;outline-offset:2px}a{color:#1a4fa0}\
        @media(prefers-color-scheme:dark){body{color:#eee;background:#161616}.login,.reference{color:#b0b0b0}\
        button{border-color:#8ab4f8;color:#161616;background:#8ab4f8}button+button{color:#8ab4f8}a{color:#8ab4f8}}
        """

    /// The content security policy of a page. It allows no scripts and loads nothing; it allows exactly one style, by its
    /// digest (CSP Level 3 §6.7.3.3), and forms only to the broker itself.
    /// - Parameter styleDigest: the SHA-256 digest of the style, in Base64.
    static func policy(styleDigest: String, hasForm: Bool) -> String {
        "default-src 'none'; style-src 'sha256-\(styleDigest)'; base-uri 'none'; "
            + "form-action \(hasForm ? "'self'" : "'none'"); frame-ancestors 'none'"
    }

    private static let styleDigest = Base64.encode(SHA256.digest(Array(style.utf8)))

    private static func headers(hasForm: Bool) -> [Fields.Field] {
        [
            .init(name: "Cache-Control", value: "no-store"),
            .init(name: "Referrer-Policy", value: "no-referrer"),
            .init(name: "Content-Security-Policy", value: WireText(policy(styleDigest: styleDigest, hasForm: hasForm))),
        ]
    }
}

extension Fields {
    fileprivate mutating func append(contentsOf fields: [Field]) {
        for field in fields { append(field.name.text, field.value.text) }
    }
}
