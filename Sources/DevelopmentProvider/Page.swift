import ExternalText
import HTTPCodec
import HTTPServer

/// The pages for users: plain HTML that works without scripts and is usable with a keyboard and a screen reader.
enum Page {
    static func login(
        _ status: Status, client: ProviderClient, scope: [String], user: WireText?, hidden: [FormEncoding.Pair],
        action: String, complaint: String?
    ) -> Response {
        var body = "<h1>Log in</h1>\n"
        body += "<p><strong>\(escaped(client.name))</strong> wants to use your account.</p>\n"
        if !scope.isEmpty {
            body += "<p>It asks for:</p>\n<ul>\n"
            for item in scope { body += "<li>\(escaped(item))</li>\n" }
            body += "</ul>\n"
        }
        body += warning(complaint)
        body += "<form method=\"post\" action=\"\(escaped(action))\">\n"
        for pair in hidden {
            body +=
                "<input type=\"hidden\" name=\"\(escaped(pair.name.text))\" value=\"\(escaped(pair.value.text))\">\n"
        }
        body += userField(user) + decision + "</form>\n"
        return page(status, title: "Log in", body: body)
    }

    static func device(_ status: Status, userCode: WireText?, user: WireText?, action: String, complaint: String?)
        -> Response
    {
        var body = "<h1>Connect a device</h1>\n"
        body += "<p>Approve only if your own device shows this code.</p>\n"
        body += warning(complaint)
        body += "<form method=\"post\" action=\"\(escaped(action))\">\n"
        body += "<p><label for=\"user_code\">Code on the device</label>\n"
        body += "<input id=\"user_code\" name=\"user_code\" value=\"\(escaped(userCode?.text ?? ""))\" required"
        body += " maxlength=\"20\" autocomplete=\"off\" autocapitalize=\"characters\" spellcheck=\"false\"></p>\n"
        body += userField(user) + decision + "</form>\n"
        return page(status, title: "Connect a device", body: body)
    }

    /// The page at the end of a process.
    static func message(_ title: String, _ text: String) -> Response {
        page(.ok, title: title, body: "<h1>\(escaped(title))</h1>\n<p>\(escaped(text))</p>\n")
    }

    static func failure(_ status: Status, _ text: String) -> Response {
        page(
            status, title: "This did not work",
            body: "<h1>This did not work</h1>\n<p role=\"alert\">\(escaped(text))</p>\n")
    }

    private static func userField(_ user: WireText?) -> String {
        "<p><label for=\"user\">User name</label>\n<input id=\"user\" name=\"user\" value=\"\(escaped(user?.text ?? ""))\""
            + " required maxlength=\"100\" autocomplete=\"username\"></p>\n"
    }

    // A denial needs no user name, so its button skips the browser's validation.
    private static let decision = """
        <p><button name="decision" value="approve">Approve</button>
        <button name="decision" value="deny" formnovalidate>Deny</button></p>

        """

    private static func warning(_ complaint: String?) -> String {
        complaint.map { "<p role=\"alert\"><strong>\(escaped($0))</strong></p>\n" } ?? ""
    }

    private static func page(_ status: Status, title: String, body: String) -> Response {
        let nonce = Secrets.make("")
        let html = """
            <!DOCTYPE html>
            <html lang="en">
            <head>
            <meta charset="utf-8">
            <meta name="viewport" content="width=device-width, initial-scale=1">
            <title>\(escaped(title)) – development provider</title>
            <style nonce="\(nonce)">
            body { font: 1.1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 32rem; padding: 0 1rem; }
            label { display: block; }
            input, button { font: inherit; padding: 0.4rem 0.8rem; }
            </style>
            </head>
            <body>
            <main>
            \(body)</main>
            </body>
            </html>

            """
        // The policy omits form-action, because browsers also apply it to the redirects after the form, and the
        // application decides where these lead.
        let policy = "default-src 'none'; style-src 'nonce-\(nonce)'; base-uri 'none'; frame-ancestors 'none'"
        return Response(
            status,
            fields: [
                "Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store",
                "Content-Security-Policy": policy, "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
            ],
            body: Array(html.utf8))
    }

    /// Escapes `text` for HTML content and for attribute values in double quotes.
    static func escaped(_ text: String) -> String {
        var result = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "&": result += "&amp;"
            case "<": result += "&lt;"
            case ">": result += "&gt;"
            case "\"": result += "&quot;"
            case "'": result += "&#39;"
            // A form control would change a line break when the form is submitted.
            case "\n": result += "&#10;"
            case "\r": result += "&#13;"
            default: result.unicodeScalars.append(scalar)
            }
        }
        return result
    }
}
