import BrokerTesting
import ExternalText
import FoundationEssentials
import JSON
import Testing

@testable import CommandLineClient

/// `token-broker apply` in front of a broker.
@Suite(.timeLimit(.minutes(3)))
struct `Applying a file` {
    private static let text = """
        providers:
          acme:
            title: Acme ID
            documentation: https://acme.example/oauth
            as_of: '2026-11-29'
            required: [client_id]
            endpoints: {authorization: https://acme.example/authorize, token: https://acme.example/token}
            rotation: always
        tenants:
          music:
            provider: acme
            client_id: 4bf3
            scopes: [b, a]
            keys:
              player:
                permissions: [credentials:read, login]
                storage_keys:
                  - team-a.*
            clients:
              player-android:
                redirect_uris:
                  - https://b.example.com/redirect
                session_days: 30
        """

    @Test func `shows the difference, asks, applies it, and finds none afterwards`() async throws {
        let broker = try await AdministeredBroker()
        let path = try broker.file("broker.yaml", Self.text)
        let shown = await broker.run("apply -f \(path) --dry-run")
        #expect(shown.status == .done, "\(shown.errors)")
        for title in ["+ provider acme", "+ tenant music", "+ client music/player-android", "+ key music/player"] {
            #expect(shown.output.contains(title), "\(shown.output)")
        }
        #expect(await broker.run("tenants show music").status == .notFound)
        #expect(await broker.run("apply -f \(path)").status == .usage)
        #expect(await broker.run("apply -f \(path)", answers: ["n"], canAsk: true).status == .failed)
        #expect(await broker.run("tenants show music").status == .notFound)

        let applied = await broker.run("apply --file \(path)", answers: ["y"], canAsk: true)
        #expect(applied.status == .done, "\(applied.errors)")
        #expect(applied.output.contains("key music/player: tb_"))
        let tenant = await broker.run("tenants show music --json").json
        #expect(tenant["scopes"] == .array([.string("a"), .string("b")]))
        #expect(
            await broker.run("clients show player-android --tenant music --json").json["session_days"] == .integer(30))
        let key = await broker.run("keys list --tenant music --json").json
        #expect(key["storage_keys"] == .array([.string("team-a.*")]))

        let again = await broker.run("apply -f \(path) --yes")
        #expect(again.status == .done && again.output.isEmpty, "\(again.output)")
        #expect(again.errors.contains("Nothing differs"))
    }

    @Test func `changes what differs only, a profile and its tenant at once`() async throws {
        let broker = try await AdministeredBroker()
        var path = try broker.file("broker.yaml", Self.text)
        #expect(await broker.run("apply -f \(path) --yes").status == .done)
        _ = await broker.run("tenants set music proactive_refresh:=600")
        let changed = Self.text.replacing("session_days: 30", with: "session_days: 40")
            .replacing("scopes: [b, a]", with: "scopes: [a]").replacing("rotation: always", with: "rotation: never")
        path = try broker.file("changed.yaml", changed)
        let applied = await broker.run("apply -f \(path) --yes --json")
        #expect(applied.status == .done, "\(applied.errors)")
        let steps = try applied.output.split(separator: "\n").map { try JSONValue(parsing: Array($0.utf8)) }
        #expect(steps.map { $0["kind"]?.string } == ["provider", "tenant", "client"])
        #expect(steps.allSatisfy { $0["action"] == .string("change") && $0["applied"] == .bool(true) })
        let tenant = await broker.run("tenants show music --json").json
        #expect(tenant["scopes"] == .array([.string("a")]))
        // What the file does not name stays.
        #expect(tenant["proactive_refresh"] == .integer(600))
        #expect(await broker.run("apply -f \(path) --yes").errors.contains("Nothing differs"))
    }

    @Test func `does not make a key anew that may do something else`() async throws {
        let broker = try await AdministeredBroker()
        var path = try broker.file("broker.yaml", Self.text)
        #expect(await broker.run("apply -f \(path) --yes").status == .done)
        path = try broker.file("changed.yaml", Self.text.replacing(", login]", with: "]"))
        let refused = await broker.run("apply -f \(path) --yes")
        #expect(refused.status == .refused)
        #expect(refused.errors.contains("Try: token-broker keys delete "), "\(refused.errors)")
        #expect(refused.output.isEmpty)
    }

    @Test func `says what was done before a step that fails, and can be run again`() async throws {
        let broker = try await AdministeredBroker()
        let text = """
            tenants:
              one: {provider: spotify, client_id: x}
              two: {provider: spotify, client_idd: x}
            """
        var path = try broker.file("broker.yaml", text)
        let failed = await broker.run("apply -f \(path) --yes")
        #expect(failed.status == .partly)
        #expect(failed.errors.contains("tenant two: "))
        #expect(failed.errors.contains("1 of 2 steps"))
        #expect(failed.errors.contains("client_idd: is not a known member"))
        #expect(await broker.run("tenants show one").status == .done)
        path = try broker.file("mended.yaml", text.replacing("client_idd", with: "client_id"))
        let mended = await broker.run("apply -f \(path) --yes")
        #expect(mended.status == .done, "\(mended.errors)")
        #expect(mended.output.hasPrefix("+ tenant two\n"))
    }

    @Test func `sets a secret where there is none, or where it is told to, and never shows it`() async throws {
        let broker = try await AdministeredBroker()
        let path = try broker.file(
            "broker.json", #"{"tenants": {"b": {"provider": "spotify", "client_id": "x", "client_secret": "s3cr3t"}}}"#)
        for words in ["", " --secrets"] {
            let applied = await broker.run("apply -f \(path) --yes\(words)")
            #expect(applied.status == .done && applied.output.contains("client_secret: (secret)"), "\(applied.errors)")
            #expect(!applied.output.contains("s3cr3t") && !applied.errors.contains("s3cr3t"))
        }
        #expect(await broker.run("apply -f \(path) --yes").errors.contains("Nothing differs"))
        let lines = await broker.run("apply -f \(path) --yes --json --secrets")
        #expect(lines.json["members"]?["client_secret"] == .object(["is_secret": .bool(true)]))
        #expect(await broker.run("tenants show b --json").json["client_secret_set"] == .bool(true))
    }

    @Test func `tells a program by its status whether something differs`() async throws {
        let broker = try await AdministeredBroker()
        let path = try broker.file("broker.yaml", Self.text)
        let differs = await broker.run("apply -f \(path) --dry-run --exit-code")
        #expect(differs.status == .partly)
        #expect(differs.errors.contains("4 things differ from \(path)\nTry: token-broker apply --file \(path)\n"))
        #expect(await broker.run("apply -f \(path) --yes").status == .done)
        #expect(await broker.run("apply -f \(path) --dry-run --exit-code").status == .done)
        #expect(await broker.run("apply -f \(path) --yes --exit-code").status == .usage)
    }

    @Test func `leaves an app as it is that was changed after the comparison`() async throws {
        let broker = try await AdministeredBroker()
        var path = try broker.file("broker.yaml", Self.text)
        #expect(await broker.run("apply -f \(path) --yes").status == .done)
        path = try broker.file("changed.yaml", Self.text.replacing("session_days: 30", with: "session_days: 40"))
        let api = try broker.api()
        let file = try ApplyFile(String(decoding: Data(contentsOf: URL(filePath: path)), as: UTF8.self), path: path)
        let plan = ApplyPlan(file, api, setsSecrets: false)
        let step = try #require(try await plan.steps().first)
        let changed = await broker.run(
            "clients create player-android --tenant music --redirect-uri https://b.example.com/redirect --set session_days:=50"
        )
        #expect(changed.status == .done)
        let refused = await #expect(throws: CommandError.self) { _ = try await plan.carryOut(step) }
        #expect(refused?.text.contains("was changed meanwhile") == true)
        let shown = await broker.run("clients show player-android --tenant music --json")
        #expect(shown.json["session_days"] == .integer(50))
        _ = try await plan.carryOut(try #require(try await plan.steps().first))
    }
}
