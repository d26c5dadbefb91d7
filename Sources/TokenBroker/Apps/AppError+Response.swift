package import BrokerCore
import HTTPCodec
package import HTTPServer
import JSON

extension AppError {
    /// The error in the form of RFC 6749 §5.2.
    package var response: Response { response(challenging: false) }

    /// - Parameter isChallenged: whether the client has tried the `Authorization` field, so that the answer names the scheme.
    func response(challenging isChallenged: Bool) -> Response {
        var response = Response.oauth(
            status,
            JSONWriter.object { json in
                json.member("error", code.rawValue)
                json.member("error_description", description)
            })
        if let retryAfter { response.fields.append("Retry-After", String(retryAfter)) }
        if code == .invalidClient, isChallenged {
            response.fields.append("WWW-Authenticate", "Basic realm=\"token-broker\"")
        }
        if !allowedMethods.isEmpty {
            response.fields.append("Allow", allowedMethods.map(\.name).joined(separator: ", "))
        }
        return response
    }
}

extension Response {
    /// An answer to an app (RFC 6749 §5.1).
    static func oauth(_ status: Status, _ body: [UInt8]) -> Response {
        var fields: Fields = ["Cache-Control": "no-store", "Pragma": "no-cache"]
        if !body.isEmpty { fields.append("Content-Type", "application/json") }
        return Response(status, fields: fields, body: body)
    }
}
