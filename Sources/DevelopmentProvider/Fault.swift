import ExternalText
package import HTTPCodec
import HTTPServer

/// A fault in the handling of the next requests at an endpoint.
package struct Fault: Sendable {
    package enum Mode: String, Sendable, CaseIterable {
        /// Responds with `status` and does not process the request. Without a status, the request is processed and gets
        /// its normal response, after the delay and with `fields` added.
        case answer
        /// Processes the request and then responds with `status`, or 500 without one.
        case answerAfterWork = "answer_after_work"
        /// Closes the connection without processing the request and without a response.
        case dropBeforeWork = "drop_before_work"
        /// Processes the request and then closes the connection without a response.
        case dropAfterWork = "drop_after_work"
        /// Processes the request and then responds with `body`, or without one with the first half of the correct body.
        case malformed
    }

    package var endpoint: Endpoint
    /// Applies to requests with this `grant_type` only; nil means all requests at the endpoint.
    package var grant: GrantType?
    /// The number of requests that it applies to.
    package var times: Int
    package var mode: Mode
    /// The delay before the request is processed.
    package var delay: Duration
    /// The delay between processing the request and the response.
    package var answerDelay: Duration
    /// The status of the response; the modes say what nil means.
    package var status: Status?
    /// These fields replace the response's fields with the same names.
    package var fields: Fields
    /// Replaces the body of the response.
    package var body: [UInt8]?
    /// A token of the response that is defective; nil for none.
    package var defect: (token: SignedToken, defect: TokenDefect)?

    package init(
        _ endpoint: Endpoint, grant: GrantType? = nil, times: Int = 1, mode: Mode = .answer, delay: Duration = .zero,
        answerDelay: Duration = .zero, status: Status? = nil, fields: Fields = [:], body: [UInt8]? = nil,
        defect: (token: SignedToken, defect: TokenDefect)? = nil
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
        self.defect = defect
    }

    func applies(to endpoint: Endpoint, grant: GrantType?) -> Bool {
        self.endpoint == endpoint && (self.grant == nil || self.grant == grant)
    }

    var processesRequest: Bool {
        switch mode {
        case .answer: status == nil
        case .dropBeforeWork: false
        case .answerAfterWork, .dropAfterWork, .malformed: true
        }
    }

    /// The disturbed response. `normal` is the normal response; nil if the request was not processed.
    func disturb(_ normal: Response?) -> Response {
        var response: Response
        switch mode {
        case .dropBeforeWork, .dropAfterWork:
            return .aborted
        case .answer, .answerAfterWork:
            if let normal, mode == .answer {
                response = normal
            } else {
                response = Response(status ?? .internalServerError, fields: ["Cache-Control": "no-store"])
                if body != nil { response.fields.set("Content-Type", "application/json") }
            }
            if let body { response.body = body }
        case .malformed:
            response = normal ?? Response(.ok)
            if let status { response.status = status }
            response.body = body ?? Array(response.body.prefix(response.body.count / 2))
        }
        for field in fields.all { response.fields.set(field.name.text, field.value.text) }
        return response
    }
}

extension Response {
    /// Makes the server close the connection. The status is for a caller that has no connection to close.
    static var aborted: Response {
        var response = Response(.internalServerError, closesConnection: true)
        response.abortsConnection = true
        return response
    }
}
