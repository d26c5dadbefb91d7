package import BrokerCore
import HTTPCodec
package import HTTPServer
import JSON
import OAuth

extension BrokerError {
    /// The error as `application/problem+json` (RFC 9457).
    package var response: Response {
        let status = code.status
        let body = JSONWriter.object { json in
            json.member("type", "urn:token-broker:problem:\(code.rawValue)")
            json.member("title", title)
            json.member("status", status.code)
            json.member("detail", detail)
            json.member("code", code.rawValue)
            json.memberIfPresent("error_code", errorCode)
            json.memberIfPresent("retry_after", retryAfter.map(Int64.init))
            session?.encode(to: &json, reconnectURI: reconnectURI)
            encodeFaults(to: &json)
        }
        var response = Response(status, fields: ["Content-Type": "application/problem+json"], body: body)
        response.fields.append("Cache-Control", "no-store")
        if let retryAfter { response.fields.append("Retry-After", String(retryAfter)) }
        if code == .unauthorized { response.fields.append("WWW-Authenticate", "Bearer") }
        // `Accept-Encoding` in a 415 means that the content coding was the reason (RFC 9110 §12.5.3).
        if isAboutContentCoding { response.fields.append("Accept-Encoding", "identity") }
        if !allowedMethods.isEmpty {
            response.fields.append("Allow", allowedMethods.map(\.name).joined(separator: ", "))
        }
        return response
    }
}

extension BrokerError {
    /// Writes the member `errors`, where there are any.
    func encodeFaults(to json: inout JSONWriter) {
        if faults.isEmpty { return }
        json.name("errors")
        json.array { json in
            for fault in faults {
                json.object { json in
                    json.member("pointer", fault.pointer)
                    json.member("detail", fault.detail)
                }
            }
        }
    }
}

extension Response {
    static func json(_ status: Status, _ body: (inout JSONWriter) -> Void) -> Response {
        Response(
            status, fields: ["Content-Type": "application/json", "Cache-Control": "no-store"],
            body: JSONWriter.object(body))
    }

    /// The same response with `Vary: Accept`.
    var varyingByAccept: Response {
        var response = self
        response.fields.append("Vary", "Accept")
        return response
    }

    static func empty(_ status: Status) -> Response {
        Response(status, fields: ["Cache-Control": "no-store"])
    }
}
