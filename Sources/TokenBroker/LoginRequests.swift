import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// The client that reads the answer. A browser keeps an address in its address bar and its history, and neither the
/// authorization code nor the state may stay there.
enum LoginReader {
    /// Prefers JSON.
    case program
    /// Names HTML among the media types that it accepts.
    case browser
    case other
}

extension Call {
    var reader: LoginReader {
        let fields = request.fields
        return Accept.prefersJSON(fields) ? .program : Accept.namesHTML(fields) ? .browser : .other
    }

    /// The login that the path names.
    /// - Throws: `gone` for a path that names none.
    func login() throws(BrokerError) -> (TenantName, loginID: String) {
        let id = parameters["login_id"] ?? ""
        guard let name = TenantName(parameters["tenant"] ?? ""), LoginFlow.isLoginID(id) else {
            throw BrokerError.unknownLogin
        }
        return (name, id.text)
    }

    /// The decision of the button that the user pressed. It is the whole content of the form.
    func decision(
        among decisions: [LoginPage.Decision]
    ) throws(BrokerError) -> LoginPage.Decision {
        for decision in decisions where request.body.elementsEqual("decision=\(decision.rawValue)".utf8) {
            return decision
        }
        let forms = decisions.map { "decision=\($0.rawValue)" }.joined(separator: " or ")
        throw BrokerError(.invalidRequest, "The form must be \(forms).")
    }

    /// Refuses requests that fetch an address before the user opens it, such as a browser's prefetch or a scanner of
    /// links. They must not begin or end a login.
    func refusePrefetch() throws(BrokerError) {
        for name in ["Sec-Purpose", "Purpose"] {
            for value in request.fields.values(name) where value.starts(with: "prefetch") {
                throw BrokerError(
                    .retryableError, "This address can be used only once: open it, and do not prefetch it.",
                    retryAfter: 1)
            }
        }
    }

    /// The longest name of a cookie that is read, in bytes. The broker's own names are shorter. A browser also sends
    /// the cookies of other services at the same host, and those must not prevent a login.
    private static let longestCookieName = 128

    /// The cookies by their names (RFC 6265 §4.2.1). Of several with one name the first counts, because a browser sends
    /// the most specific cookie first.
    var cookies: [WireText: WireText] {
        Dictionary(cookiesInOrder.map { ($0.name, $0.value) }) { first, _ in first }
    }

    var cookiesInOrder: [(name: WireText, value: WireText)] {
        request.fields.values("Cookie").flatMap { $0.split(at: ";") }.compactMap { pair in
            let halves = pair.trimmed.split(at: "=", limit: 2)
            guard halves.count == 2, halves[0].count <= Self.longestCookieName else { return nil }
            return (halves[0], halves[1])
        }
    }
}

extension LoginFlow {
    /// Whether a text has the form of a login's identifier.
    static func isLoginID(_ text: WireText) -> Bool {
        text.count == 22 && Base64URL.decode(text.text) != nil
    }
}

extension LoginPage.Context {
    init(_ login: LoginDescription?, _ call: Call) {
        self.init(login: login, requestID: call.request.id)
    }
}

extension Response {
    /// A summary of the credentials that a login obtained, without the token.
    static func summary(of ended: LoginFlow.Ended, _ held: HeldCredentials) -> Response {
        .json(.ok) { json in
            json.member("status", "completed")
            json.member("login_id", ended.loginID)
            CredentialsRoutes.encodeSummary(ended.credentialsID.storageKey, held, to: &json)
        }
    }
}

extension AuthorizationResponse {
    /// - Parameter query: a query or a form.
    /// - Throws: `invalid_request`.
    init(reading query: WireText) throws(BrokerError) {
        do throws(AuthorizationResponse.Fault) {
            self = try AuthorizationResponse(query: query)
        } catch {
            throw BrokerError(error)
        }
    }

    /// - Throws: `invalid_request`.
    init(reading pairs: [FormEncoding.Pair]) throws(BrokerError) {
        do throws(AuthorizationResponse.Fault) {
            self = try AuthorizationResponse(pairs)
        } catch {
            throw BrokerError(error)
        }
    }
}

extension BrokerError {
    static let unknownLogin = BrokerError(.gone, "The login is unknown or has expired.")

    fileprivate init(_ fault: AuthorizationResponse.Fault) {
        switch fault {
        case .malformed: self.init(.malformed, in: "response's query")
        case .tooManyParameters(let limit): self.init(.tooManyPairs(limit: limit), in: "response")
        case .nameTooLong(let limit): self.init(.nameTooLong(limit: limit), in: "response")
        case .repeatedParameter(let name):
            self.init(.invalidRequest, "The response has the parameter \(name) more than once.")
        }
    }
}
