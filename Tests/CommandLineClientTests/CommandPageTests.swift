import BrokerTesting
import CommandLineClient
import FoundationEssentials
import Testing

@Suite struct `The page of commands` {
    @Test func `is what token-broker help --markdown prints`() async throws {
        let path = OpenAPIChecker.descriptionPath.replacing("openapi.yaml", with: "Deploy/COMMANDS.md")
        let page = String(decoding: try Data(contentsOf: URL(filePath: path)), as: UTF8.self)
        let (status, terminal) = await CommandLines.run(["help", "--markdown"])
        #expect(status == .done)
        #expect(terminal.output == CommandPage.text)
        let (had, wanted) = (page.split(separator: "\n"), CommandPage.text.split(separator: "\n"))
        let others = zip(had, wanted).first { $0 != $1 }
        #expect(
            page == CommandPage.text,
            "run token-broker help --markdown >Deploy/COMMANDS.md; \(String(describing: others))")
    }

    @Test func `explains every command`() {
        for command in CommandCatalog.all {
            #expect(CommandPage.text.contains("\n### \(command.name)\n"), "\(command.name)")
            for example in command.examples { #expect(CommandPage.text.contains("\n\(example.command)\n")) }
        }
    }
}
