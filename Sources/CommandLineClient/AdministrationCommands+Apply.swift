import ExternalText
import JSON

/// `token-broker apply`.
extension AdministrationCommands {
    static let apply = CommandSpecification(
        "apply", "make tenants, keys, apps and providers what a file says",
        discussion:
            "The file is YAML or JSON: tenants by their names, each with the members of its configuration, and with keys and clients "
            + "by their names; and providers by their names. The difference is shown first.\n\n"
            + "Of tenants and apps, members that the file does not name stay, and null unsets one; a provider's profile is "
            + "replaced as a whole. Nothing is deleted. A client secret or another secret in the file is set where the broker has none; "
            + "where it has one it cannot be compared, since the broker does not tell it, and is set with --secrets only. An app that "
            + "is changed by someone else between the comparison and its step is left as it is. New API keys are printed, and never again; a key of several tenants stands below one of "
            + "them. If a step fails, what was done before it stays, and the command can be run again.\n\n"
            + "Of YAML it reads mappings, lists, texts, numbers, booleans, null, quotation marks, comments, and brackets on one "
            + "line. It refuses anchors, tags and texts of several lines.",
        options: [
            .init("file", "FILE", "what it shall be; also -f FILE; - is standard input"),
            .init("secrets", nil, "also set the secrets of which the broker has some already"),
            .init("dry-run", nil, "show the difference only"),
            .init("exit-code", nil, "with --dry-run: status 0 where nothing differs, and 7 where something does"),
            .init("yes", nil, "apply it without asking"),
        ],
        examples: [
            .init("token-broker apply -f broker.yaml", "show the difference, ask, and apply it"),
            .init("token-broker apply -f broker.yaml --dry-run", "show the difference only"),
            .init(
                "token-broker apply -f broker.yaml --dry-run --exit-code", "for a program that watches for differences"),
            .init("token-broker apply -f broker.yaml --yes --json", "a line of JSON for each step, with new keys"),
        ],
        body: { invocation throws(CommandError) in
            guard let path = invocation["file"] else { throw invocation.wrong("which file? Name it with -f FILE") }
            let isDryRun = invocation.has("dry-run")
            if invocation.has("exit-code"), !isDryRun { throw invocation.wrong("--exit-code is for --dry-run only") }
            let file = try ApplyFile(try GivenFile.textOrInput(path, limit: 4 << 20, invocation), path: path)
            let api = try invocation.broker()
            let plan = ApplyPlan(file, api, setsSecrets: invocation.has("secrets"))
            let steps = try await plan.steps()
            if steps.isEmpty { return invocation.terminal.note("Nothing differs from \(path).") }
            showPlan(steps, isDryRun: isDryRun, invocation)
            if isDryRun {
                guard invocation.has("exit-code") else { return }
                throw CommandError(
                    .partly,
                    steps.count == 1 ? "1 thing differs from \(path)" : "\(steps.count) things differ from \(path)",
                    next: invocation.again(["dry-run": [], "exit-code": []]))
            }
            try invocation.terminal.checkOutput()
            try invocation.confirm(
                steps.count == 1 ? "Apply this change?" : "Apply these \(steps.count) changes?")
            try await carryOut(steps, plan, invocation)
        })

    /// The difference: on standard output for people; for programs, what is applied is told step by step.
    private static func showPlan(_ steps: [ApplyPlan.Step], isDryRun: Bool, _ invocation: Invocation) {
        if invocation.printsJSON, isDryRun {
            for step in steps { printStep(step, apiKey: nil, isApplied: false, invocation) }
            return
        }
        for step in steps {
            let lines = ["\(step.isNew ? "+" : "~") \(step.title)"] + step.difference.lines.map { "    " + $0 }
            for line in lines {
                if invocation.printsJSON { invocation.terminal.note(line) } else { invocation.terminal.print(line) }
            }
        }
    }

    private static func carryOut(
        _ steps: [ApplyPlan.Step], _ plan: ApplyPlan, _ invocation: Invocation
    ) async throws(CommandError) {
        for (index, step) in steps.enumerated() {
            let answer: BrokerAPI.Answer
            do throws(CommandError) {
                answer = try await plan.carryOut(step)
            } catch {
                let before =
                    index == 0
                    ? "Nothing was applied." : "Applied before it, and kept: \(index) of \(steps.count) steps."
                throw CommandError(
                    index == 0 ? error.status : .partly, "\(step.title): \(error.text)\n\(before)",
                    next: error.next ?? invocation.again())
            }
            let value = try answer.json()
            let key = value["api_key"]?.string?.text
            if invocation.printsJSON {
                printStep(step, apiKey: key, isApplied: true, invocation)
            } else if let key {
                invocation.terminal.print(TextTable.shown("\(step.title): \(key)"))
            }
            try checkPrinted(value, tenant: step.tenant, invocation)
            if step.kind == .tenant { noteWarnings(value, invocation) }
        }
        invocation.terminal.note(steps.count == 1 ? "1 change is applied." : "\(steps.count) changes are applied.")
    }

    private static func printStep(
        _ step: ApplyPlan.Step, apiKey: String?, isApplied: Bool, _ invocation: Invocation
    ) {
        let line = JSONWriter.object { writer in
            writer.member("action", step.isNew ? "create" : "change")
            writer.member("kind", step.kind.rawValue)
            writer.memberIfPresent("tenant", step.tenant)
            writer.member("name", step.name)
            writer.name("members")
            writer.object { writer in
                for member in step.difference.members {
                    writer.name(member.name.text)
                    writer.object { writer in
                        if SecretMembers.whole.contains(member.name) { return writer.member("is_secret", true) }
                        writer.member("from", SecretMembers.shown(member.name, member.old ?? .null))
                        writer.member("to", SecretMembers.shown(member.name, member.new))
                    }
                }
            }
            writer.member("applied", isApplied)
            writer.memberIfPresent("api_key", apiKey)
        }
        invocation.terminal.print(json: line)
    }
}
