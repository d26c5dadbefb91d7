import ExternalText
import HTTPCodec
import HTTPServer
import Synchronization

/// Answers the browser that comes back from a login.
final class LoopbackHandler: RequestHandler {
    private struct State {
        /// The host and the port of the address; empty before the port is known.
        var authority: WireText = ""
        /// How many requests were taken for the end of the login.
        var taken = 0
        var isOver = false
    }

    /// How many requests may claim to end the login. Each costs one look-up: what guesses does not know the login's `state`.
    private static let mostTaken = 1000

    private let path: WireText
    private let finish: @Sendable (String) async throws(AuthError) -> Void
    private let ended: @Sendable (Result<Void, AuthError>) -> Void
    private let state = Mutex(State())

    /// - Parameters:
    ///   - finish: completes the login by the query of a response. Throws `illegalArgument` for one that is not the login's.
    ///   - ended: is told once how the login has ended.
    init(
        path: String, finish: @escaping @Sendable (String) async throws(AuthError) -> Void,
        ended: @escaping @Sendable (Result<Void, AuthError>) -> Void
    ) {
        self.path = WireText(path)
        self.finish = finish
        self.ended = ended
    }

    /// - Parameter authority: what browsers name as the host.
    func begin(at authority: String) { state.withLock { $0.authority = WireText(authority) } }

    func respond(to request: Request) async -> Response {
        // A page of another name that leads here is not the provider's answer.
        let host = request.fields["Host"]
        guard state.withLock({ host == $0.authority }) else { return Self.page(.badRequest, "This is no web site.") }
        guard WireText(request.path) == path else { return Self.page(.notFound, "There is nothing here.") }
        guard request.method == .get else { return Self.page(.methodNotAllowed, "The login ends by another request.") }
        guard let query = request.query else { return Self.page(.badRequest, "This request ends no login.") }
        let mayTry = state.withLock { state in
            guard !state.isOver, state.taken < Self.mostTaken else { return false }
            state.taken += 1
            return true
        }
        guard mayTry else { return Self.page(.gone, "The login has ended. You can close this page.") }
        // A browser that closes the connection does not end the exchange of the code.
        let result = await Task { [finish] in
            do throws(AuthError) {
                return Result<Void, AuthError>.success(try await finish(query))
            } catch {
                return .failure(error)
            }
        }.value
        if case .failure(let error) = result, error.code == .illegalArgument {
            return Self.page(.badRequest, "This request does not belong to the login that the program waits for.")
        }
        let isFirst = state.withLock { state in
            defer { state.isOver = true }
            return !state.isOver
        }
        if isFirst { ended(result) }
        return Self.page(of: result)
    }

    func response(toFault status: Status, detail: String) -> Response {
        Self.page(status, "This request is not well-formed.")
    }

    private static func page(of result: Result<Void, AuthError>) -> Response {
        switch result {
        case .success: page(.ok, "You are logged in. You can close this page and go back to the program.")
        case .failure(let error) where error.code == .authorizationError:
            page(
                .ok, "You are not logged in: the login was refused. You can close this page and go back to the program."
            )
        case .failure(let error):
            page(.ok, "The login has failed (\(error.code)). The program says why. You can close this page.")
        }
    }

    /// - Parameter text: has no characters that HTML gives a meaning to.
    private static func page(_ status: Status, _ text: String) -> Response {
        let html =
            "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Login</title></head>"
            + "<body><p>\(text)</p></body></html>\n"
        return Response(
            status,
            fields: [
                "Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store",
                "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
                "Referrer-Policy": "no-referrer",
            ], body: Array(html.utf8), closesConnection: true)
    }
}
