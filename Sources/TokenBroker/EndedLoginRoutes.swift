import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// `/login/ended/…`: the pages that tell a user how a login ended.
///
/// The callback redirects a browser to them, so that neither the authorization code nor the state stays in its address bar.
struct EndedLoginRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/login/ended/{code}", .open, refusal),
            Route(.get, "/login/ended/{tenant}/{login_id}", .open, ended),
        ]
    }

    // MARK: Addresses

    func uri(_ tenant: TenantName, _ loginID: String) -> String {
        broker.logins.publicURI(path: "/login/ended/\(tenant)/\(loginID)")
    }

    func uri(of login: LoginDescription) -> String { uri(login.tenant, login.loginID) }

    /// The address of the page for an error that is not the outcome of a login.
    func uri(of login: LoginDescription?, _ error: BrokerError, _ call: Call) -> String {
        let cause = error.responseFault.map { "&cause=\($0.rawValue)" } ?? ""
        if let login { return uri(of: login) + "?error=\(error.code.rawValue)\(cause)" }
        let reference = LoginPage.Context(nil, call).reference
        return broker.logins.publicURI(path: "/login/ended/\(error.code.rawValue)?reference=\(reference)\(cause)")
    }

    // MARK: Pages

    /// The error codes that a response of a login service can end with.
    private static let endings: [BrokerError.Code] = [
        .authorizationError, .invalidRequest, .forbidden, .conflict, .gone, .illegalConfiguration, .tokenResponseError,
        .unexpectedError, .providerUntrusted, .retryableError, .networkError, .storageUnavailable, .internalError,
    ]

    /// Shows how a login ended.
    private func ended(_ call: Call) async throws(BrokerError) -> Response {
        var login: LoginDescription?
        do throws(BrokerError) {
            var query = try call.query()
            let text = query.string("error")
            let code = text.flatMap(Self.ending)
            if text != nil, code == nil { query.note("error", "is not a code that a login can end with") }
            let fault = Self.cause(&query)
            try query.finish()
            let (tenant, id) = try call.login()
            let (described, progress) = try await broker.logins.outcome(tenant: tenant, loginID: id)
            login = described
            if let fault { return LoginPage.failed(BrokerError.response(fault), LoginPage.Context(login, call)) }
            if let code { return LoginPage.failed(Self.told(code), LoginPage.Context(login, call)) }
            switch progress {
            case .completed: return LoginPage.completed(LoginPage.Context(login, call))
            case .pending: return LoginPage.pending(LoginPage.Context(login, call))
            case .expired: throw BrokerError.unknownLogin
            case .failed(let failure): return LoginPage.failed(failure.error, LoginPage.Context(login, call))
            }
        } catch {
            return LoginPage.failed(error, LoginPage.Context(login, call))
        }
    }

    /// Shows why a login service's response was refused that belongs to no known login.
    private func refusal(_ call: Call) async throws(BrokerError) -> Response {
        guard let code = Self.ending(call.parameters["code"] ?? "") else {
            throw BrokerError(.notFound, "There is nothing at this path.")
        }
        var reference: WireText?
        var fault: BrokerError.ResponseFault?
        do throws(BrokerError) {
            var query = try call.query()
            reference = query.string("reference")
            if let text = reference, !Self.isReference(text) {
                query.note("reference", "must be 1 to 8 letters and digits")
            }
            fault = Self.cause(&query)
            try query.finish()
        } catch {
            return LoginPage.failed(error, LoginPage.Context(nil, call))
        }
        return LoginPage.failed(
            fault.map { BrokerError.response($0) } ?? Self.told(code),
            .init(login: nil, requestID: reference?.text ?? call.request.id))
    }

    /// What is wrong with a complete response; nil for nothing.
    private static func cause(_ query: inout QueryReader) -> BrokerError.ResponseFault? {
        guard let text = query.string("cause") else { return nil }
        if let fault = BrokerError.ResponseFault(text) { return fault }
        query.note("cause", "is not what can be wrong with a login service's response")
        return nil
    }

    /// The error with this code, without a detail. `Retry-After` is one second, because the user can begin a new login
    /// at once.
    private static func told(_ code: BrokerError.Code) -> BrokerError {
        BrokerError(code, "", retryAfter: code.status == .serviceUnavailable ? 1 : nil)
    }

    private static func ending(_ text: WireText) -> BrokerError.Code? {
        endings.first { WireText($0.rawValue) == text }
    }

    private static func isReference(_ text: WireText) -> Bool {
        (1...8).contains(text.count)
            && text.utf8.allSatisfy { $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit }
    }
}
