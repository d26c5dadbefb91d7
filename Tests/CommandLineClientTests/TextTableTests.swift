import CommandLineClient
import Testing

@Suite struct `A table` {
    private let long = String(repeating: "x", count: 340)

    private func lines(_ text: String) -> [String] { text.split(separator: "\n").map(String.init) }

    private func table(_ value: String) -> TextTable {
        var table = TextTable("MEMBER", "VALUE", "FROM")
        table.add("error_rules", value, "the profile")
        table.add("name", "n", "you")
        return table
    }

    @Test func `cuts a long cell where a terminal shows it`() {
        let shown = lines(table(long).text(width: 100))
        #expect(shown.allSatisfy { $0.count <= 100 }, "\(shown)")
        #expect(shown[1].hasPrefix("error_rules  xxx") && shown[1].contains("x…  the profile"))
        #expect(shown[2].hasPrefix("name         n  ") && shown[2].hasSuffix("  you"))
    }

    @Test func `is whole where no terminal shows it, and does not move its other rows by one long cell`() {
        let shown = lines(table(long).text())
        #expect(shown[1] == "error_rules  \(long)  the profile")
        #expect(shown[2].count == 13 + 82 + 3)
    }

    @Test func `shows storage keys, identifiers and times whole in a narrow terminal`() {
        var table = TextTable("STORAGE KEY", "ID", "ENDED", "CAUSE")
        table.add("user-42", "0f3b8a6d1c2e4f5a6b7c8d9e", "2026-11-30T09:00:00Z", "revoked")
        let row = lines(table.text(width: 20))[1]
        #expect(row == "user-42      0f3b8a6d1c2e4f5a6b7c8d9e  2026-11-30T09:00:00Z  revoked")
    }

    @Test func `never cuts its last column`() {
        var table = TextTable("MEMBER", "VALUE")
        table.add("redirect_uri", long)
        #expect(lines(table.text(width: 40))[1] == "redirect_uri  \(long)")
    }

    @Test func `is measured by its first rows, and has its header once`() {
        var table = TextTable("A", "B")
        #expect(table.isEmpty)
        table.add("1234", "x")
        #expect(table.nextLines() == "A     B\n1234  x\n")
        #expect(!table.isEmpty)
        table.add("1", "y")
        table.add("123456", "z")
        #expect(table.nextLines() == "1     y\n123456  z\n")
    }
}
