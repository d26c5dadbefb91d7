import Cryptography
import ExternalText
import JSON
package import OAuth

/// What happened, for the audit log. Has no secret: a caller of an initializer passes names and numbers only.
package struct AuditEntry: Sendable, Equatable {
    /// A name of an object of the log, such as `storage_key`, and its value.
    package struct Subject: Sendable, Equatable {
        package let name: String
        package let value: String

        package init(_ name: String, _ value: String) {
            self.name = name
            self.value = value
        }
    }

    /// The outcome of what was carried out.
    package static let done = "done"

    /// What was done, such as `credentials.read`.
    package let action: String
    /// `done`, or why not.
    package let outcome: String
    /// Nil for what concerns no tenant.
    package let tenant: TenantName?
    package let subject: Subject?
    /// The version of the record that was written, removed or read.
    package let version: Int64?
    /// The events that the same commit tells listeners.
    package let events: [String]
    /// How often it happened, where one entry tells of several times.
    package let count: Int?
    /// Who caused it.
    let origin: AuditOrigin
    /// For entries about the log itself: the end of the chain before this one, of which the process knew.
    var previous: AuditHead?
    /// For entries about the log itself: ends of other chains.
    var heads: [AuditHead] = []
    /// For entries about the log itself: the key that signs.
    var keyID: String?

    /// - Parameter origin: default: the request that the present task works for.
    package init(
        _ action: String, outcome: String = done, tenant: TenantName? = nil, _ subject: Subject? = nil,
        version: Int64? = nil, events: [String] = [], count: Int? = nil, origin: AuditOrigin? = AuditOrigin.current
    ) {
        self.action = action
        self.outcome = outcome
        self.tenant = tenant
        self.subject = subject
        self.version = version
        self.events = events
        self.count = count
        self.origin = origin ?? .broker
    }

    /// The kind and the name of who caused it.
    package var caller: String { origin.caller }

    /// The actions of entries about the log itself.
    enum Own {
        static let opened = "audit.opened"
        static let signed = "audit.signed"
        static let closed = "audit.closed"
        static let removed = "audit.removed"
    }

    /// One line of the log, without a newline. No member can contain one, because JSON escapes it.
    func line(chain: String, sequence: Int64, at time: Timestamp) -> [UInt8] {
        JSONWriter.object { json in
            json.member("chain", chain)
            json.member("sequence", sequence)
            json.member("time", Self.text(time))
            json.member("action", action)
            json.member("outcome", outcome)
            json.memberIfPresent("tenant", tenant?.description)
            if let subject { json.member(subject.name, subject.value) }
            json.memberIfPresent("version", version)
            if !events.isEmpty { json.member("events", events) }
            json.memberIfPresent("count", count.map { Int64($0) })
            json.member("caller", origin.caller)
            json.memberIfPresent("address", origin.address)
            json.memberIfPresent("operation", origin.operation)
            json.memberIfPresent("request_id", origin.requestID)
            json.memberIfPresent("key", keyID)
            if let previous {
                json.name("previous")
                Self.encode(previous, to: &json)
            }
            if !heads.isEmpty {
                json.name("heads")
                json.array { json in for head in heads { Self.encode(head, to: &json) } }
            }
        }
    }

    private static func encode(_ head: AuditHead, to json: inout JSONWriter) {
        json.object { json in
            json.member("chain", head.chain)
            json.member("sequence", head.sequence)
            json.member("hash", Hex.encode(head.hash))
        }
    }

    /// RFC 3339 in UTC with milliseconds.
    static func text(_ time: Timestamp) -> String {
        let digits = String(time.milliseconds - time.seconds * 1000)
        let fraction = String(repeating: "0", count: 3 - digits.utf8.count) + digits
        return "\(String(decoding: time.description.utf8.dropLast(), as: UTF8.self)).\(fraction)Z"
    }

    /// The ends of chains that a line names, and the chain before its own; nothing for a line without any.
    static func heads(in line: JSONValue) -> [AuditHead] {
        let named = (line["heads"]?.array ?? []) + [line["previous"]].compactMap(\.self)
        return named.compactMap { value in
            guard let chain = value["chain"]?.string, let sequence = value["sequence"]?.integer,
                let hash = (value["hash"]?.string).flatMap({ Hex.decode($0.text) })
            else { return nil }
            return AuditHead(chain: chain.text, sequence: sequence, hash: hash)
        }
    }
}

/// Who causes what the present task does, and by which request.
package struct AuditOrigin: Sendable, Equatable {
    /// The kind of the caller and its name, such as `key:4f1c…` or `admin:ops`; the kind alone for callers without one.
    package let caller: String
    /// The address of the client, in text form; nil when it is not known.
    package let address: String?
    /// The method and the path of the route; nil for the broker's own work.
    package let operation: String?
    /// The identifier of the request in answers and in the log; nil for the broker's own work.
    package let requestID: String?

    package init(caller: String, address: String? = nil, operation: String? = nil, requestID: String? = nil) {
        self.caller = caller
        self.address = address
        self.operation = operation
        self.requestID = requestID
    }

    /// The origin of the request that the present task works for; nil for the broker's own work. A task that a request
    /// starts, and that goes on for others, keeps the origin of the request that started it.
    @TaskLocal package static var current: AuditOrigin?

    /// The broker's own work.
    static let broker = AuditOrigin(caller: "broker")
}
