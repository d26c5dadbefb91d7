import BrokerTesting
import ExternalText
import JSON
import OAuth
import Testing

@testable import BrokerCore

@Suite struct `Members of a tenant` {
    /// What a configuration has beside the members of its table.
    private static let provider: Set<String> = [
        "provider", "client_id", "client_secret", "client_secrets", "client_secret_file", "client_assertion_file",
        "private_key", "client_certificate", "client_unique_key", "scopes",
    ]

    @Test func `are those of openapi yaml, in requests and in answers`() async throws {
        let facts = try await OpenAPIChecker.run("facts")
        let names = TenantConfiguration.members.map { $0.name.text }
        let table = Set(names)
        #expect(names.count == table.count, "a member stands in the table twice")
        #expect(Set(OpenAPIChecker.texts(facts["tenant_given"])) == table.union(Self.provider))
        #expect(table.isSubset(of: OpenAPIChecker.texts(facts["tenant_shown"])))
    }
}
