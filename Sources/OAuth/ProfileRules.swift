import ExternalText
import JSON

/// What the texts of a profile have to be beside what its reader asks for: the patterns of the schema, and what a schema cannot
/// say. The shipped files are held to the same by `Tests/Profiles/check.py`.
struct ProfileRules {
    /// A rule for the texts at some places.
    ///
    /// A place is a path of members. `*` stands for every member of an object or a list, and a `#` at its end for every name.
    private struct Rule: Sendable {
        let places: [[WireText]]
        let text: String
        let isKept: @Sendable (WireText) -> Bool

        init(_ places: [WireText], _ text: String, _ isKept: @escaping @Sendable (WireText) -> Bool) {
            self.places = places.map { $0.split(at: "/") }
            self.text = text
            self.isKept = isKept
        }
    }

    private static let everyMember: WireText = "*"
    private static let everyName: WireText = "#"
    /// The value of `refresh_tokens` with which `refresh_token_scope` stands.
    private static let withScope = WireText(ProviderPreset.GrantLives.RefreshTokens.withScope.rawValue)

    private var faults = FaultList()

    /// What is wrong with a profile. A member that is no text where it should be one is the reader's to note.
    /// - Parameter allowsHTTP: whether the broker may call addresses with `http://`.
    static func faults(of document: JSONValue, allowsHTTP: Bool) -> FaultList {
        var rules = ProfileRules()
        for rule in all + (allowsHTTP ? [anyAddress] : [secureAddress]) {
            for place in rule.places { rules.check(document, place[...], at: "", rule) }
        }
        rules.checkMembers(of: document)
        rules.checkParameters(of: document)
        rules.checkChanges(of: document)
        rules.faults.add(ProfileNames.faults(of: document))
        return rules.faults
    }

    private mutating func check(_ value: JSONValue, _ path: ArraySlice<WireText>, at pointer: String, _ rule: Rule) {
        guard let name = path.first else {
            if case .string(let text) = value, !rule.isKept(text) { faults.add(.init(pointer, rule.text)) }
            return
        }
        switch value {
        case .object(let members) where name == Self.everyName:
            for key in members.keys.sorted() where !rule.isKept(key) {
                faults.add(.init(Self.pointer(pointer, key), "has a name that does not fit: it " + rule.text))
            }
        case .object(let members) where name == Self.everyMember:
            for (key, member) in members.sorted(by: { $0.key < $1.key }) {
                check(member, path.dropFirst(), at: Self.pointer(pointer, key), rule)
            }
        case .object(let members):
            if let member = members[name] { check(member, path.dropFirst(), at: Self.pointer(pointer, name), rule) }
        case .array(let elements) where name == Self.everyMember:
            for (index, element) in elements.enumerated() {
                check(element, path.dropFirst(), at: "\(pointer)/\(index)", rule)
            }
        default: return
        }
    }

    private static func pointer(_ pointer: String, _ name: WireText) -> String {
        pointer + "/" + JSONValue.pointerToken(name)
    }

    // MARK: What a schema says

    private static let all: [Rule] = [
        Rule(
            ["name"], "must be 1 to 63 characters of a-z, 0-9 and hyphen, with no hyphen first",
            ProviderPreset.isName),
        Rule(["title"], "must not contain control characters, or be blank") { isShown($0) && !isBlank($0) },
        Rule(
            ["documentation", "registration", "base_uris/login_service", "base_uris/auth_service"],
            "must be an https URL without spaces, user information and fragment", isURL),
        Rule(["as_of", "changes/*/date"], "must be a day such as 2026-11-29", isDay),
        Rule(
            [
                "notes/*", "session_ending_errors/*", "configuration_errors/*", "token_types/*", "refusal_details/*",
                "accounts/errors/*", "changes/*/what", "parameters/*/description",
            ], "must have 1 to 2048 bytes, and no control characters", isText),
        Rule(["scopes/*"], "must be one scope: visible ASCII without space, quote or backslash") {
            ScopeSet([$0]) != nil
        },
        Rule(["parameters/#"], "must be 1 to 64 characters of a-z and _", isParameterName),
        Rule(
            ["parameters/*/example", "parameters/*/default"],
            "must have 1 to 253 letters, digits, dots, hyphens and underscores, and be a value that a tenant may have"
        ) { AddressTemplate.fault($0) == nil },
        Rule(
            [
                "language_parameter", "email_parameter", "callback_parameter", "user_scope_parameter",
                "parameter_order/*", "parameter_names/*", "callback_fields/#", "callback_fields/*", "token_fields/#",
            ], "must be 1 to 64 letters, digits and . _ -", isFieldName),
        Rule(
            [
                "token_fields/*", "response_fields/*", "response_fields/*/*", "user_response_fields/*",
                "user_response_fields/*/*", "error_rules/*/pointer",
            ],
            "must be a JSON pointer of at most 256 bytes without spaces, such as /data/access_token, with ~ only as ~0 or ~1",
            isPointer),
        Rule(["pinned_certificates/*"], "must be sha256/ and the base64 of 32 bytes", isPin),
        Rule(["named_refusals/*"], ValueRule.choice(ProviderPreset.NamedRefusal.self)) {
            ProviderPreset.NamedRefusal($0) != nil
        },
        Rule(["refusal_details/#"], "must be 1 to 9 digits") {
            (1...9).contains($0.count) && $0.utf8.allSatisfy(\.isDigit)
        },
    ]

    private static let addresses: [WireText] = [
        "issuer", "endpoints/*", "refresh/endpoint", "exchange_for_long_lived/endpoint",
    ]

    private static let secureAddress = Rule(
        addresses,
        "must be an https URL without spaces, user information and fragment, in which {name} stands for a parameter"
    ) { isTemplate($0, allowsHTTP: false) }

    private static let anyAddress = Rule(
        addresses,
        "must be an https or http URL without spaces, user information and fragment, in which {name} stands for a parameter"
    ) { isTemplate($0, allowsHTTP: true) }

    private static func isText(_ text: WireText) -> Bool {
        (1...2048).contains(text.count) && isShown(text)
    }

    private static func isShown(_ text: WireText) -> Bool {
        !text.text.unicodeScalars.contains(where: \.changesWhatIsShown)
    }

    private static func isBlank(_ text: WireText) -> Bool { text.utf8.allSatisfy { $0 == UInt8(ascii: " ") } }

    /// Whether an address has a host and no user information before it. What stands for its base ends before a path or a query.
    private static func hasPlainHost(_ text: WireText) -> Bool {
        let bytes = Array(text.utf8)
        let scheme = ["https://", "http://"].first { text.starts(with: $0) }
        let start = scheme?.utf8.count ?? bytes.firstIndex(of: UInt8(ascii: "}")).map { $0 + 1 } ?? 0
        let host = bytes[start...].prefix { $0 != UInt8(ascii: "/") && $0 != UInt8(ascii: "?") }
        return scheme == nil ? host.isEmpty : !host.isEmpty && !host.contains(UInt8(ascii: "@"))
    }

    private static func isURL(_ text: WireText) -> Bool {
        text.count > 8 && text.count <= 2048 && text.starts(with: "https://") && !text.contains(" ")
            && !text.contains("#") && isText(text) && hasPlainHost(text)
    }

    private static func isTemplate(_ text: WireText, allowsHTTP: Bool) -> Bool {
        guard let template = AddressTemplate(text), text.count <= 2048, isText(text), !text.contains(" "),
            !text.contains("#"), text.count > 8, hasPlainHost(text),
            text.starts(with: "https://") || allowsHTTP && text.starts(with: "http://") || template.base != nil
        else { return false }
        // No brace belongs to no placeholder.
        let count = template.names.count
        return text.utf8.count { $0 == UInt8(ascii: "{") } == count
            && text.utf8.count { $0 == UInt8(ascii: "}") } == count
    }

    private static func isDay(_ text: WireText) -> Bool {
        text.count == 10 && Timestamp(rfc3339: text.text + "T00:00:00Z") != nil
    }

    private static func isParameterName(_ name: WireText) -> Bool {
        (1...64).contains(name.count) && name.utf8.allSatisfy { $0.isLowercaseLetter || $0 == UInt8(ascii: "_") }
    }

    private static func isFieldName(_ name: WireText) -> Bool {
        (1...64).contains(name.count)
            && name.utf8.allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "_.-".utf8.contains($0)
            }
    }

    private static func isPointer(_ text: WireText) -> Bool {
        text.count <= 256 && text.starts(with: "/") && !text.contains(" ")
            && text.split(at: "~").dropFirst().allSatisfy { $0.starts(with: "0") || $0.starts(with: "1") }
    }

    private static func isPin(_ text: WireText) -> Bool {
        text.count == 51 && text.starts(with: "sha256/") && text.ends(with: "=")
            && text.dropping(7).utf8.dropLast().allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "+/".utf8.contains($0)
            }
    }

    // MARK: What members say of each other

    private mutating func checkMembers(of document: JSONValue) {
        if let accounts = document["accounts"]?.object, (accounts["errors"] ?? .null) == .null {
            faults.add(.init("/accounts/errors", "is required"))
        }
        for (index, rule) in (document["error_rules"]?.array ?? []).enumerated()
        where rule.object != nil && (rule["means"] ?? .null) == .null {
            faults.add(.init("/error_rules/\(index)/means", "is required"))
        }
        for name in ["required", "levels"] as [WireText] {
            let texts = (document[name]?.array ?? []).compactMap(\.string)
            if Set(texts).count < texts.count {
                faults.add(.init(Self.pointer("", name), "must not name anything twice"))
            }
        }
        let needsScope = document["refresh_tokens"]?.string == Self.withScope
        if needsScope != ((document["refresh_token_scope"] ?? .null) != .null) {
            faults.add(
                .init("/refresh_token_scope", "must be there where refresh_tokens is with_scope, and only there"))
        }
    }

    private mutating func checkParameters(of document: JSONValue) {
        let declared = document["parameters"]?.object ?? [:]
        var addresses = (document["endpoints"]?.object ?? [:]).map { (Self.pointer("/endpoints", $0.key), $0.value) }
        addresses.append(("/issuer", document["issuer"] ?? .null))
        for name in ["refresh", "exchange_for_long_lived"] as [WireText] {
            addresses.append((Self.pointer("", name) + "/endpoint", document[name]?["endpoint"] ?? .null))
        }
        var used: Set<WireText> = []
        for (pointer, address) in addresses.sorted(by: { WireText($0.0) < WireText($1.0) }) {
            for name in address.string.flatMap({ AddressTemplate($0) })?.names ?? [] {
                used.insert(name)
                if declared[name] == nil, AddressTemplate.Base(name) == nil, name != AddressTemplate.clientID {
                    faults.add(.init(pointer, "has {\(name.prefix(64))}, which parameters does not have"))
                }
            }
        }
        let needed = Set(declared.filter { ($0.value["default"] ?? .null) == .null }.keys)
        let required = (document["required"]?.array ?? []).enumerated().compactMap { index, element in
            element.string.flatMap { $0.starts(with: "parameters.") ? (index, $0.dropping(11)) : nil }
        }
        for name in declared.keys.sorted() where !used.contains(name) {
            faults.add(.init(Self.pointer("/parameters", name), "stands in no address"))
        }
        for name in needed.subtracting(required.map(\.1)).sorted() {
            faults.add(
                .init(Self.pointer("/parameters", name), "has no default, so required must name parameters.\(name)"))
        }
        for (index, name) in required where !needed.contains(name) {
            faults.add(.init("/required/\(index)", "must name a parameter that has no default"))
        }
    }

    private mutating func checkChanges(of document: JSONValue) {
        var last: WireText = ""
        for (index, change) in (document["changes"]?.array ?? []).enumerated() {
            guard let date = change["date"]?.string else { continue }
            if date < last {
                faults.add(.init("/changes/\(index)/date", "must not be before that of the change that it follows"))
            }
            last = date
        }
    }
}
