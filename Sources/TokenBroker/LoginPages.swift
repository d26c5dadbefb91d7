internal import BrokerCore
internal import Cryptography
internal import HTTPCodec
internal import HTTPServer

/// The pages that a browser sees: a few plain words, nothing active, nothing from outside.
enum LoginPage {
    static func completed() -> Response {
        page(.ok, title: "You are logged in", text: "The login is complete. You can close this page.")
    }

    static func failed(_ error: BrokerError) -> Response {
        let (title, text) =
            switch error.code {
            case .authorizationError:
                ("The login did not succeed", "The login service did not confirm it. You can try again.")
            case .gone:
                ("This login is no longer valid", "It has expired or was never begun. Please begin again.")
            case .conflict:
                ("This login was finished already", "Nothing was changed. You can close this page.")
            case .forbidden:
                (
                    "This login was started in another browser",
                    "Please copy this page's address into the browser in which the login began."
                )
            case .invalidRequest:
                ("This address is not complete", "Something is missing in it or was changed. Please begin again.")
            case .retryableError, .networkError, .storageUnavailable:
                ("The login could not be finished now", "A service did not answer. Please begin again in a moment.")
            default:
                ("The login could not be finished", "The login service's answer was not usable. Please begin again.")
            }
        var response = page(error.code.status, title: title, text: text)
        if let seconds = error.retryAfter { response.fields.append("Retry-After", String(seconds)) }
        return response
    }

    /// Sends the browser on. 303, so that whatever the method was, a GET follows.
    static func redirect(to location: String) -> Response {
        var response = Response(.seeOther, fields: ["Location": location])
        for field in headers { response.fields.append(field.name, field.value) }
        return response
    }

    private static func page(_ status: Status, title: String, text: String) -> Response {
        let html = """
            <!DOCTYPE html>
            <html lang="en">
            <head>
            <meta charset="utf-8">
            <meta name="viewport" content="width=device-width, initial-scale=1">
            <title>\(title)</title>
            <style>\(style)</style>
            </head>
            <body>
            <main>
            <h1>\(title)</h1>
            <p>\(text)</p>
            </main>
            </body>
            </html>

            """
        var response = Response(
            status, fields: ["Content-Type": "text/html; charset=utf-8"], body: Array(html.utf8))
        for field in headers { response.fields.append(field.name, field.value) }
        return response
    }

    private static let style = """
        body{margin:0;min-height:100vh;display:grid;place-items:center;font:1.125rem/1.5 system-ui,sans-serif;\
        color:#1a1a1a;background:#fff}main{max-width:32rem;padding:1.5rem}h1{margin:0 0 .5rem;font-size:1.5rem}\
        p{margin:0}@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}}
        """

    /// Nothing is loaded and nothing runs; of styles, exactly the one above is taken (CSP Level 3 §6.7.3.3).
    private static let policy =
        "default-src 'none'; style-src 'sha256-\(Base64.encode(SHA256.digest(Array(style.utf8))))'; base-uri 'none'; "
        + "form-action 'none'; frame-ancestors 'none'"

    private static let headers: [(name: String, value: String)] = [
        ("Cache-Control", "no-store"),
        ("Referrer-Policy", "no-referrer"),
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
    ]
}
