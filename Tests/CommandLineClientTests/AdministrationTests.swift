import BrokerTesting
import CommandLineClient
import ExternalText
import JSON
import Testing

/// The commands of administration in front of a broker.
@Suite(.timeLimit(.minutes(3)))
struct `Administration by the command line` {
    @Test func `makes a tenant by asking for what its provider requires`() async throws {
        let broker = try await AdministeredBroker()
        let made = await broker.run(
            "tenants create zendesk --name desk --scope read --no-browser", answers: ["app", "acme", "s3cr3t"],
            canAsk: true)
        #expect(made.status == .done, "\(made.errors)")
        #expect(made.output.contains("https://broker.example/login/callback"))
        // What the profile has filled in is shown elsewhere.
        #expect(!made.output.contains("zendesk.com"), "\(made.output)")
        #expect(made.errors.contains("https://support.zendesk.com/"))
        #expect(
            made.errors.contains("token-broker tenants show desk") && made.errors.hasSuffix("token-broker login desk\n")
        )
        #expect(!made.output.contains("s3cr3t"))

        let shown = await broker.run("tenants show desk --json").json
        #expect(shown["client_id"] == .string("app"))
        #expect(shown["client_secret_set"] == .bool(true))
        #expect(shown["parameters"]?["subdomain"] == .string("acme"))
        #expect(shown["scopes"] == .array([.string("read")]))
    }

    @Test func `says what a provider requires where there is no one to ask`() async throws {
        let broker = try await AdministeredBroker()
        let refused = await broker.run("tenants create zendesk", answers: ["s3cr3t"])
        #expect(refused.status == .usage)
        #expect(refused.errors.contains("--client-id ID"))
        #expect(refused.errors.contains("--set parameters.subdomain=acme"))
        let line = "tenants create zendesk --client-id app --set parameters.subdomain=acme"
        let secretless = await broker.run(line)
        #expect(secretless.status == .usage)
        #expect(secretless.errors.contains("--secret-file"))
        // A required secret is read from standard input.
        let made = await broker.run(line + " --json", answers: ["s3cr3t"])
        #expect(made.status == .done, "\(made.errors)")
        #expect(made.json["client_secret_set"] == .bool(true))
    }

    @Test func `does not wait for standard input where a provider requires no secret`() async throws {
        let broker = try await AdministeredBroker()
        let made = await broker.run("tenants create spotify --client-id app --json", answers: ["not a secret"])
        #expect(made.status == .done, "\(made.errors)")
        #expect(made.json["client_secret_set"] == .bool(false))
        #expect(made.errors.contains("To set one: token-broker tenants set spotify --secret"), "\(made.errors)")
        let none = await broker.run("tenants create spotify --name none --client-id app --no-secret")
        #expect(!none.errors.contains("--secret"), "\(none.errors)")
        let path = try broker.file("secret", "s3cr3t\n")
        let other = await broker.run("tenants create spotify --name two --client-id app --json --secret-file \(path)")
        #expect(other.json["client_secret_set"] == .bool(true))
        let both = await broker.run(
            "tenants create spotify --name three --client-id app --no-secret --secret-file \(path)")
        #expect(both.status == .usage)
    }

    @Test func `says what is to be done next, the redirect URI first`() async throws {
        let broker = try await AdministeredBroker()
        let made = await broker.run("tenants create github --client-id app --secret-file -", answers: ["s3cr3t"])
        #expect(made.status == .done, "\(made.errors)")
        #expect(
            made.output.split(separator: "\n").map { String($0.prefix { $0 != " " }) } == [
                "MEMBER", "tenant", "client_id", "provider", "client_secret", "redirect_uri",
            ], "\(made.output)")
        let lines = made.errors.split(separator: "\n").map(String.init)
        #expect(lines.first == "First, register this redirect URI at the provider:", "\(made.errors)")
        #expect(lines.contains { $0.hasPrefix("Warning: ") && $0.contains("token-broker providers show github") })
        #expect(!made.errors.contains("GET /") && !made.errors.contains("{"), "\(made.errors)")
        #expect(lines.count <= 9, "\(made.errors)")
        #expect(lines.last == "Next, log a user in: token-broker login github")
        // Its accounts are the broker's own: no user logs in.
        let accounts = await broker.run("tenants create duckduckgo --client-id app")
        #expect(accounts.status == .done, "\(accounts.errors)")
        #expect(!accounts.errors.contains("token-broker login") && !accounts.errors.contains("redirect URI"))
        #expect(accounts.errors.hasSuffix("token-broker tenants check duckduckgo\n"))
    }

    @Test func `refuses a name that is taken, and a provider that is misspelt`() async throws {
        let broker = try await AdministeredBroker()
        #expect(await broker.run("tenants create spotify --client-id one").status == .done)
        let taken = await broker.run("tenants create spotify --client-id two")
        #expect(taken.status == .refused)
        #expect(taken.errors.contains("Try: token-broker tenants set spotify"))
        #expect(await broker.run("tenants show spotify --json").json["client_id"] == .string("one"))
        let misspelt = await broker.run("tenants create spotfy --client-id one")
        #expect(misspelt.status == .notFound)
        #expect(misspelt.errors.contains("did you mean spotify?"))
    }

    @Test func `changes members of a tenant, and leaves the others`() async throws {
        let broker = try await AdministeredBroker()
        _ = await broker.run("tenants create spotify --client-id app --scope a --scope b")
        let changed = await broker.run(
            "tenants set spotify proactive_refresh:=600 authorize_parameters.show_dialog=true --json")
        #expect(changed.status == .done, "\(changed.errors)")
        #expect(changed.json["proactive_refresh"] == .integer(600))
        #expect(changed.json["authorize_parameters"]?["show_dialog"] == .string("true"))
        #expect(changed.json["scopes"] == .array([.string("a"), .string("b")]))
        let removed = await broker.run("tenants set spotify proactive_refresh=null scopes=null")
        #expect(removed.status == .done)
        #expect(removed.errors.contains("Not set any more: "), "\(removed.errors)")
        let secret = await broker.run("tenants set spotify --secret --json", answers: ["s3cr3t"], canAsk: true)
        #expect(secret.json["client_secret_set"] == .bool(true))
        let unset = await broker.run("tenants set spotify client_secret=null --json")
        #expect(unset.json["client_secret_set"] == .bool(false))
        let wrong = await broker.run("tenants set spotify no_such=1")
        #expect(wrong.status == .refused)
        #expect(wrong.errors.contains("/no_such is not a known member."))
        #expect(await broker.run("tenants set spotify").status == .usage)
        #expect(await broker.run("tenants set other a=b").status == .notFound)
    }

    @Test func `lists all pages of tenants, or as many as are wanted`() async throws {
        let broker = try await AdministeredBroker()
        for name in ["one", "two", "three"] {
            #expect(await broker.run("tenants create spotify --name \(name) --client-id app").status == .done)
        }
        let all = await broker.run("tenants list --json")
        #expect(all.output.split(separator: "\n").count == 3)
        let two = await broker.run("tenants list --json --limit 2")
        #expect(two.output.split(separator: "\n").count == 2)
        let table = await broker.run("tenants")
        #expect(table.output.hasPrefix("NAME "))
        #expect(table.output.split(separator: "\n").count == 4)
    }

    @Test func `deletes a tenant after asking only`() async throws {
        let broker = try await AdministeredBroker()
        _ = await broker.run("tenants create spotify --client-id app")
        let unasked = await broker.run("tenants delete spotify")
        #expect(unasked.status == .usage)
        #expect(unasked.errors.contains("--yes"))
        let refused = await broker.run("tenants delete spotify", answers: ["n"], canAsk: true)
        #expect(refused.status == .failed)
        #expect(await broker.run("tenants show spotify").status == .done)
        #expect(await broker.run("tenants delete spotify", answers: ["y"], canAsk: true).status == .done)
        let gone = await broker.run("tenants delete spotify --yes")
        #expect(gone.status == .notFound)
        #expect(gone.errors.contains("Try: token-broker tenants list"))
    }

    @Test func `says which key it has made where that cannot be printed`() async throws {
        let broker = try await AdministeredBroker()
        _ = await broker.run("tenants create spotify --client-id app")
        for words in ["", " --json"] {
            let made = await broker.run("keys create player --tenant spotify --permission login" + words, room: 0)
            #expect(made.status == .failed && made.output.isEmpty)
            let key = await broker.run("keys list --tenant spotify --json").json
            let id = try #require(key["id"]?.string?.text)
            #expect(made.errors.contains("the secret of the API key \(id) was made, and could not be printed: "))
            #expect(made.errors.contains("No space left"), "\(made.errors)")
            #expect(made.errors.contains("token-broker keys delete \(id) --tenant spotify\n"), "\(made.errors)")
            #expect(made.errors.hasSuffix("Try: token-broker keys rotate \(id) --tenant spotify\n"))
            #expect(await broker.run("keys delete \(id) --tenant spotify --yes").status == .done)
        }
        #expect(await broker.run("tenants list", room: 0).status == .failed)
    }

    @Test func `prints a new key alone, and rotates and revokes it`() async throws {
        let broker = try await AdministeredBroker()
        _ = await broker.run("tenants create spotify --client-id app")
        _ = await broker.run("tenants create github --client-id app --secret-file -", answers: ["s3cr3t"])
        let made = await broker.run(
            "keys create player --tenant spotify --permission credentials:read --storage-key team-a.* --expires-in 90d")
        #expect(made.status == .done, "\(made.errors)")
        #expect(made.output.hasPrefix("tb_") && made.output.utf8.count == 47)
        let listed = await broker.run("keys list --tenant spotify --json")
        let key = listed.json
        #expect(key["name"] == .string("player"))
        #expect(key["storage_keys"] == .array([.string("team-a.*")]))
        let id = try #require(key["id"]?.string?.text)

        let rotated = await broker.run("keys rotate \(id) --tenant spotify --overlap 1h")
        #expect(rotated.output.hasPrefix("tb_") && rotated.output != made.output)
        let shown = await broker.run("keys show \(id) --tenant spotify --json").json
        #expect(shown["generation"] == .integer(2))
        #expect(await broker.run("keys rotate \(id) --tenant spotify --replaces 9").status == .refused)

        let shared = await broker.run(
            "keys create both --tenant spotify --also-tenant github --permission login --json")
        #expect(shared.json["tenants"] == .array([.string("github"), .string("spotify")]))

        #expect(await broker.run("keys delete \(id) --tenant spotify --yes").status == .done)
        let gone = await broker.run("keys show \(id) --tenant spotify")
        #expect(gone.status == .notFound)
        #expect(gone.errors.contains("Try: token-broker keys list --tenant spotify"))
    }

    @Test func `takes the name of a key that no other has`() async throws {
        let broker = try await AdministeredBroker()
        _ = await broker.run("tenants create spotify --client-id app")
        let line = "keys create svc --tenant spotify --permission login"
        let first = await broker.run(line + " --json")
        #expect(first.status == .done && !first.errors.contains("Warning"), "\(first.errors)")
        let id = try #require(first.json["id"]?.string?.text)
        #expect(await broker.run("keys show svc --tenant spotify --json").json["id"]?.string?.text == id)
        #expect(await broker.run("keys rotate svc --tenant spotify").output.hasPrefix("tb_"))
        #expect(await broker.run("keys show svc --tenant spotify --json").json["generation"] == .integer(2))

        let second = await broker.run(line + " --json")
        #expect(second.status == .done)
        #expect(second.errors.contains("Warning: there is another key called svc: \(id)"), "\(second.errors)")
        let other = try #require(second.json["id"]?.string?.text)
        for word in ["show", "rotate", "delete"] {
            let refused = await broker.run(
                "keys \(word) svc --tenant spotify" + (word == "delete" ? " --yes" : ""))
            #expect(refused.status == .usage && refused.output.isEmpty)
            #expect(refused.errors.contains("2 keys are called svc: "), "\(refused.errors)")
            #expect(refused.errors.contains(id) && refused.errors.contains(other))
        }
        #expect(await broker.run("keys delete \(other) --tenant spotify --yes").status == .done)
        #expect(await broker.run("keys delete svc --tenant spotify --yes").status == .done)
        #expect(await broker.run("keys list --tenant spotify --json").output.isEmpty)
    }

    @Test func `refuses a key without a permission, with an unknown one, and without a tenant`() async throws {
        let broker = try await AdministeredBroker()
        #expect(await broker.run("keys create x --tenant spotify").status == .usage)
        let wrong = await broker.run("keys create x --tenant spotify --permission credentials:red")
        #expect(wrong.errors.contains("did you mean credentials:read?"))
        #expect(await broker.run("keys create x --permission login").errors.contains("which tenant?"))
        let missing = await broker.run("keys create x --tenant spotify --permission login")
        #expect(missing.status == .notFound)
        #expect(missing.errors.contains("there is no tenant spotify at http://127.0.0.1:"), "\(missing.errors)")
        #expect(missing.errors.hasSuffix("\nTry: token-broker tenants list\n"))
    }

    @Test func `takes the only tenant, and lists them where there are several`() async throws {
        let broker = try await AdministeredBroker()
        _ = await broker.run("tenants create spotify --name one --client-id app")
        let made = await broker.run("keys create x --permission login")
        #expect(made.status == .done, "\(made.errors)")
        // Said to a person only.
        #expect(!made.errors.contains("the only one"))
        let asked = await broker.run("keys list", canAsk: true)
        #expect(asked.errors.contains("The tenant is one, the only one."), "\(asked.errors)")
        // The broker itself asks for the tenant of these.
        #expect(await broker.run("list").status == .done)
        #expect(await broker.run("token").errors.contains("Try: token-broker login one\n"))
        _ = await broker.run("tenants create spotify --name two --client-id app")
        for words in ["keys list", "list", "token", "tenants show"] {
            let refused = await broker.run(words)
            #expect(refused.status == .usage, "\(words)")
            #expect(
                refused.errors.contains("which tenant? Name it with --tenant: there are one, two\nTry: "),
                "\(refused.errors)")
        }
    }

    @Test func `names the rotation to run again where the answer is lost`() async throws {
        let broker = try await AdministeredBroker()
        let lost = await broker.run(
            ["keys", "rotate", "0f3b8a6d1c2e4f5a6b7c8d9e", "--tenant", "t1", "--replaces", "1", "--overlap", "1h"],
            isBrokerThere: false)
        #expect(lost.status == .unreachable)
        #expect(
            lost.errors.contains(
                "Try: token-broker keys rotate 0f3b8a6d1c2e4f5a6b7c8d9e --overlap 1h --replaces 1 --tenant t1"),
            "\(lost.errors)")
    }

    @Test func `registers apps, and sends back what it was shown`() async throws {
        let broker = try await AdministeredBroker()
        _ = await broker.run("tenants create spotify --client-id app")
        let made = await broker.run(
            "clients create player --tenant spotify --redirect-uri https://player.example/redirect --set session_days:=30 --json"
        )
        #expect(made.status == .done, "\(made.errors)")
        #expect(made.json["session_days"] == .integer(30))
        let path = try broker.file("player.json", made.output)
        let again = await broker.run(
            "clients create player --tenant spotify --file \(path) --set session_days:=40 --json")
        #expect(again.status == .done, "\(again.errors)")
        #expect(again.json["session_days"] == .integer(40))
        #expect(again.json["redirect_uris"] == made.json["redirect_uris"])
        #expect(await broker.run("clients list --tenant spotify").output.contains("https://player.example/redirect"))
        #expect(await broker.run("clients create other --tenant spotify --set a=b").status == .refused)
        #expect(await broker.run("clients delete player --tenant spotify --yes").status == .done)
        #expect(await broker.run("clients show player --tenant spotify").status == .notFound)
    }

    @Test func `lists no sessions where there are none, and revokes none that is not there`() async throws {
        let broker = try await AdministeredBroker()
        _ = await broker.run("tenants create spotify --client-id app")
        let none = await broker.run("sessions list --tenant spotify --client player --storage-key a --json")
        #expect(none.status == .done && none.output.isEmpty, "\(none.errors)")
        #expect(await broker.run("sessions revoke none --tenant spotify --yes").status == .notFound)
        #expect(await broker.run("sessions revoke none --biometric-key --tenant spotify --yes").status == .notFound)
    }

    @Test func `puts a profile that it was shown under another name`() async throws {
        let broker = try await AdministeredBroker()
        let shown = await broker.run("providers show spotify --json")
        let path = try broker.file("acme.json", shown.output)
        let added = await broker.run("providers put \(path) --name acme")
        #expect(added.status == .done, "\(added.errors)")
        #expect(added.errors.contains("acme is added"))
        #expect(await broker.run("providers put \(path) --name acme").errors.contains("acme is replaced"))
        #expect(await broker.run("tenants create acme --client-id app").status == .done)
        // A tenant needs it.
        #expect(await broker.run("providers delete acme --yes").status == .refused)
        _ = await broker.run("tenants delete acme --yes")
        #expect(await broker.run("providers delete acme --yes").status == .done)
        #expect(await broker.run("providers show acme").status == .notFound)
        let broken = try broker.file("broken.json", "[1]")
        #expect(await broker.run("providers put \(broken)").status == .refused)
    }
}
