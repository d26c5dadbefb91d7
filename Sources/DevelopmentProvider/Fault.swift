internal import ExternalText
package import HTTPCodec
internal import HTTPServer

/// A disturbance of the next requests at an endpoint.
package struct Fault: Sendable {
    package enum Mode: String, Sendable, CaseIterable {
        /// Answers `status` without doing the work; without a status the usual answer, after the delay and with
        /// `fields` added.
        case answer
        /// Does the work and then answers `status`, 500 without one.
        case answerAfterWork = "answer_after_work"
        /// Closes the connection without an answer and without doing the work.
        case dropBeforeWork = "drop_before_work"
        /// Does the work and then closes the connection without an answer.
        case dropAfterWork = "drop_after_work"
        /// Does the work and then answers `body`, or without one the first half of the right content.
        case malformed
    }

    package var endpoint: Endpoint
    /// Disturbs requests with this `grant_type` only; nil disturbs every request at the endpoint.
    package var grant: GrantType?
    /// How many requests it disturbs.
    package var times: Int
    package var mode: Mode
    /// Passes before the work is done.
    package var delay: Duration
    /// Passes between the work and the answer.
    package var answerDelay: Duration
    /// In the place of the answer's own; what it means without one stands at the modes.
    package var status: Status?
    /// Replace the answer's fields of the same names.
    package var fields: Fields
    /// In the place of the answer's content.
    package var body: [UInt8]?

    package init(
        _ endpoint: Endpoint, grant: GrantType? = nil, times: Int = 1, mode: Mode = .answer, delay: Duration = .zero,
        answerDelay: Duration = .zero, status: Status? = nil, fields: Fields = [:], body: [UInt8]? = nil
    ) {
        precondition(times > 0, "a fault disturbs something")
        self.endpoint = endpoint
        self.grant = grant
        self.times = times
        self.mode = mode
        self.delay = delay
        self.answerDelay = answerDelay
        self.status = status
        self.fields = fields
        self.body = body
    }

    func concerns(_ endpoint: Endpoint, grant: GrantType?) -> Bool {
        self.endpoint == endpoint && (self.grant == nil || self.grant == grant)
    }

    var doesWork: Bool {
        switch mode {
        case .answer: status == nil
        case .dropBeforeWork: false
        case .answerAfterWork, .dropAfterWork, .malformed: true
        }
    }

    /// The answer in place of `usual`, which is nil where the work was not done.
    func disturb(_ usual: Response?) -> Response {
        var response: Response
        switch mode {
        case .dropBeforeWork, .dropAfterWork:
            return .aborted
        case .answer, .answerAfterWork:
            if let usual, mode == .answer {
                response = usual
            } else {
                response = Response(status ?? .internalServerError, fields: ["Cache-Control": "no-store"])
                if body != nil { response.fields.set("Content-Type", "application/json") }
            }
            if let body { response.body = body }
        case .malformed:
            response = usual ?? Response(.ok)
            if let status { response.status = status }
            response.body = body ?? Array(response.body.prefix(response.body.count / 2))
        }
        for field in fields.all { response.fields.set(field.name.text, field.value.text) }
        return response
    }
}

extension Response {
    /// A connection that breaks. The status is for a server that cannot break one.
    static var aborted: Response {
        var response = Response(.internalServerError, closesConnection: true)
        response.abortsConnection = true
        return response
    }
}
