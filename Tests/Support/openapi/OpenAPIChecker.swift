import Glibc
package import JSON

/// Runs `contract.py`, which reads openapi.yaml and holds things against it.
package enum OpenAPIChecker {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    private static let checkout =
        #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast(4).joined(separator: "/")

    /// The description in the checkout.
    package static let descriptionPath = checkout + "/openapi.yaml"
    /// The script that sends a broker what it allows and what it does not.
    package static let fuzzer = checkout + "/Tests/Support/openapi/fuzz"

    /// What the script says to a command.
    /// - Throws: `Failure` when its tools are missing or when it ends without an answer.
    package static func run(_ command: String, _ arguments: String...) async throws -> JSONValue {
        let python = checkout + "/.build-tools/python/bin/python"
        guard unsafe access(python, X_OK) == 0 else {
            throw Failure(description: "\(python) is missing: run Deploy/test once, which installs it")
        }
        let script = checkout + "/Tests/Support/openapi/contract.py"
        return try await DialogueProcess.blocking {
            let process = try DialogueProcess([python, script, command, descriptionPath] + arguments)
            // It reads thousands of answers, beside other tests.
            guard let line = try process.readLine(within: .seconds(300)) else {
                throw Failure(description: "contract.py \(command) ended without an answer; see standard error")
            }
            return try JSONValue(parsing: Array(line.utf8))
        }
    }

    /// The texts of a list in an answer.
    package static func texts(_ value: JSONValue?) -> [String] { value?.array?.compactMap(\.text) ?? [] }
}
