/// A response status (RFC 9110 §15).
package struct Status: Hashable, Sendable, CustomStringConvertible {
    package let code: Int

    /// - Parameter code: 100...999, because a status line has three digits.
    package init(_ code: Int) {
        precondition((100...999).contains(code), "a status has three digits")
        self.code = code
    }

    package static let `continue` = Status(100)
    package static let ok = Status(200)
    package static let created = Status(201)
    package static let noContent = Status(204)
    package static let found = Status(302)
    package static let seeOther = Status(303)
    package static let notModified = Status(304)
    package static let badRequest = Status(400)
    package static let unauthorized = Status(401)
    package static let forbidden = Status(403)
    package static let notFound = Status(404)
    package static let methodNotAllowed = Status(405)
    package static let requestTimeout = Status(408)
    package static let conflict = Status(409)
    package static let gone = Status(410)
    package static let preconditionFailed = Status(412)
    package static let contentTooLarge = Status(413)
    package static let uriTooLong = Status(414)
    package static let unsupportedMediaType = Status(415)
    package static let expectationFailed = Status(417)
    package static let unprocessableContent = Status(422)
    package static let failedDependency = Status(424)
    package static let tooManyRequests = Status(429)
    package static let headerFieldsTooLarge = Status(431)
    package static let internalServerError = Status(500)
    package static let notImplemented = Status(501)
    package static let badGateway = Status(502)
    package static let serviceUnavailable = Status(503)
    package static let httpVersionNotSupported = Status(505)

    /// Whether a response with this status never has content (RFC 9110 §6.4.1).
    package var forbidsContent: Bool { code < 200 || code == 204 || code == 304 }

    /// The reason phrase of RFC 9110 §15, or an empty text.
    package var reason: StaticString {
        switch code {
        case 100: "Continue"
        case 200: "OK"
        case 201: "Created"
        case 202: "Accepted"
        case 204: "No Content"
        case 302: "Found"
        case 303: "See Other"
        case 304: "Not Modified"
        case 400: "Bad Request"
        case 401: "Unauthorized"
        case 403: "Forbidden"
        case 404: "Not Found"
        case 405: "Method Not Allowed"
        case 408: "Request Timeout"
        case 409: "Conflict"
        case 410: "Gone"
        case 412: "Precondition Failed"
        case 413: "Content Too Large"
        case 414: "URI Too Long"
        case 415: "Unsupported Media Type"
        case 417: "Expectation Failed"
        case 422: "Unprocessable Content"
        case 424: "Failed Dependency"
        case 429: "Too Many Requests"
        case 431: "Request Header Fields Too Large"
        case 500: "Internal Server Error"
        case 501: "Not Implemented"
        case 502: "Bad Gateway"
        case 503: "Service Unavailable"
        case 504: "Gateway Timeout"
        case 505: "HTTP Version Not Supported"
        default: ""
        }
    }

    package var description: String { String(code) }
}
