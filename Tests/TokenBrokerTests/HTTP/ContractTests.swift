import BrokerCore
import BrokerTesting
import ExternalText
import FoundationEssentials
import HTTPCodec
import JSON
import Testing
import TokenBroker

@Suite struct `Contract` {
    @Test func `openapi yaml is OpenAPI, and its examples fit their schemas`() async throws {
        let result = try await OpenAPIChecker.run("validate")
        #expect(OpenAPIChecker.texts(result["faults"]) == [])
    }

    @Test func `openapi yaml describes the operations that exist and no other`() async throws {
        let broker = try await BrokerHarness()
        let facts = try await OpenAPIChecker.run("facts")
        let described = OpenAPIChecker.texts(facts["operations"]).sorted()
        let existing = Service.operations(of: broker.broker).map { "\($0.method) \($0.path)" }.sorted()
        #expect(described == existing)
    }

    @Test func `openapi yaml lists every error code with its status`() async throws {
        let facts = try await OpenAPIChecker.run("facts")
        let codes = BrokerError.Code.allCases
        #expect(OpenAPIChecker.texts(facts["codes"]).sorted() == codes.map(\.rawValue).sorted())
        let statuses = facts["statuses"]?.object?.compactMapValues(\.integer)
        #expect(
            statuses == Dictionary(uniqueKeysWithValues: codes.map { (WireText($0.rawValue), Int64($0.status.code)) }))
    }

    @Test func `the broker answers openapi yaml as it stands`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.get, "/openapi.yaml", key: nil)
        let file = try Data(contentsOf: URL(filePath: OpenAPIChecker.descriptionPath))
        #expect(answer.status == 200)
        #expect(answer.fields["Content-Type"] == "application/yaml")
        #expect(answer.body == Array(file))
    }

    @Test func `openapi yaml bears the version of the program`() async throws {
        let facts = try await OpenAPIChecker.run("facts")
        let source = OpenAPIChecker.descriptionPath.replacing(
            "openapi.yaml", with: "Sources/token-broker/Commands.swift")
        let commands = String(decoding: try Data(contentsOf: URL(filePath: source)), as: UTF8.self)
        let version = try #require(facts["version"]?.text)
        #expect(commands.contains(#"static let versionText = "\#(version)""#))
    }
}
