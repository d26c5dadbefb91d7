package import ExternalText
package import HTTPCodec
package import JSON

/// The response that the login service sends through the user's browser (RFC 6749 §4.1.2, RFC 9207 §2).
package struct AuthorizationResponse: Sendable, Equatable {
    package enum Outcome: Sendable, Equatable {
        case code(WireText)
        /// The response has an error, possibly besides a code. The text may be shown; nil when it may not. A text that
        /// repeats the state or the code is replaced by `withheld`.
        case error(code: String?)
        /// The response has neither a code nor an error.
        case incomplete
    }

    package let state: WireText?
    package let issuer: WireText?
    package let outcome: Outcome
    /// What the protocol does not define, the first value of each name.
    private let others: [WireText: WireText]

    package enum Fault: Error, Equatable {
        case malformed
        /// There are more pairs than a form may have.
        case tooManyParameters(limit: Int)
        /// A name is longer than a name may be.
        case nameTooLong(limit: Int)
        /// RFC 6749 §3.1: parameters are not included more than once.
        case repeatedParameter(String)
    }

    /// Reads the query of the redirect, with or without its `?`, or the body of a form_post. Parameters that the
    /// protocol does not define are ignored, because login services add their own.
    package init(query: WireText) throws(Fault) {
        let pairs: [FormEncoding.Pair]
        do throws(FormEncoding.Fault) {
            pairs = try FormEncoding.decode(query.starts(with: "?") ? query.dropping(1) : query)
        } catch {
            switch error {
            case .malformed: throw .malformed
            case .tooManyPairs(let limit): throw .tooManyParameters(limit: limit)
            case .nameTooLong(let limit): throw .nameTooLong(limit: limit)
            }
        }
        try self.init(pairs)
    }

    /// Reads the decoded pairs of such a query or body.
    package init(_ pairs: [FormEncoding.Pair]) throws(Fault) {
        func single(_ name: WireText) throws(Fault) -> WireText? {
            let values = pairs.filter { $0.name == name }
            if values.count > 1 { throw .repeatedParameter(name.text) }
            return values.first?.value
        }
        state = try single("state").flatMap { $0.isEmpty ? nil : $0 }
        issuer = try single("iss")
        let code = try single("code")
        if let error = try single("error") {
            let sent = SentSecrets([state, code].compactMap { $0.map { Array($0.utf8) } })
            outcome = .error(code: ErrorText.presentable(error).map { ErrorText.shown($0, answering: sent) })
        } else if let code, !code.isEmpty {
            outcome = .code(code)
        } else {
            outcome = .incomplete
        }
        let known: Set<WireText> = ["state", "iss", "code", "error"]
        others = Dictionary(
            pairs.filter { !known.contains($0.name) }.map { ($0.name, $0.value) },
            uniquingKeysWith: { first, _ in first })
    }

    /// The outcome at a provider whose callback has the code under that name.
    package func outcome(codeNamed name: WireText) -> Outcome {
        guard case .incomplete = outcome, let code = others[name], !code.isEmpty else { return outcome }
        return .code(code)
    }

    /// The facts of the callback that the profile keeps.
    package func facts(by answers: AnswerShape) -> [WireText: JSONValue] {
        Extra.bounded(
            answers.callbackFields.compactMap { name, parameter in others[parameter].map { (name, .string($0)) } })
    }
}

// Printing a value uses its mirror. The mirrors omit code and state, which are secrets until they are used.

extension AuthorizationResponse: CustomReflectable {
    package var customMirror: Mirror {
        Mirror(self, children: ["issuer": issuer as Any, "outcome": outcome], displayStyle: .struct)
    }
}

extension AuthorizationResponse.Outcome: CustomReflectable {
    package var customMirror: Mirror {
        switch self {
        case .code, .incomplete: Mirror(self, children: [], displayStyle: .enum)
        case .error(let code): Mirror(self, children: ["error": code as Any], displayStyle: .enum)
        }
    }
}

/// A provider's error code in a form that may be shown to a caller.
package enum ErrorText {
    /// The text, if it consists of 1 to 64 characters of `[A-Za-z0-9._:-]`; otherwise nil, because other text could
    /// hold content that must not be shown.
    package static func presentable(_ text: WireText) -> String? {
        guard (1...64).contains(text.count) else { return nil }
        let allowed = text.utf8.allSatisfy {
            $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "._:-".utf8.contains($0)
        }
        return allowed ? text.text : nil
    }

    /// The text, or `withheld` if it repeats a secret of the request or looks like a token.
    package static func shown(_ text: String, answering sent: SentSecrets) -> String {
        let wire = WireText(text)
        if protocolNames.contains(wire) { return text }
        return looksLikeToken(wire) || sent.areRepeated(in: wire) ? "withheld" : text
    }

    /// Whether the text could hold a token that is not one of the request's. It does where one of its runs is as long as no name
    /// of an error is that has such characters: letters and digits without `_`, or, as base64url has them, digits and letters of
    /// both cases with `_`.
    private static func looksLikeToken(_ text: WireText) -> Bool {
        var (word, words) = (Run(), Run())
        for byte in text.utf8 {
            word.add(byte, isEnd: "._:".utf8.contains(byte))
            words.add(byte, isEnd: ".:".utf8.contains(byte))
            if word.isLong, word.hasDigit, word.hasLowercase || word.hasUppercase { return true }
            if words.isLong, words.hasDigit, words.hasLowercase, words.hasUppercase { return true }
        }
        return false
    }

    /// What follows the last character that ends a run.
    private struct Run {
        private var length = 0
        private(set) var (hasDigit, hasLowercase, hasUppercase) = (false, false, false)

        var isLong: Bool { length >= 20 }

        mutating func add(_ byte: UInt8, isEnd: Bool) {
            if isEnd {
                self = Run()
                return
            }
            length += 1
            if byte.isDigit { hasDigit = true }
            if byte.isLowercaseLetter { hasLowercase = true }
            if byte.isUppercaseLetter { hasUppercase = true }
        }
    }

    /// The names that the specifications define. They are always shown, because they reveal nothing about a secret that
    /// happens to contain the same text.
    private static let protocolNames: Set<WireText> = [
        // RFC 6749 §4.1.2.1, §5.2.
        "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
        "invalid_scope", "access_denied", "unsupported_response_type", "server_error", "temporarily_unavailable",
        // RFC 8628 §3.5, RFC 7009 §2.2.1, RFC 6750 §3.1.
        "authorization_pending", "slow_down", "expired_token", "unsupported_token_type", "invalid_token",
        // OpenID Connect Core §3.1.2.6.
        "login_required", "interaction_required", "consent_required", "account_selection_required",
    ]
}
