package import HTTPCodec

/// The form on one of the development provider's pages, read as a browser reads it.
package struct ProviderForm: Sendable {
    /// Where it is posted to: a path.
    package let action: String
    /// Its hidden fields.
    package let fields: [FormEncoding.Pair]

    /// Nil for a page without a form.
    package init?(html: String) {
        guard let action = Self.attribute("action", ofTag: Self.tags("form", in: html).first) else { return nil }
        self.action = action
        fields = Self.tags("input", in: html).compactMap { tag in
            guard Self.attribute("type", ofTag: tag) == "hidden", let name = Self.attribute("name", ofTag: tag),
                let value = Self.attribute("value", ofTag: tag)
            else { return nil }
            return FormEncoding.Pair(name, value)
        }
    }

    /// The body that its submission posts, with what the user enters.
    package func submission(_ entered: [FormEncoding.Pair]) -> String {
        FormEncoding.encode(fields + entered)
    }

    private static func tags(_ name: String, in html: String) -> [Substring] {
        html.split(separator: "<").filter { $0.hasPrefix(name + " ") }.map { $0.prefix { $0 != ">" } }
    }

    private static func attribute(_ name: String, ofTag tag: Substring?) -> String? {
        guard let tag, let start = tag.firstRange(of: " \(name)=\"") else { return nil }
        let value = String(tag[start.upperBound...].prefix { $0 != "\"" })
        return value.replacing("&lt;", with: "<").replacing("&gt;", with: ">").replacing("&quot;", with: "\"")
            .replacing("&#39;", with: "'").replacing("&#10;", with: "\n").replacing("&#13;", with: "\r")
            .replacing("&amp;", with: "&")
    }
}
