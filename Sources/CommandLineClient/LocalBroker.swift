import ExternalText
import HTTPSClient
import JSON
package import Reactor

/// A broker of this machine with a data directory. It says where it listens in a file of the directory, which it holds as long as
/// it serves (`HeldFile`), beside the operator's key: commands take both from there. What else listens at the address while
/// the broker is down is not sent the key.
package struct LocalBroker: Sendable, Equatable {
    package let directory: String
    /// Where it listens: `http://127.0.0.1:8080`.
    package let url: String
    /// Whether the operator's key is the one in the directory. It is not where the variables have named another one.
    let hasOwnKey: Bool

    /// The names of the files in the directory.
    private static let addressName = "address"
    private static let keyName = "admin.key"

    /// As commands of this machine reach it; one for all addresses stands for the loopback address.
    package static func url(of address: SocketAddress, isTLS: Bool) -> String {
        "\(isTLS ? "https" : "http")://\(address.reachable)"
    }

    /// Says where a broker listens, for as long as the result is held. The calls block.
    /// - Parameter hasOwnKey: whether it has made the operator's key itself.
    package static func announce(
        in directory: String, at address: SocketAddress, isTLS: Bool, hasOwnKey: Bool
    ) throws(SystemError) -> HeldFile {
        let document = JSONWriter.object { writer in
            writer.member("url", url(of: address, isTLS: isTLS))
            writer.member("place", NetworkPlace.current)
            writer.member("admin_key", hasOwnKey)
        }
        return try HeldFile("\(directory)/\(addressName)", document + [0x0a])
    }

    /// The broker that serves from a directory now; nil for none.
    /// - Throws: where that cannot be known, such as of a directory of another user.
    package static func serving(_ directory: String) throws(SystemError) -> LocalBroker? {
        guard let bytes = try HeldFile.read("\(directory)/\(addressName)", limit: 4096),
            let value = try? JSONValue(parsing: bytes), value["place"]?.string?.text == NetworkPlace.current,
            let url = value["url"]?.string?.text
        else { return nil }
        return LocalBroker(directory: directory, url: url, hasOwnKey: value["admin_key"]?.bool == true)
    }

    /// Whether it still serves where it did.
    var isServing: Bool { (try? Self.serving(directory)) == self }

    /// The operator's key; nil where the directory has none that is the broker's.
    var apiKey: String? { hasOwnKey ? GivenFile.firstLine(of: "\(directory)/\(Self.keyName)") : nil }

    /// The address to use for a URL that a person has written for this broker; nil for another server's. For `localhost` it is the
    /// broker's own address, since something else may listen at the other loopback address; not with TLS, where the certificate
    /// names the host.
    func address(for text: String) -> String? {
        guard let wanted = URLTarget(ofBroker: text), let own = URLTarget(ofBroker: url),
            wanted.pathAndQuery == "/", wanted.scheme == own.scheme, wanted.port == own.port
        else { return nil }
        if wanted.host == own.host { return url }
        guard wanted.host == "localhost", LocalNames.isLoopback(own.host) else { return nil }
        return own.scheme == .http ? url : text
    }
}

/// The brokers of this machine that a person can know of.
struct LocalBrokers {
    private(set) var serving: [LocalBroker] = []
    /// Directories that are another user's.
    private(set) var closed: [String] = []
    /// Where to look.
    let directories: [String]

    init(_ environment: [String: String]) {
        directories = UserDirectories.dataDirectories(environment)
        for directory in directories {
            do throws(SystemError) {
                if let broker = try LocalBroker.serving(directory) { serving.append(broker) }
            } catch {
                closed.append(directory)
            }
        }
    }

    /// The only one.
    /// - Throws: `configuration` where there are two, which could be meant.
    func only() throws(CommandError) -> LocalBroker? {
        if serving.count < 2 { return serving.first }
        let names = serving.map { "\($0.url) (\($0.directory))" }.joined(separator: " and ")
        throw CommandError(
            .configuration, "there are two brokers on this machine, \(names): say which",
            next: "export TOKEN_BROKER_DATA_DIR=" + ShellWord.quoted(serving[0].directory))
    }
}

/// Where a broker on this machine keeps its data.
package enum UserDirectories {
    /// Of the service.
    package static let dataOfService = "/var/lib/token-broker"

    /// Of a broker that a person has started with `token-broker up`: `XDG_DATA_HOME`, else `~/.local/share`.
    package static func dataOfUser(_ environment: [String: String]) -> String? {
        (environment.text("XDG_DATA_HOME") ?? environment.text("HOME").map { $0 + "/.local/share" }).map {
            $0 + "/token-broker"
        }
    }

    /// The directories in which the operator's key may be, the likeliest first.
    package static func dataDirectories(_ environment: [String: String]) -> [String] {
        if let directory = environment.text("TOKEN_BROKER_DATA_DIR") { return [directory] }
        return [dataOfUser(environment), dataOfService].compactMap(\.self)
    }
}

extension SocketAddress {
    /// As a client on the same machine reaches it.
    fileprivate var reachable: SocketAddress {
        guard ip.isUnspecified else { return self }
        switch ip {
        case .v4: return SocketAddress(ip: .v4([127, 0, 0, 1]), port: port)
        case .v6: return SocketAddress(ip: .v6([UInt8](repeating: 0, count: 15) + [1], scope: 0), port: port)
        }
    }
}
