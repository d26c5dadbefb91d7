import BrokerCore
import HTTPCodec
import HTTPServer

/// What scripts of any origin may call: apps that run in browsers (Fetch, "CORS protocol"). No answer depends on the browser's
/// credentials, and no script may have them sent.
enum CrossOrigin {
    private static let paths: [String] =
        AppMetadataRoutes.paths + ["/oauth2/token", "/oauth2/revoke", "/oauth2/challenge"]

    /// Opens the answer to a request for this path to scripts, where they may call it: also an error.
    static func open(_ response: inout Response, to path: String) {
        guard paths.contains(where: { $0.utf8.elementsEqual(path.utf8) }) else { return }
        response.fields.append("Access-Control-Allow-Origin", "*")
        response.fields.append("Access-Control-Expose-Headers", "Retry-After, WWW-Authenticate")
    }

    /// The route that answers a browser which asks whether a script may make such a request.
    /// - Parameter fields: those that a script may send. The asterisk, which stands for all others, does not stand for Authorization.
    static func preflight(
        _ method: Method, _ path: StaticString, fields: String = "Authorization, Content-Type, *"
    ) -> Route {
        Route(.options, path, .open) { (_) throws(BrokerError) in
            var response = Response.empty(.noContent)
            response.fields.append("Access-Control-Allow-Methods", method.name)
            response.fields.append("Access-Control-Allow-Headers", fields)
            response.fields.append("Access-Control-Max-Age", "7200")
            return response
        }
    }
}
