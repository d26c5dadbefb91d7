package import HTTPCodec
package import Reactor

/// The proxies whose statement about a request's client is believed.
///
/// Each proxy appends the address of its own peer, so the fields are read from the right: the first address that is not a
/// trusted proxy's was seen by a trusted proxy. The addresses to the left of it may be made up by the client, and are
/// ignored.
package struct TrustedProxies: Sendable {
    private let ranges: [NetworkRange]

    /// How many addresses of a request are read.
    private static let longestChain = 32
    /// The longest `for=` of RFC 7239, an IPv6 address in brackets with a port, and room for quotes.
    private static let longestNode = 64

    /// - Parameter ranges: the addresses of the proxies. Without any, no field is believed.
    package init(_ ranges: [NetworkRange] = []) {
        self.ranges = ranges
    }

    package func contains(_ address: NetworkAddress) -> Bool {
        ranges.contains { $0.contains(address) }
    }

    /// The client of a request that a trusted proxy has sent.
    ///
    /// It is the last address in `Forwarded` (RFC 7239) or `X-Forwarded-For` that is not a trusted proxy's, or the first
    /// address when all are. It is `peer` when the fields are missing, malformed at the address that counts, or too long.
    /// It is also `peer` when both fields are present and disagree: then the proxy has passed on one of them as the client
    /// sent it.
    package func client(_ fields: Fields, peer: NetworkAddress) -> NetworkAddress {
        let forwarded = fields.byteValues("Forwarded")
        let older = fields.byteValues("X-Forwarded-For")
        if forwarded.isEmpty { return nearest(older, Self.address(listed:)) ?? peer }
        let client = nearest(forwarded, Self.address(inElement:))
        if older.isEmpty { return client ?? peer }
        return client == nearest(older, Self.address(listed:)) ? client ?? peer : peer
    }

    private func nearest(
        _ values: [ArraySlice<UInt8>], _ address: (ArraySlice<UInt8>) -> NetworkAddress?
    ) -> NetworkAddress? {
        var furthest: NetworkAddress?
        var left = Self.longestChain
        for value in values.reversed() {
            var rest = value
            while !rest.isEmpty {
                let element = Self.removeLastElement(&rest)
                if element.isEmpty { continue }
                guard left > 0, let address = address(element) else { return nil }
                left -= 1
                if !contains(address) { return address }
                furthest = address
            }
        }
        return furthest
    }

    /// Removes the last element of a comma-separated list and returns it trimmed. Commas between double quotes do not
    /// count. Reads from the right, so that the client's part of the list cannot change how a proxy's element is read.
    private static func removeLastElement(_ list: inout ArraySlice<UInt8>) -> ArraySlice<UInt8> {
        var index = list.endIndex
        var isQuoted = false
        while index > list.startIndex {
            let byte = list[index - 1]
            if byte == UInt8(ascii: "\"") { isQuoted.toggle() }
            if byte == UInt8(ascii: ","), !isQuoted { break }
            index -= 1
        }
        let element = list[index...]
        list = index > list.startIndex ? list[..<(index - 1)] : []
        return trimmed(element)
    }

    /// `for` of one element of `Forwarded`: `for=192.0.2.60;proto=http`, `for="[2001:db8::17]:4711"`. Nil when it is
    /// missing, repeated, `unknown` or obfuscated, or the element is malformed.
    private static func address(inElement element: ArraySlice<UInt8>) -> NetworkAddress? {
        var node: ArraySlice<UInt8>?
        var rest = element
        while true {
            guard let equals = rest.firstIndex(of: UInt8(ascii: "=")) else { return nil }
            let name = trimmed(rest[..<equals])
            guard !name.isEmpty, name.allSatisfy(isToken) else { return nil }
            rest = rest[(equals + 1)...]
            let value: ArraySlice<UInt8>
            if rest.first == UInt8(ascii: "\"") {
                guard let end = rest.dropFirst().firstIndex(of: UInt8(ascii: "\"")) else { return nil }
                value = rest[(rest.startIndex + 1)..<end]
                rest = rest[(end + 1)...]
            } else {
                value = rest.prefix { $0 != UInt8(ascii: ";") && !isWhitespace($0) }
                rest = rest[value.endIndex...]
            }
            if name.elementsEqual("for".utf8, by: { $0 | 0x20 == $1 }) {
                if node != nil { return nil }
                node = value
            }
            rest = rest.drop(while: isWhitespace)
            if rest.isEmpty { return node.flatMap(address(ofNode:)) }
            guard rest.first == UInt8(ascii: ";") else { return nil }
            rest = rest.dropFirst()
        }
    }

    /// An element of `X-Forwarded-For`, which has no specified grammar: an address, with or without brackets and port.
    private static func address(listed element: ArraySlice<UInt8>) -> NetworkAddress? {
        NetworkAddress(parsing: element) ?? address(ofNode: element)
    }

    /// `192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]`, `[2001:db8::1]:80` (RFC 7239 §6).
    private static func address(ofNode node: ArraySlice<UInt8>) -> NetworkAddress? {
        guard node.count <= longestNode else { return nil }
        let host: ArraySlice<UInt8>
        let port: ArraySlice<UInt8>
        if node.first == UInt8(ascii: "[") {
            guard let end = node.firstIndex(of: UInt8(ascii: "]")) else { return nil }
            host = node[(node.startIndex + 1)..<end]
            port = node[(end + 1)...]
            guard host.contains(UInt8(ascii: ":")) else { return nil }
        } else {
            host = node.prefix { $0 != UInt8(ascii: ":") }
            port = node[host.endIndex...]
        }
        guard port.isEmpty || port.first == UInt8(ascii: ":") && isPort(port.dropFirst()) else { return nil }
        return NetworkAddress(parsing: host)
    }

    /// Whether the text is a number or an obfuscated port (RFC 7239 §6.3).
    private static func isPort(_ text: ArraySlice<UInt8>) -> Bool {
        guard let first = text.first else { return false }
        if first == UInt8(ascii: "_") { return text.count > 1 && text.allSatisfy(isToken) }
        return text.count <= 5 && text.allSatisfy { (0x30...0x39).contains($0) }
    }

    private static func isWhitespace(_ byte: UInt8) -> Bool { byte == 0x20 || byte == 0x09 }

    /// Whether the byte may be in a parameter's name or in an obfuscated identifier.
    private static func isToken(_ byte: UInt8) -> Bool {
        switch byte {
        case 0x30...0x39, 0x41...0x5a, 0x61...0x7a: true
        case UInt8(ascii: "-"), UInt8(ascii: "_"), UInt8(ascii: "."): true
        default: false
        }
    }

    private static func trimmed(_ text: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
        var text = text.drop(while: isWhitespace)
        while let last = text.last, isWhitespace(last) { text.removeLast() }
        return text
    }
}
