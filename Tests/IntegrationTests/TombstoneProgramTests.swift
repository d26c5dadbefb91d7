import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Postgres
import Reactor
import Testing

@testable import BrokerCore

/// The program on a PostgreSQL database into which rows are inserted again that the program has removed.
@Suite(.timeLimit(.minutes(3))) struct `The program and rows that are put back` {
    private static let tenant = TenantName("t1")!
    private static let credentials = RecordID(.credentials, tenant, key: "default")

    private static func putBack(_ row: StoredRecord, _ store: any RecordStore) async throws {
        let present = try await store.read(row.id)
        try await store.commit([present.map { .replace(row, version: $0.version) } ?? .insert(row)])
    }

    private static func set(_ client: BrokerClient, _ token: String) async throws {
        let answer = try await client.call(
            .put, "/credentials", tenant: "t1",
            body: """
                {"credentials": {"level": "user", "client_id": "c1", "token": "\(token)", "expires": "2999-01-01T00:00:00Z"}}
                """)
        #expect(answer.status == 200, "\(answer.text)")
    }

    private static func logOut(_ client: BrokerClient) async throws {
        #expect(try await client.call(.delete, "/credentials", tenant: "t1").status == 204)
    }

    // H051
    @Test func `honours neither a deleted key nor a logged-out user, until an operator wants the user back`()
        async throws
    {
        let server = try await PostgresServer.shared.value
        let uri = server.uri(database: try await server.makeDatabase())
        let variables = ["DATABASE_URL": uri, "MASTER_KEYS": BrokerHarness.masterKeys]
        let port = try PostgresServer.freePort()
        var process = try await BrokerProcess.start(port: port, variables)
        let client = try BrokerClient(port: port)
        #expect(try await client.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        let made = try await client.call(
            .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["credentials:read"]}"#)
        let id = try #require(made.json["id"]?.text)
        let secret = try #require(made.json["api_key"]?.text)
        try await Self.set(client, "a1")
        let store = try await PostgresRecordStore.open(
            try PostgresServer.configuration(uri), on: PostgresServer.loop, resolver: PostgresServer.resolver)
        let (key, login) = (
            try #require(try await store.read(.apiKey(id, of: Self.tenant))),
            try #require(try await store.read(Self.credentials))
        )
        #expect(try await client.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        try await Self.logOut(client)
        try await Self.putBack(key, store)
        try await Self.putBack(login, store)
        // The process that has ended them, and one that has nothing in memory.
        for isNew in [false, true] {
            if isNew {
                #expect(await process.terminate() == 0)
                // The first one may have stored the logout again.
                try await Self.putBack(login, store)
                process = try await BrokerProcess.start(port: port, variables)
            }
            #expect(try await client.call(.get, "/credentials", key: secret).status == 401)
            let read = try await client.call(.get, "/credentials?policy=local", tenant: "t1")
            #expect(read.json["code"]?.text == "missing_token_container", "\(read.text)")
        }
        #expect(process.lines.contains { $0.contains("record_put_back") && $0.contains(#""record":"api-key""#) })

        // What the operator does who has restored the row of a user deliberately.
        let examined = try await BrokerProcess.run(
            ["doctor"], variables.merging(["ADMIN_KEY": BrokerHarness.adminKey]) { $1 })
        #expect(examined.output.contains("of 1 tenants pin no certificate"), "\(examined.output)")
        let connection = try await PostgresServer.connect(try PostgresServer.configuration(uri))
        _ = try await connection.execute(
            PostgresStatement(
                """
                DELETE FROM token_broker_records WHERE kind = 'tombstone-mark' AND tenant = 't1'
                    AND key = left(encode(sha256('credentials default'), 'hex'), 32)
                """), until: .after(.seconds(10)))
        await connection.close()
        let read = try await client.call(.get, "/credentials?policy=local", tenant: "t1")
        #expect(read.json["token"]?.text == "a1", "\(read.text)")
        #expect(try await client.call(.get, "/credentials", key: secret).status == 401)
        #expect(await process.terminate() == 0)
        await store.close()
        await client.close()
    }
}
