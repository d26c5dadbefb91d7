import BrokerTesting
import CommandLineClient
import FoundationEssentials
import Testing

@Suite struct `The page of the manual` {
    @Test func `has all commands and options`() async {
        let (status, terminal) = await CommandLines.run(["man"])
        #expect(status == .done)
        let page = terminal.output
        #expect(page.hasPrefix(".TH TOKEN\\-BROKER 1 "))
        for command in CommandCatalog.all {
            #expect(
                page.contains(".SS \"token\\-broker \(command.name.replacing("-", with: "\\-"))"), "\(command.name)")
            for option in command.allOptions {
                #expect(page.contains(".B \"\\-\\-\(option.name.replacing("-", with: "\\-"))"), "\(option.name)")
            }
        }
        // A text that begins with a dot or an apostrophe would be taken for a request.
        let requests = [".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I", ".RI", ".nf", ".fi", ".RS", ".RE", ".nh", ".ad"]
        for line in page.split(separator: "\n") where line.hasPrefix(".") || line.hasPrefix("'") {
            #expect(requests.contains(String(line.prefix { $0 != " " })), "\(line)")
        }
        #expect(page.utf8.allSatisfy { $0 < 0x80 })
    }

    @Test(arguments: [
        ["mandoc", "-Tlint", "-W", "error"], ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"],
    ])
    func `is accepted by what shows it`(command: [String]) async throws {
        guard FileManager.default.isExecutableFile(atPath: "/usr/bin/\(command[0])") else { return }
        let (_, terminal) = await CommandLines.run(["man"])
        let path = StoreFixtureDirectory().path + ".1"
        try Data(terminal.output.utf8).write(to: URL(filePath: path))
        defer { try? FileManager.default.removeItem(atPath: path) }
        let process = try await TestProcess.start(
            ["/bin/sh", "-c", #"exec "$@" 2>&1 >/dev/null"#, "sh"] + command + [path],
            environment: ["LC_ALL": "C.UTF-8"])
        #expect(await process.exitStatus() == 0, "\(process.lines)")
        #expect(process.lines.isEmpty, "\(process.lines)")
    }
}
