package import ExternalText

/// An address of a profile, in which `{name}` stands for what a tenant brings.
package struct AddressTemplate: Sendable, Equatable {
    private enum Part: Sendable, Equatable {
        case text(String)
        case parameter(WireText)
    }

    private let parts: [Part]

    /// The addresses of a provider that a tenant may replace as a whole.
    package enum Base: String, CaseIterable {
        case loginService = "login_service_base_uri"
        case authService = "auth_service_base_uri"
    }

    /// The name that stands for the client's identifier, in percent encoding.
    package static let clientID: WireText = "client_id"

    /// The longest value of a parameter, in bytes: that of a host name.
    package static let longestValue = 253

    /// Nil for a text with a brace that is not closed, or without a name between braces.
    package init?(_ text: WireText) {
        var parts: [Part] = []
        var rest = text
        while !rest.isEmpty {
            let pieces = rest.split(at: "{", limit: 2)
            if !pieces[0].isEmpty { parts.append(.text(pieces[0].text)) }
            guard pieces.count == 2 else { break }
            let named = pieces[1].split(at: "}", limit: 2)
            guard named.count == 2, !named[0].isEmpty else { return nil }
            parts.append(.parameter(named[0]))
            rest = named[1]
        }
        self.parts = parts
    }

    /// The names of the parameters, those of bases among them.
    package var names: [WireText] {
        parts.compactMap { part in if case .parameter(let name) = part { name } else { nil } }
    }

    /// The text that it was read from.
    package var text: String {
        parts.map { part in
            switch part {
            case .text(let text): text
            case .parameter(let name): "{\(name.text)}"
            }
        }.joined()
    }

    /// The base that the address is below; nil where it is below none.
    package var base: Base? {
        if case .parameter(let name)? = parts.first { Base(name) } else { nil }
    }

    /// The address. Between a base and what follows there is exactly one slash.
    /// - Parameters:
    ///   - joiningSlashes: false for a text that is no address.
    ///   - value: the value of a parameter.
    /// - Returns: nil where a parameter has no value.
    package func filled(joiningSlashes: Bool = true, _ value: (WireText) -> String?) -> String? {
        var address = ""
        for (index, part) in parts.enumerated() {
            switch part {
            case .text(let text):
                let isSecondSlash =
                    joiningSlashes && index > 0 && address.utf8.last == UInt8(ascii: "/")
                    && text.utf8.first == UInt8(ascii: "/")
                address += isSecondSlash ? String(text.dropFirst()) : text
            case .parameter(let name):
                guard let value = value(name) else { return nil }
                address += value
            }
        }
        return address
    }

    /// What is wrong with the value of a parameter; nil where it may stand in a host name or in a path.
    package static func fault(_ value: WireText) -> String? {
        let isUsable =
            (1...longestValue).contains(value.count)
            && value.utf8.allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "._-".utf8.contains($0)
            } && !value.starts(with: "-") && !value.split(at: ".").contains { $0.isEmpty }
        return isUsable
            ? nil
            : "must have 1 to \(longestValue) letters, digits, dots, hyphens and underscores, with no hyphen first, no dot "
                + "at an end and no two dots together"
    }
}
