import OAuth

/// An environment variable that has the prefix of this program's variables and is not one of them.
struct UnknownVariable: Sendable, Equatable {
    /// The name, with `?` for characters that this program's variables do not contain.
    let name: String
    /// The variable that was most likely intended.
    let suggestion: String?

    init(_ name: String) {
        let shown = name.utf8.prefix(100).map { Self.isPlain($0) ? $0 : UInt8(ascii: "?") }
        self.name = String(decoding: shown, as: UTF8.self)
        let plain = String(name.dropLast("_FILE".utf8.count))
        if name.hasSuffix("_FILE"), Variable.ownNames.contains(plain) {
            suggestion = plain
            return
        }
        let nearest = Variable.ownNames.sorted().map { (name: $0, distance: Self.distance(name, $0)) }
            .min { $0.distance < $1.distance }
        // Up to a third of the name without the prefix may be wrong.
        suggestion = nearest.flatMap {
            3 * $0.distance <= max(name.utf8.count, $0.name.utf8.count) - 13 ? $0.name : nil
        }
    }

    var text: String {
        "\(name) is not a variable of token-broker"
            + (suggestion.map { "; did you mean \($0)?" } ?? "; see token-broker help variables")
    }

    /// Whether Kubernetes set the variable. For each service whose name begins with token-broker it sets `…_SERVICE_HOST`,
    /// `…_SERVICE_PORT` and `…_SERVICE_PORT_NAME`, `…_PORT` with an address, and for each port `…_PORT_8080_TCP`, and
    /// that with `_ADDR`, `_PORT` and `_PROTO`.
    static func isOfKubernetes(_ name: String, _ value: String) -> Bool {
        if name.hasSuffix("_SERVICE_HOST") || name.contains("_SERVICE_PORT") { return true }
        let parts = name.utf8.split(separator: UInt8(ascii: "_"), omittingEmptySubsequences: false)
            .compactMap { String($0) }
        if parts.last == "PORT", value.utf8.contains(UInt8(ascii: "/")) { return true }
        return parts.indices.contains { index in
            guard index + 2 < parts.count, parts[index] == "PORT", UInt16(parts[index + 1]) != nil,
                ["TCP", "UDP", "SCTP"].contains(parts[index + 2])
            else { return false }
            let rest = parts[(index + 3)...]
            return rest.isEmpty || rest.count == 1 && ["ADDR", "PORT", "PROTO"].contains(rest[index + 3])
        }
    }

    private static func isPlain(_ byte: UInt8) -> Bool {
        byte.isUppercaseLetter || byte.isDigit || byte == UInt8(ascii: "_")
    }

    /// The edit distance: how many characters must be changed, added or removed to turn one text into the other.
    private static func distance(_ left: String, _ right: String) -> Int {
        let (left, right) = (Array(left.utf8.prefix(100)), Array(right.utf8))
        var row = Array(0...right.count)
        for (index, character) in left.enumerated() {
            var diagonal = row[0]
            row[0] = index + 1
            for (place, other) in right.enumerated() {
                let change = diagonal + (character == other ? 0 : 1)
                diagonal = row[place + 1]
                row[place + 1] = min(change, diagonal + 1, row[place] + 1)
            }
        }
        return row[right.count]
    }
}
