import ExternalText
import HTTPSClient
import OAuth
import Reactor

/// What a command line, a variable or a context says of a broker, before anything of it is sent or kept.
enum GivenWords {
    /// Whether an address is that of a broker: http or https, a host, and a path where the broker has one.
    /// - Parameter status: of the error.
    /// - Throws: where it is none. An address with a user's name or password in it is never repeated.
    static func checkAddress(_ url: String, _ status: ExitStatus) throws(CommandError) {
        let complaint: String
        if isConfidential(url) {
            complaint = "the broker's address has a user name or a password in it, which does not belong there"
        } else if url.contains("?") || url.contains("#") {
            complaint = "\(url) has a query or a fragment, which the address of a broker has not"
        } else if let port = URLTarget.refusedPort(of: url + "/") {
            complaint = "\(url): no HTTP answers at port \(port), which belongs to another protocol"
        } else if URLTarget(url + "/") == nil {
            let meant = "http\(LocalNames.isLoopback(ofURL: "http://" + url) ? "" : "s")://\(url)"
            complaint =
                !url.contains("://") && URLTarget(meant + "/") != nil
                ? "\(url) has no scheme: write \(meant)" : "\(url) is no http or https address of a broker"
        } else {
            return
        }
        throw CommandError(status, complaint, next: status == .usage ? nil : "token-broker context list")
    }

    /// Whether an address may name a user, with a password.
    static func isConfidential(_ url: String) -> Bool {
        let rest = url.firstRange(of: "://").map { url[$0.upperBound...] } ?? url[...]
        return rest.prefix { !"/?#".contains($0) }.contains("@")
    }

    /// An address for people. One with a password is not shown, and is refused where it is used.
    static func shown(address: String) -> String { isConfidential(address) ? "(has a password)" : address }

    /// - Parameter place: where the key stands, as the subject of a sentence. The key is never repeated.
    /// - Throws: for what no API key is and no request can have: white space, control characters, letters outside of ASCII.
    static func checkKey(_ key: String, _ place: String, _ status: ExitStatus) throws(CommandError) {
        if TokenText.isSendable(WireText(key)) { return }
        throw CommandError(status, "\(place) is no API key: these have visible characters of ASCII, without spaces")
    }

    /// A name of a tenant or of a context.
    /// - Throws: for an empty one, and one with control characters.
    static func checkName(_ name: String, _ place: String, _ status: ExitStatus) throws(CommandError) {
        if name.isEmpty { throw CommandError(status, "\(place) is empty") }
        if TextTable.shown(name) == name { return }
        throw CommandError(status, "\(place) has control characters: \(TextTable.shown(name))")
    }
}
