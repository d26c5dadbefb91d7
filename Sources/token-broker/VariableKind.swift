import BrokerCore
import Cryptography
import ExternalText
import HTTPServer
import OAuth
import Reactor
import TokenBroker

/// What the text of a variable may be, and which value it stands for.
struct VariableKind<Value: Sendable>: Sendable {
    /// What the text may be, for an operator, such as "1 to 64"; nil where the meaning of the variable says it.
    var range: String?
    /// Whether `NAME_FILE` may name a file with the value.
    var hasFileForm = false
    /// Nil for a variable that is not set, and after a fault that it has noted.
    let read: @Sendable (_ reader: inout EnvironmentReader, _ name: StaticString) -> Value?
    /// The text that stands for a value; nil for a value that no text stands for.
    var text: @Sendable (Value) -> String? = { _ in nil }

    /// Whole numbers.
    private static func integers(
        _ range: ClosedRange<Int>, _ value: @escaping @Sendable (Int) -> Value,
        text: @escaping @Sendable (Value) -> Int
    ) -> Self {
        Self(
            range: "\(range.lowerBound) to \(range.upperBound)",
            read: { reader, name in reader.integer(name, in: range).map(value) }, text: { "\(text($0))" })
    }
}

extension VariableKind where Value == Int {
    static func count(_ range: ClosedRange<Int>) -> Self { integers(range, { $0 }, text: { $0 }) }

    /// The number of bytes that so many MiB are.
    static func megabytes(_ range: ClosedRange<Int>) -> Self { integers(range, { $0 << 20 }, text: { $0 >> 20 }) }
}

extension VariableKind where Value == Int? {
    /// A maximum count; nil for 0.
    static let limit = integers(0...10_000_000, { $0 == 0 ? nil : $0 }, text: { $0 ?? 0 })
}

extension VariableKind where Value == Duration {
    static func seconds(_ range: ClosedRange<Int>) -> Self { units(range, of: 1) }
    static func days(_ range: ClosedRange<Int>) -> Self { units(range, of: 86_400) }

    private static func units(_ range: ClosedRange<Int>, of seconds: Int64) -> Self {
        integers(range, { .seconds(Int64($0) * seconds) }, text: { Int($0.components.seconds / seconds) })
    }
}

extension VariableKind where Value == Duration? {
    /// Days up to ten years; nil for 0.
    static let lifetime = integers(
        0...3650, { $0 == 0 ? nil : .seconds(Int64($0) * 86_400) },
        text: { Int(($0?.components.seconds ?? 0) / 86_400) })
}

extension VariableKind where Value == Rate? {
    /// A rate per second with a burst of four seconds' worth; nil for 0.
    static let rate = rate { Rate(perSecond: $0) }
    /// A rate per second with a burst of one second's worth; nil for 0.
    static let evenRate = rate { Rate(perSecond: $0, burst: $0) }

    private static func rate(_ rate: @escaping @Sendable (Int) -> Rate) -> Self {
        integers(0...1_000_000, { $0 == 0 ? nil : rate($0) }, text: { $0?.perSecond ?? 0 })
    }
}

extension VariableKind where Value == Bool {
    static let bool = Self(read: { $0.bool($1) }, text: { "\($0)" })
}

extension VariableKind where Value: RawRepresentable<String> & CaseIterable {
    static var choice: Self { Self(read: { $0.choice($1, Value.self) }, text: { $0.rawValue }) }
}

extension VariableKind where Value == SocketAddress {
    /// - Parameter example: of an address and a port, for an operator.
    static func address(suchAs example: String) -> Self {
        Self(
            read: { reader, name in
                reader.value(name, rule: "must be a numeric address and a port, such as \(example)") { text in
                    SocketAddress(numericHostAndPort: text.text)
                }
            }, text: { "\($0)" })
    }
}

extension SocketAddress {
    /// Reads `127.0.0.1:8080` or `[::]:8080`.
    fileprivate init?(numericHostAndPort text: String) {
        guard let colon = text.lastIndex(of: ":"), let port = UInt16(text[text.index(after: colon)...]) else {
            return nil
        }
        var host = text[..<colon]
        if host.hasPrefix("["), host.hasSuffix("]") { host = host.dropFirst().dropLast() }
        self.init(numericHost: String(host), port: port)
    }
}

extension VariableKind where Value == String {
    static let text = Self(read: { $0.text($1) })

    /// The variable's value, or the content of the file that its `_FILE` form names: other users must not be able to change that
    /// file, and a file that they can read is told of.
    static let secret = Self(hasFileForm: true, read: { $0.secret($1) })

    /// The same for what is no secret, with the newlines at its end.
    static let document = Self(hasFileForm: true, read: { $0.document($1) })
}

extension VariableKind where Value == AdminKeys {
    static let adminKeys = Self(
        hasFileForm: true,
        read: { reader, name in
            guard let text = reader.secret(name) else { return nil }
            do throws(AdminKeys.Fault) {
                return try AdminKeys(parsing: SecretBytes(utf8: text))
            } catch {
                reader.note(name, "\(error)")
                return nil
            }
        })
}

extension VariableKind where Value == AuditTrail.Reads {
    static let auditReads = Self(
        read: { reader, name in
            reader.value(name, rule: "must be none, all, or a number from 2 to 1000000: one read in so many") { text in
                switch text {
                case "none": return AuditTrail.Reads.none
                case "all": return .all
                default:
                    let count = text.utf8.count <= 7 ? WholeNumber.read(text.utf8.span) : nil
                    return count.flatMap { (2...1_000_000).contains($0) ? .oneIn(Int($0)) : nil }
                }
            }
        },
        text: { reads in
            switch reads {
            case .none: "none"
            case .all: "all"
            case .oneIn(let count): "\(count)"
            }
        })
}

extension VariableKind where Value == [NetworkRange] {
    /// Addresses and CIDR ranges, separated by commas.
    static let networks = Self(read: { $0.networks($1) })
}

extension VariableKind where Value == TrustedProxies {
    static let trustedProxies = Self(read: { reader, name in reader.networks(name).map { TrustedProxies($0) } })
}

extension VariableKind where Value == [String] {
    /// Absolute paths of directories, separated by commas.
    static let directories = Self(
        read: { reader, name in
            let rule = "must be a comma-separated list of absolute paths of directories, such as /run/secrets,/srv/keys"
            return reader.value(name, rule: rule) { list in
                let paths = list.text.split(separator: ",", omittingEmptySubsequences: false).map { path in
                    String(path.drop { $0 == " " }.reversed().drop { $0 == " " }.reversed())
                }
                let isUsable = paths.allSatisfy { path in
                    let names = path.split(separator: "/")
                    return path.hasPrefix("/") && !names.isEmpty && !names.contains("..")
                }
                return isUsable ? paths : nil
            }
        })
}

extension VariableKind where Value == CommonVariable {
    /// A variable that many programs read.
    static let common = Self(read: { reader, name in reader.common(name) })
}

extension VariableKind where Value == TextSource {
    /// A value that the variable has, or a file that its `_FILE` form names.
    static let source = Self(hasFileForm: true, read: { reader, name in reader.source(name) })
}
