/// The variables of a program that this one starts.
package enum ChildEnvironment {
    /// Those of this process without its own, which begin with TOKEN_BROKER_ and hold keys, or name files that do: a program is handed
    /// none of them but the broker's address.
    package static func variables(of environment: [String: String]) -> [String: String] {
        environment.filter { !$0.key.utf8.starts(with: "TOKEN_BROKER_".utf8) || $0.key == "TOKEN_BROKER_URL" }
    }
}
