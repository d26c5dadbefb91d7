package import JSON

/// Reads a stream of Server-Sent Events, in whatever pieces it comes (WHATWG HTML, "Interpreting an event stream").
package struct SSEParser: Sendable {
    package struct Event: Sendable, Equatable {
        package let id: String?
        package let name: String
        package let data: String

        package var json: JSONValue { (try? JSONValue(parsing: Array(data.utf8))) ?? .null }
        package var tenant: String? { json["tenant"]?.text }
        package var storageKey: String? { json["storage_key"]?.text }
        package var cause: String? { json["cause"]?.text }
        package var refreshID: String? { json["refresh_id"]?.text }
    }

    package private(set) var events: [Event] = []
    /// How many comments came.
    package private(set) var comments: [String] = []
    package private(set) var retry: Int?
    /// What a client sends as `Last-Event-ID` when it comes back.
    package private(set) var lastID: String?
    /// Lines that are none of these.
    package private(set) var faults: [String] = []

    private var unfinished: [UInt8] = []
    private var name: String?
    private var data: [String] = []
    private var hasID = false

    package init() {}

    package mutating func consume(_ bytes: [UInt8]) {
        unfinished += bytes
        while let end = unfinished.firstIndex(of: UInt8(ascii: "\n")) {
            let line = String(decoding: unfinished[..<end], as: UTF8.self)
            unfinished.removeSubrange(...end)
            take(line)
        }
    }

    private mutating func take(_ line: String) {
        if line.isEmpty { return dispatch() }
        if line.hasPrefix(":") { return comments.append(String(line.dropFirst().drop { $0 == " " })) }
        let parts = line.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
        let value = parts.count == 2 ? String(parts[1].hasPrefix(" ") ? parts[1].dropFirst() : parts[1]) : ""
        switch parts[0] {
        case "id":
            lastID = value
            hasID = true
        case "event": name = value
        case "data": data.append(value)
        case "retry": retry = Int(value)
        default: faults.append(line)
        }
    }

    private mutating func dispatch() {
        if !data.isEmpty {
            events.append(
                Event(id: hasID ? lastID : nil, name: name ?? "message", data: data.joined(separator: "\n")))
        }
        (name, data, hasID) = (nil, [], false)
    }
}
