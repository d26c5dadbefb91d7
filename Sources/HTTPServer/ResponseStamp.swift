internal import HTTPCodec
internal import Reactor

/// What the server adds to every answer: its date and its name. One worker's, on its thread.
package final class ResponseStamp {
    private var requestIDs: RequestIDGenerator
    private var turn: UInt64?
    private var dateSecond: Int64 = -1
    private var currentDate: [UInt8] = []
    /// The status line and the date, up to where the request's identifier begins.
    private var okOpening: [UInt8] = []
    private var notModifiedOpening: [UInt8] = []

    /// The statuses of answers that are made in advance.
    package enum Status {
        case ok, notModified
    }

    init() {
        var random = SystemRandomNumberGenerator()
        requestIDs = RequestIDGenerator(&random)
    }

    func nextRequestID() -> String { requestIDs.next() }

    /// RFC 9110 §6.6.1.
    /// - Parameter turn: of the loop; the clock is read once in each.
    func date(in turn: UInt64) -> [UInt8] {
        update(turn)
        return currentDate
    }

    /// Appends the status line and the fields that the server adds, but for the content's length.
    package func begin(_ status: Status, closes: Bool, in turn: UInt64, _ output: OutputBuffer) {
        update(turn)
        switch status {
        case .ok: output.append(okOpening)
        case .notModified: output.append(notModifiedOpening)
        }
        requestIDs.append(to: output)
        output.append(closes ? "\r\nConnection: close\r\n" : "\r\n")
    }

    private func update(_ turn: UInt64) {
        if self.turn == turn { return }
        self.turn = turn
        let second = WallClock.milliseconds / 1000
        if second == dateSecond { return }
        dateSecond = second
        currentDate = HTTPDate.format(secondsSince1970: second)
        func opening(_ status: HTTPCodec.Status) -> [UInt8] {
            Array("HTTP/1.1 \(status.code) \(status.reason)\r\nDate: ".utf8) + currentDate
                + Array("\r\nX-Request-ID: ".utf8)
        }
        okOpening = opening(.ok)
        notModifiedOpening = opening(.notModified)
    }
}
