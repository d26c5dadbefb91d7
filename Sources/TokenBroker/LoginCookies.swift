import BrokerCore
import Cryptography
import HTTPCodec
import HTTPServer

/// The cookies by which a login recognizes its browser, as answers set and remove them.
struct LoginCookies {
    private let attributes: String

    init(_ logins: LoginFlow) {
        attributes = "HttpOnly; SameSite=Lax\(logins.isSecure ? "; Secure" : "")"
    }

    func setting(_ cookie: LoginFlow.Cookie, _ response: Response) -> Response {
        let age = PendingLogin.validity.components.seconds
        return appending("\(cookie.name)=\(cookie.value.revealedText); Path=/; Max-Age=\(age)", response)
    }

    func removing(_ name: String, _ response: Response) -> Response {
        appending("\(name)=; Path=/; Max-Age=0", response)
    }

    private func appending(_ cookie: String, _ response: Response) -> Response {
        var response = response
        response.fields.append("Set-Cookie", "\(cookie); \(attributes)")
        return response
    }
}
