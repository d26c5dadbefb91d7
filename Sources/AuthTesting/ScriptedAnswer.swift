public import Auth
import HTTPCodec
import HTTPSClient
import JSON

/// An answer of a `ScriptedTransport` to one request.
public struct ScriptedAnswer: Sendable {
    package let step: ScriptedTransport.Step

    /// Status 200 and an empty JSON object.
    public static let ok = json(200, "{}")
    /// Status 500 and no content. The library repeats such a request.
    public static let internalServerError = status(500)
    /// Status 401 and no content.
    public static let unauthorized = status(401)
    /// No connection can be made.
    public static let connectionRefused = ScriptedAnswer(step: .failure(.connectFailed))
    /// The connection ends after the request was sent, and before the answer.
    public static let connectionLost = ScriptedAnswer(step: .failure(.connectionLost(requestSent: true)))
    /// The provider takes the request and does not answer in time. The test does not wait for that.
    public static let timedOut = ScriptedAnswer(step: .failure(.timedOut(.firstByte, requestSent: true)))

    /// A status without content.
    /// - Parameter code: 100 to 999.
    public static func status(_ code: Int, fields: [(name: String, value: String)] = []) -> ScriptedAnswer {
        json(code, "", fields: fields)
    }

    /// A status with a JSON text.
    /// - Parameters:
    ///   - code: 100 to 999.
    ///   - fields: header fields, with names and values as HTTP permits them.
    public static func json(
        _ code: Int, _ text: String, fields: [(name: String, value: String)] = []
    ) -> ScriptedAnswer {
        var own = Fields()
        for field in fields { own.append(field.name, field.value) }
        return ScriptedAnswer(step: .json(code, text, fields: own))
    }

    /// The token endpoint's answer with these tokens (RFC 6749 §5.1).
    /// - Parameter lifetime: `expires_in`, in whole seconds; nil for none.
    public static func tokens(_ tokens: TokenContainer, lifetime: Int? = nil) -> ScriptedAnswer {
        let json = JSONWriter.object { json in
            json.member("access_token", tokens.accessToken)
            json.member("refresh_token", tokens.refreshToken)
            json.member("token_type", "Bearer")
            if let lifetime { json.member("expires_in", lifetime) }
        }
        return .json(200, String(decoding: json, as: UTF8.self))
    }

    /// The token endpoint's refusal (RFC 6749 §5.2).
    /// - Parameters:
    ///   - error: such as `invalid_grant`.
    ///   - number: `error_code`, by which some providers say why; nil for none.
    ///   - status: default 400.
    public static func refusal(_ error: String, number: Int? = nil, status: Int = 400) -> ScriptedAnswer {
        let json = JSONWriter.object { json in
            json.member("error", error)
            if let number { json.member("error_code", number) }
        }
        return .json(status, String(decoding: json, as: UTF8.self))
    }

    /// The answer that `choose` makes when the request comes.
    public static func decided(
        by choose: @escaping @Sendable (ScriptedRequest) -> ScriptedAnswer
    ) -> ScriptedAnswer {
        ScriptedAnswer(step: .decide { choose(ScriptedRequest($0)).step })
    }
}
