package import ExternalText
package import JSON

/// What a host says of the apps that may open its links: Android's `assetlinks.json`.
package struct AndroidAppLinks: Sendable {
    /// The names of packages with the SHA-256 digests of the certificates that they are signed with.
    private let apps: Set<App>

    private struct App: Hashable {
        let package: WireText
        let certificate: [UInt8]
    }

    private static let relation: WireText = "delegate_permission/common.handle_all_urls"
    private static let namespace: WireText = "android_app"

    /// Nil for a document that is no list of statements. A statement of another form says nothing of apps.
    package init?(_ json: JSONValue) {
        guard let statements = json.array else { return nil }
        var apps: Set<App> = []
        for statement in statements {
            guard let target = statement["target"], target["namespace"]?.string == Self.namespace,
                statement["relation"]?.array?.contains(where: { $0.string == Self.relation }) == true,
                let package = target["package_name"]?.string
            else { continue }
            for text in target["sha256_cert_fingerprints"]?.array ?? [] {
                if let digest = text.string.flatMap(Self.fingerprint) {
                    apps.insert(App(package: package, certificate: digest))
                }
            }
        }
        self.apps = apps
    }

    package func include(package: WireText, certificate: [UInt8]) -> Bool {
        apps.contains(App(package: package, certificate: certificate))
    }

    /// The digest of a fingerprint: 32 pairs of hexadecimal digits in either case, with colons between them; nil for other
    /// text.
    package static func fingerprint(_ text: WireText) -> [UInt8]? {
        guard text.count == 95 else { return nil }
        let bytes = Array(text.utf8)
        var digest: [UInt8] = []
        for start in stride(from: 0, to: 95, by: 3) {
            guard let high = hexValue(bytes[start]), let low = hexValue(bytes[start + 1]),
                start + 2 == 95 || bytes[start + 2] == UInt8(ascii: ":")
            else { return nil }
            digest.append(high << 4 | low)
        }
        return digest
    }

    private static func hexValue(_ byte: UInt8) -> UInt8? {
        switch byte {
        case UInt8(ascii: "0")...UInt8(ascii: "9"): byte - UInt8(ascii: "0")
        case UInt8(ascii: "a")...UInt8(ascii: "f"): byte - UInt8(ascii: "a") + 10
        case UInt8(ascii: "A")...UInt8(ascii: "F"): byte - UInt8(ascii: "A") + 10
        default: nil
        }
    }
}

/// What a host says of the apps that may open its links: Apple's `apple-app-site-association`.
package struct AppleAppLinks: Sendable {
    /// One rule for links. The first rule of an entry that takes a link decides about it.
    private struct Rule: Sendable {
        var path: WireText = "*"
        var query: Query = .any
        var fragment: WireText = "*"
        var excludes = false
        var ignoresCase = false
        /// Whether the rule has something that this reader does not know. It then takes every link if it excludes links, and
        /// none if it does not, so that no link is let in by mistake.
        var isUnknown = false
    }

    private enum Query: Sendable {
        case any
        case text(WireText)
        case items([WireText: WireText])
    }

    private struct Entry: Sendable {
        let apps: Set<WireText>
        let rules: [Rule]
    }

    /// How many rules of one document are read at most.
    package static let mostRules = 4096

    private let entries: [Entry]

    /// Nil for a document without `applinks.details`, or with more rules than `mostRules`.
    package init?(_ json: JSONValue) {
        guard let links = json["applinks"], let details = links["details"]?.array else { return nil }
        let defaults = Self.rule(links["defaults"] ?? .object([:]), Rule())
        var (entries, count): ([Entry], Int) = ([], 0)
        for detail in details {
            var apps = Set((detail["appIDs"]?.array ?? []).compactMap(\.string))
            if let app = detail["appID"]?.string { apps.insert(app) }
            let rules: [Rule]
            if let components = detail["components"]?.array {
                let base = Self.rule(detail["defaults"] ?? .object([:]), defaults)
                rules = components.map { Self.rule($0, base) }
            } else {
                rules = (detail["paths"]?.array ?? []).compactMap(\.string).map(Self.rule(path:))
            }
            count += rules.count
            if count > Self.mostRules { return nil }
            entries.append(Entry(apps: apps, rules: rules))
        }
        self.entries = entries
    }

    /// A rule of the older form: a path, after `NOT ` one that is excluded.
    private static func rule(path: WireText) -> Rule {
        let exclusion: WireText = "NOT "
        var rule = Rule()
        rule.excludes = path.starts(with: exclusion)
        rule.path = rule.excludes ? path.dropping(exclusion.count).trimmed : path
        return rule
    }

    /// - Parameter defaults: what the rule says where the component does not.
    private static func rule(_ component: JSONValue, _ defaults: Rule) -> Rule {
        var rule = defaults
        for (name, value) in component.object ?? [:] {
            switch (name, value) {
            case ("/", .string(let pattern)): rule.path = pattern
            case ("#", .string(let pattern)): rule.fragment = pattern
            case ("?", .string(let pattern)): rule.query = .text(pattern)
            case ("?", .object(let items)):
                let patterns = items.compactMapValues(\.string)
                if patterns.count != items.count { rule.isUnknown = true }
                rule.query = .items(patterns)
            case ("exclude", .bool(let flag)): rule.excludes = flag
            case ("caseSensitive", .bool(let flag)): rule.ignoresCase = !flag
            case ("percentEncoded", .bool(true)), ("comment", _): break
            default: rule.isUnknown = true
            }
        }
        // Substitution variables.
        var patterns = [rule.path, rule.fragment]
        switch rule.query {
        case .any: break
        case .text(let pattern): patterns.append(pattern)
        case .items(let items): patterns += items.values
        }
        if patterns.contains(where: { $0.split(at: "$").dropFirst().contains { $0.starts(with: "(") } }) {
            rule.isUnknown = true
        }
        return rule
    }

    /// Whether the app may open a link without a fragment.
    /// - Parameters:
    ///   - app: the team's prefix, a dot and the bundle's name.
    ///   - path: as it is written in the link.
    ///   - query: the same; nil for none.
    package func allow(app: WireText, path: WireText, query: WireText?) -> Bool {
        entries.contains { entry in
            entry.apps.contains(app) && Self.allows(entry.rules, path: path, query: query)
        }
    }

    private static func allows(_ rules: [Rule], path: WireText, query: WireText?) -> Bool {
        for rule in rules {
            if rule.isUnknown {
                if rule.excludes { return false }
            } else if takes(rule, path: path, query: query) {
                return !rule.excludes
            }
        }
        return false
    }

    private static func takes(_ rule: Rule, path: WireText, query: WireText?) -> Bool {
        func fits(_ pattern: WireText, _ text: WireText) -> Bool {
            LinkPattern(pattern, ignoresCase: rule.ignoresCase)?.matches(text) ?? rule.excludes
        }
        guard fits(rule.path, path), fits(rule.fragment, "") else { return false }
        switch rule.query {
        case .any: return true
        case .text(let pattern): return fits(pattern, query ?? "")
        case .items(let patterns):
            let items = (query ?? "").split(at: "&").map { $0.split(at: "=", limit: 2) }
            return patterns.allSatisfy { name, pattern in
                let values = items.filter { $0[0] == name }.map { $0.count == 2 ? $0[1] : "" }
                return !values.isEmpty && values.allSatisfy { fits(pattern, $0) }
            }
        }
    }
}
