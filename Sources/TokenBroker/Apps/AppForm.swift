import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// The parameters of an app's request (RFC 6749 §3.1 and §3.2): none may occur twice, one without a value counts as left out, and
/// unknown ones are ignored.
struct AppForm: Sendable {
    private var values: [WireText: WireText] = [:]
    /// Those that occur more than once.
    private(set) var repeated: Set<WireText> = []

    /// - Parameter text: a form or a query.
    init(_ text: Span<UInt8>) throws(AppError) {
        let pairs: [FormEncoding.Pair]
        do throws(FormEncoding.Fault) {
            pairs = try FormEncoding.decode(text)
        } catch {
            throw AppError(BrokerError(error, in: "request"))
        }
        for pair in pairs {
            if values.updateValue(pair.value, forKey: pair.name) != nil { repeated.insert(pair.name) }
        }
    }

    /// The form of a POST. A large one is read on Swift's global thread pool, so that the loop is not held up.
    static func content(of call: Call) async throws(AppError) -> AppForm {
        let body = call.request.body
        if !body.isEmpty {
            do throws(BrokerError) {
                try ContentType.form.check(call.request.fields)
            } catch {
                throw AppError(
                    .invalidRequest, "Send the parameters as application/x-www-form-urlencoded.",
                    status: .unsupportedMediaType)
            }
        }
        let form = try await InputReading.run(bytes: body.count) { () throws(AppError) in try AppForm(body.span) }
        try form.refuseRepeated()
        return form
    }

    /// - Throws: `invalid_request` where a parameter occurs more than once.
    func refuseRepeated() throws(AppError) {
        guard let name = repeated.sorted().first else { return }
        let isName =
            name.count <= 64 && name.utf8.allSatisfy { $0.isLowercaseLetter || $0.isDigit || $0 == UInt8(ascii: "_") }
        throw AppError(
            .invalidRequest, isName ? "\(name.text) occurs more than once" : "a parameter occurs more than once")
    }

    subscript(_ name: WireText) -> WireText? { values[name].flatMap { $0.isEmpty ? nil : $0 } }
}

/// How an app has authenticated (RFC 6749 §2.3).
struct AppAuthentication: Sendable {
    let clientID: WireText?
    let secret: WireText?

    /// The secret in the form is preferred; the field counts where the form has none, and must name the same client.
    init(_ form: AppForm, _ fields: Fields) throws(AppError) {
        let named = form["client_id"]
        var basic: (id: WireText, secret: WireText)?
        let values = fields.values("Authorization")
        if values.count == 1, values[0].prefix(6).equalsIgnoringCase("Basic ") {
            guard let pair = Self.basic(values[0]) else { throw AppError.unknownClient }
            basic = pair
        }
        if let secret = form["client_secret"] {
            (clientID, self.secret) = (named ?? basic?.id, secret)
        } else if let basic {
            if let named, named != basic.id { throw AppError.unknownClient }
            (clientID, secret) = (basic.id, basic.secret.isEmpty ? nil : basic.secret)
        } else {
            (clientID, secret) = (named, nil)
        }
    }

    /// RFC 6749 §2.3.1: both halves are encoded as in forms.
    private static func basic(_ value: WireText) -> (id: WireText, secret: WireText)? {
        let text = WireText(value.utf8.dropFirst(6)).trimmed
        guard let bytes = Base64.decode(text.text), let pair = WireText(validating: bytes.span) else { return nil }
        let halves = pair.split(at: ":", limit: 2)
        guard halves.count == 2, let id = try? FormEncoding.percentDecode(halves[0].utf8.span, plusIsSpace: true),
            let secret = try? FormEncoding.percentDecode(halves[1].utf8.span, plusIsSpace: true)
        else { return nil }
        return (id, secret)
    }

    /// The client that the request comes from.
    /// - Throws: `invalid_request` where it names none, `invalid_client` where the client is unknown or its secret is wrong.
    func client(in clients: AppClientDirectory) async throws(AppError) -> AppClient {
        guard let clientID else { throw AppError(.invalidRequest, "client_id is required") }
        let client: AppClient?
        do throws(BrokerError) {
            client = try await clients.client(clientID)
        } catch {
            throw AppError(error)
        }
        guard let client else { throw AppError.unknownClient }
        if client.isPublic { return client }
        guard let secret, client.hasSecret(secret) else { throw AppError.unknownClient }
        return client
    }
}
