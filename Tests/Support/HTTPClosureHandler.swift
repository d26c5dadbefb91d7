package import HTTPCodec
package import HTTPServer

/// A request handler made of a closure. Faults are answered in plain text.
package final class HTTPClosureHandler: RequestHandler {
    private let body: @Sendable (Request) async -> Response

    package init(_ body: @escaping @Sendable (Request) async -> Response) {
        self.body = body
    }

    package func respond(to request: Request) async -> Response {
        await body(request)
    }

    package func response(toFault status: Status, detail: String) -> Response {
        Response(status, fields: ["Content-Type": "text/plain"], body: Array(detail.utf8))
    }
}
