import ExternalText
import JSON

/// Whether the names of a profile's parameters stay different where it renames some of them: two parameters of one name would be
/// read as one.
enum ProfileNames {
    /// The parameters of requests that the broker writes, by the names of the RFCs.
    private static let written: [WireText] = [
        "response_type", "redirect_uri", "client_id", "client_secret", "client_assertion", "client_assertion_type",
        "scope",
        "code_challenge_method", "code_challenge", "code_verifier", "code", "state", "nonce", "grant_type",
        "refresh_token", "device_code", "resource", "audience", "request_uri", "client_unique_key",
    ]

    /// Those of a revocation.
    private static let writtenInRevocations: [WireText] = [
        "token", "token_type_hint", "client_id", "client_secret", "client_assertion", "client_assertion_type",
    ]

    /// The members whose value is the name of a parameter.
    private static let named: [WireText] = ["language_parameter", "email_parameter", "user_scope_parameter"]

    /// The members that are parameters by their names.
    private static let added: [WireText] = ["authorize_parameters", "token_parameters", "refresh_parameters"]

    static func faults(of document: JSONValue) -> FaultList {
        var faults = FaultList()
        let names = texts(document["parameter_names"])
        var others: [WireText: String] = [:]
        for member in named {
            if let name = document[member]?.string { others[name] = "\(member) says" }
        }
        for member in added {
            for name in (document[member]?.object ?? [:]).keys { others[name] = "\(member) has" }
        }
        check(names, besides: written, others, at: "/parameter_names", &faults)
        let own = texts(document["revocation"]?["parameter_names"])
        // Where a revocation has no name of its own, that of token requests holds.
        check(
            own, besides: writtenInRevocations, [:], names.filter { own[$0.key] == nil },
            at: "/revocation/parameter_names", &faults)
        return faults
    }

    private static func texts(_ value: JSONValue?) -> [WireText: WireText] {
        (value?.object ?? [:]).compactMapValues(\.string)
    }

    /// - Parameters:
    ///   - names: the new names, by the names of the RFCs.
    ///   - others: what else has a name, by that.
    ///   - inherited: further new names, which are not told of.
    private static func check(
        _ names: [WireText: WireText], besides written: [WireText], _ others: [WireText: String],
        _ inherited: [WireText: WireText] = [:], at pointer: String, _ faults: inout FaultList
    ) {
        for (name, other) in names.sorted(by: { $0.key < $1.key }) {
            let place = pointer + "/" + JSONValue.pointerToken(name)
            if let twin = Set(written).union(names.keys).sorted().first(where: {
                $0 != name && (names[$0] ?? inherited[$0] ?? $0) == other
            }) {
                faults.add(
                    .init(place, "must not be \(other.prefix(64)), the name of the parameter \(twin.prefix(64))"))
            } else if let member = others[other] {
                faults.add(.init(place, "must not be \(other.prefix(64)), which \(member)"))
            }
        }
    }
}
